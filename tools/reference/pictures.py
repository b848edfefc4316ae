#!/usr/bin/env python3
"""Makes the files of tests/fuzz/corpus/picture, and records the results of Pillow and torchvision.

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


def png(width, height, depth, kind, rows, interlaced=0, extra=b""):
    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def png_rows(array):
    return b"".join(b"\0" + row.tobytes() for row in array)


def interlaced(array):
    """Adam7: seven pictures, each with every n-th row and every m-th column."""
    passes = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    return b"".join(png_rows(array[y::dy, x::dx]) for y, x, dy, dx in passes)


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
    for bits in (2, 16):
        wide = np.arange(33 * 5).reshape(5, 33) * 7 % 2**bits if bits < 16 else np.arange(165).reshape(5, 33) * 3
        packed = wide.astype(">u2") if bits == 16 else np.packbits(np.unpackbits(
            wide.astype(np.uint8)[..., None], axis=2)[..., 8 - bits:].reshape(5, -1), axis=1)
        yield f"png_grey{bits}", png(33, 5, bits, 0, png_rows(packed))
    rgb = pattern(19, 11)
    alpha = rgb[..., :1]
    yield "png_rgb", png(19, 11, 8, 2, png_rows(rgb), extra=chunk(b"gAMA", struct.pack(">I", 100000)))
    yield "png_alpha", png(19, 11, 8, 6, png_rows(np.dstack([rgb, alpha])))
    yield "png_grey_alpha", png(19, 11, 8, 4, png_rows(rgb[..., :2]))
    yield "png_rgb16", png(19, 11, 16, 2, png_rows((rgb.astype(int) * 257 // 2).astype(">u2")))
    yield "png_interlaced", png(19, 11, 8, 2, interlaced(rgb), 1)
    palette = chunk(b"PLTE", bytes(range(30, 30 + 3 * 70))) + chunk(b"tRNS", bytes(range(70)))
    yield "png_palette", png(19, 11, 8, 3, png_rows(alpha % 80), extra=palette)


def write_pictures(out):
    view = transforms.Compose([transforms.Resize(14), transforms.CenterCrop(12)])
    os.makedirs(FILES, exist_ok=True)
    for name, data in files():
        with open(os.path.join(FILES, name), "wb") as file:
            file.write(data)
        # Pillow ignores gAMA, and shows only the lowest 255 of 65,536 levels of grey.
        if name not in ("png_rgb", "png_grey16"):
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
