"""hostile.py FILE FOLDER - writes changed copies of a gpt's checkpoint: all but controls.st.good must be refused."""
import json
import struct
import sys
from math import prod


def load(path):
    with open(path, "rb") as file:
        data = file.read()
    length, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    tensors = {name: (t["dtype"], t["shape"], data[8 + length:][slice(*t["data_offsets"])])
               for name, t in header.items() if name != "__metadata__"}
    return header["__metadata__"], tensors


def write(path, metadata, tensors):
    header, at = {"__metadata__": metadata}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def changed(tensors, sizes):
    """-> tensors with other sizes, their data repeated. sizes: {part of a tensor's name: {a size: its new value}}"""
    new = {}
    for name, (dtype, shape, data) in tensors.items():
        here = next((of for part, of in sizes.items() if part in name), {})
        larger = [here.get(size, size) for size in shape]
        each = len(data) // max(1, prod(shape))
        new[name] = dtype, larger, (data * (prod(larger) // max(1, prod(shape)) + 1))[:each * prod(larger)]
    return new


def main():
    source, folder = sys.argv[1:]
    metadata, tensors = load(source)
    (classes, width), block = tensors["transformer.wte.weight"][1], tensors["transformer.wpe.weight"][1][0]
    for number in (0, 257, 264, 400, 100000):
        vocabulary = {"ddp.vocabulary": "".join(f"{i % 256:02x}" for i in range(number))}
        write(f"{folder}/classes{number}.st", metadata | vocabulary,
              changed(tensors, dict.fromkeys(("wte", "lm_head"), {classes: number})))
    write(f"{folder}/width0.st", metadata, changed(tensors, {"": {width * n: 0 for n in (1, 3, 4)}}))
    write(f"{folder}/block0.st", metadata, changed(tensors, {"wpe": {block: 0}}))
    write(f"{folder}/block9999.st", metadata, changed(tensors, {"wpe": {block: 9999}}))
    for heads in ("0", "-2", "99999999999999999999", "x", ""):
        write(f"{folder}/heads{heads}.st", metadata | {"ddp.heads": heads}, tensors)
    write(f"{folder}/vocabulary.st", metadata | {"ddp.vocabulary": "zz" * classes}, tensors)
    controls = "1b9b7f0d0c08310a0b00c285"[:2 * classes].ljust(2 * classes, "0")
    write(f"{folder}/controls.st.good", metadata | {"ddp.vocabulary": controls}, tensors)


main()
