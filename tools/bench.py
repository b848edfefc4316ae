#!/usr/bin/env python3
"""Compares our programs with PyTorch, taking turns, and writes the tables of docs/benchmarks.md.

A benchmark is a function with a line in BENCHMARKS, at the end. It has sides: functions that measure once.
in_turns() calls all sides, round by round, so that a busy moment of the machine hits all of them; tables show
medians. Torch is PyTorch's side, in its fastest mode, and on a CPU with tcmalloc.

PyTorch comes from the python in $DDP_PYTHON, else from build/venv, which is made if it does not exist. CIFAR-10
comes from the folder $DDP_CIFAR10, else from data/; without it both sides train on random images.
"""
import argparse
import contextlib
import glob
import json
import math
import os
import platform
import random
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from ctypes.util import find_library
from datetime import date

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HERE = os.path.join(ROOT, "tools")
WIRE = os.path.join(ROOT, "tests", "wire.sh")
BUSY = 0.5                              # a load of 0.5 per core
CORES = len(os.sched_getaffinity(0))
IMAGE_MB = (3072 + 4) / 2**20           # one of our images in memory, with its label
WEIGHTS = 44726568                      # bytes of ResNet-18's, in float32
GRADIENTS = 16939304                    # without weights that multiply only padding


def say(text):
    print(text, file=sys.stderr, flush=True)


def median(values):
    return statistics.median(values)


# --- running --------------------------------------------------------------------------------------


def shown(command):
    """Prints a command -> its words."""
    command = [str(word) for word in command]
    say("$ " + shlex.join(command))
    return command


def ours_environment():
    """Waiting threads spin as briefly as ./ddp run lets them."""
    return {"GOMP_SPINCOUNT": "2000"} | os.environ


def run(command):
    """Runs a program of ours -> its output."""
    done = subprocess.run(shown(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=ours_environment(), check=False)
    if done.returncode != 0:
        raise RuntimeError(f"exit status {done.returncode}: {shlex.join(done.args)}\n{done.stdout[-1500:]}")
    return done.stdout


def seconds_until(text, command, env=None):
    """-> seconds from the start of the command to its first line with this text, and the line."""
    command, begin, seconds, found = shown(command), time.perf_counter(), None, ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=env or ours_environment()) as process:
        for line in process.stdout:
            if text in line and seconds is None:
                seconds, found = time.perf_counter() - begin, line
    if seconds is None or process.returncode != 0:
        raise RuntimeError(f"status {process.returncode}, no line with {text!r}: {shlex.join(command)}")
    return seconds, found


def busy_share():
    """-> the share of time for which other programs keep our cores busy, over five seconds in which we do nothing"""
    def times():
        with open("/proc/stat", encoding="ascii") as file:
            rows = [line.split() for line in file if re.match(r"cpu\d", line)]
        rows = [list(map(int, row[1:9])) for row in rows if int(row[0][3:]) in os.sched_getaffinity(0)]
        total, waiting = sum(map(sum, rows)), sum(row[3] + row[4] for row in rows)     # idle, or for a disk
        return total, total - waiting
    before = times()
    time.sleep(5)
    total, busy = (after - begin for after, begin in zip(times(), before))
    return busy / total


def in_turns(bench, rounds, sides):
    """{side: [its result in each round]}"""
    bench.wait_for_quiet()
    found = {name: [] for name in sides}
    for number in range(1, rounds + 1):
        for name, side in sides.items():
            found[name].append(side())
        say(f"round {number} of {rounds}: " + ", ".join(
            f"{name} {values[-1]:.4g}" for name, values in found.items() if isinstance(values[-1], (int, float))))
    return found


def medians(bench, rounds, sides):
    """{side: the median of its results}"""
    return {name: median(values) for name, values in in_turns(bench, rounds, sides).items()}


class Bench:
    """The arguments of a benchmark, and commands for both sides."""

    def __init__(self, args):
        self.args, self.build, self.data = args, args.build, args.data
        self.set = f"cifar10:{self.data}" if self.data else "synthetic"
        self.rounds = args.rounds or (1 if args.quick else args.default_rounds)
        self.revision, self.busy = revision(), 0.0
        self.out = f"{ROOT}/build/bench/{args.name}"
        os.makedirs(self.out, exist_ok=True)

    def wait_for_quiet(self):
        """A table is measured only while other programs leave half of each core."""
        if self.args.quick:
            return
        deadline, busy = time.monotonic() + 300, busy_share()
        if busy >= BUSY and not self.args.busy:
            say(f"bench: other programs use {100 * busy:.0f} % of the cores; waiting up to 5 minutes for less than "
                f"{100 * BUSY:.0f} % (--busy measures now)")
            while busy >= BUSY and time.monotonic() < deadline:
                busy = busy_share()
            if busy >= BUSY:
                sys.exit(f"bench: no table is written: other programs still use {100 * busy:.0f} % of the cores; end them, "
                         "or measure with --busy")
        self.busy = max(self.busy, busy)

    def steps(self, count):
        return 20 if self.args.quick else count

    def program(self, name):
        path = f"{self.build}/{name}"
        if not os.access(path, os.X_OK):
            sys.exit(f"bench: there is no {path}: ./ddp setup builds it")
        return path

    def command(self, step, ranks, *options, name="train"):
        """A step, started as ./ddp run starts it; without a launcher if ranks is 0."""
        command, options = [self.program(f"{step}/{name}")], ["--data", self.set, *options]
        if step[:2] == "02":
            return [*command, "--devices", ranks, *options]
        if step[:2] == "03":
            return [*command, "-n", ranks, *options]
        launch = [self.program(f"{step}/launch"), "--nproc-per-node", ranks, "--"] if ranks else []
        return [*launch, *command, *options]

    def events_of_ranks(self, command):
        """-> the events in the --metrics file of each rank of a run."""
        with tempfile.TemporaryDirectory(dir=self.out) as folder:
            run([*command, "--metrics", f"{folder}/%r.jsonl"])
            found = []
            for path in sorted(glob.glob(f"{folder}/*")):
                with open(path, encoding="utf-8") as file:
                    found.append([json.loads(line) for line in file])
            return found

    def events(self, command):
        return self.events_of_ranks(command)[0]

    def rate(self, step, ranks, *options, **name):
        return rate_of(self.events(self.command(step, ranks, *options, **name)))

    def python(self):
        """A python with PyTorch, which is installed in build/venv if necessary."""
        python = os.environ.get("DDP_PYTHON") or f"{ROOT}/build/venv/bin/python"
        complete = f"{ROOT}/build/venv/complete"
        if not os.path.exists(complete) and not os.environ.get("DDP_PYTHON"):
            print("PyTorch for build/venv is a download of up to 5.5 GB; DDP_PYTHON names a Python that has it, and pip "
                  "takes a mirror from PIP_INDEX_URL or pip.conf", file=sys.stderr)
            run([sys.executable, "-m", "venv", "--clear", f"{ROOT}/build/venv"])
            run([python, "-m", "pip", "install", "--quiet", "torch", "torchvision", "safetensors", "numpy"])
            open(complete, "w", encoding="utf-8").close()
        return python

    def torch_version(self):
        return "PyTorch " + output_of([self.python(), "-c", "import torch; print(torch.__version__)"])

    def torch(self, what, **options):
        """-> the command for PyTorch's side."""
        options = {"threads": CORES, "data": self.data} | options
        pairs = ((f"--{name}", value) for name, value in options.items() if value)
        return [self.python(), f"{HERE}/bench_torch.py", what, *(word for pair in pairs for word in pair)]

    def write(self, *parts):
        """Prints tables and lines. Without --quick, also writes them to docs/benchmarks.md, between <!-- NAME:begin -->
        and <!-- NAME:end -->."""
        path, text = f"{ROOT}/docs/benchmarks.md", "\n\n".join(part.rstrip() for part in parts if part) + "\n"
        print(text)
        if self.args.quick:
            return
        with open(path, encoding="utf-8") as file:
            document = file.read()
        begin, end = f"<!-- {self.args.name}:begin -->\n", f"<!-- {self.args.name}:end -->"
        head, rest = document.split(begin)
        with open(path, "w", encoding="utf-8") as file:
            file.write(head + begin + text + end + rest.split(end)[1])


class Torch:
    """PyTorch's side: a process per mode, which measures once for each line that it reads. After the first round only
    the fastest mode continues, unless the table shows all. A mode that fails is left out."""

    def __init__(self, bench, what, modes, shows_all=False, **options):
        self.bench, self.what, self.shows_all, self.options = bench, what, shows_all, options
        self.modes = [mode for mode in modes if not (bench.args.quick and mode.startswith("compile"))]
        self.processes, self.rates = {}, {}
        on_cpu = options.get("device") != "cuda"
        if on_cpu and not find_library("tcmalloc_minimal"):
            sys.exit("bench: tcmalloc is missing: apt install libtcmalloc-minimal4")
        self.env = (f"LD_PRELOAD={TCMALLOC}",) if on_cpu else ()

    def ask(self, mode):
        if mode not in self.processes:
            command = shown(["env", *self.env, *self.bench.torch(self.what, mode=mode, **self.options)])
            with open(f"{self.bench.out}/torch-{mode}.log", "w", encoding="utf-8") as log:
                self.processes[mode] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                                        stderr=log, text=True)
        process = self.processes[mode]
        print(file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())

    def close(self, but=()):
        for mode in [mode for mode in self.processes if mode not in but]:
            process = self.processes.pop(mode)
            process.kill()
            process.wait()

    def __call__(self):
        """-> the fastest mode's rate in this round"""
        for mode in list(self.modes):
            try:
                found = self.ask(mode)
            except (OSError, ValueError):
                say(f"PyTorch's {mode} failed: see {self.bench.out}/torch-{mode}.log")
                self.modes.remove(mode)
                continue
            say(f"PyTorch's {mode}: {found['samples_per_s']:.0f} a second")
            self.rates.setdefault(mode, []).append(found["samples_per_s"])
        if not self.rates:
            raise RuntimeError(f"PyTorch does not run here: see {self.bench.out}/torch-*.log")
        if not self.shows_all:
            self.modes = [self.best()]
            self.close(but=self.modes)
        return self.rates[self.best()][-1]

    def best(self):
        """The fastest mode of the first round."""
        return max(self.rates, key=lambda mode: self.rates[mode][0])

    def rate(self):
        return median(self.rates[self.best()])

    def once(self):
        """-> one measurement of its only mode, with all values."""
        try:
            return self.ask(self.modes[0])
        finally:
            self.close()


# --- reading metrics and traces ---------------------------------------------------------------------


def event(events, name):
    return next(e for e in events if e["event"] == name)


def rate_of(events):
    """Images per second of all ranks: the median over the printed lines, without the first two."""
    return median([e["samples_per_s"] for e in events if e["event"] == "step"][2:])


def spans(path, name):
    """[(begin, end)] in seconds, of the spans of this name in one process's --trace file."""
    found, inside = [], {}
    with open(path, encoding="utf-8") as file:
        for e in (json.loads(line.rstrip(",\n")) for line in file if line.startswith("{")):
            stack = inside.setdefault(e.get("tid"), [])
            if e["ph"] == "B":
                stack.append(e)
            elif e["ph"] == "E" and stack:
                begun = stack.pop()
                if begun["name"] == name:
                    found.append((begun["ts"] / 1e6, e["ts"] / 1e6))
    return found


def sent_in_a_step(command):
    """MB that the ranks of a training send each other in a step, or None if it cannot be counted: a tenth of
    the difference between runs of 13 and 3 steps."""
    if subprocess.run([WIRE, "true"], stdout=subprocess.DEVNULL, check=False).returncode != 0:
        return None
    short, long = (int(re.search(r"bytes on the wire: (\d+)", run([WIRE, *command, "--max-steps", steps])).group(1))
                   for steps in (3, 13))
    return (long - short) / 10e6


# --- tables -----------------------------------------------------------------------------------------


def machine():
    model = platform.machine()
    with contextlib.suppress(OSError, StopIteration), open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next(line.split(":")[1].strip() for line in file if "model name" in line)
    with contextlib.suppress(OSError):      # its compiler and its oneDNN decide too
        return f"{model}, {CORES} cores; {platform.freedesktop_os_release()['PRETTY_NAME']}"
    return f"{model}, {CORES} cores"


def revision():
    """The commit, and whether the tracked files differ from it, except the page of tables. Without git, $DDP_COMMIT or the
    bundle's file `about` names it."""
    given = os.environ.get("DDP_COMMIT")
    if given:
        return f"commit {given}"
    if os.path.exists(f"{ROOT}/.git"):
        git = ["git", "-C", ROOT]
        try:
            commit = output_of([*git, "rev-parse", "--short=8", "HEAD"])
            changed = output_of([*git, "status", "--porcelain", "-uno", "--", ".", ":!docs/benchmarks.md"])
        except (OSError, subprocess.CalledProcessError):
            sys.exit(f"bench: git cannot name the commit of {ROOT}; DDP_COMMIT=COMMIT names it")
        return f"commit {commit}" + " with changes" * bool(changed)
    with contextlib.suppress(OSError, StopIteration), open(f"{ROOT}/about", encoding="utf-8") as file:
        return "commit " + next(line.split()[1] for line in file if line.startswith("revision:"))
    return "commit unknown (no git; DDP_COMMIT names it)"


def output_of(command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def heading(bench, *more):
    """The first line below a table's name."""
    load = f"other programs used {100 * bench.busy:.0f} % of the cores"
    if bench.busy >= BUSY:
        load = f"**on a busy machine: {load}**"
    return "; ".join([machine(), *more, str(date.today()), bench.revision, load,
                      f"medians of {bench.rounds} round{'s'[:bench.rounds > 1]}"]) + "."


def table(head, rows):
    lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(head) - 1), *lines[1:]])


COMPARED = ("", "ours", "compared with", "ratio")


def against(what, ours, theirs, digits=0, share=""):
    """A row of a table; share follows our value."""
    ratio = f"{ours / theirs:.2f}" if theirs else ""
    return what, f"{ours:.{digits}f}{share}", f"{theirs:.{digits}f}", ratio


def share_of(limit, rate, operations):
    """rate: samples a second, of so many operations each; limit: operations a second of one large product."""
    return f" ({100 * rate * operations / limit:.0f} %)"


def limit_text(limits):
    """limits: {type: operations a second}"""
    rates = ", ".join(f"{limit / 1e9:.0f} GFLOP/s in {kind}" for kind, limit in limits.items())
    return f"The limit: {rates}."


# --- the benchmarks -----------------------------------------------------------------------------------

PLAIN = ("--no-augment", "-p", 5)       # images as they are; every 5 steps the loss is read and printed
LAYOUTS = ("default", "channels_last")
MODES = (*LAYOUTS, "compile_channels_last")
TCMALLOC = "libtcmalloc_minimal.so.4"   # the fastest of four allocators for PyTorch, in each job of docs/benchmarks.md


# Of a residual network: blocks in each stage, and whether a block has three convolutions, the middle one 3x3.
RESNETS = {"resnet18": ((2, 2, 2, 2), False), "resnet50": ((3, 4, 6, 3), True)}


def convolutions(arch, channels, size):
    """-> (channels in, out, kernel, stride, padding, size of the input) of each"""
    blocks, narrows = RESNETS[arch]
    found, size, inside = [(channels, 64, 7, 2, 3, size)], (size + 3) // 4, 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for stride in [1 + (stage > 0)] + [1] * (count - 1):
            out, after = 4 * width if narrows else width, -(-size // stride)
            found += ([(inside, width, 1, 1, 0, size), (width, width, 3, stride, 1, size), (width, out, 1, 1, 0, after)]
                      if narrows else [(inside, width, 3, stride, 1, size), (width, width, 3, 1, 1, after)])
            if stride > 1 or inside != out:
                found.append((inside, out, 1, stride, 0, size))
            inside, size = out, after
    return found


def operations(arch, channels, size):
    """-> additions and multiplications of a step, per image: those with pixels, and those with padding. Backward needs
    no gradient of the images."""
    pixels, everything, layers = 0, 0, convolutions(arch, channels, size)
    for number, (inside, out, kernel, stride, pad, wide) in enumerate(layers):
        each, outputs = 2 * (2 + (number > 0)) * inside * out, (wide + 2 * pad - kernel) // stride + 1
        taps = sum(0 <= i * stride - pad + tap < wide for i in range(outputs) for tap in range(kernel))
        pixels, everything = pixels + each * taps**2, everything + each * (outputs * kernel)**2
    return pixels + 6 * 10 * layers[-1][1], everything - pixels


def compare(b, ours, torch, kind):
    """-> {"ours", "torch" or "limit": [the rate in each round]}"""
    limit = Torch(b, "product", ["default"], type=kind)
    found = in_turns(b, b.rounds, {"ours": ours, "torch": torch, "limit": limit})
    torch.close()
    limit.close()
    return found


def compared_row(what, found, torch, each, *more):
    """each: operations of a sample."""
    ratios = [ours / theirs for ours, theirs in zip(found["ours"], found["torch"])]
    ours, theirs, limit = (median(found[name]) for name in ("ours", "torch", "limit"))
    return (what, f"{ours:.0f}", f"{100 * ours * each / limit:.0f} %", f"{theirs:.0f}", torch.best(),
            f"{ours / theirs:.2f} ({min(ratios):.2f} to {max(ratios):.2f})", *more)


# Network, channels, size of images, batch, type, steps between two readings of the loss, steps of a measurement.
TRAIN_JOBS = (("resnet18", 3, 32, 256, "f32", 5, 30), ("resnet18", 3, 32, 256, "bf16", 5, 30),
              ("resnet18", 1, 28, 256, "f32", 5, 30), ("resnet50", 3, 32, 64, "f32", 5, 20),
              ("resnet18", 3, 224, 16, "f32", 1, 8), ("resnet18", 3, 224, 16, "bf16", 1, 8),
              ("resnet50", 3, 224, 8, "f32", 1, 6))


def net_job(b, arch, channels, size, batch, kind, group, steps):
    """-> a row, PyTorch's side, {kind: the limit}"""
    pictures = (() if size == 32 else ("--data", "fashion-mnist") if channels == 1
                else ("--data", "synthetic", "--image-size", size))
    step, amp = ("05_ddp_amp", ("--amp", kind)) if kind == "bf16" else ("01_single_gpu", ())
    steps = 2 * group if b.args.quick else steps
    ours = b.command(step, 0, "-a", arch, "--threads", CORES, "-b", batch, *amp, *pictures, "--no-augment",
                     "--train-samples", 40 * batch, "--test-samples", batch, "-p", group, "--max-steps",
                     2 * group + steps)
    torch = Torch(b, "step", MODES, arch=arch, channels=channels, size=size,
                  batch=batch, type=kind, group=group, steps=steps)
    found = compare(b, lambda: rate_of(b.events(ours)), torch, kind)
    pixels, padding = operations(arch, channels, size)
    row = compared_row(f"{arch.replace('resnet', 'ResNet-')}, {channels}x{size}x{size}, batch {batch}, {kind}", found,
                       torch, pixels, f"{100 * padding / (pixels + padding):.0f} %")
    return row, torch, {kind: median(found["limit"])}


def write_compared(b, jobs, what, *more):
    """jobs: (row, PyTorch's side, {kind: the limit}) of each."""
    rows, torches, limits = zip(*jobs)
    b.write(heading(b, f"{CORES} threads", b.torch_version()) + what,
            table(("", "ours", "of the limit", "PyTorch", "its fastest mode", "ratio (of the rounds)", *more), rows),
            limit_text({kind: limit for each in reversed(limits) for kind, limit in each.items()}))


def bench_train(b):
    write_compared(b, [net_job(b, *job) for job in TRAIN_JOBS], " Training steps, images/s.", "padding")


def bench_epoch(b):
    """PyTorch's epoch uses the mode with the fastest steps. An epoch has only some of the images."""
    step, workers, images = "01_single_gpu", min(CORES, 4), 5120 if b.args.quick else 25600
    common = ("--threads", CORES, "-b", 256)
    torch = Torch(b, "step", MODES, steps=b.steps(30))
    in_turns(b, 1, {"torch": torch})
    torch.close()
    epoch = b.command(step, 0, *common, "--epochs", 1, "-p", 49, "--train-samples", images, "--test-samples", 256)
    epochs = in_turns(b, b.rounds, {
        "ours": lambda: b.events(epoch),
        "torch": lambda: Torch(b, "epoch", [torch.best()], workers=workers, steps=images // 256, group=50).once()})
    start = b.command(step, 0, *common, "--max-steps", 1, "-p", 1)
    first = in_turns(b, b.rounds + 1, {        # the first round is not measured
        "ours": lambda: seconds_until("== step:", start)[0],
        "torch": lambda: seconds_until('"loss"', b.torch("first", workers=workers), os.environ)[0]})
    theirs = epochs["torch"]
    b.write(
        heading(b, f"{CORES} threads", f"{b.torch_version()}, {torch.best()}")
        + f" ResNet-18, 3x32x32, batch 256, f32; epochs of {images} images.",
        table(COMPARED, epoch_rows(epochs, first)),
        f"Data: {event(epochs['ours'][0], 'config').get('dataset')}. PyTorch reads it with a DataLoader with {workers} "
        "workers and torchvision's transforms on PIL images (crop, flip, ToTensor, Normalize). "
        f"PyTorch's memory excludes the {median(e['worker_mb'] for e in theirs):.0f} MiB of its workers, and is "
        "measured after the files were read. Waiting for data includes the wait for the first batch.")


def epoch_rows(epochs, first):
    theirs = epochs["torch"]
    images, wait, peak = map(median, zip(*map(ours_epoch, epochs["ours"])))
    return [
        against("an epoch with its data, images/s", images, median(e["samples_per_s"] for e in theirs)),
        against("start of process to end of first step, s", median(first["ours"][1:]), median(first["torch"][1:]), 2),
        against("peak memory without the data set, MiB", peak, median(e["peak_mb"] - e["data_mb"] for e in theirs)),
        against("waiting for data, % of the epoch", 100 * wait, 100 * median(e["wait_share"] for e in theirs), 2)]


def ours_epoch(events):
    """-> images a second, share of the time spent waiting for data, MB without the images"""
    epoch, images = event(events, "epoch"), event(events, "config")["options"]["train_samples"] or 50000
    waited = sum(e["data_wait_ms"] for e in events if e["event"] == "step") / 1e3
    peak = event(events, "end")["peak_rss_mb"] - (images + epoch["n"]) * IMAGE_MB
    return images / epoch["seconds"], waited / epoch["seconds"], peak


# Layers, heads, width, characters in a window, windows in a batch, steps of a measurement. The first row has
# the sizes that nanoGPT suggests for a CPU.
GPT_JOBS = ((4, 4, 128, 64, 12, 120), (6, 6, 384, 256, 8, 20))


def gpt_options(text, layers, heads, width, size, batch):
    return ["--data", f"text:{text}", "-a", "gpt", "--layers", layers, "--heads", heads, "--width", width, "--block", size,
            "-b", batch, "--optim", "adamw", "--lr", 1e-3, "--clip-norm", 1, "--test-samples", batch]


def gpt_operations(layers, width, size):
    """-> operations per token"""
    return 6 * (layers * (12 * width**2 + 2 * size * width) + 65 * width)


def random_text(b, characters):
    """-> a file of random characters: the speed does not depend on the text."""
    path = f"{b.out}/text"
    with open(path, "w", encoding="ascii") as file:
        file.write("".join(random.choices([chr(c) for c in range(48, 113)], k=characters)))
    return path


def gpt_job(b, text, kind, layers, heads, width, size, batch, steps):
    group, token = steps // 6, gpt_operations(layers, width, size)
    ours = [b.program("05_ddp_amp/train"), *gpt_options(text, layers, heads, width, size, batch), "--threads", CORES,
            "--epochs", 99, "-p", group, "--max-steps", steps + 2 * group, "--amp", "off" if kind == "f32" else kind]
    torch = Torch(b, "gpt", ["eager", "compile_eager"], arch=f"{layers}x{heads}x{width}", size=size,
                  batch=batch, type=kind, group=group, steps=steps, data=None)
    found = compare(b, lambda: size * rate_of(b.events(ours)), torch, kind)
    return (compared_row(f"{layers} layers of {width}, {batch} windows of {size}, {kind}", found, torch, token), torch,
            {kind: median(found["limit"])})


def bench_gpt(b):
    text = random_text(b, 400000)
    write_compared(b, [gpt_job(b, text, kind, *job) for job in GPT_JOBS for kind in ("f32", "bf16")],
                   " Training steps, tokens/s; AdamW, gradients clipped, no dropout.")


def folder_of_pictures(b):
    """--pictures, or 2,000 images of a data set as JPEG files of 384x384."""
    if b.args.pictures:
        return b.args.pictures
    tree = f"{b.out}/pictures"
    if not os.path.isdir(f"{tree}/val"):
        run([b.program("as_folder"), "--data", b.set if b.data else "fashion-mnist", "--as-folder", tree, "--scale", 384,
             "--format", "jpeg", "--train-samples", 2000, "--test-samples", 100])
    return tree


def bench_folder(b):
    tree = folder_of_pictures(b)
    command = [b.program("loader_bench"), "--data", tree, "-b", 64]

    def ours(workers):
        return float(re.search(r"([0-9.]+) images/s", run([*command, "-j", workers])).group(1))

    sides = {f"ours, {n}": lambda n=n: ours(n) for n in sorted({1, CORES})}
    torches = {n: Torch(b, "folder", ["default"], data=tree, workers=n, batch=64, threads=1)
               for n in sorted({1, CORES})}
    found = medians(b, b.rounds, sides | {f"torch, {n}": side for n, side in torches.items()})
    for side in torches.values():
        side.close()
    count, size = pictures_of(tree)
    b.write(
        heading(b, b.torch_version()) + f" {count} JPEG files of {size / 1024:.0f} KiB on average, "
        "an epoch without a model: RandomResizedCrop(224), flip, normalise; batches of 64.",
        table(COMPARED, [against(f"images/s, {n} worker{'s'[:n > 1]}", found[f"ours, {n}"], found[f"torch, {n}"])
                         for n in torches]))


def pictures_of(tree):
    """-> number of training files, mean size"""
    sizes = [os.path.getsize(os.path.join(path, name)) for path, _, names in os.walk(f"{tree}/train") for name in names]
    return len(sizes), sum(sizes) / len(sizes)


def bench_parallel(b):
    limit = ("--max-steps", b.steps(40))
    one = ("--threads", 1, "-b", 128, *PLAIN, *limit)

    def alone():
        return b.rate("01_single_gpu", 0, *one)

    ddp = Torch(b, "ddp", LAYOUTS, ranks=2, threads=1, batch=128, steps=b.steps(30))
    step = Torch(b, "step", MODES, threads=2, steps=b.steps(30))
    product = Torch(b, "product", ["default"], threads=2)
    found = in_turns(b, b.rounds, {
        "03": lambda: b.rate("03_ddp_fork", 2, *one),
        "PyTorch's DDP": ddp,
        "01": alone,
        "two 01": lambda: two_at_once(alone),
        "gradients": lambda: all_reduce(b, "-b", GRADIENTS, "-e", GRADIENTS),
        "sizes": lambda: all_reduce(b, "-b", 8, "-e", 64 << 20, "-f", 8),
        "03 naive": lambda: b.rate("03_ddp_fork", 2, *one, name="train_naive"),
        "02": lambda: b.rate("02_data_parallel", 2, "--threads", 1, "-b", 256, *PLAIN, *limit),
        "PyTorch's step": step,
        "limit": product})
    for side in (ddp, step, product):
        side.close()
    us = median(rows[0][1] for rows in found["gradients"])
    rate = {name: median(values) for name, values in found.items() if name not in ("gradients", "sizes")}
    bound = 256 / (256 / rate["two 01"] + us / 1e6)

    def share(value):
        return share_of(rate["limit"], value, operations("resnet18", 3, 32)[0])

    b.write(
        heading(b, "1 thread for each rank and device", b.torch_version())
        + " ResNet-18, 3x32x32, float32, batch 128 for each of 2 ranks.",
        table(COMPARED, [
            against(f"03, 2 ranks, against PyTorch's DDP ({ddp.best()}), images/s", rate["03"], ddp.rate(),
                    share=share(rate["03"])),
            against("03 against what its parts allow, images/s", rate["03"], bound, share=share(rate["03"])),
            against("03 against twice 01 alone, images/s", rate["03"], 2 * rate["01"], share=share(rate["03"])),
            against(f"02, 2 devices, against PyTorch with 2 threads ({step.best()}), images/s", rate["02"], step.rate(),
                    share=share(rate["02"]))]),
        table(("images per second, all ranks together", "", "of 01 alone"), [
            (what, f"{value:.0f}{share(value)}", f"{value / rate['01']:.2f}") for what, value in (
                ("01 alone", rate["01"]),
                ("01, two programs at the same time, together", rate["two 01"]),
                ("and one all-reduce after each step: what 03's parts allow", bound),
                ("03: gradients in buckets, overlapped with backward", rate["03"]),
                ("03's train_naive: one all-reduce after backward", rate["03 naive"]),
                ("02 --devices 2, batch 256", rate["02"]))]),
        "In brackets: the share of the limit. " + limit_text({"f32": rate["limit"]}),
        table(("all-reduce, bytes", "µs", "bus bandwidth, GB/s"), [
            (rows[0][0], f"{us:.1f}", f"{bus:.2f}")
            for rows in zip(*found["sizes"]) for us, bus in [map(median, list(zip(*rows))[1:])]]))


def two_at_once(rate):
    """The total rate of two programs that run at the same time without communicating."""
    with ThreadPoolExecutor() as pool:
        return sum(each.result() for each in [pool.submit(rate), pool.submit(rate)])


def all_reduce(b, *sizes):
    return rows_of(run([b.program("comm_bench"), "-n", 2, "--op", "all_reduce", *sizes]))


def rows_of(text):
    """[(bytes, µs, bus bandwidth in GB/s)] of comm_bench's table."""
    rows = [line.split() for line in text.splitlines() if line[:1] == " "]
    return [(int(row[0]), float(row[4]), float(row[6])) for row in rows]


def bench_launch(b):
    kills, first = 5 if b.args.quick else 100, {}
    for ranks in (1, 2, 4):                     # the first start of each is not measured
        share = ("-b", 256 // ranks, "--threads", max(1, CORES // ranks))
        ours = b.command("04_ddp_launcher", ranks, *share, "--max-steps", 1, "-p", 1)
        python, *theirs = b.torch("launch", batch=share[1], threads=share[3], workers=1)
        theirs = [f"{os.path.dirname(python)}/torchrun", "--standalone", "--nproc-per-node", ranks, *theirs]
        found = in_turns(b, b.rounds + 1, {
            "launch": lambda: seconds_until("== step:", ours)[0],
            "torchrun": lambda: seconds_until('"rank": 0', theirs, os.environ)[0]})
        first[ranks] = (median(found["torchrun"][1:]), median(found["launch"][1:]))
    share = ("-b", 32, "--threads", 1)
    ours = b.command("04_ddp_launcher", 2, *share, "--epochs", 1000, "-p", 1)
    ours[1:1] = ["--max-restarts", "3"]
    python, *theirs = b.torch("launch", batch=32, threads=1, workers=1, steps=100000)
    theirs = [f"{os.path.dirname(python)}/torchrun", "--standalone", "--nproc-per-node", 2, "--max-restarts", 3, *theirs]
    again = medians(b, b.rounds, {"launch": lambda: kill_to_next_step(ours, ours_environment()),
                               "torchrun": lambda: kill_to_next_step(theirs, os.environ)})
    deaths = list(zip(*(one_death(b) for _ in range(kills))))
    size, costs = checkpoint_costs(b)
    b.write(
        heading(b, b.torch_version()),
        table(("from launch to the end of the first step, s", "`torchrun`", "`launch`", "ratio"), [
            against(f"{ranks} rank{'s'[:ranks > 1]}, global batch 256", *times, 2)
            for ranks, times in first.items()]),
        table(("one of 2 ranks is killed, without a checkpoint, s", "`torchrun`", "`launch`", "ratio"), [
            against("from the kill to the end of the next step", again["torchrun"], again["launch"], 2)]),
        table((f"a rank is killed, {kills} times, ms", "median", "largest"), [
            in_ms("until `launch` names it", deaths[0]), in_ms("until all are gone", deaths[1])]),
        table((f"a checkpoint of ResNet-18, {size / 1e6:.1f} MB, ms", f"median of {len(costs)}", "largest"), [
            in_ms("training waits until it is on the disk", costs)]))


def in_ms(what, values):
    return what, f"{1e3 * median(values):.0f}", f"{1e3 * max(values):.0f}"


def kill_a_rank(launcher):
    """-> the time"""
    with open(f"/proc/{launcher}/task/{launcher}/children", encoding="ascii") as file:
        os.kill(int(random.choice(file.read().split())), signal.SIGKILL)
    return time.perf_counter()


def kill_to_next_step(command, env):
    """Kills a rank after some steps -> seconds until the first step after a restart; infinite if there is none."""
    with subprocess.Popen(shown(command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env,
                          start_new_session=True) as run_:
        limit = threading.Timer(120, os.killpg, (run_.pid, signal.SIGKILL))
        limit.start()
        steps = (line for line in run_.stdout if "== step:" in line or '"step"' in line)
        for _ in range(5):
            next(steps)
        begin = kill_a_rank(run_.pid)
        for line in run_.stdout:
            if "init" in line:          # the first line of the restarted ranks
                break
        seconds = time.perf_counter() - begin if next(steps, None) else math.inf
        limit.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run_.pid, signal.SIGKILL)
    return seconds


def one_death(b):
    """Kills a rank during training -> seconds until launch names it, until all processes have ended."""
    command = shown(b.command("04_ddp_launcher", 2, "--arch", "lenet", "--train-samples", 4096, "-b", 32,
                              "--threads", 1, "--epochs", 10000, "-p", 1))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=ours_environment()) as launch:
        for line in launch.stdout:
            if "== step:" in line:
                break
        with subprocess.Popen(["cat"], stdin=launch.stdout, stdout=subprocess.DEVNULL):    # keeps the pipe empty
            time.sleep(random.uniform(0, 0.3))
            begin = kill_a_rank(launch.pid)
            named = [time.perf_counter() - begin for line in launch.stderr if "was killed by signal 9" in line]
            launch.wait()
            return named[0], time.perf_counter() - begin


def checkpoint_costs(b):
    """-> bytes of ResNet-18's checkpoint, [seconds until it is on the disk]"""
    with tempfile.TemporaryDirectory(dir=b.out) as folder:
        trace = f"{folder}/trace.json"
        run(b.command("04_ddp_launcher", 0, "-b", 256, "--threads", CORES, "--save", f"{folder}/net",
                      "--save-every", 20, "--max-steps", 110, "--trace", trace))
        return os.path.getsize(f"{folder}/net"), [end - begin for begin, end in spans(trace, "save")[:5]]


# --- the steps side by side -----------------------------------------------------------------------------

STATISTICS = 2 * 4800           # floats: running mean and variance of ResNet-18's channels


def steps_jobs(b):
    """{row: command}: the same job on the same cores. Each of two ranks or devices gets half of the cores."""
    half = max(1, CORES // 2)
    common = ("--test-samples", 256, "--no-augment", "-p", 5)

    def one(step, threads):
        return b.command(step, 0, "--threads", threads, "-b", 256, *common)

    def two(step, *options):
        return b.command(step, 2, "--threads", half, "-b", 128, *common, *options)

    return {
        "01, on half of the cores": one("01_single_gpu", half),
        "01, on all cores": one("01_single_gpu", 2 * half),
        "02, 2 devices in a process": b.command("02_data_parallel", 2, "--threads", half, "-b", 256, *common),
        "03, 2 ranks, forked": two("03_ddp_fork"),
        "04, 2 ranks, started by `launch`": two("04_ddp_launcher"),
        "05, the same, `--amp off --compress fp16`": two("05_ddp_amp", "--amp", "off", "--compress", "fp16"),
        "05, the same, `--amp bf16`": two("05_ddp_amp", "--amp", "bf16"),
        "05, the same, `--amp bf16 --compress bf16`": two("05_ddp_amp", "--amp", "bf16", "--compress", "bf16"),
        "07, as 04, `--amp off`": two("07_dist_eval", "--amp", "off"),
    }


def bench_steps(b):
    jobs = steps_jobs(b)
    sent = {what: sent_cell(what, command) for what, command in jobs.items()}
    steps = ("--max-steps", b.steps(40))
    runs = in_turns(b, b.rounds, {what: lambda command=command: b.events_of_ranks([*command, *steps])
                               for what, command in jobs.items()})
    rates = {what: median(rate_of(ranks[0]) for ranks in runs[what]) for what in jobs}
    peaks = {what: median(sum(event(events, "end")["peak_rss_mb"] for events in ranks) for ranks in runs[what])
             for what in jobs}
    config = event(runs["01, on all cores"][0][0], "config")
    images = ((config["options"]["train_samples"] or 50000) + 256) * IMAGE_MB
    b.write(
        heading(b, config["device"].split(", ")[1], f"threads of each of two ranks or devices: {max(1, CORES // 2)}")
        + f" ResNet-18, 3x32x32, global batch {config['global_batch']}, data: {config['dataset']}.",
        table(("", "images/s", "of 01 on all cores", "memory, MiB", "a rank sends, MB a step"), [
            (what, f"{rate:.0f}", f"{rate / rates['01, on all cores']:.2f}", f"{peaks[what]:.0f}", sent[what])
            for what, rate in rates.items()]),
        f"In each process, {images:.0f} MiB of the memory are the images.")


def sent_cell(what, command):
    """MB that a rank sends in a step. For 02, computed from the copies in replicas.c."""
    if what.startswith("01"):
        return "0"
    if what.startswith("02"):
        out, back = WEIGHTS + 4 * STATISTICS + 128 * 4 * (3072 + 10), GRADIENTS + 4 * 128 * 10
        return f"{out / 1e6:.1f} out, {back / 1e6:.1f} back"
    sent = sent_in_a_step(command)
    return "not counted" if sent is None else f"{sent / 2:.1f}"


# --- on a GPU ---------------------------------------------------------------------------------------------

GPU_MODES = ("eager", "channels_last", "graph")
# name: network, type, size of images, steps in a group, after which the loss is read, and epochs, each of 5 groups
GPU_JOBS = {
    "resnet18_tf32": ("resnet18", "tf32", 32, 39, 6),
    "resnet18_fp16": ("resnet18", "fp16", 32, 39, 6),
    "resnet50_fp16": ("resnet50", "fp16", 224, 4, 4),
}

# name: layers, heads, width, tokens in a window, windows in a batch, steps in a group, and epochs, each of 5 groups
GPU_GPTS = {
    "gpt384_bf16": (6, 6, 384, 256, 64, 20, 4),
    "gpt768_bf16": (12, 12, 768, 1024, 16, 10, 4),
}


def gpu_times(b, command, torch, batch, tokens=1):
    """-> our ms per step, {mode: PyTorch's}. tokens: how many PyTorch counts in one of our samples. The first epoch
    records the CUDA graph and is not measured."""

    def ours():
        return median([e["samples_per_s"] for e in b.events(command) if e["event"] == "step" and e["epoch"] > 1])

    found = in_turns(b, b.rounds, {"ours": ours} | ({"torch": torch} if b.args.modes else {}))
    torch.close()
    return 1e3 * batch / median(found["ours"]), {mode: 1e3 * batch * tokens / median(rates)
                                                 for mode, rates in torch.rates.items()}


def gpu_job(b, name):
    """-> our ms per step, {mode: PyTorch's}. PyTorch uses one batch in the GPU's memory, and we no augmentation."""
    arch, kind, size, group, epochs = GPU_JOBS[name]
    amp, steps = kind == "fp16", 5 * group
    command = b.command("05_ddp_amp" if amp else "01_single_gpu", 0, "-a", arch, "-b", 256, "-j", min(16, CORES),
                        *(("--amp", kind) if amp else ("--tf32",)), "--no-augment", "--train-samples", 256 * steps,
                        "--test-samples", 256, "--epochs", epochs, "-p", group,
                        *(() if b.data and size == 32 else ("--data", "synthetic", "--image-size", size)))
    torch = Torch(b, "step", b.args.modes, True, device="cuda", arch=arch, type=kind, size=size, group=group,
                  steps=steps * (epochs - 1))
    return gpu_times(b, command, torch, 256)


def gpu_gpt_job(b, name):
    layers, heads, width, size, batch, group, epochs = (2, 2, 64, 32, 4, 2, 2) if b.args.quick else GPU_GPTS[name]
    steps = 5 * group
    command = [b.program("05_ddp_amp/train"),
               *gpt_options(random_text(b, 2000000), layers, heads, width, size, batch), "--amp", "bf16",
               "--train-samples", batch * steps, "--epochs", epochs, "-p", group]
    torch = Torch(b, "gpt", [mode for mode in b.args.modes if mode != "channels_last"], True, device="cuda",
                  arch=f"{layers}x{heads}x{width}", type="bf16", size=size, batch=batch, group=group,
                  steps=steps * (epochs - 1), data=None)
    return gpu_times(b, command, torch, batch, size)


def gpu_row(name, ours, torch):
    best = min(torch, key=torch.get, default=None)
    return (name, f"**{ours:.3f} ms**", *(f"{torch[mode]:.3f} ({mode}), {torch[mode] / ours:.2f}x" if mode in torch else ""
                                          for mode in ("eager", best)))


def gpu_and_torch(b):
    commands = [["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit",
                 "--format=csv,noheader"]]
    if b.args.modes:
        commands.append([b.python(), "-c", "import torch as t; print('PyTorch', t.__version__, 'cuDNN', "
                         "t.backends.cudnn.version())"])
    return "; ".join(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()
                     for command in commands)


def bench_gpu(b):
    """Writes build/bench/gpu/table.md again after each job. A job that fails does not stop the others."""
    rows, failed = [], 0
    for name in [name for name in (*GPU_JOBS, *GPU_GPTS) if re.search(b.args.only, name)]:
        try:
            rows.append(gpu_row(name, *(gpu_job if name in GPU_JOBS else gpu_gpt_job)(b, name)))
        except (RuntimeError, OSError, statistics.StatisticsError) as error:
            failed += 1
            say(f"{name} failed: {error}")
        text = heading(b, gpu_and_torch(b), "images: batch 256") + "\n\n" + table(
            ("job", "ours", "PyTorch eager, against ours", "its best"), rows) + "\n"
        with open(f"{b.out}/table.md", "w", encoding="utf-8") as file:
            file.write(text)
    print(text)
    return bool(rows) and not failed


# name: the function, its rounds, one line for --help
BENCHMARKS = {
    "train": (bench_train, 3, "training steps of residual networks, images of 32x32 and of 224x224"),
    "epoch": (bench_epoch, 3, "one process: epochs with their data, start, memory, waiting for data"),
    "gpt": (bench_gpt, 3, "training steps of language models, in f32 and bf16"),
    "folder": (bench_folder, 5, "a folder of JPEG files against DataLoader and ImageFolder, without a model"),
    "parallel": (bench_parallel, 3, "two ranks, two devices, all-reduce"),
    "launch": (bench_launch, 5, "a launcher: start, killed ranks, checkpoints"),
    "steps": (bench_steps, 3, "all steps with the same job on the same cores"),
    "gpu": (bench_gpu, 5, "training steps against PyTorch's on a GPU (in a bundle: tools/bench.py gpu)"),
}


def find_cifar():
    given = os.environ.get("DDP_CIFAR10", "")
    for folder in (given, f"{given}/cifar-10-batches-bin", f"{ROOT}/data/cifar-10-batches-bin"):
        if os.path.isfile(f"{folder}/data_batch_1.bin"):
            return folder
    return None


def parse():
    parser = argparse.ArgumentParser(
        prog="./ddp bench", description="Compares our programs with PyTorch and writes docs/benchmarks.md.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {name:10} {text}" for name, (_, _, text) in BENCHMARKS.items()))
    parser.add_argument("name", nargs="?", default="train", choices=BENCHMARKS, metavar="NAME")
    parser.add_argument("--rounds", type=int, help="number of measurements of each side")
    parser.add_argument("--quick", action="store_true",
                        help="test this command: run one short round, print the tables, and write nothing")
    parser.add_argument("--busy", action="store_true",
                        help="measure although other programs use half of the cores or more; the table then says so")
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--pictures", metavar="DIR", help="for folder: use DIR/train/CLASS/FILE and DIR/val/CLASS/FILE")
    gpu = parser.add_argument_group("options of gpu")
    gpu.add_argument("--only", default=".", metavar="REGEX", help="only jobs that match")
    gpu.add_argument("--modes", default=",".join(GPU_MODES), metavar="A,B", help="PyTorch's modes; '' measures only ours")
    args = parser.parse_args()
    if args.rounds is not None and not 1 <= args.rounds <= 99:
        parser.error("--rounds is a number from 1 to 99")
    args.modes = [mode for mode in args.modes.split(",") if mode]
    args.build = os.environ.get("BUILD") or f"{ROOT}/build/{'cuda' if args.name == 'gpu' else 'cpu'}"
    args.data = find_cifar()
    return args


def main():
    args = parse()
    if args.check:                              # ./ddp bench checks the arguments before it builds
        return 0
    benchmark, args.default_rounds, _ = BENCHMARKS[args.name]
    try:
        return benchmark(Bench(args)) is False
    except RuntimeError as error:
        sys.exit(f"bench: {error}")


if __name__ == "__main__":
    sys.exit(main())
