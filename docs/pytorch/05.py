# torchrun --nproc-per-node 2 05.py [SAMPLES] - mixed precision, gradient accumulation, clipping; no snapshot.
import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import models
from torchvision.datasets import FakeData       # replace it with CIFAR10("data", download=True, ...)
from torchvision.transforms import ToTensor

SAMPLES = int(sys.argv[1]) if len(sys.argv) > 1 else 50000
EPOCHS, BATCH, PARTS = 2, 16, 2                 # each rank's batch, and its parts, one after the other
GPU = torch.cuda.is_available()


def data(first, count):
    return FakeData(count, (3, 32, 32), 10, ToTensor(), random_offset=first)


def train_epoch(model, loader, optimizer, scaler, device):
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        total = 0
        parts = list(zip(images.to(device).chunk(PARTS), labels.to(device).chunk(PARTS)))
        for i, (some, their_labels) in enumerate(parts):
            # Only the last part's backward exchanges gradients.
            with model.no_sync() if i < len(parts) - 1 else nullcontext():
                with torch.autocast(device.type, torch.float16 if GPU else torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(some), their_labels, reduction="sum") / len(labels)
                scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)              # exercise 05-1 shows what clipping does without this line
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)                  # skips the step if a gradient is infinite: on all ranks, or on none
        scaler.update()
    return total


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    correct = total = 0
    for images, labels in loader:
        correct += (model(images.to(device)).argmax(1) == labels.to(device)).sum().item()
        total += len(labels)
    return correct, total


def main():
    local_rank = int(os.environ["LOCAL_RANK"])  # of torchrun's variables, the only one that a script must read
    if GPU:
        torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl" if GPU else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", local_rank) if GPU else torch.device("cpu")
    model = DistributedDataParallel(models.resnet18(num_classes=10).to(device))     # broadcasts rank 0's weights
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)
    sampler = DistributedSampler(data(0, SAMPLES))      # this rank's share
    train = DataLoader(sampler.dataset, BATCH, sampler=sampler)
    test = DataLoader(data(SAMPLES, SAMPLES // 5), BATCH)
    scaler = torch.amp.GradScaler(device.type, enabled=GPU)     # bf16, on a CPU, needs no loss scale
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)                # or every epoch has the same order
        loss = train_epoch(model, train, optimizer, scaler, device)
        if rank == 0:                           # one rank evaluates, prints and saves
            correct, total = evaluate(model.module, test, device)
            print(f"epoch {epoch + 1}: loss {loss:.3f}, {correct} of {total} right")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
