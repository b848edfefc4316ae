# srun -N2 --ntasks-per-node=2 python 06.py [SAMPLES] - Slurm starts the processes; the training step is 03's.
import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import models
from torchvision.datasets import FakeData       # replace it with CIFAR10("data", download=True, ...)
from torchvision.transforms import ToTensor

SAMPLES = int(sys.argv[1]) if len(sys.argv) > 1 else 50000
EPOCHS, BATCH = 2, 16                           # the batch of each rank
GPU = torch.cuda.is_available()


def data(first, count):
    return FakeData(count, (3, 32, 32), 10, ToTensor(), random_offset=first)


def train_epoch(model, loader, optimizer, device):
    model.train()
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    correct = total = 0
    for images, labels in loader:
        correct += (model(images.to(device)).argmax(1) == labels.to(device)).sum().item()
        total += len(labels)
    return correct, total


def first_host():
    """Rank 0's host: node3, if the list is node[3-5,9]. (With a topology plugin, use srun --distribution=plane=N.)"""
    names = subprocess.run(["scontrol", "show", "hostnames", os.environ["SLURM_STEP_NODELIST"]],
                           check=True, stdout=subprocess.PIPE, text=True).stdout
    return names.split()[0]


def main():
    # Only the variables of a step: in the batch script SLURM_PROCID is also 0.
    rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_STEP_NUM_TASKS"])
    local_rank = int(os.environ["SLURM_LOCALID"])
    os.environ.update(MASTER_ADDR=first_host(), MASTER_PORT=str(20000 + int(os.environ["SLURM_JOB_ID"]) % 10000))
    if GPU:
        local_rank %= torch.cuda.device_count()     # with --gpus-per-task=1, each task sees only one, number 0
        torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl" if GPU else "gloo", rank=rank, world_size=world)
    device = torch.device("cuda", local_rank) if GPU else torch.device("cpu")
    model = DistributedDataParallel(models.resnet18(num_classes=10).to(device))     # broadcasts rank 0's weights
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)
    sampler = DistributedSampler(data(0, SAMPLES))      # this rank's share
    train = DataLoader(sampler.dataset, BATCH, sampler=sampler)
    test = DataLoader(data(SAMPLES, SAMPLES // 5), BATCH)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)                # or every epoch has the same order
        loss = train_epoch(model, train, optimizer, device)
        if rank == 0:                           # one rank evaluates, prints and saves
            correct, total = evaluate(model.module, test, device)
            print(f"epoch {epoch + 1}: loss {loss:.3f}, {correct} of {total} right")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
