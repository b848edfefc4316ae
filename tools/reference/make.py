#!/usr/bin/env python3
"""Writes tests/reference: results of PyTorch, small enough to be committed.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch torchvision safetensors numpy
    /tmp/venv/bin/python tools/reference/make.py [FOLDER [PART...]]

resnet18  a sample of the results of one step from each of 5 generated states, which the C program generates too
resnet50  the same from one state
ranks     the same for resnet18 and DistributedDataParallel: two processes, half of the batch each
amp       the distance of torch.autocast from float64 in the steps of resnet18 (which must exist)
gpt       one step of a small GPT, f32 and 16 bits (see gpt.py)
lenet     the first state, 20 batches in the order of torch.randperm, their losses, the last weights
adamw     lenet's first state (which must exist) after 8 steps of AdamW by generated gradients, clipped at
          norm 1. The third step is skipped. A sample of the weights and of AdamW's state
sampler   a rank's samples by DistributedSampler: how many, their hash, the first eight
eval      two networks trained by our programs, and PyTorch's predictions for 10,000 test images,
          synthetic and CIFAR-10's. Needs BUILD=build/cpu, with the programs, and the folder
          DDP_CIFAR10; skipped without BUILD
"""
import functools
import glob
import itertools
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DistributedSampler

import gpt
import reference as ref

LENET_STEPS, LENET_ROWS, SEED = 20, 32, 1


def make_resnet(folder, arch, side, rows, limit, seeds, ranks=1):
    for number, seed in enumerate(seeds, 1):
        model = ref.make_model(arch)
        momentum = ref.make_state(model, seed)
        batch = ref.make_batch(seed, rows, 3, side, side, 10)
        steps = ref.in_ranks(ranks, model, momentum, *batch)
        name = arch if ranks == 1 else f"{arch}-ranks{ranks}"
        about = {"arch": arch, "classes": 10, "seed": seed} | ({"ranks": ranks} if ranks > 1 else {})
        ref.save_step(f"{folder}/{name}-{number}.step.safetensors", model, steps, batch[0].shape, about, limit)


def make_lenet(folder):
    images, labels = ref.load_fashion()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))
    ids = order[:LENET_STEPS * LENET_ROWS].numpy()
    images, labels = images[ids], labels[ids].astype(np.int64)
    torch.manual_seed(SEED)
    model = ref.make_model("lenet", channels=1)
    start = {name: t.numpy().copy() for name, t in model.state_dict().items()}
    ref.write_file(f"{folder}/lenet.state.safetensors", start, {"format": "pt"})
    optimizer, losses = ref.make_optimizer(model), []
    padded = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)))       # to 32x32, as our programs do for lenet
    batches = ref.normalise(padded, ref.STATISTICS["fashion-mnist"]).split(LENET_ROWS)
    for batch, target in zip(batches, torch.from_numpy(labels).split(LENET_ROWS)):
        losses.append(ref.train_step(model, optimizer, batch, target))
    mean, std = (np.array(v, np.float32) for v in ref.STATISTICS["fashion-mnist"])
    final = {"final." + name: t.numpy() for name, t in model.state_dict().items()}
    ref.write_file(f"{folder}/lenet.run.safetensors",
                   {"images": images, "labels": labels, "ids": ids, "mean": mean, "std": std,
                    "losses": np.array(losses)} | final,
                   {"rows": LENET_ROWS, "seed": SEED, "count": 60000})


ADAMW_STEPS, ADAMW_SKIPPED, ADAMW_KEPT = 8, 2, 256


def make_adamw(folder):
    model = ref.make_model("lenet", channels=1)
    start = ref.load_file(f"{folder}/lenet.state.safetensors")
    model.load_state_dict({name: torch.from_numpy(t) for name, t in start.items()})
    optimizer, params = ref.make_adamw(model, lr=0.01), sorted(model.named_parameters())
    for step in (s for s in range(ADAMW_STEPS) if s != ADAMW_SKIPPED):
        for index, (_, p) in enumerate(params):
            p.grad = torch.from_numpy(ref.numbers(SEED + step, index, p.numel())).view_as(p)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    found = {}
    for name, p in params:
        state = optimizer.state[p]
        for kind, t in {"weights": p.detach(), "exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}.items():
            every = -(-p.numel() // ADAMW_KEPT)
            found[f"{kind}.{name}"] = t.flatten()[::every].numpy().copy()
    ref.write_file(f"{folder}/lenet.adamw.safetensors", found,
                   {"steps": ADAMW_STEPS, "skipped": ADAMW_SKIPPED, "seed": SEED, "kept": ADAMW_KEPT})


SAMPLER_SIZES = ((1, 1), (1, 2), (1, 7), (2, 4), (2, 7), (3, 8), (10, 3), (10, 4), (16, 4), (17, 4),
                 (50000, 4), (50000, 7), (60000, 1))
SAMPLER_FIRST = 8


def hash_of(ids):
    """FNV-1a over whole numbers, as tests/test_sampler.c computes it."""
    value = 0xcbf29ce484222325
    for one in ids:
        value = ((value ^ one) * 0x100000001b3) % 2**64
    return np.uint64(value).view(np.int64)


def make_sampler(folder):
    cases, first = [], []
    for (count, ranks), seed, epoch, shuffle in itertools.product(
            SAMPLER_SIZES, (0, 2**31 + 7), (0, 1, 5), (False, True)):
        if (seed > 0 or epoch > 0) and not shuffle:
            continue
        for rank in range(ranks):
            sampler = DistributedSampler(range(count), ranks, rank, shuffle, seed)
            sampler.set_epoch(epoch)
            ids = list(sampler)
            cases.append([count, ranks, rank, seed, epoch, shuffle, len(ids), hash_of(ids)])
            first.append((ids + [-1] * SAMPLER_FIRST)[:SAMPLER_FIRST])
    ref.write_file(f"{folder}/sampler.safetensors",
                   {"cases": np.array(cases, np.int64), "first": np.array(first, np.int32)}, {})


def make_amp(folder):
    """Stores distances, not values, to keep the file small."""
    found = {}
    for path in sorted(glob.glob(f"{folder}/resnet18-[0-9]*.step.safetensors")):
        step = os.path.basename(path).removesuffix(".step.safetensors")
        found |= ref.autocast_far(step, *ref.load_step(path))
        print(step, flush=True)
    ref.write_file(f"{folder}/amp.safetensors", found, {"f16.scale": ref.AUTOCAST["f16"][1]})


EVAL = {        # training options; mean and deviation
    "synthetic": (["--image-size", "28", "--train-samples", "4000", "--epochs", "5"],
                  ([0.5] * 3, [0.25] * 3)),
    "cifar10": (["--epochs", "2"], ref.STATISTICS["cifar10"]),
}
EVAL_MARGINS = 100


def trained_here(build, scratch, data, options, path):
    """A checkpoint of ours, without the state that only training needs."""
    whole = f"{scratch}/net.safetensors"
    subprocess.run([f"{build}/01_single_gpu/train", "--arch", "convnet", "--data", data, "-b", "50",
                    "--lr", "0.005", "--save", whole, *options], check=True)
    tensors = {name: value for name, value in ref.load_file(whole).items()
               if not name.startswith("ddp.")}
    ref.write_file(path, tensors, {"format": "pt"})
    return tensors


def test_images(build, scratch, data, options):
    """-> images as bytes, and labels. Reads them from picture files: their names give the order, their folders the
    classes."""
    size = options[:2] if options[0] == "--image-size" else []
    subprocess.run([f"{build}/as_folder", "--as-folder", f"{scratch}/tree", "--data", data, *size,
                    "--train-samples", "10"], check=True)
    paths = sorted(glob.glob(f"{scratch}/tree/val/*/*.png"), key=os.path.basename)
    classes = sorted(os.listdir(f"{scratch}/tree/val"))
    images = np.stack([np.asarray(Image.open(path)) for path in paths]).transpose(0, 3, 1, 2)
    return images, torch.tensor([classes.index(path.split("/")[-2]) for path in paths])


def make_eval(folder):
    build, cifar = os.environ["BUILD"], os.environ["DDP_CIFAR10"]
    for name, (options, statistics) in EVAL.items():
        data, path = f"cifar10:{cifar}" if name == "cifar10" else name, f"{folder}/eval-{name}"
        with tempfile.TemporaryDirectory() as scratch:
            tensors = trained_here(build, scratch, data, options, f"{path}.safetensors")
            images, labels = test_images(build, scratch, data, options)
        model = ref.make_model("convnet", 3, 10, images.shape[-1]).eval()
        model.load_state_dict({key: torch.from_numpy(value) for key, value in tensors.items()})
        images = ref.normalise(images, statistics)
        judged = ref.judge(model, images, labels)
        exact = ref.judge(model.double(), images.double(), labels)
        # If rounding decided a prediction, PyTorch on a different computer could predict differently.
        assert all(torch.equal(judged[k], exact[k]) for k in ("prediction", "before")), name
        ref.save_judged(f"{path}.txt", judged, EVAL_MARGINS)


PARTS = {
    "sampler": make_sampler,
    "lenet": make_lenet,
    "adamw": make_adamw,
    "resnet18": functools.partial(make_resnet, arch="resnet18", side=32, rows=16, limit=64, seeds=range(1, 6)),
    "resnet50": functools.partial(make_resnet, arch="resnet50", side=64, rows=8, limit=24, seeds=[2]),
    "ranks": functools.partial(make_resnet, arch="resnet18", side=32, rows=16, limit=32, seeds=[1], ranks=2),
    "amp": make_amp,
    "eval": make_eval, "gpt": gpt.make_gpt,
}


def main():
    home = os.path.dirname(os.path.abspath(__file__))
    folder = sys.argv[1] if len(sys.argv) > 1 else f"{home}/../../tests/reference"
    os.makedirs(folder, exist_ok=True)
    torch.set_num_threads(1)
    for part in sys.argv[2:] or [p for p in PARTS if p != "eval" or "BUILD" in os.environ]:
        PARTS[part](folder)
    sizes = [os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)]
    print(f"{folder}: {len(sizes)} files, {sum(sizes) / 1e6:.2f} MB, "
          f"torch {torch.__version__}, torchvision {ref.torchvision.__version__}")


if __name__ == "__main__":
    main()
