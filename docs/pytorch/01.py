# 01.py [SAMPLES] - one process, one device.
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import models
from torchvision.datasets import FakeData       # replace it with CIFAR10("data", download=True, ...)
from torchvision.transforms import ToTensor

SAMPLES = int(sys.argv[1]) if len(sys.argv) > 1 else 50000
EPOCHS, BATCH = 2, 32
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def data(first, count):
    return FakeData(count, (3, 32, 32), 10, ToTensor(), random_offset=first)


def train_epoch(model, loader, optimizer):
    model.train()
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    correct = total = 0
    for images, labels in loader:
        correct += (model(images.to(device)).argmax(1) == labels.to(device)).sum().item()
        total += len(labels)
    return correct, total


def main():
    torch.manual_seed(0)
    model = models.resnet18(num_classes=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4)
    train = DataLoader(data(0, SAMPLES), BATCH, shuffle=True)
    test = DataLoader(data(SAMPLES, SAMPLES // 5), BATCH)
    for epoch in range(EPOCHS):
        loss = train_epoch(model, train, optimizer)
        correct, total = evaluate(model, test)
        print(f"epoch {epoch + 1}: loss {loss:.3f}, {correct} of {total} right")
    torch.save(model.state_dict(), "net.pt")


if __name__ == "__main__":
    main()
