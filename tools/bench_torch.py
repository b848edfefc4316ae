#!/usr/bin/env python3
"""PyTorch's side of the benchmark: tools/bench.sh runs it in turns with ours.

    bench_torch.py step  --mode MODE     training steps on a batch that lies in memory
    bench_torch.py amp   --mode MODE     the same in bf16, by torch.autocast
    bench_torch.py ddp   --mode MODE     steps on several ranks at once: DistributedDataParallel on
                                         Gloo; batch and threads are each rank's
    bench_torch.py epoch --mode MODE     a whole epoch, with the usual input pipeline
    bench_torch.py first --mode MODE     ends with the first step of such an epoch
    bench_torch.py launch --mode MODE    the same on each of the ranks that torchrun has started
    bench_torch.py eval_f32   --mode MODE    evaluates the test images, --steps times over, as they lie
    bench_torch.py eval_bf16  --mode MODE    normalised in memory; in bf16 by torch.autocast, or, if MODE
                                             ends with _cast, with weights and images in bf16
    bench_torch.py whole_f32 --init FILE     reads the weights, evaluates the test images once, and ends
    bench_torch.py whole_bf16 --init FILE

ResNet-18 of torchvision, ten classes, 3x32x32, float32, on the CPU; SGD with Nesterov's momentum,
as our defaults. MODE of training: default, channels_last, compile or compile_channels_last; of
evaluation: see fast_model. Prints a JSON object.
"""
import argparse
import json
import os
import statistics
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchvision
from PIL import Image
from torchvision import transforms

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
MODES = ("default", "channels_last", "compile", "compile_channels_last")
EVAL_MODES = ("default", "channels_last", "folded", "frozen", "folded_frozen", "compile", "autotune")


def modes_of(what):
    """Casting is for bf16 only."""
    if not what.startswith(("eval", "whole")):
        return MODES
    return EVAL_MODES + tuple(f"{mode}_cast" for mode in EVAL_MODES) * what.endswith("bf16")


def make_training(mode, wrap=lambda model: model, amp=False):
    """-> a function that takes one training step and returns the loss. amp: in bf16."""
    layout = torch.channels_last if mode.endswith("channels_last") else torch.contiguous_format
    model = torchvision.models.resnet18(num_classes=10).to(memory_format=layout).train()
    model = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4,
                                nesterov=True)
    forward = torch.compile(model) if mode.startswith("compile") else model

    def step(images, labels):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            loss = F.cross_entropy(forward(images.contiguous(memory_format=layout)), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


# --- a batch in memory -------------------------------------------------------------------------


def bench_step(args, wrap=lambda model: model):
    """The median over groups of steps, the loss read once a group, as ours prints a line."""
    step = make_training(args.mode, wrap, amp=args.what == "amp")
    images, labels = torch.randn(args.batch, 3, 32, 32), torch.randint(10, (args.batch,))
    for _ in range(args.warmup):
        step(images, labels).item()
    rates = []
    for _ in range(args.steps // args.group):
        begin = time.perf_counter()
        for _ in range(args.group):
            loss = step(images, labels)
        loss.item()
        rates.append(args.group * args.batch / (time.perf_counter() - begin))
    return {"samples_per_s": statistics.median(rates)}


# --- several ranks, each with its batch in memory ----------------------------------------------


def ddp_rank(rank, args, port, found):
    """A process of its own."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(rank)
    store = dist.TCPStore("127.0.0.1", port, args.ranks, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=args.ranks)
    rates = bench_step(args, torch.nn.parallel.DistributedDataParallel)
    if rank == 0:
        found.put(args.ranks * rates["samples_per_s"])
    dist.destroy_process_group()


def bench_ddp(args):
    """All ranks' images a second: they go in step, so rank 0's times their number."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["OMP_NUM_THREADS"] = str(args.threads)       # as torchrun does for its ranks
    store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    found = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(ddp_rank, (args, store.port, found), nprocs=args.ranks)
    return {"samples_per_s": found.get(), "ranks": args.ranks}


# --- a whole epoch ------------------------------------------------------------------------------


class Images(torch.utils.data.Dataset):
    """CIFAR-10's training set, as torchvision.datasets.CIFAR10 gives it: PIL images."""

    def __init__(self, folder):
        if folder:
            rows = np.concatenate([np.fromfile(f"{folder}/data_batch_{i}.bin", np.uint8)
                                   for i in range(1, 6)]).reshape(-1, 3073)
            self.labels = rows[:, 0].astype(np.int64)
            planes = rows[:, 1:].reshape(-1, 3, 32, 32)
            self.pixels = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
        else:
            rng = np.random.default_rng(0)
            self.labels = rng.integers(0, 10, 50000)
            self.pixels = rng.integers(0, 256, (50000, 32, 32, 3), np.uint8)
        self.transform = transforms.Compose([
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.transform(Image.fromarray(self.pixels[i])), int(self.labels[i])


def bench_launch(args):
    """The first step of DistributedDataParallel, as a script for torchrun takes it."""
    dist.init_process_group("gloo")
    data = Images(args.data)
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=args.batch, sampler=sampler,
                                         num_workers=args.workers)
    step = make_training(args.mode, torch.nn.parallel.DistributedDataParallel)
    return {"loss": step(*next(iter(loader))).item(), "rank": dist.get_rank()}


def memory_mb(path, field):
    """A line of one of /proc's files, in MB."""
    with open(path, encoding="ascii") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
    return 0.0


def children():
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return file.read().split()


def bench_epoch(args, only_first=False):
    data = Images(args.data)
    loader = torch.utils.data.DataLoader(data, batch_size=args.batch, shuffle=True,
                                         num_workers=args.workers,
                                         persistent_workers=args.workers > 0)
    step = make_training(args.mode)
    if not only_first:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")                     # the peak begins here, after the files were read
        if args.mode.startswith("compile"):     # compiling is not part of an epoch
            for rows in {args.batch, len(data) % args.batch or args.batch}:
                step(torch.randn(rows, 3, 32, 32), torch.randint(10, (rows,))).item()
    begin, waited, count = time.perf_counter(), 0.0, 0
    batches = iter(loader)
    while True:
        mark = time.perf_counter()
        batch = next(batches, None)
        waited += time.perf_counter() - mark
        if batch is None or (args.steps and count >= args.steps):
            break
        loss = step(*batch)
        count += 1
        if only_first:
            return {"loss": loss.item()}
        if count % 50 == 0:
            loss.item()
    seconds = time.perf_counter() - begin
    data_mb = data.pixels.nbytes / 2**20
    return {"seconds": seconds, "steps": count, "wait_share": waited / seconds, "data_mb": data_mb,
            "peak_mb": memory_mb("/proc/self/status", "VmHWM"), "workers": args.workers,
            "samples_per_s": min(count * args.batch, len(data)) / seconds,
            "worker_mb": sum(memory_mb(f"/proc/{pid}/smaps_rollup", "Private_Dirty")
                             for pid in children())}


# --- evaluating ---------------------------------------------------------------------------------


def read_tests(folder):
    """The test images, normalised, and their labels."""
    if not folder:
        return torch.randn(10000, 3, 32, 32), torch.randint(10, (10000,))
    rows = np.fromfile(f"{folder}/test_batch.bin", np.uint8).reshape(-1, 3073)
    pixels = torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32)).float().div_(255)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    return pixels.sub_(mean).div_(std), torch.from_numpy(rows[:, 0].astype(np.int64))


def fast_model(mode, init, example):
    """ResNet-18 for inference; all but default have channels_last. folded: BatchNorm in the convolutions;
    frozen: TorchScript, frozen (which folds too) and optimised; compile: torch.compile with weights frozen;
    autotune: the same, choosing among kernels by trial."""
    model = torchvision.models.resnet18(num_classes=10).eval()
    if init:
        from safetensors.torch import load_file         # here, so that no other start waits for it
        saved = load_file(init)
        model.load_state_dict({name: saved[name] for name in model.state_dict()})
    if mode.startswith("folded"):
        from torch.fx.experimental.optimization import fuse
        model = fuse(model)
    model = model.to(memory_format=layout_of(mode), dtype=example.dtype)
    if "frozen" in mode:
        return torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(model, example)))
    if mode.startswith(("compile", "autotune")):
        return torch.compile(model, dynamic=False, options={
            "freezing": True, "max_autotune": mode.startswith("autotune")})
    return model


def layout_of(mode):
    return torch.contiguous_format if mode.startswith("default") else torch.channels_last


def evaluate(model, batches):
    """-> top1 in %, loss"""
    right, loss, count = torch.zeros((), dtype=torch.int64), torch.zeros(()), 0
    for images, labels in batches:
        logits = model(images).float()
        right += (logits.argmax(1) == labels).sum()
        loss += F.cross_entropy(logits, labels, reduction="sum")
        count += len(labels)
    return 100 * right.item() / count, loss.item() / count


def bench_eval(args, repeat=True):
    """The median over evaluations after the first three, in which what is compiled late is compiled."""
    cast = args.mode.endswith("_cast")
    amp = args.what.endswith("bf16") and not cast
    images, labels = read_tests(args.data)
    images = images.to(memory_format=layout_of(args.mode), dtype=torch.bfloat16 if cast else torch.float32)
    batches = list(zip(images.split(args.batch), labels.split(args.batch)))
    seconds = []
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=amp,
                                         cache_enabled="frozen" not in args.mode):
        model = fast_model(args.mode, args.init, batches[0][0])
        for _ in range(3 + args.steps if repeat else 1):
            begin = time.perf_counter()
            top1, loss = evaluate(model, batches)
            seconds.append(time.perf_counter() - begin)
    return {"samples_per_s": len(labels) / statistics.median(seconds[-args.steps:]), "n": len(labels),
            "top1": top1, "loss": loss}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("step", "amp", "ddp", "epoch", "first", "launch", "eval_f32",
                                         "eval_bf16", "whole_f32", "whole_bf16"))
    parser.add_argument("--mode", default="default")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=0, help="0: a whole epoch; eval: evaluations")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--group", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", help="the folder of CIFAR-10's .bin files; none: random images")
    parser.add_argument("--init", help="weights to evaluate (safetensors); none: new ones")
    args = parser.parse_args()
    if args.mode not in modes_of(args.what):
        parser.error(f"{args.what} has the modes {', '.join(modes_of(args.what))}")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if args.what in ("step", "amp"):
        found = bench_step(args)
    elif args.what == "ddp":
        found = bench_ddp(args)
    elif args.what == "launch":
        found = bench_launch(args)
    elif args.what.startswith(("eval", "whole")):
        found = bench_eval(args, repeat=args.what.startswith("eval"))
    else:
        found = bench_epoch(args, only_first=args.what == "first")
    print(json.dumps({"what": args.what, "mode": args.mode, "threads": args.threads,
                      "torch": torch.__version__} | found), flush=True)
    if args.what in ("first", "launch"):
        os._exit(0)                             # not to wait for the loader's workers
    return 0


if __name__ == "__main__":
    sys.exit(main())
