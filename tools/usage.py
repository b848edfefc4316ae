#!/usr/bin/env python3
"""Runs a command and writes how much of the machine it uses, as JSON lines:

    ./ddp usage -o usage.jsonl ./ddp run 03 -n 2 -- --epochs 1
    ./ddp plot --usage usage.jsonl

t: s since the start. cpu: % of one core, rss_mb and read_mb: of the command and all processes that it started.
machine_cpu: % of all cores, all processes. With nvidia-smi, over its GPUs: gpu, mean % of the time in which any kernel
ran, even one that uses little of the GPU; gpu_mb and gpu_watt, sums; gpu_mhz and gpu_celsius, maxima."""
import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from statistics import mean

TICKS = os.sysconf("SC_CLK_TCK")
QUERY = {"gpu": ("utilization.gpu", mean), "gpu_mb": ("memory.used", sum), "gpu_watt": ("power.draw", sum),
         "gpu_mhz": ("clocks.sm", max), "gpu_celsius": ("temperature.gpu", max)}


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:             # the process has ended, or belongs to another user
        return ""


def processes(root):
    """-> {pid: (ticks of processor time, bytes in memory, bytes read)} of a process and its descendants."""
    stats = {int(pid): read(f"/proc/{pid}/stat").rpartition(")")[2].split() for pid in os.listdir("/proc") if pid.isdigit()}
    family, size = {root}, 0
    while len(family) > size:
        size = len(family)
        family |= {pid for pid, stat in stats.items() if stat and int(stat[1]) in family}
    return {pid: (int(stats[pid][11]) + int(stats[pid][12]), int(stats[pid][21]) * os.sysconf("SC_PAGESIZE"),
                  int((read(f"/proc/{pid}/io").split() or [0, 0])[1])) for pid in family if stats.get(pid)}


def machine():
    """-> ticks in which the cores were busy, and all ticks."""
    ticks = [int(n) for n in read("/proc/stat").split("\n")[0].split()[1:8]]
    return sum(ticks) - sum(ticks[3:5]), sum(ticks)


def gpus():
    command = ["nvidia-smi", "--query-gpu=" + ",".join(name for name, _ in QUERY.values()),
               "--format=csv,noheader,nounits"]
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        command += ["-i", os.environ["CUDA_VISIBLE_DEVICES"]]
    if not shutil.which(command[0]):
        return {}
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    columns = zip(*(line.split(", ") for line in lines))
    numbers = {key: [float(n) for n in column if n.replace(".", "").isdigit()] for key, column in zip(QUERY, columns)}
    return {key: round(QUERY[key][1](values), 1) for key, values in numbers.items() if values}


def holds_other_content(path):
    """Only samples, or nothing, may be overwritten: the file may be a checkpoint, or the command's own metrics."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(17) not in (b"", b'{"event": "usage"')


def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)      # PR_SET_PDEATHSIG


def main():
    parser = argparse.ArgumentParser(prog="./ddp usage", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", dest="output", metavar="FILE", default="usage.jsonl", help="default: usage.jsonl")
    parser.add_argument("--every", type=float, metavar="S", default=0.5, help="seconds between two samples (0.5)")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND...")
    args = parser.parse_args()
    if not args.command or not 0 < args.every <= 86400:
        parser.error("--every is a number of seconds above 0, at most 86400" if args.command else "which command? ./ddp usage ./ddp run 01")
    try:
        if holds_other_content(args.output):
            parser.error(f"{args.output} would be overwritten, but it is not a file of samples: give another name")
        with open(args.output, "w", encoding="utf-8") as out, subprocess.Popen(
                args.command, preexec_fn=end_with_parent) as child:
            start = last = time.monotonic()
            before, (busy, total) = {}, machine()
            while child.poll() is None:
                try:
                    child.wait(args.every)
                except subprocess.TimeoutExpired:
                    pass
                except KeyboardInterrupt:   # the command also gets Ctrl-C
                    continue
                now, family, (busy_now, total_now) = time.monotonic(), processes(child.pid), machine()
                if not family or child.returncode is not None:
                    break
                ticks = sum(new[0] - before.get(pid, (0, 0, 0))[0] for pid, new in family.items())
                sample = {"event": "usage", "t": round(now - start, 2), "cpu": round(100 * ticks / TICKS / (now - last), 1),
                          "machine_cpu": round(100 * (busy_now - busy) / max(1, total_now - total), 1),
                          "rss_mb": round(sum(new[1] for new in family.values()) / 1e6, 1),
                          "read_mb": round(sum(new[2] for new in family.values()) / 1e6, 1)}
                print(json.dumps(sample | gpus()), file=out, flush=True)
                before, busy, total, last = family, busy_now, total_now, now
    except OSError as error:
        sys.exit(f"./ddp usage: {error}")
    sys.exit(child.returncode if child.returncode >= 0 else 128 - child.returncode)


if __name__ == "__main__":
    main()
