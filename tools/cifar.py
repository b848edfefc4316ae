#!/usr/bin/env python3
"""cifar.py <BATCH >RECORDS - converts a batch of CIFAR's Python version, a pickle, into records of the binary version.

A pickle can name any function to call. Here it may name only NumPy's array and its type, and even these are not loaded.
"""
import pickle
import sys


class Part:
    def __init__(self, *_):
        self.state = None

    def __setstate__(self, state):
        self.state = state


class Batch(pickle.Unpickler):
    def find_class(self, module, name):
        if module.partition(".")[0] != "numpy" or name not in ("_reconstruct", "ndarray", "dtype"):
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return Part


try:
    batch = Batch(sys.stdin.buffer, encoding="bytes").load()
    _, (count, size), _, by_column, pixels = batch[b"data"].state
    names = (b"coarse_labels", b"fine_labels") if b"fine_labels" in batch else (b"labels",)
    for i, labels in enumerate(zip(*(batch[name] for name in names))):
        row = pixels[i::count] if by_column else pixels[i * size:(i + 1) * size]
        sys.stdout.buffer.write(bytes(labels) + row)
except Exception as error:                              # whatever a pickle can cause
    sys.exit(f"not a batch of CIFAR: {str(error) or type(error).__name__}")
