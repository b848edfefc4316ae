#!/usr/bin/env python3
"""From launch to the first step, from a death to the end of all, and what a checkpoint costs.

    bench_launch.py BUILD DOC [--python PYTHON] [--data FOLDER] [--rounds N] [--kills N] [--quick]

BUILD holds 04_ddp_launcher's launch and train; PYTHON has PyTorch, whose torchrun is started in turn
with ours; FOLDER is CIFAR-10's. Writes the table of docs/benchmarks.md. Called by tools/bench.sh.
"""
import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date

from bench_table import machine, replace_between

HERE = os.path.dirname(os.path.abspath(__file__))
GLOBAL_BATCH = 256


def say(text):
    print(text, flush=True)


def threads_of(ranks):
    return max(1, len(os.sched_getaffinity(0)) // ranks)


# --- until the first step -----------------------------------------------------------------------


def seconds_until(text, command):
    """From the start of the command until a line with this text."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          start_new_session=True) as process:
        found = None
        for line in process.stdout:
            if text in line and found is None:
                found = time.perf_counter() - begin
    if found is None or process.returncode != 0:
        sys.exit(f"bench: no first step (status {process.returncode}): {' '.join(command)}")
    return found


def ours_first(args, ranks):
    command = [f"{args.step}/launch", "--nproc-per-node", str(ranks), "--", f"{args.step}/train",
               "--data", args.data or "synthetic", "-b", str(GLOBAL_BATCH // ranks),
               "--threads", str(threads_of(ranks)), "--max-steps", "1", "-p", "1"]
    return seconds_until("== step:", command)


def torch_first(args, ranks):
    torchrun = os.path.join(os.path.dirname(args.python), "torchrun")
    command = [torchrun, "--standalone", "--nproc-per-node", str(ranks),
               f"{HERE}/bench_torch.py", "launch", "--batch", str(GLOBAL_BATCH // ranks),
               "--threads", str(threads_of(ranks)), "--workers", "1"]
    return seconds_until('"rank": 0', command + (["--data", args.data] if args.data else []))


def measure_first(args):
    """{ranks: (ours, PyTorch's)}, medians of rounds in turns; each begins once unmeasured."""
    found = {}
    for ranks in (1, 2, 4):
        ours, theirs = [], []
        for measured in [False] + [True] * args.rounds:
            a, b = ours_first(args, ranks), torch_first(args, ranks)
            say(f"{ranks} ranks: {a:.2f} s, torchrun {b:.2f} s{'' if measured else ' (unmeasured)'}")
            if measured:
                ours.append(a)
                theirs.append(b)
        found[ranks] = statistics.median(ours), statistics.median(theirs)
    return found


# --- deaths -------------------------------------------------------------------------------------


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]


def one_death(args, ranks):
    """A rank is killed in the middle of training: seconds until it is named, until all are gone."""
    command = [f"{args.step}/launch", "--nproc-per-node", str(ranks), "--", f"{args.step}/train",
               "--arch", "lenet", "--data", "synthetic", "--train-samples", "4096", "-b", "32",
               "--threads", "1", "--epochs", "10000", "-p", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as launch:
        for line in launch.stdout:
            if "== step:" in line:
                break
        # whoever is not read from would stand still
        with subprocess.Popen(["cat"], stdin=launch.stdout, stdout=subprocess.DEVNULL):
            time.sleep(random.uniform(0, 0.3))
            os.kill(random.choice(children(launch.pid)), signal.SIGKILL)
            begin, named = time.perf_counter(), None
            for line in launch.stderr:
                if "was killed by SIGKILL" in line and named is None:
                    named = time.perf_counter() - begin
            launch.wait()
            gone = time.perf_counter() - begin
    if named is None:
        sys.exit("bench: a death was not named")
    return named, gone


def measure_deaths(args):
    found = []
    for i in range(args.kills):
        found.append(one_death(args, 2))
        if (i + 1) % 10 == 0:
            say(f"{i + 1} deaths")
    return list(zip(*found))


# --- checkpoints ----------------------------------------------------------------------------------


def spans(path, name):
    """[(begin, end)] in seconds of a span of the timeline."""
    found, open_spans = [], {}
    with open(path, encoding="utf-8") as file:
        for event in json.load(file):
            stack = open_spans.setdefault((event["pid"], event["tid"]), [])
            if event["ph"] == "B":
                stack.append(event)
            elif event["ph"] == "E" and stack:
                begun = stack.pop()
                if begun["name"] == name:
                    found.append((begun["ts"] / 1e6, event["ts"] / 1e6))
    return found


def measure_checkpoint(args):
    """[(stall, seconds until it is on the disk)] of ResNet-18's, in the middle of training."""
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        command = [f"{args.step}/train", "--data", args.data or "synthetic", "-b", "256",
                   "--save", f"{folder}/net", "--save-every", "20", "--trace", f"{folder}/trace.json",
                   "--max-steps", "110", "--threads", str(threads_of(1))]
        say("$ " + " ".join(command))
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        saves, writes = spans(f"{folder}/trace.json", "save"), spans(f"{folder}/trace.json", "write")
        size = os.path.getsize(f"{folder}/net")
    pairs = list(zip(saves, writes))[:5]        # the last is not in the middle
    return size, [(save[1] - save[0], write[1] - save[0]) for save, write in pairs]


# --- writing --------------------------------------------------------------------------------------


def mark(holds):
    return "✓" if holds else "✗"


def table(args, first, deaths, checkpoint):
    size, costs = checkpoint
    stalls, durable = zip(*costs)
    version = subprocess.run([args.python, "-c", "import torch; print(torch.__version__)"],
                             capture_output=True, text=True, check=True).stdout.strip()
    lines = [f"{machine()}; PyTorch {version}; {date.today()}. Medians of {args.rounds} rounds in turns.",
             "", "| from launch to the end of the first step, s | `launch` | `torchrun` | ratio | wanted |",
             "|---|---:|---:|---:|---|"]
    for ranks, (ours, theirs) in first.items():
        lines.append(f"| {ranks} rank{'s' if ranks > 1 else ''}, global batch {GLOBAL_BATCH} | {ours:.2f} | "
                     f"{theirs:.2f} | {theirs / ours:.1f} | ≥ 5 {mark(theirs >= 5 * ours)} |")
    named, gone = deaths
    lines += ["", f"| a rank is killed, {len(named)} times, ms | median | largest |", "|---|---:|---:|"]
    for what, values in (("until `launch` names it", named), ("until all are gone", gone)):
        lines.append(f"| {what} | {1e3 * statistics.median(values):.0f} | {1e3 * max(values):.0f} |")
    lines += ["", f"| a checkpoint of ResNet-18, {size / 1e6:.1f} MB, ms | median of {len(costs)} | largest |",
              "|---|---:|---:|"]
    for what, values in (("training stands still", stalls), ("until it is on the disk", durable)):
        lines.append(f"| {what} | {1e3 * statistics.median(values):.0f} | {1e3 * max(values):.0f} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("doc")
    parser.add_argument("--python", required=True)
    parser.add_argument("--data")
    parser.add_argument("--folder", help="where checkpoints are written")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    args.step = f"{args.build}/04_ddp_launcher"
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    if args.quick:
        args.rounds, args.kills = 1, 5
    text = table(args, measure_first(args), measure_deaths(args), measure_checkpoint(args))
    replace_between(args.doc, "launch", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
