"""hostile.py FILE FOLDER - writes changed copies of a gpt's checkpoint, which must be refused."""
import json
import struct
import sys


def main():
    source, folder = sys.argv[1:]
    with open(source, "rb") as file:
        data = file.read()
    length, = struct.unpack("<Q", data[:8])
    header, rest = json.loads(data[8:8 + length]), data[8 + length:]
    classes = header["transformer.wte.weight"]["shape"][0]

    def write(name, **metadata):
        text = json.dumps(header | {"__metadata__": header["__metadata__"] | metadata}).encode()
        text += b" " * (-len(text) % 8)
        with open(f"{folder}/{name}", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + rest)

    for heads in ("0", "-2", "99999999999999999999", "x", ""):
        write(f"heads{heads}.st", **{"ddp.heads": heads})
    write("letters.st", **{"ddp.vocabulary": "zz" * classes})
    write("short.st", **{"ddp.vocabulary": "61" * (classes - 1)})


main()
