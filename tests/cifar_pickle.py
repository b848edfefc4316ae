"""cifar_pickle.py ROWS LABELS... - prints a pickle as Python 2 and NumPy wrote CIFAR's: stdin has ROWS rows of bytes."""
import struct
import sys


def text(data):
    return b"T" + struct.pack("<i", len(data)) + data


def array(data, rows, kind=b"cnumpy\nndarray\n"):
    shape = b"M" + struct.pack("<H", rows) + b"M" + struct.pack("<H", len(data) // rows) + b"\x86"
    dtype = b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    return (b"cnumpy.core.multiarray\n_reconstruct\n(" + kind + b"K\x00\x85" + text(b"b") + b"tR(K\x01" + shape + dtype + b"\x89"
            + text(data) + b"tb")


def main():
    rows, names = int(sys.argv[1]), sys.argv[2:]
    records = sys.stdin.buffer.read()
    each = len(records) // rows
    pixels = b"".join(records[i * each + len(names):(i + 1) * each] for i in range(rows))
    out = b"\x80\x02}(" + text(b"data") + array(pixels, rows)
    for at, name in enumerate(names):
        labels = b"".join(b"K" + records[i * each + at:i * each + at + 1] for i in range(rows))
        out += text(name.encode()) + b"](" + labels + b"e"
    sys.stdout.buffer.write(out + b"u.")


main()
