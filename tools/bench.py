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
from statistics import median

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = f"{ROOT}/docs/benchmarks.md"
BUSY = 0.5                              # a load of 0.5 per core
CORES = len(os.sched_getaffinity(0))
HALF = max(1, CORES // 2)
GRADIENTS = 16939304                    # bytes of ResNet-18's, without weights that multiply only padding
TCMALLOC = "libtcmalloc_minimal.so.4"   # the fastest of four allocators for PyTorch, in each job of docs/benchmarks.md


def say(text):
    print(text, file=sys.stderr, flush=True)


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


def output_of(command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


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
        """Measures a table only while other programs leave half of each core free. A GPU does not wait for cores."""
        if self.args.quick:
            return
        deadline, busy = time.monotonic() + 300, busy_share()
        if busy >= BUSY and not self.args.busy and self.args.name != "gpu":
            say(f"bench: other programs use {100 * busy:.0f} % of the cores; waiting up to 5 minutes for less than "
                f"{100 * BUSY:.0f} % (--busy measures now)")
            while busy >= BUSY and time.monotonic() < deadline:
                busy = busy_share()
            if busy >= BUSY:
                sys.exit(f"bench: no table is written: other programs still use {100 * busy:.0f} % of the cores; "
                         "end them, or measure with --busy")
        self.busy = max(self.busy, busy)

    def steps(self, count):
        return 20 if self.args.quick else count

    def chosen(self, jobs):
        """The jobs whose names match --only."""
        return {name: job for name, job in jobs.items() if re.search(self.args.only or "", name)}

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

    def rate(self, step, ranks, *options, **name):
        return rate_of(self.events_of_ranks(self.command(step, ranks, *options, **name))[0])

    def python(self):
        """A python with PyTorch, which is installed in build/venv if necessary."""
        python = os.environ.get("DDP_PYTHON") or f"{ROOT}/build/venv/bin/python"
        complete = f"{ROOT}/build/venv/complete"
        if not os.path.exists(complete) and not os.environ.get("DDP_PYTHON"):
            say("PyTorch for build/venv is a download of up to 5.5 GB; DDP_PYTHON names a Python that has it, and pip "
                "takes a mirror from PIP_INDEX_URL or pip.conf")
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
        return [self.python(), f"{ROOT}/tools/bench_torch.py", what, *(word for pair in pairs for word in pair)]

    def write(self, *parts):
        """Prints tables and lines. If they are complete, also writes them to docs/benchmarks.md, between
        <!-- NAME:begin --> and <!-- NAME:end -->."""
        text = "\n\n".join(parts) + "\n"
        print(text)
        begin, end = f"<!-- {self.args.name}:begin -->\n", f"<!-- {self.args.name}:end -->"
        if self.args.quick or self.args.only or self.args.name == "gpu":
            return
        with open(PAGE, encoding="utf-8") as file:
            head, rest = file.read().split(begin)
        with open(PAGE, "w", encoding="utf-8") as file:
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
        return float(process.stdout.readline())

    def close(self, but=()):
        for mode in [mode for mode in self.processes if mode not in but]:
            process = self.processes.pop(mode)
            process.kill()
            process.wait()

    def __call__(self):
        """-> the fastest mode's rate in this round"""
        for mode in list(self.modes):
            try:
                self.rates.setdefault(mode, []).append(self.ask(mode))
            except (OSError, ValueError):
                say(f"PyTorch's {mode} failed: see {self.bench.out}/torch-{mode}.log")
                self.modes.remove(mode)
                self.rates.pop(mode)
        if not self.rates:
            raise RuntimeError(f"PyTorch does not run here: see {self.bench.out}/torch-*.log")
        say("PyTorch: " + ", ".join(f"{mode} {rates[-1]:.0f} a second" for mode, rates in self.rates.items()))
        if not self.shows_all:
            self.modes = [self.best()]
            self.close(but=self.modes)
        return self.rates[self.best()][-1]

    def best(self):
        """The fastest mode of the first round."""
        return max(self.rates, key=lambda mode: self.rates[mode][0])


# --- tables -----------------------------------------------------------------------------------------


def event(events, name):
    return next(e for e in events if e["event"] == name)


def rate_of(events, skip=2):
    """Images per second of all ranks: the median over the printed lines, without the first ones."""
    return median([e["samples_per_s"] for e in events if e["event"] == "step"][skip:])


def processor():
    """-> the processor's name, and the instructions that decide how fast it is"""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        about = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in file)}
    flags = about.get("flags", "").split()
    return about.get("model name", platform.machine()), [
        name for flag, name in (("avx512f", "AVX-512"), ("avx512_bf16", "AVX-512 for bf16"), ("amx_bf16", "AMX"))
        if flag in flags]


def computes_in_bf16():
    """Without such instructions, a step takes minutes, so there are no rows in bf16."""
    return any(unit in ("AVX-512 for bf16", "AMX") for unit in processor()[1])


def machine():
    """The processor, and the system, whose compiler and oneDNN also decide the speed."""
    name, units = processor()
    system = platform.freedesktop_os_release()["PRETTY_NAME"]
    return f"{name} ({', '.join(units) or 'no AVX-512'}), {CORES} cores; {system}"


def revision():
    """The commit, and whether the tracked files differ from it, except the page of tables. Without git, $DDP_COMMIT or
    the bundle's file `about` names it."""
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


def heading(bench, *more):
    """The first line below a table's name."""
    load = "quick" if bench.args.quick else f"other programs used {100 * bench.busy:.0f} % of the cores"
    if bench.busy >= BUSY:
        load = f"**on a busy machine: {load}**"
    return "; ".join([machine(), *more, str(date.today()), bench.revision, load,
                      f"medians of {bench.rounds} round{'s'[:bench.rounds > 1]}"]) + "."


def table(head, rows):
    lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(head) - 1), *lines[1:]])


def against(what, ours, theirs, digits=0):
    return what, f"{ours:.{digits}f}", f"{theirs:.{digits}f}", f"{ours / theirs:.2f}"


# --- training steps -----------------------------------------------------------------------------------

LAYOUTS = ("default", "channels_last")
MODES = (*LAYOUTS, "compile_channels_last")

# What a step multiplies and adds per image, padding not counted: the convolutions, two gradients of each (only one of
# the first), and the last layer.
RESNET18 = 0.1257e9
# Network, channels, size of images, batch, type, steps between two readings of the loss, steps of a measurement.
TRAIN_JOBS = {
    "ResNet-18, 3x32x32, batch 256, f32": (RESNET18, "resnet18", 3, 32, 256, "f32", 5, 30),
    "ResNet-18, 3x32x32, batch 256, bf16": (RESNET18, "resnet18", 3, 32, 256, "bf16", 5, 30),
    "ResNet-18, 1x28x28, batch 256, f32": (0.1061e9, "resnet18", 1, 28, 256, "f32", 5, 30),
    "ResNet-50, 3x32x32, batch 64, f32": (0.3961e9, "resnet50", 3, 32, 64, "f32", 5, 20),
    "ResNet-18, 3x224x224, batch 16, f32": (9.847e9, "resnet18", 3, 224, 16, "f32", 1, 8),
    "ResNet-18, 3x224x224, batch 16, bf16": (9.847e9, "resnet18", 3, 224, 16, "bf16", 1, 8),
    "ResNet-50, 3x224x224, batch 8, f32": (23.44e9, "resnet50", 3, 224, 8, "f32", 1, 6),
    "ResNet-50, 3x224x224, batch 8, bf16": (23.44e9, "resnet50", 3, 224, 8, "bf16", 1, 6),
}
# Layers, heads, width, bytes in a window, windows in a batch, type, steps as above. The first has the sizes that
# nanoGPT suggests for a CPU.
GPT_JOBS = {f"{job[0]} layers of {job[2]}, {job[4]} windows of {job[3]}, {kind}": (*job[:5], kind, *job[5:])
            for job in ((4, 4, 128, 64, 12, 20, 120), (6, 6, 384, 256, 8, 3, 18)) for kind in ("f32", "bf16")}


def training(b, step, options, batch, kind, group, steps, torch, modes, tokens=1, **more):
    """-> our side and PyTorch's. Both read the loss once in a group of steps. The first groups are not measured: two on
    a CPU; on a GPU five, the epoch in which the program records the CUDA graph."""
    on_gpu, steps = b.args.name == "gpu", 2 * group if b.args.quick else steps
    skip = 5 if on_gpu else 2
    first = skip * group
    amp = () if step == "01_single_gpu" else ("--amp", "off" if kind == "f32" else kind)
    command = b.command(step, 0, *options, *amp, "-b", batch, "--test-samples", batch, "-p", group, "--epochs", 99,
                        "--train-samples", batch * (first if on_gpu else first + steps), "--max-steps", first + steps,
                        *(() if on_gpu else ("--threads", CORES)))
    side = Torch(b, torch, modes, on_gpu, device="cuda" if on_gpu else "cpu", type=kind, batch=batch, group=group,
                 steps=steps, **more)
    return lambda: tokens * rate_of(b.events_of_ranks(command)[0], skip), side


def net(b, arch, channels, size, batch, kind, group, steps, modes=MODES):
    pictures = (() if size == 32 else ("--data", "fashion-mnist") if channels == 1
                else ("--data", "synthetic", "--image-size", size))
    step = "01_single_gpu" if kind in ("f32", "tf32") else "05_ddp_amp"
    workers = ("-j", min(16, CORES)) if b.args.name == "gpu" else ()
    options = ["-a", arch, "--no-augment", *pictures, *workers]
    return training(b, step, options, batch, kind, group, steps, "step", modes, arch=arch, channels=channels,
                    size=size)


def gpt(b, layers, heads, width, size, batch, kind, group, steps, modes=("eager", "compile_eager")):
    """The speed does not depend on the text, so it is random."""
    with open(f"{b.out}/text", "w", encoding="ascii") as file:
        file.write("".join(random.choices([chr(c) for c in range(48, 113)], k=2000000)))
    options = ["--data", f"text:{b.out}/text", "-a", "gpt", "--layers", layers, "--heads", heads, "--width", width,
               "--block", size, "--optim", "adamw", "--lr", 1e-3, "--clip-norm", 1]
    return training(b, "05_ddp_amp", options, batch, kind, group, steps, "gpt", modes, size,
                    arch=f"{layers}x{heads}x{width}", size=size, data=None)


def gpt_operations(layers, _, width, size, *__):
    """What a step multiplies and adds per token: matrix products and attention."""
    return 6 * (layers * (12 * width**2 + 2 * size * width) + 65 * width)


def limit_text(limits):
    """limits: {type: [operations per second, measured in turns with each row]}"""
    return "The limit, by row: " + ", ".join(f"{min(some) / 1e9:.0f} to {max(some) / 1e9:.0f} GFLOP/s in {kind}"
                                             for kind, some in limits.items()) + "."


def compared(b, jobs, make, what):
    """Writes a table of speeds; ours also as a share of the limit, which is PyTorch's speed for a large matrix product.
    jobs: {name: (operations of a sample, arguments of make...)}."""
    rows, limits = [], {}
    for name, (operations, *job) in b.chosen(jobs).items():
        if "bf16" in job and not computes_in_bf16():
            continue
        ours, torch = make(b, *job)
        kind = torch.options["type"]
        limit = Torch(b, "product", ["default"], type=kind)
        found = in_turns(b, b.rounds, {"ours": ours, "torch": torch, "limit": limit})
        torch.close()
        limit.close()
        rate = {side: median(values) for side, values in found.items()}
        ratios = [mine / theirs for mine, theirs in zip(found["ours"], found["torch"])]
        limits.setdefault(kind, []).append(rate["limit"])
        rows.append((name, f"{rate['ours']:.4g}", f"{100 * rate['ours'] * operations / rate['limit']:.0f} %",
                     f"{rate['torch']:.4g}", torch.best(),
                     f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"))
    b.write(heading(b, f"{CORES} threads", b.torch_version()) + what,
            table(("", "ours", "of the limit", "PyTorch", "its fastest mode", "ratio (of the rounds)"), rows),
            limit_text(limits))


def bench_train(b):
    compared(b, TRAIN_JOBS, net, " Training steps, images/s.")


def bench_gpt(b):
    compared(b, {name: (gpt_operations(*job), *job) for name, job in GPT_JOBS.items()}, gpt,
             " Training steps, tokens/s; AdamW, gradients clipped, no dropout.")


# Operations as above, and arguments of net or gpt. PyTorch uses one batch in the GPU's memory; we do not augment.
GPU_MODES, GPT_MODES = ("eager", "channels_last", "graph"), ("eager", "graph")
GPU_JOBS = {
    "resnet18_tf32": (RESNET18, net, "resnet18", 3, 32, 256, "tf32", 39, 975, GPU_MODES),
    "resnet18_fp16": (RESNET18, net, "resnet18", 3, 32, 256, "fp16", 39, 975, GPU_MODES),
    "resnet50_fp16": (23.44e9, net, "resnet50", 3, 224, 256, "fp16", 4, 60, GPU_MODES),
    "gpt384_bf16": (gpt_operations(6, 6, 384, 256), gpt, 6, 6, 384, 256, 64, "bf16", 20, 300, GPT_MODES),
    "gpt768_bf16": (gpt_operations(12, 12, 768, 1024), gpt, 12, 12, 768, 1024, 16, "bf16", 10, 150, GPT_MODES),
}


def bench_gpu(b):
    """A job that fails does not stop the others."""
    rows, limits, jobs = [], {}, b.chosen(GPU_JOBS)
    for name, (operations, make, *job) in jobs.items():
        ours, torch = make(b, *job)
        samples = job[3] if make is net else job[3] * job[4]        # images of a batch, or tokens
        kind = torch.options["type"]
        product = Torch(b, "product", ["default"], True, device="cuda", type=kind)
        try:
            found = in_turns(b, b.rounds, {"ours": ours, "torch": torch, "limit": product})
            rate, limit = median(found["ours"]), median(found["limit"])
            limits.setdefault(kind, []).append(limit)
        except (RuntimeError, OSError, statistics.StatisticsError) as error:
            say(f"{name} failed: {error}")
            continue
        finally:
            torch.close()
            product.close()
        theirs = {mode: median(rates) for mode, rates in torch.rates.items()}
        def cell(mode):
            return f"{1e3 * samples / theirs[mode]:.3f} ({mode}), {rate / theirs[mode]:.2f} times ours"
        rows.append((name, f"{1e3 * samples / rate:.3f}", f"{100 * rate * operations / limit:.0f} %",
                     cell("eager") if "eager" in theirs else "", cell(max(theirs, key=theirs.get))))
        say(" | ".join(rows[-1]))
    gpu = output_of(["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit",
                     "--format=csv,noheader"])
    cudnn = output_of([b.python(), "-c", "import torch; print(torch.backends.cudnn.version())"])
    b.write(heading(b, gpu, b.torch_version(), f"its cuDNN {cudnn}"),
            table(("ms per step", "ours", "of the limit", "PyTorch, eager", "PyTorch's best"), rows),
            limit_text(limits))
    return len(rows) == len(jobs)


# --- data ---------------------------------------------------------------------------------------------


def bench_epoch(b):
    """To save time, an epoch has only some of the images."""
    workers, images = min(CORES, 4), 5120 if b.args.quick else 25600
    command = b.command("01_single_gpu", 0, "--threads", CORES, "-b", 256, "--epochs", 1, "-p", 49, "--train-samples",
                        images, "--test-samples", 256)
    torch = Torch(b, "epoch", MODES, workers=workers, steps=images // 256, group=50)
    found = medians(b, b.rounds, {
        "ours": lambda: images / event(b.events_of_ranks(command)[0], "epoch")["seconds"],
        "torch": torch})
    torch.close()
    b.write(
        heading(b, f"{CORES} threads", f"{b.torch_version()}, {torch.best()}")
        + f" ResNet-18, 3x32x32, batch 256, f32; epochs of {images} images, {'CIFAR-10' if b.data else 'random'}.",
        table(("", "ours", "PyTorch", "ratio"), [
            against("an epoch with its data, images/s", found["ours"], found["torch"])]),
        f"PyTorch reads the images with a DataLoader with {workers} workers and torchvision's transforms on PIL images "
        "(crop, flip, ToTensor, Normalize).")


def folder_of_pictures(b):
    """The folder of --pictures, or one with 2,000 images of a data set as JPEG files of 384x384."""
    if b.args.pictures:
        return b.args.pictures
    tree = f"{b.out}/pictures"
    if not os.path.isdir(f"{tree}/val"):
        run([b.program("as_folder"), "--data", b.set if b.data else "fashion-mnist", "--as-folder", tree,
             "--scale", 384, "--format", "jpeg", "--train-samples", 2000, "--test-samples", 100])
    return tree


def bench_folder(b):
    tree = folder_of_pictures(b)
    command = [b.program("loader_bench"), "--data", tree, "-b", 64]

    def ours(workers):
        return float(re.search(r"([0-9.]+) images/s", run([*command, "-j", workers])).group(1))

    counts = sorted({1, CORES})
    torches = {n: Torch(b, "folder", ["default"], data=tree, workers=n, batch=64, threads=1) for n in counts}
    found = medians(b, b.rounds, {n: lambda n=n: ours(n) for n in counts}
                    | {f"torch {n}": side for n, side in torches.items()})
    for side in torches.values():
        side.close()
    sizes = [os.path.getsize(path) for path in glob.glob(f"{glob.escape(tree)}/train/*/*")]
    b.write(
        heading(b, b.torch_version()) + f" {len(sizes)} files of {sum(sizes) / len(sizes) / 1024:.0f} KiB on average, "
        "an epoch without a model: RandomResizedCrop(224), flip, normalise; batches of 64.",
        table(("", "ours", "PyTorch", "ratio"), [
            against(f"images/s, {n} worker{'s'[:n > 1]}", found[n], found[f"torch {n}"]) for n in counts]))


# --- several ranks ------------------------------------------------------------------------------------

PLAIN = ("--no-augment", "-p", 5)       # images as they are; every 5 steps the loss is read and printed


def bench_parallel(b):
    one = ("--threads", 1, "-b", 128, *PLAIN, "--max-steps", b.steps(40))
    pair = ("--threads", 1, "-b", 256, *PLAIN, "--max-steps", b.steps(40))

    def alone():
        return b.rate("01_single_gpu", 0, *one)

    ddp = Torch(b, "ddp", LAYOUTS, ranks=2, threads=1, batch=128, steps=b.steps(30))
    step = Torch(b, "step", MODES, threads=2, steps=b.steps(30))
    rate = medians(b, b.rounds, {
        "01": alone,
        "two 01": lambda: two_at_once(alone),
        "all-reduce": lambda: all_reduce_seconds(b),
        "03": lambda: b.rate("03_ddp_fork", 2, *one),
        "naive": lambda: b.rate("03_ddp_fork", 2, *one, name="train_naive"),
        "ddp": ddp,
        "02": lambda: b.rate("02_data_parallel", 2, *pair),
        "step": step})
    ddp.close()
    step.close()
    b.write(
        heading(b, "1 thread for each rank and device", b.torch_version())
        + " ResNet-18, 3x32x32, float32, batch 128 for each of 2 ranks.",
        table(("", "images/s, all ranks together", "of 01 alone", "of 03"), [
            (what, f"{value:.0f}", f"{value / rate['01']:.2f}", f"{value / rate['03']:.2f}") for what, value in (
                ("01 alone", rate["01"]),
                ("01, two programs at the same time", rate["two 01"]),
                ("and one all-reduce after each step: what 03's parts allow",
                 256 / (256 / rate["two 01"] + rate["all-reduce"])),
                ("03: gradients in buckets, overlapped with backward", rate["03"]),
                ("03's train_naive: one all-reduce after backward", rate["naive"]),
                (f"PyTorch's DDP, {ddp.best()} (sends 44.7 MB of gradients; 03 sends 16.9 MB)", rate["ddp"]),
                ("02, 2 devices", rate["02"]),
                (f"PyTorch, one process with 2 threads, {step.best()}", rate["step"]))]))


def two_at_once(rate):
    """The total rate of two programs that run at the same time without communicating."""
    with ThreadPoolExecutor() as pool:
        return sum(each.result() for each in [pool.submit(rate), pool.submit(rate)])


def all_reduce_seconds(b):
    text = run([b.program("comm_bench"), "-n", 2, "-b", GRADIENTS, "-e", GRADIENTS])
    return next(float(line.split()[4]) / 1e6 for line in text.splitlines() if line[:1] == " ")


def seconds_until(text, command, env):
    """-> seconds from the start of the command to its first line with this text"""
    command, begin, seconds = shown(command), time.perf_counter(), None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as process:
        for line in process.stdout:
            if text in line and seconds is None:
                seconds = time.perf_counter() - begin
    if seconds is None or process.returncode != 0:
        raise RuntimeError(f"status {process.returncode}, no line with {text!r}: {shlex.join(command)}")
    return seconds


def launchers(b, ranks, batch, threads, ours, theirs, **torch):
    """-> the commands of `launch` and of `torchrun`. ours: options of our program; theirs: options of both launchers"""
    command = b.command("04_ddp_launcher", ranks, "-b", batch, "--threads", threads, "-p", 1, *ours)
    command[1:1] = theirs
    python, *script = b.torch("launch", batch=batch, threads=threads, workers=1, **torch)
    return command, [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, *theirs, *script]


def bench_launch(b):
    rows = []
    for ranks in (1, 2, 4):                     # the first start of each is not measured
        ours, theirs = launchers(b, ranks, 256 // ranks, max(1, CORES // ranks), ["--max-steps", 1], [])
        found = in_turns(b, b.rounds + 1, {
            "torchrun": lambda command=theirs: seconds_until('"rank": 0', command, os.environ),
            "launch": lambda command=ours: seconds_until("== step:", command, ours_environment())})
        rows.append(against(f"{ranks} rank{'s'[:ranks > 1]}, from the start to the end of the first step",
                            *(median(times[1:]) for times in found.values()), 2))
    ours, theirs = launchers(b, 2, 32, 1, ["--epochs", 1000], ["--max-restarts", 3], steps=100000)
    again = in_turns(b, b.rounds, {"torchrun": lambda: kill_to_next_step(theirs, os.environ),
                                   "launch": lambda: kill_to_next_step(ours, ours_environment())})
    ended = {name: [seconds for seconds in times if seconds < math.inf] for name, times in again.items()}
    lost = [f"In {b.rounds - len(times)} of {b.rounds} runs of `{name}`, the restarted ranks had no step within two "
            "minutes." + " The median is that of the other runs." * bool(times)
            for name, times in ended.items() if len(times) < b.rounds]
    rows.append(against("one of 2 ranks is killed: to the end of the next step",
                        *(median(times or [math.inf]) for times in ended.values()), 2))
    b.write(heading(b, b.torch_version()) + " ResNet-18, 3x32x32, global batch 256, after the kill 64; no checkpoint.",
            table(("seconds", "`torchrun`", "`launch`", "ratio"), rows), *lost)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def kill_all(launcher):
    """Also kills the ranks: torchrun's have sessions of their own, and would keep its stdout open."""
    for pid in (launcher, *children(launcher)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_to_next_step(command, env):
    """Kills a rank after some steps -> seconds until the first step after a restart; infinite if there is none."""
    with subprocess.Popen(shown(command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env,
                          start_new_session=True) as launcher:
        limit = threading.Timer(120, kill_all, (launcher.pid,))     # PyTorch's ranks may hang in init_process_group
        limit.start()
        try:
            steps = (line for line in launcher.stdout if "== step:" in line or '"step"' in line)
            for _ in range(5):
                next(steps)
            os.kill(random.choice(children(launcher.pid)), signal.SIGKILL)
            begin = time.perf_counter()
            for line in launcher.stdout:
                if "init" in line:          # the first line of the restarted ranks
                    break
            return time.perf_counter() - begin if next(steps, None) else math.inf
        finally:
            limit.cancel()
            kill_all(launcher.pid)


def steps_jobs(b):
    """{row: command}: the same job on the same cores. Each of two ranks or devices gets half of the cores."""
    common = ("--test-samples", 256, *PLAIN, "--max-steps", b.steps(40))

    def one(step, threads):
        return b.command(step, 0, "--threads", threads, "-b", 256, *common)

    def two(step, *options):
        return b.command(step, 2, "--threads", HALF, "-b", 128, *common, *options)

    jobs = {
        "01, on half of the cores": one("01_single_gpu", HALF),
        "01, on all cores": one("01_single_gpu", 2 * HALF),
        "02, 2 devices in a process": b.command("02_data_parallel", 2, "--threads", HALF, "-b", 256, *common),
        "03, 2 ranks, forked": two("03_ddp_fork"),
        "04, 2 ranks, started by `launch`": two("04_ddp_launcher"),
        "05, the same, `--amp off --compress fp16`": two("05_ddp_amp", "--amp", "off", "--compress", "fp16"),
        "05, the same, `--amp bf16`": two("05_ddp_amp", "--amp", "bf16"),
        "05, the same, `--amp bf16 --compress bf16`": two("05_ddp_amp", "--amp", "bf16", "--compress", "bf16"),
        "07, as 04, `--amp off`": two("07_dist_eval", "--amp", "off"),
    }
    return {what: command for what, command in jobs.items() if "bf16" not in what or computes_in_bf16()}


def bench_steps(b):
    jobs = steps_jobs(b)
    runs = in_turns(b, b.rounds, {what: lambda command=command: b.events_of_ranks(command)
                                  for what, command in jobs.items()})
    rates = {what: median(rate_of(ranks[0]) for ranks in runs[what]) for what in jobs}
    peaks = {what: median(sum(event(events, "end")["peak_rss_mb"] for events in ranks) for ranks in runs[what])
             for what in jobs}
    b.write(
        heading(b, f"threads of each of two ranks or devices: {HALF}")
        + f" ResNet-18, 3x32x32, global batch 256, {'CIFAR-10' if b.data else 'random images'}.",
        table(("", "images/s", "of 01 on all cores", "memory, MiB"), [
            (what, f"{rate:.0f}", f"{rate / rates['01, on all cores']:.2f}", f"{peaks[what]:.0f}")
            for what, rate in rates.items()]))


# name: the function, its rounds, one line for --help
BENCHMARKS = {
    "train": (bench_train, 3, "training steps of residual networks, images of 32x32 and of 224x224"),
    "epoch": (bench_epoch, 3, "one process: epochs with their data"),
    "gpt": (bench_gpt, 3, "training steps of language models, in f32 and bf16"),
    "folder": (bench_folder, 5, "a folder of JPEG files against DataLoader and ImageFolder, without a model"),
    "parallel": (bench_parallel, 3, "two ranks, two devices"),
    "launch": (bench_launch, 5, "a launcher: start, and a killed rank"),
    "steps": (bench_steps, 3, "all steps with the same job on the same cores"),
    "gpu": (bench_gpu, 5, "training steps on a GPU (in a bundle: tools/gpu_tests.sh run tools/bench.py gpu)"),
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
    parser.add_argument("--rounds", type=int, metavar="N", choices=range(1, 100),
                        help="number of measurements of each side")
    parser.add_argument("--quick", action="store_true", help="test this command: one short round, and write nothing")
    parser.add_argument("--busy", action="store_true",
                        help="measure although other programs use half of the cores or more; the table then says so")
    parser.add_argument("--only", metavar="REGEX", help="of train, gpt and gpu, only jobs that match; write nothing")
    parser.add_argument("--pictures", metavar="DIR", help="for folder: use DIR/train/CLASS/FILE and DIR/val/CLASS/FILE")
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    jobs = {"train": TRAIN_JOBS, "gpt": GPT_JOBS, "gpu": GPU_JOBS}.get(args.name, [])
    if args.only and not any(re.search(args.only, job) for job in jobs):
        parser.error(f"--only: no job of {args.name} matches {args.only}")
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
