# torchrun --nproc-per-node 2 --max-restarts 3 04.py [SAMPLES] - a launcher starts the processes, and starts them again
# if one dies.
import os
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
    begin = 0
    if os.path.exists("snapshot.pt"):           # every rank looks: several machines need a shared disk
        snapshot = torch.load("snapshot.pt", map_location=device)
        model.module.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        begin = snapshot["epoch"]
    for epoch in range(begin, EPOCHS):
        sampler.set_epoch(epoch)                # or every epoch has the same order
        loss = train_epoch(model, train, optimizer, device)
        if rank == 0:                           # one rank evaluates, prints and saves
            correct, total = evaluate(model.module, test, device)
            print(f"epoch {epoch + 1}: loss {loss:.3f}, {correct} of {total} right")
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1},
                       "snapshot.tmp")
            os.replace("snapshot.tmp", "snapshot.pt")   # never half a file
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
