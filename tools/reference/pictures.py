#!/usr/bin/env python3
"""Makes the JPEG files and two of the PNG files of tests/fuzz/corpus/picture, and records the results of Pillow and
torchvision. The other PNG files only start the fuzzer.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch torchvision pillow==11.3.0 numpy
    /tmp/venv/bin/python tools/reference/pictures.py

tests/reference/pictures.txt
    picture NAME PIXELS                   Resize(14) and CenterCrop(12) of convert("RGB"), in hexadecimal
    random WIDTH HEIGHT  NINE NINE NINE   deciles of RandomResizedCrop's boxes: area as a part of the
                                          picture's, width / height, y as a part of what is free
"""
import io
import os
import struct
import zlib

import numpy as np
import torch
from PIL import Image
from torchvision import transforms

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests")
FILES = os.path.join(ROOT, "fuzz", "corpus", "picture")


def pattern(width, height):
    """-> (height, width, 3): noise."""
    out, x = np.empty(width * height * 3, np.uint8), 1
    for i in range(len(out)):
        x = (x * 1664525 + 1013904223) % 2**32
        out[i] = x >> 24
    return out.reshape(height, width, 3)


def scene(width, height):
    """Slopes, edges and a little noise."""
    y, x = np.mgrid[:height, :width]
    red = 255 * x / width
    green = 128 + 100 * np.sin(x / 3 + y / 5)
    blue = np.where((x - 20)**2 + (y - 15)**2 < 90, 230, 60)
    noise = pattern(width, height).astype(int) // 32
    return Image.fromarray(np.clip(np.dstack([red, green, blue]) + noise, 0, 255).astype(np.uint8))


# --- files -----------------------------------------------------------------------------------------


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(array, depth, kind):
    height, width, _ = array.shape
    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in array)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def files():
    image = scene(45, 37)
    grey, cmyk = image.convert("L"), image.convert("CMYK")
    jpeg = saved(image, "JPEG", quality=80, subsampling=2)
    yield "baseline", saved(image, "JPEG", quality=90, subsampling=0)
    yield "422", saved(image, "JPEG", quality=80, subsampling=1)
    yield "420", jpeg
    yield "restarts", saved(image, "JPEG", quality=60, restart_marker_rows=1)
    yield "progressive", saved(image, "JPEG", quality=80, progressive=True)
    yield "grey", saved(grey, "JPEG", quality=80)
    yield "rgb", saved(image, "JPEG", quality=80, keep_rgb=True)
    yield "cmyk", saved(cmyk, "JPEG", quality=80)
    at = saved(cmyk, "JPEG", quality=80).index(b"Adobe") + 11
    yield "ycck", saved(cmyk, "JPEG", quality=80)[:at] + b"\x02" + saved(cmyk, "JPEG", quality=80)[at + 1:]
    yield "cmyk_progressive", saved(cmyk, "JPEG", quality=50, progressive=True)
    yield "warns", jpeg[:-200] + b"\xff\xd9"
    yield "no_end", jpeg[:-2] + bytes(8)
    rgb = pattern(19, 11)
    yield "png_alpha", png(np.dstack([rgb, rgb[..., :1]]), 8, 6)
    yield "png_rgb16", png((rgb.astype(int) * 257 // 2).astype(">u2"), 16, 2)


def write_pictures(out):
    view = transforms.Compose([transforms.Resize(14), transforms.CenterCrop(12)])
    os.makedirs(FILES, exist_ok=True)
    for name, data in files():
        with open(os.path.join(FILES, name), "wb") as file:
            file.write(data)
        print("picture", name, view(Image.open(io.BytesIO(data)).convert("RGB")).tobytes().hex(), file=out)


def write_crops(out):
    torch.manual_seed(1)
    for w, h in ((500, 375), (100, 1000), (64, 64), (900, 90)):
        picture, boxes = Image.new("L", (w, h)), []
        for _ in range(100000):
            i, _, height, width = transforms.RandomResizedCrop.get_params(picture, (0.08, 1.0), (3 / 4, 4 / 3))
            boxes.append((width * height / (w * h), width / height, i / max(1, h - height)))
        deciles = np.quantile(np.array(boxes), np.arange(1, 10) / 10, axis=0).T
        print("random", w, h, *(f"{d:.4f}" for d in deciles.ravel()), file=out)


with open(os.path.join(ROOT, "reference", "pictures.txt"), "w", encoding="utf-8") as reference:
    write_pictures(reference)
    write_crops(reference)
