#!/usr/bin/env python3
"""On the little Slurm cluster: all-reduce between nodes, from srun to the first step, weak scaling.

    bench_slurm.py BUILD DOC [--folder FOLDER] [--rounds N] [--quick]

BUILD holds 06_slurm/train and comm_bench. Writes the part of docs/benchmarks.md that is called slurm, and
all_reduce.csv into FOLDER, for tools/scaling_model fit. Called by tools/bench.sh.
"""
import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from datetime import date

from bench_launch import seconds_until
from bench_table import machine, ours_step, replace_between

HERE = os.path.dirname(os.path.abspath(__file__))
SLURM = f"{HERE}/slurm.sh"
BATCH = 64


def say(text):
    print(text, flush=True)


@contextlib.contextmanager
def cluster(args, nodes):
    """Up for as long as the block lasts."""
    os.environ["DDP_SLURM_DIR"] = f"{args.folder}/cluster"
    subprocess.run([SLURM, "up", str(nodes), "--cpus", "2"], check=True)
    status = subprocess.run([SLURM, "status"], capture_output=True, text=True, check=True)
    try:
        yield "all on this host" in status.stdout + status.stderr
    finally:
        subprocess.run([SLURM, "down"], check=True)


def srun(*words):
    return [SLURM, "run", "srun", "--kill-on-bad-exit=1", *words]


def run(command):
    """-> what it printed. What it had to say besides is shown if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"bench: {' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def middle(values):
    return statistics.median(values)


# --- all-reduce ---------------------------------------------------------------------------------


def measure_all_reduce(args, nodes):
    """[(round, bytes, µs)], one rank on each node."""
    found = []
    command = srun(f"-N{nodes}", "--ntasks-per-node=1", f"{args.build}/comm_bench", "-n", "0",
                   "-b", "1024", "-e", str(args.largest), "-f", "4")
    for i in range(args.rounds):
        rows = [line.split() for line in run(command).splitlines() if line[:1] == " "]
        found += [(i, int(row[0]), float(row[4])) for row in rows]
        say(f"all-reduce, {nodes} nodes, round {i + 1}: {float(rows[0][4]):.0f} µs for 1 KiB, "
            f"{float(rows[-1][4]) / 1e3:.1f} ms for {int(rows[-1][0]) >> 20} MiB")
    return found


def write_csv(path, all_reduce):
    with open(path, "w", encoding="ascii") as file:
        file.write("round,ranks,bytes,us\n")
        for ranks, rows in all_reduce.items():
            file.writelines(f"{i},{ranks},{size},{us}\n" for i, size, us in rows)


# --- from srun to the first step ----------------------------------------------------------------


def measure_first(args, arch):
    command = srun("-N2", "--ntasks-per-node=2", f"{args.build}/06_slurm/train", "--arch", arch,
                   "--data", "synthetic", "-b", str(BATCH), "--threads", "1", "--max-steps", "1",
                   "-p", "1")
    found = [seconds_until("== step:", command) for _ in range(args.rounds + 1)][1:]
    say(f"{arch}: {' '.join(f'{s:.2f}' for s in found)} s")
    return found


# --- weak scaling -------------------------------------------------------------------------------


def train(args, name, *words):
    """A rank on each node that srun's words name -> command, metrics file."""
    path = f"{args.folder}/{name}.jsonl"
    return srun(*words[0], f"{args.build}/06_slurm/train", "--data", "synthetic", "-b", str(BATCH),
                "--threads", "1", "--no-augment", "--max-steps", str(args.steps), "-p", "5",
                "--metrics", path, *words[1:]), path


def rate(args, name, *words):
    command, path = train(args, name, *words)
    run(command)
    return ours_step(path)


def rate_beside(args):
    """Two programs at the same time that know nothing of each other: images a second of both."""
    started = [train(args, f"beside{k}", ["-N1", "-n1"]) for k in (1, 2)]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
               for command, _ in started]
    if any([process.wait() for process in running]):
        sys.exit("bench: one of two programs failed")
    return sum(ours_step(path) for _, path in started)


def measure_weak(args):
    """{what: [images a second of all ranks, round by round]}"""
    two = ["-N2", "-n2"]
    found = {}
    for i in range(args.rounds):
        for what, value in (
                ("1 rank", rate(args, "one", ["-N1", "-n1"])),
                ("2 programs at the same time that exchange nothing", rate_beside(args)),
                ("2 ranks", rate(args, "two", two)),
                ("2 ranks, `--bucket-mb 0`: one all-reduce, behind backward",
                 rate(args, "naive", two, "--bucket-mb", "0"))):
            found.setdefault(what, []).append(value)
        say(f"weak scaling, round {i + 1}: " + ", ".join(f"{v[-1]:.0f}" for v in found.values()))
    return found


# --- writing ------------------------------------------------------------------------------------


def table(args, all_reduce, first, weak):
    lines = [f"{machine()}; {date.today()}. Rounds: {args.rounds}. Load of the machine before and at the end: "
             f"{args.load_before:.1f} and {os.getloadavg()[1]:.1f}; what others computed meanwhile is in the "
             "medians, and least in the least."
             + " No namespaces here: all nodes are on the loopback interface." * args.loopback, "",
             "| all-reduce, bytes | 2 nodes, µs: median | least | 3 nodes: median | least |",
             "|---:|---:|---:|---:|---:|"]
    for size in sorted({size for _, size, _ in all_reduce[2]}):
        cells = []
        for nodes in (2, 3):
            times = [us for _, other, us in all_reduce[nodes] if other == size]
            cells += [f"{middle(times):.0f}", f"{min(times):.0f}"]
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    lines += ["", f"| from `srun` to the end of the first step, 2 nodes x 2 tasks, s | median of {args.rounds} "
              "| least | most |", "|---|---:|---:|---:|"]
    for arch, times in first.items():
        lines.append(f"| {arch} | {middle(times):.2f} | {min(times):.2f} | {max(times):.2f} |")
    lines += ["", "| ResNet-18, batch 64 for each rank, a rank on a node: images of all, a second | median | most "
              "| of 1 rank, medians |", "|---|---:|---:|---:|"]
    alone = middle(weak["1 rank"])
    for what, rates in weak.items():
        lines.append(f"| {what} | {middle(rates):.0f} | {max(rates):.0f} | {middle(rates) / alone:.2f} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("doc")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    args.largest, args.steps, args.load_before = 64 << 20, 40, os.getloadavg()[1]
    if args.quick:
        args.rounds, args.largest, args.steps = 1, 1 << 20, 15
    begin, all_reduce = time.time(), {}
    with cluster(args, 2) as args.loopback:
        all_reduce[2] = measure_all_reduce(args, 2)
        first = {arch: measure_first(args, arch) for arch in ("lenet", "resnet18")}
        weak = measure_weak(args)
    with cluster(args, 3):
        all_reduce[3] = measure_all_reduce(args, 3)
    write_csv(f"{args.folder}/all_reduce.csv", all_reduce)
    text = table(args, all_reduce, first, weak)
    replace_between(args.doc, "slurm", text)
    say(text + f"{args.folder}/all_reduce.csv, after {time.time() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
