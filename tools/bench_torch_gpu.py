#!/usr/bin/env python3
"""Our training steps beside PyTorch's on the same GPU, in turns: medians, ms per step.

    bench_torch_gpu.py --build FOLDER [--out FOLDER] [--only REGEX] [--rounds N] [--modes A,B] ...

FOLDER holds 01_single_gpu/train and 05_ddp_amp/train; DDP_LIBRARY_PATH is where they find their
libraries. What is measured, each a row of OUT/table.md, with all figures in OUT/results.jsonl:

    NAME            steps on one batch that PyTorch has on the device; ours without augmentation
    NAME_pipeline   the same with each side's real input pipeline: crop, flip, normalise
    first           from the start of the process to the end of its first step
    curve_TYPE      ours alone: five epochs with data, evaluation and start (needs --data)

PyTorch stays in this process, so that what it compiles it compiles once; each of its modes has a
time limit for that, and one that fails is left out, with the reason in OUT. Its modes, of which the
fastest is its best:

    eager             as everybody writes it
    channels_last     and a fused optimizer, as all that follow have, too
    graph             the whole step in one CUDA graph
    reduce_overhead   torch.compile
    max_autotune      torch.compile that tries kernels out
"""
import argparse
import gc
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass

try:
    import torch
    import torch.nn.functional as F
    import torchvision
except ImportError:
    torch = None

HERE = os.path.dirname(os.path.abspath(__file__))
MODES = ("eager", "channels_last", "graph", "reduce_overhead", "max_autotune")


@dataclass
class Job:
    name: str
    arch: str
    type: str               # f32, tf32, fp16, bf16
    floor: tuple            # ms that the chip needs at least, from ... to; 256 images
    size: int = 32
    group: int = 39         # steps between two readings of the loss, which wait for the device
    groups: int = 5         # of an epoch
    epochs: int = 6
    pipeline: bool = False


JOBS = [
    Job("resnet18_tf32", "resnet18", "tf32", (0.36, 0.50)),
    Job("resnet18_fp16", "resnet18", "fp16", (0.28, 0.48)),
    Job("resnet18_bf16", "resnet18", "bf16", (0.28, 0.48)),
    Job("resnet18_f32", "resnet18", "f32", (1.30, 1.40)),
    Job("resnet50_fp16", "resnet50", "fp16", (25.9, 25.9), 224, 10, 2, 4),
    Job("resnet18_tf32_pipeline", "resnet18", "tf32", (0.36, 0.50), epochs=3, pipeline=True),
    Job("resnet18_fp16_pipeline", "resnet18", "fp16", (0.28, 0.48), epochs=3, pipeline=True),
]


def say(text):
    print(text, file=sys.stderr, flush=True)


# --- ours ---------------------------------------------------------------------------------------


def ours_command(args, job_type, arch, *options):
    short = job_type in ("fp16", "bf16")
    step, how = (("05_ddp_amp", ["--amp", job_type]) if short
                 else ("01_single_gpu", ["--tf32", str(int(job_type == "tf32"))]))
    return [f"{args.build}/{step}/train", "-a", arch, *how, "-b", str(args.batch),
            "-j", str(args.workers), *args.ours.split(), *options]


def ours_environment():
    path = os.environ.get("DDP_LIBRARY_PATH")
    return os.environ | ({"LD_LIBRARY_PATH": path} if path else {})


def ours_run(command, out):
    with open(f"{out}/ours.log", "w", encoding="utf-8") as log:
        status = subprocess.run(command, stdout=log, stderr=log, env=ours_environment()).returncode
    if status != 0:
        with open(f"{out}/ours.log", encoding="utf-8") as log:
            raise RuntimeError(f"exit status {status}: {' '.join(command)}\n{log.read()[-600:]}")


def read_events(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def ours_steps(args, job):
    """ms per step: the median over groups of steps, without the first epoch's, which records."""
    metrics = f"{args.out}/ours.jsonl"
    real = job.size == 32 and args.data
    ours_run(ours_command(
        args, job.type, job.arch, "--data", args.data if real else "synthetic",
        *([] if real else ["--image-size", str(job.size)]),
        "--augment" if job.pipeline else "--no-augment",
        "--train-samples", str(job.group * job.groups * args.batch),
        "--test-samples", str(args.batch), "--epochs", str(job.epochs), "-p", str(job.group),
        "--metrics", metrics), args.out)
    lines = [e for e in read_events(metrics) if e["event"] == "step" and e["epoch"] > 1]
    wait = statistics.median(e["data_wait_ms"] for e in lines)
    return 1e3 * args.batch / statistics.median(e["samples_per_s"] for e in lines), wait


def seconds_until(text, command, environment):
    begin, found, line = time.perf_counter(), None, ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=environment) as process:
        for line in process.stdout:
            if text in line and found is None:
                found = time.perf_counter() - begin
    if found is None or process.returncode != 0:
        raise RuntimeError(f"status {process.returncode}: {' '.join(command)}\n{line}")
    return found


# --- PyTorch's ----------------------------------------------------------------------------------


def make_step(args, job, mode):
    """-> step(), images, labels: a step on what lies in images and labels; returns the loss."""
    device, plain = args.device, mode == "eager"
    layout = torch.contiguous_format if plain else torch.channels_last
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = job.type != "f32"
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    model = getattr(torchvision.models, job.arch)(num_classes=10)
    model = model.to(device, memory_format=layout).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4,
                                nesterov=True, **({} if plain else {"fused": True}))
    scaler = torch.amp.GradScaler(device, enabled=job.type == "fp16")
    short = torch.float16 if job.type == "fp16" else torch.bfloat16
    images = torch.randn(args.batch, 3, job.size, job.size, device=device)
    images = images.contiguous(memory_format=layout)
    labels = torch.randint(10, (args.batch,), device=device)

    def forward(images, labels):
        with torch.autocast(device, short, enabled=job.type in ("fp16", "bf16"),
                            cache_enabled=mode != "graph"):
            return F.cross_entropy(model(images), labels)

    if mode in ("reduce_overhead", "max_autotune"):
        forward = torch.compile(forward, mode=mode.replace("_", "-"))

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = forward(images, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    if mode != "graph":
        return step, images, labels
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay():
        graph.replay()
        return loss

    return replay, images, labels


class Torch:
    """One mode, ready to be measured."""

    def __init__(self, args, job, mode):
        self.args, self.job = args, job
        self.step, self.images, self.labels = make_step(args, job, mode)
        for _ in range(min(job.group, 10)):
            loss = self.step()
        loss.item()
        self.loader = None
        if job.pipeline:
            from bench_torch import Images      # only here: it wants PIL
            self.loader = torch.utils.data.DataLoader(
                Images(args.data), batch_size=args.batch, shuffle=True, drop_last=True,
                num_workers=args.workers, persistent_workers=args.workers > 0,
                pin_memory=args.device == "cuda")
            next(iter(self.loader))             # starts the workers

    def measure(self):
        return self.measure_epoch() if self.loader else self.measure_steps()

    def measure_steps(self):
        rates, job = [], self.job
        for _ in range(max(2, job.groups * (job.epochs - 1))):
            begin = time.perf_counter()
            for _ in range(job.group):
                loss = self.step()
            loss.item()
            rates.append((time.perf_counter() - begin) / job.group)
        return 1e3 * statistics.median(rates)

    def measure_epoch(self):
        begin, count = time.perf_counter(), 0
        for images, labels in self.loader:
            self.images.copy_(images, non_blocking=True)
            self.labels.copy_(labels, non_blocking=True)
            loss = self.step()
            count += 1
            if count % self.job.group == 0:
                loss.item()
            if count == self.job.group * self.job.groups:
                break
        loss.item()
        return 1e3 * (time.perf_counter() - begin) / count


class OutOfTime(Exception):
    pass


def raise_out_of_time(*_):
    raise OutOfTime("the time limit (--limit)")


def free_memory(args):
    gc.collect()
    if torch and args.device == "cuda":
        torch.cuda.empty_cache()


def prepare_modes(args, job):
    """{mode: ready Torch}, {mode: ms}; what fails is left out. Of a large network only eager and
    the fastest stay in the device's memory."""
    ready, first = {}, {}
    for mode in args.modes if torch else ():
        if mode == "graph" and args.device == "cpu":
            continue
        begin = time.perf_counter()
        signal.signal(signal.SIGALRM, raise_out_of_time)
        signal.alarm(args.limit)
        try:
            ready[mode] = Torch(args, job, mode)
            first[mode] = ready[mode].measure()
        except Exception as error:
            ready.pop(mode, None)
            first.pop(mode, None)
            with open(f"{args.out}/failed-{job.name}-{mode}.txt", "w", encoding="utf-8") as file:
                file.write(traceback.format_exc())
            say(f"{job.name}: PyTorch's {mode} does not run here: {str(error).splitlines()[:1]}")
        finally:
            signal.alarm(0)
        say(f"{job.name}: PyTorch's {mode} took {time.perf_counter() - begin:.0f} s to get ready"
            f" ({first.get(mode, 0):.3f} ms)")
        if job.size > 32:
            kept = {"eager", min(first, key=first.get, default=None)}
            ready = {mode: theirs for mode, theirs in ready.items() if mode in kept}
            free_memory(args)
    return ready, first


def torch_first(args):
    """A process of its own: the first step of an ordinary script."""
    from bench_torch import Images
    loader = torch.utils.data.DataLoader(Images(args.data), batch_size=args.batch, shuffle=True,
                                         num_workers=min(args.workers, 4))
    step, images, labels = make_step(args, JOBS[0], "eager")
    batch = next(iter(loader))
    images.copy_(batch[0])
    labels.copy_(batch[1])
    print("first step:", step().item(), flush=True)
    os._exit(0)                                 # not to wait for the loader's workers


# --- the measurements ---------------------------------------------------------------------------


def note(args, found):
    args.found.append(found)
    with open(f"{args.out}/results.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")
    write_table(args)


def measure_job(args, job):
    ready, first = prepare_modes(args, job)
    times = {mode: [] for mode in ready}
    ours, waits = [], []
    for number in range(args.rounds):
        ms, wait = ours_steps(args, job)
        ours.append(ms)
        waits.append(wait)
        for mode, theirs in ready.items():
            times[mode].append(theirs.measure())
        say(f"{job.name}, round {number + 1}: ours {ms:.3f} ms" + "".join(
            f", {mode} {values[-1]:.3f}" for mode, values in times.items()))
    note(args, {"name": job.name, "floor": job.floor, "ours": ours, "data_wait": waits,
                "torch": times, "torch_first": first})
    ready.clear()
    if torch:
        torch._dynamo.reset()
    free_memory(args)


def measure_first(args):
    data = args.data or "synthetic"
    ours = ours_command(args, "tf32", "resnet18", "--data", data, "--max-steps", "1", "-p", "1")
    theirs = [sys.executable, os.path.abspath(__file__), "--child", "--device", args.device,
              "--batch", str(args.batch), "--workers", str(args.workers)]
    theirs += ["--data", args.data] if args.data else []
    found = {"name": "first", "unit": "s", "floor": (), "ours": [], "torch": {}}
    for number in range(args.rounds + 1):
        a = seconds_until("== step:", ours, ours_environment())
        b = seconds_until("first step:", theirs, os.environ) if torch else None
        say(f"first: ours {a:.2f} s, PyTorch {b} s{'' if number else ' (unmeasured)'}")
        if number:
            found["ours"].append(a)
            if torch:
                found["torch"].setdefault("eager", []).append(b)
    note(args, found)


def measure_curve(args, job_type):
    metrics = f"{args.out}/curve_{job_type}.jsonl"
    begin = time.perf_counter()
    ours_run(ours_command(args, job_type, "resnet18", "--data", args.data, "--epochs", "5",
                          "--metrics", metrics), args.out)
    seconds = time.perf_counter() - begin
    top1 = [e["top1"] for e in read_events(metrics) if e["event"] == "epoch"]
    say(f"curve_{job_type}: {seconds:.2f} s, top1 {top1}")
    note(args, {"name": f"curve_{job_type}", "unit": "s", "floor": (), "ours": [seconds],
                "torch": {}, "top1": top1})


def machine():
    query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit",
             "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        gpu = "no GPU"
    versions = (f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}" if torch
                else "no PyTorch")
    return f"{gpu}; {versions}; {len(os.sched_getaffinity(0))} cores"


def write_table(args):
    rows = [f"{args.machine}; batch {args.batch}; medians of {args.rounds} rounds in turns", "",
            "| job | floor | ours | share of the floor | PyTorch eager | its best | against eager "
            "| against its best |", "|---|---|---|---|---|---|---|---|"]
    for found in args.found:
        unit, ours = found.get("unit", "ms"), statistics.median(found["ours"])
        theirs = {mode: statistics.median(values) for mode, values in found["torch"].items()}
        best = min(theirs, key=theirs.get, default=None)
        low, high = found["floor"] or (0, 0)
        cells = [found["name"], f"{low} to {high}" if high else "",
                 f"**{ours:.3f} {unit}**" + (f", top1 {found['top1'][-1]:.2f} %"
                                             if "top1" in found else ""),
                 f"{100 * low / ours:.0f} to {100 * high / ours:.0f} %" if high else "",
                 f"{theirs['eager']:.3f}" if "eager" in theirs else "",
                 f"{theirs[best]:.3f} ({best})" if best else "",
                 f"{theirs['eager'] / ours:.2f}x" if "eager" in theirs else "",
                 f"{theirs[best] / ours:.2f}x" if best else ""]
        rows.append("| " + " | ".join(cells) + " |")
    with open(f"{args.out}/table.md", "w", encoding="utf-8") as file:
        file.write("\n".join(rows) + "\n")


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build")
    parser.add_argument("--out", default="bench")
    parser.add_argument("--data", help="CIFAR-10's folder; none: made-up images")
    parser.add_argument("--only", default=".", help="names that match")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--modes", default=",".join(MODES), help="PyTorch's; '' for ours alone")
    parser.add_argument("--limit", type=int, default=240, help="seconds for a mode to get ready")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--group", type=int, help="steps between two readings of the loss")
    parser.add_argument("--workers", type=int, default=min(16, len(os.sched_getaffinity(0))))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ours", default="", help="more options for our programs")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.modes = [mode for mode in args.modes.split(",") if mode]
    if not args.build and not args.child:
        parser.error("--build is missing")
    if set(args.modes) - set(MODES):
        parser.error(f"--modes: there are {', '.join(MODES)}")
    return args


def main():
    args = parse()
    if args.child:
        return torch_first(args)
    if torch and args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("bench: PyTorch sees no GPU: nvidia-smi, CUDA_VISIBLE_DEVICES")
    os.makedirs(args.out, exist_ok=True)
    args.machine, args.found = machine(), []
    say(args.machine)
    chosen = [(job.name, measure_job, job) for job in JOBS]
    chosen += [("first", measure_first)]
    chosen += [(f"curve_{t}", measure_curve, t) for t in ("f32", "tf32", "fp16") if args.data]
    chosen = [c for c in chosen if re.search(args.only, c[0])]
    failed = 0
    for name, measure, *what in chosen:
        for job in what:
            if args.group and isinstance(job, Job):
                job.group = args.group
        try:
            measure(args, *what)
        except Exception as error:              # the rest may go on
            failed += 1
            say(f"{name} failed: {error}")
    if not args.found:
        sys.exit("bench: nothing was measured")
    with open(f"{args.out}/table.md", encoding="utf-8") as file:
        print(file.read(), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
