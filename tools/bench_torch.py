#!/usr/bin/env python3
"""PyTorch's side of the benchmarks, on a CPU or a GPU: tools/bench.py runs it in turns with ours.

    bench_torch.py WHAT --mode MODE ...

It prepares, then measures once for each line of its input, and prints samples per second:

    step      training steps on a batch in memory
    gpt       training steps of a small language model on a batch in memory; size: characters in a window
    ddp       as step, in several processes: DistributedDataParallel on Gloo; batch and threads are each rank's
    epoch     the steps of an epoch with torchvision's usual input pipeline
    folder    an epoch of a folder of pictures, without a model: ImageFolder and DataLoader
    product   a product of two 4096x4096 matrices; its "samples" are additions and multiplications

One more is for torchrun, which starts it in several processes. It reads no input, and ends after its last step:

    launch    training steps; each prints a line with a JSON object

The model is torchvision's, with ten classes; SGD has Nesterov's momentum, as in our defaults.
"""
import argparse
import itertools
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torchvision
from PIL import Image
from torchvision import datasets, transforms

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
SHORT = {"fp16": torch.float16, "bf16": torch.bfloat16}


# --- training -----------------------------------------------------------------------------------


def layout_of(mode):
    return torch.contiguous_format if mode in ("default", "eager", "compile_default") else torch.channels_last


def make_batch(args):
    images = torch.randn(args.batch, args.channels, args.size, args.size, device=args.device)
    return (images.contiguous(memory_format=layout_of(args.mode)),
            torch.randint(10, (args.batch,), device=args.device))


def make_training(args, batch, wrap=lambda model: model):
    """-> a function that takes a training step on images and labels, and returns the loss."""
    on_gpu, layout = args.device == "cuda", layout_of(args.mode)
    model = getattr(torchvision.models, args.arch)(num_classes=10)
    if args.channels != 3:
        model.conv1 = torch.nn.Conv2d(args.channels, 64, 7, 2, 3, bias=False)
    model = wrap(model.to(args.device, memory_format=layout).train())
    fused = {"fused": True} if on_gpu and args.mode != "eager" else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4,
                                nesterov=True, **fused)
    scaler = torch.amp.GradScaler(args.device, enabled=args.type == "fp16")

    def forward(images, labels):
        with torch.autocast(args.device, SHORT.get(args.type, torch.bfloat16), enabled=args.type in SHORT,
                            cache_enabled=args.mode != "graph"):
            return F.cross_entropy(model(images), labels)

    if args.mode.startswith("compile"):
        model = torch.compile(model)

    def step(images, labels):
        optimizer.zero_grad(set_to_none=True)
        loss = forward(images.contiguous(memory_format=layout), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return record(step, *batch) if args.mode == "graph" else step


def record(step, images, labels):
    """A step as one CUDA graph, which reads this batch."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(5):
            step(images, labels)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(images, labels)

    def replay(*_):
        graph.replay()
        return loss

    return replay


def timed(args, step, samples):
    """-> a function that measures steps of so many samples. It reads the loss once per group, as our programs do when
    they print a line."""
    def measure():
        rates = []
        for _ in range(args.steps // args.group):
            begin = time.perf_counter()
            for _ in range(args.group):
                loss = step()
            loss.item()
            rates.append(args.group * samples / (time.perf_counter() - begin))
        return statistics.median(rates)

    for _ in range(2 * args.group):
        step().item()
    return measure


def prepare_step(args, wrap=lambda model: model):
    batch = make_batch(args)
    step = make_training(args, batch, wrap)
    return timed(args, lambda: step(*batch), args.batch)


def prepare_gpt(args):
    """65 characters, in windows of args.size; args.arch is LAYERSxHEADSxWIDTH. AdamW and clipping are the fastest that
    PyTorch has. Mode graph: the model is compiled, and forward and backward are CUDA graphs."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference"))
    from gpt import GPT, loss_of        # here, because no other measurement needs its imports

    model = GPT(*map(int, args.arch.split("x")), args.size, 65).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    tokens, labels = (torch.randint(65, (args.batch, args.size), device=args.device) for _ in range(2))
    run = (torch.compile(model, mode="reduce-overhead") if args.mode == "graph"
           else torch.compile(model) if args.mode.startswith("compile") else model)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, torch.bfloat16, enabled=args.type == "bf16"):
            loss = loss_of(run, tokens, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return timed(args, step, args.batch * args.size)


def prepare_product(args):
    """On a CPU the faster of two libraries: a matrix product calls one, a 1x1 convolution may call the other."""
    size, count = 4096, 20 if args.device == "cuda" else 1
    left, right = torch.randn(2, size, size, dtype=SHORT.get(args.type, torch.float32), device=args.device)
    image, weights = left.view(size, 64, 64, 1).permute(3, 0, 1, 2), right.view(size, size, 1, 1)
    image, weights = (value.contiguous(memory_format=torch.channels_last) for value in (image, weights))

    def measure():
        rates = []
        for product in (lambda: left @ right, lambda: F.conv2d(image, weights)) * 2:
            begin = time.perf_counter()
            for _ in range(count):
                product()
            if args.device == "cuda":
                torch.cuda.synchronize()
            rates.append(count * 2 * size**3 / (time.perf_counter() - begin))
        return max(rates)

    return measure


def ddp_rank(rank, args, port, found):
    torch.set_num_threads(args.threads)
    torch.manual_seed(rank)
    store = dist.TCPStore("127.0.0.1", port, args.ranks, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=args.ranks)
    rate = prepare_step(args, torch.nn.parallel.DistributedDataParallel)()
    if rank == 0:
        found.put(args.ranks * rate)
    dist.destroy_process_group()


def prepare_ddp(args):
    def measure():
        store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
        found = torch.multiprocessing.get_context("spawn").SimpleQueue()
        torch.multiprocessing.spawn(ddp_rank, (args, store.port, found), nprocs=args.ranks)
        return found.get()

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ["OMP_NUM_THREADS"] = str(args.threads)       # as torchrun does for its ranks
    return measure


# --- with data ----------------------------------------------------------------------------------


class Images(torch.utils.data.Dataset):
    """CIFAR-10's training set, or as many random images, as PIL images with the usual transforms."""

    def __init__(self, folder):
        import numpy as np                  # here, because steps need no numpy
        if folder:
            files = [np.fromfile(f"{folder}/data_batch_{i}.bin", np.uint8).reshape(-1, 3073) for i in range(1, 6)]
        else:
            files = [np.random.default_rng(0).integers(0, 256, (50000, 3073), np.uint8)]
        rows = np.concatenate(files)
        self.labels, self.pixels = rows[:, 0], rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy(order="C")
        self.transform = transforms.Compose([
            transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
            transforms.Normalize(MEAN, STD)])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.transform(Image.fromarray(self.pixels[i])), int(self.labels[i]) % 10


def make_loader(args, **options):
    data = Images(args.data)
    sampler = torch.utils.data.DistributedSampler(data) if args.what == "launch" else None
    return torch.utils.data.DataLoader(
        data, batch_size=args.batch, sampler=sampler, shuffle=sampler is None, num_workers=args.workers, **options)


def prepare_folder(args):
    """The transforms of pytorch/examples' ImageNet training. An epoch that is not measured starts the workers."""
    data = datasets.ImageFolder(f"{args.data}/train", transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]))
    loader = torch.utils.data.DataLoader(data, batch_size=args.batch, shuffle=True, num_workers=args.workers,
                                         persistent_workers=True)

    def measure():
        begin = time.perf_counter()
        images = sum(len(labels) for _, labels in loader)
        return images / (time.perf_counter() - begin)

    measure()
    return measure


def prepare_epoch(args):
    loader, batch = make_loader(args, persistent_workers=True), make_batch(args)
    step = make_training(args, batch)
    step(*batch).item()                         # compiling is not part of an epoch

    def measure():
        begin = time.perf_counter()
        for count, images_and_labels in enumerate(itertools.islice(loader, args.steps), 1):
            loss = step(*images_and_labels)
            if count % args.group == 0:
                loss.item()
        return args.steps * args.batch / (time.perf_counter() - begin)

    return measure


def launch(args):
    print('{"init": true}', flush=True)
    dist.init_process_group("gloo")
    batch = next(iter(make_loader(args)))
    step = make_training(args, batch, torch.nn.parallel.DistributedDataParallel)
    for number in range(args.steps or 1):
        loss = step(*batch).item()
        print(json.dumps({"rank": dist.get_rank(), "step": number, "loss": loss}), flush=True)
    os._exit(0)                                 # without waiting for the loader's workers


PREPARE = {"step": prepare_step, "ddp": prepare_ddp, "epoch": prepare_epoch, "folder": prepare_folder,
           "gpt": prepare_gpt, "product": prepare_product}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=(*PREPARE, "launch"))
    parser.add_argument("--mode", default="default", help="see tools/bench.py")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--type", choices=("f32", "tf32", *SHORT), default="f32")
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--channels", type=int, default=3, help="of random images")
    parser.add_argument("--size", type=int, default=32, help="of random images")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=0, help="of one measurement")
    parser.add_argument("--group", type=int, default=5, help="steps between two readings of the loss")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data", help="the folder of CIFAR-10's .bin files (default: random images)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = args.type != "f32"
    torch.backends.cudnn.benchmark = True
    if args.what == "launch":
        launch(args)
    measure = PREPARE[args.what](args)
    for _ in sys.stdin:
        print(measure(), flush=True)


if __name__ == "__main__":
    main()
