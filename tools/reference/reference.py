"""Shared by the other files here: models, data, one training step in PyTorch, and the files.

tests/step_reference.h reads two kinds of safetensors files:

a step      what PyTorch computes from a generated state and batch (see numbers):
              metadata      arch, classes, rows, channels, height, width, seed; ranks (1): number of parts
                            of the batch with their own statistics (then loss and gradients are
                            means, and stat is rank 0's)
              loss          F64 (1): PyTorch's in float32
              index.NAME    I32 (k): which elements were kept; absent if all were
              grad.NAME     F32 (k): the gradient
              update.NAME   F32 (k): the same elements of p_new - p_old
              stat.NAME     F32 (k): the same elements of a running mean or variance, new - old

amp         the distance of PyTorch's autocast from float64, for each step of resnet18:
              metadata      f16.scale: the loss scale in float16
              STEP.TYPE     F32 (tensors of the state dict in the order of their names, 3), TYPE bf16
                            or f16: root mean square of the distances of gradient, update, statistic,
                            over all elements, and over autocast's runs
              STEP.TYPE.loss F64 (1): the same of the loss

When elements are left out, the largest of each kind and the one where float32 is furthest from
float64 are always kept.

PyTorch's float32 has no single result: threads, layouts and libraries round differently. If a value is
so close to ReLU's kink that rounding decides its sign, gradients jump. So make.py has seeds with which no
value is that close.
"""
import copy
import gzip
import os
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
import torchvision
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LR, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 1e-4
KINDS = ("grad.", "update.", "stat.")   # of the results of a step

# --- models -------------------------------------------------------------------------------------


class LeNet(nn.Module):
    """LeNet-5 with ReLU and max pooling; 61,706 parameters at 1x32x32."""

    def __init__(self, channels=1, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class ConvNet(nn.Module):
    """Two convolutions with normalisation; 29,034 parameters at 1x28x28."""

    def __init__(self, channels=1, classes=10, side=28):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 5, padding=2)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 5, padding=2)
        self.bn2 = nn.BatchNorm2d(32)
        self.fc = nn.Linear(32 * (side // 4) ** 2, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc(x.flatten(1))


def make_model(arch, channels=3, classes=10, side=28):
    if arch == "lenet":
        return LeNet(channels, classes)
    if arch == "convnet":
        return ConvNet(channels, classes, side)
    return getattr(torchvision.models, arch)(num_classes=classes)


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM,
                           weight_decay=WEIGHT_DECAY, nesterov=True)


ADAMW_BETAS, ADAMW_WEIGHT_DECAY = (0.9, 0.95), 0.1


def make_adamw(model, lr):
    """Decay for weights, none for biases and normalisations, as in minGPT."""
    groups = [{"params": [p for p in model.parameters() if (p.ndim > 1) == decays],
               "weight_decay": ADAMW_WEIGHT_DECAY * decays} for decays in (True, False)]
    return torch.optim.AdamW(groups, lr=lr, betas=ADAMW_BETAS)


def train_step(model, optimizer, images, labels):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


# --- data ---------------------------------------------------------------------------------------

FASHION = "/usr/share/datasets/fashion-mnist"
# Means and deviations as in common/data/data.c
STATISTICS = {
    "fashion-mnist": ([0.2860], [0.3530]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
}


def read_idx(path):
    """A gzipped IDX file as an array of bytes."""
    with gzip.open(path, "rb") as file:
        raw = file.read()
    dims = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i:8 + 4 * i], "big") for i in range(dims)]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)


def load_fashion():
    """The training images (n, 1, 28, 28) and labels, both bytes."""
    images = read_idx(f"{FASHION}/train-images-idx3-ubyte.gz")
    labels = read_idx(f"{FASHION}/train-labels-idx1-ubyte.gz")
    return images[:, None], labels


def normalise(images, statistics):
    """Bytes -> float32, as evaluation sees them."""
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in statistics)
    return (torch.from_numpy(np.ascontiguousarray(images)).float() / 255 - mean) / std


# --- numbers that tests/step_reference.h makes too, bit for bit --------------------------------------


def philox(key, high, low):
    """Philox4x32-10 as in common/rng.h, for an array of low counters -> uint32 (n, 4)."""
    low = np.asarray(low, np.uint64)
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [low & mask, low >> shift,
         np.full_like(low, high & 0xFFFFFFFF), np.full_like(low, high >> 32)]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> shift) ^ c[1] ^ np.uint64(k0), p1 & mask,
             (p0 >> shift) ^ c[3] ^ np.uint64(k1), p0 & mask]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, axis=1).astype("<u4")


def numbers(seed, stream, count):
    """count multiples of 2^-15 in [-1, 1): eight from each Philox call, low halves first."""
    bits = philox(seed, stream, np.arange((count + 7) // 8)).reshape(-1).view("<u2")[:count]
    return (bits.astype(np.int32) - 32768).astype(np.float32) * np.float32(2.0 ** -15)


STREAM_IMAGES, STREAM_NOISE, STREAM_LABELS = 1 << 20, (1 << 20) + 1, (1 << 20) + 2


def weight_scale(shape):
    """The largest 2^-k for which uniform numbers have at most He's deviation: 4^k >= fan_in / 6."""
    fan_in, k = int(np.prod(shape[1:])), 0
    while 6 * 4 ** k < fan_in:
        k += 1
    return np.float32(2.0 ** -k)


def make_state(model, seed):
    """Fills a model with numbers and returns its momentum. Every value is exact in float32.

    The biases of normalisation are about two deviations, positive in odd and negative in even
    channels, so that few values come close to ReLU's kink.
    """
    momentum = {}
    for index, (name, tensor) in enumerate(sorted(model.state_dict().items())):
        if name.endswith("num_batches_tracked"):
            continue
        shape = tuple(tensor.shape)
        u = numbers(seed, 2 * index, tensor.numel()).reshape(shape)
        m = numbers(seed, 2 * index + 1, tensor.numel()).reshape(shape)
        scale = weight_scale(shape) if len(shape) > 1 else np.float32(1)
        if len(shape) > 1:
            value = u * scale
        elif name.endswith(("running_var", "weight")):
            value = 1 + u / 4
        elif name.endswith(".bias") and name != "fc.bias":
            value = u / 2 + np.where(np.arange(len(u)) % 2, np.float32(2), np.float32(-2))
        else:
            value = u / 4
        tensor.copy_(torch.from_numpy(value))
        if not name.endswith(("running_mean", "running_var")):
            momentum[name] = torch.from_numpy(m * scale / 64)
    return momentum


def make_batch(seed, rows, channels, height, width, classes):
    """Images of blocks, 8 pixels wide, with noise on them, and labels."""
    count = rows * channels * height * width
    coarse = (rows, channels, height // 8, width // 8)
    blocks = numbers(seed, STREAM_IMAGES, int(np.prod(coarse))).reshape(coarse)
    noise = numbers(seed, STREAM_NOISE, count).reshape(rows, channels, height, width)
    images = np.repeat(np.repeat(blocks, 8, axis=2), 8, axis=3) + noise / 2
    labels = philox(seed, STREAM_LABELS, np.arange(rows))[:, 0].astype(np.int64) % classes
    return torch.from_numpy(images), torch.from_numpy(labels)


# --- one training step --------------------------------------------------------------------------


def one_step(model, momentum, images, labels, dtype, autocast=None, scale=1.0):
    """-> loss, {"grad.NAME" | "update.NAME" | "stat.NAME": float64 array}. model is not changed.

    autocast: a 16-bit type for torch.autocast; scale: a loss scale as in torch.amp.GradScaler.
    In a rank of in_ranks it uses DistributedDataParallel: images, labels and statistics are this
    rank's; the loss and the gradients are means over all ranks.
    """
    model = copy.deepcopy(model).to(dtype).train()
    network = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = make_optimizer(model)
    for name, p in model.named_parameters():
        optimizer.state[p]["momentum_buffer"] = momentum[name].to(dtype).clone()
    old = {name: t.double().clone() for name, t in model.state_dict().items()}
    with torch.autocast("cpu", autocast, enabled=autocast is not None):
        loss = F.cross_entropy(network(images.to(dtype)), labels)
    (loss * scale).backward()
    if scale != 1:
        for p in model.parameters():
            p.grad /= scale
    optimizer.step()
    loss = loss.detach()
    if dist.is_initialized():
        dist.all_reduce(loss)
        loss /= dist.get_world_size()
    found = {}
    for name, p in model.named_parameters():
        found["grad." + name] = p.grad.double().numpy()
        found["update." + name] = (p.detach().double() - old[name]).numpy()
    for name, b in model.named_buffers():
        if not name.endswith("num_batches_tracked"):
            found["stat." + name] = (b.double() - old[name]).numpy()
    return loss.item(), found


def both_steps(model, momentum, images, labels):
    """-> one_step in float32, in float64. If a value is near ReLU's kink, they differ: then another seed is needed."""
    f32, f64 = (one_step(model, momentum, images, labels, dtype) for dtype in (torch.float32, torch.float64))
    for name, exact in f64[1].items():
        if name.startswith("grad"):
            assert np.abs(f32[1][name] - exact).max() <= 3e-4 * np.abs(exact).max(), name
    return f32, f64


# torch.autocast's types on the CPU, each with a fixed loss scale. GradScaler would begin with 65536, and one
# of PyTorch's gradients would be infinite. No gradient is infinite with 1024.
AUTOCAST = {"bf16": (torch.bfloat16, 1.0), "f16": (torch.float16, 1024.0)}


def autocast_runs(model, momentum, images, labels, name):
    """The results of one_step for several autocast runs: both layouts, and rows in several orders.
    Each rounds differently, but all are equally close to float64."""
    last = {"memory_format": torch.channels_last}
    same = torch.arange(len(images))
    for way, x in ((model, images), (copy.deepcopy(model).to(**last), images.contiguous(**last))):
        for order in (same, same.flip(0), same.roll(len(images) // 2)):
            yield one_step(way, momentum, x[order], labels[order], torch.float32, *AUTOCAST[name])


def autocast_far(step, model, momentum, images, labels):
    """An entry of the file amp: how far autocast's runs are from float64."""
    loss64, f64 = one_step(model, momentum, images, labels, torch.float64)
    found = {}
    for name in AUTOCAST:
        squares = [
            {key: np.mean((f[key] - f64[key]) ** 2) for key in f} | {"loss": (loss - loss64) ** 2}
            for loss, f in autocast_runs(model, momentum, images, labels, name)]
        far = {key: np.sqrt(np.mean([run[key] for run in squares])) for key in squares[0]}
        found[f"{step}.{name}"] = np.array(
            [[far.get(kind + tensor, 0) for kind in KINDS]
             for tensor in sorted(model.state_dict())], np.float32)
        found[f"{step}.{name}.loss"] = np.array([far["loss"]])
    return found


def one_rank(rank, world, folder, model, momentum, images, labels):
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    torch.set_num_threads(1)
    steps = both_steps(model, momentum, images.chunk(world)[rank], labels.chunk(world)[rank])
    if rank == 0:
        torch.save(steps, f"{folder}/steps")
    dist.destroy_process_group()


def in_ranks(world, model, momentum, images, labels):
    """both_steps with DistributedDataParallel: `world` processes, each with a part of the
    batch (torch.chunk) and its own statistics. What is returned is rank 0's. nn.DataParallel on
    `world` devices computes the same: its loss is the mean over all rows, and the parts are equal."""
    if world == 1:
        return both_steps(model, momentum, images, labels)
    assert len(images) % world == 0
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(one_rank, (world, folder, model, momentum, images, labels), world)
        return torch.load(f"{folder}/steps", weights_only=False)


# --- evaluating -----------------------------------------------------------------------------------


def judge(model, images, labels, rows=500):
    """What 07 records for each image (Verdict in common/ops.h), computed by PyTorch; and the margin: the difference of
    the two largest logits, divided by the largest absolute one. If it is almost 0, rounding decides the prediction."""
    with torch.no_grad():
        logits = torch.cat([model(part) for part in images.split(rows)])
    best, order = logits.topk(2)
    own = logits.gather(1, labels[:, None])
    margin = (best[:, 0] - best[:, 1]) / logits.abs().amax(1).clamp(min=1)
    return {"label": labels, "prediction": order[:, 0], "margin": margin,
            "before": (logits > own).sum(1),
            "loss": F.cross_entropy(logits, labels, reduction="none").double()}


def save_judged(path, judged, margins):
    """As text, for scripts: counts, mean loss, the prediction of each image as a digit, and the
    smallest margins."""
    labels, before, margin = judged["label"], judged["before"], judged["margin"]
    classes = int(labels.max()) + 1
    assert classes <= 10
    with open(path, "w", encoding="utf-8") as file:
        print("# What PyTorch says of the weights beside it: tools/reference/make.py", file=file)
        print("images", len(labels), file=file)
        print("loss", f"{judged['loss'].mean().item():.9f}", file=file)
        for c in range(classes):    # images, correct, correct in the top 5
            own = before[labels == c]
            print("class", c, len(own), int((own < 1).sum()), int((own < 5).sum()), file=file)
        digits = "".join(map(str, judged["prediction"].tolist()))
        for i in range(0, len(digits), 100):
            print("predictions", digits[i:i + 100], file=file)
        for i in margin.argsort()[:margins].tolist():
            print("margin", i, f"{margin[i].item():.3g}", file=file)


# --- files --------------------------------------------------------------------------------------


def keep_some(pairs, limit, rng):
    """Which elements to keep: the extremes of each (float32, float64) pair, and some others."""
    count = pairs[0][0].size
    if not limit or count <= limit:
        return None
    extremes = {int(np.argmax(np.abs(v))) for a, b in pairs for v in (a, b - a)}
    others = [i for i in rng.permutation(count)[:limit].tolist() if i not in extremes]
    return np.sort(np.array((list(extremes) + others)[:limit], np.int32))


def save_step(path, model, steps, shape, metadata, limit):
    """Writes what test_step compares with: steps as both_steps returned them. shape: of the images."""
    (loss32, f32), (_, f64) = steps
    tensors = {"loss": np.array([loss32])}
    rng = np.random.default_rng(1)
    for name in sorted(model.state_dict()):
        pairs = {k + name: (f32[k + name].ravel(), f64[k + name].ravel())
                 for k in KINDS if k + name in f32}
        kept = keep_some(list(pairs.values()), limit, rng) if pairs else None
        if kept is not None:
            tensors["index." + name] = kept
        for key, (a, _) in pairs.items():
            tensors[key] = (a if kept is None else a[kept]).astype(np.float32)
    sizes = dict(zip(("rows", "channels", "height", "width"), shape))
    write_file(path, tensors, metadata | sizes)


def load_step(path):
    """-> model, momentum, images, labels of a step's file."""
    with safe_open(path, "np") as file:
        about = file.metadata()
    shape = [int(about[key]) for key in ("rows", "channels", "height", "width", "classes")]
    model = make_model(about["arch"], shape[1], shape[4], shape[2])
    momentum = make_state(model, int(about["seed"]))
    return model, momentum, *make_batch(int(about["seed"]), *shape)


def write_file(path, tensors, metadata):
    save_file(tensors, path, metadata={k: str(v) for k, v in metadata.items()})
    os.chmod(path, 0o644)
