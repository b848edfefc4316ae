#!/usr/bin/env python3
"""Predicts the efficiency of data-parallel training on N GPUs.

    scaling_model.py [OPTIONS]          a table for 1 to 4096 GPUs, and with -o FILE.svg a picture
    scaling_model.py fit FILE.csv       latency and bandwidth from measured all-reduces
    scaling_model.py check              compares the model with published efficiencies

docs/scaling.md explains the model. FILE.csv has the columns ranks, bytes and us, from comm_bench. A picture
needs matplotlib (python3-matplotlib).
"""
import argparse
import csv
import math
import statistics
import sys

MIB = 2**20
FIRST_BUCKET = 1 * MIB          # as in PyTorch's DDP

# name: (ms of a step of 256 images on one GPU, bytes of float32 gradients); sources in docs/scaling.md
NETS = {"resnet18": (1.02, 44.727e6), "resnet50": (32.2, 102.228e6)}

# --- one all-reduce: seconds and bytes; pairs are (within a node, between nodes) ------------------


def shape(o, gpus):
    """-> nodes, GPUs on each."""
    return math.ceil(gpus / o.gpus_per_node), min(gpus, o.gpus_per_node)


def transfer_around(o, gpus, size):
    """A ring or tree over all GPUs, at the bandwidth of its slowest connection."""
    nodes, local = shape(o, gpus)
    slowest = o.bandwidth[0] if nodes == 1 else o.bandwidth[1] if local == 1 else min(o.bandwidth)
    return 2 * (gpus - 1) / gpus * size / slowest


# The next three functions -> (latency, transfer), in seconds


def ring(o, gpus, size):
    nodes, _ = shape(o, gpus)
    return 2 * ((gpus - nodes) * o.latency[0] + (nodes - 1) * o.latency[1]), transfer_around(o, gpus, size)


def tree(o, gpus, size):
    nodes, local = shape(o, gpus)
    latency = 2 * ((local - 1) * o.latency[0] + math.ceil(math.log2(nodes)) * o.latency[1])
    return latency, transfer_around(o, gpus, size)


def hierarchical(o, gpus, size):
    """Reduce-scatter and all-gather within each node, between them a ring over the nodes."""
    nodes, local = shape(o, gpus)
    latency = 2 * ((local - 1) * o.latency[0] + (nodes - 1) * o.latency[1])
    return latency, (2 * (local - 1) / local * size / o.bandwidth[0] + 2 * (nodes - 1) / nodes * size / o.bandwidth[1])


ALGORITHMS = {"ring": ring, "tree": tree, "hierarchical": hierarchical}


def all_reduce(o, gpus, size):
    """-> (latency, transfer, algorithm); "best" is the fastest for this size."""
    if gpus == 1:
        return 0.0, 0.0, "-"
    names = ALGORITHMS if o.algorithm == "best" else [o.algorithm]
    tried = [(*ALGORITHMS[name](o, gpus, size), name) for name in names]
    latency, transfer, name = min(tried, key=lambda found: found[0] + found[1])
    return o.call + latency, transfer, name


# --- one step -----------------------------------------------------------------------------------


def buckets(o, gradients):
    """Bytes of each, in the order in which they are sent."""
    if o.bucket == 0:
        return [gradients]
    found, left = [], gradients
    while left > 0:
        found.append(min(left, o.bucket if found else min(o.bucket, FIRST_BUCKET)))
        left -= found[-1]
    return found


def exposed(o, gpus, step, gradients):
    """Seconds of the exchange that backward does not hide."""
    if gpus == 1:
        return 0.0
    backward = o.backward * step if o.overlap == "1" else 0.0
    sent = free = 0.0
    for size in buckets(o, gradients):
        sent += size
        ready = backward * min(1.0, sent / gradients)
        free = max(free, ready) + sum(all_reduce(o, gpus, size)[:2])
    return max(0.0, free - backward)


def efficiency(o, gpus, step, gradients):
    compute = o.accumulate * step
    return compute / (compute + exposed(o, gpus, step, gradients))


# --- options ------------------------------------------------------------------------------------


def positive(text):
    if not 0 < float(text) < math.inf:
        raise ValueError
    return float(text)


def pair_of(unit):
    """-> a parser of one number, or of two with a comma between them: within a node, between nodes."""
    def pair(text):
        values = [float(word) * unit for word in text.split(",")]
        if not all(value >= 0 for value in values):
            raise ValueError
        return values[0], values[-1]
    return pair


def counts(text):
    return [int(positive(word)) for word in text.split(",")]


def parse_model(words):
    parser = argparse.ArgumentParser(prog="scaling_model.py", allow_abbrev=False, description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--net", choices=NETS, help="network (default: both)")
    add("--step-ms", type=positive, help="time of a step on one GPU (default: that of --net with 256 images)")
    add("--gradient-bytes", type=positive, help="bytes of all gradients (default: those of --net in float32)")
    add("--batch", type=positive, default=256, help="images per GPU, with --net (256)")
    add("--backward", type=positive, default=2 / 3, help="share of backward in a step (2/3)")
    add("--bucket-mb", dest="bucket", type=lambda text: float(text) * MIB, default="25",
        help="bucket size in MiB; 0: one all-reduce after backward (25)")
    add("--overlap", choices=["0", "1"], default="1", help="1: all-reduce during backward; 0: after it (1)")
    add("--accumulate", type=int, default=1, help="batches per all-reduce (1)")
    add("--algorithm", choices=[*ALGORITHMS, "best"], default="best", help="of the all-reduce (best)")
    add("--latency-us", dest="latency", type=pair_of(1e-6), default="3.4,14",
        help="latency of a message within a node,between nodes (3.4,14)")
    add("--bandwidth-GBps", dest="bandwidth", type=pair_of(1e9), default="370,400",
        help="bandwidth of a GPU within a node,of a whole node to others (370,400)")
    add("--call-us", dest="call", type=lambda text: float(text) * 1e-6, default="8.4",
        help="fixed cost of an all-reduce (8.4)")
    add("--gpus-per-node", type=int, default=8, help="GPUs in a node (8)")
    add("--gpus", type=counts, default=[2**i for i in range(13)], help="numbers of GPUs in the table, such as 1,8,64")
    add("-o", dest="picture", help="draw to FILE.svg or FILE.png")
    o = parser.parse_args(words)
    if (o.step_ms is None) != (o.gradient_bytes is None) and not o.net:
        parser.error("give both --step-ms and --gradient-bytes, or add --net")
    return o


def nets_of(o):
    """{name: (seconds of a step, bytes of gradients)}"""
    own = o.step_ms and o.gradient_bytes and not o.net
    nets = {"yours": (0, 0)} if own else {o.net: NETS[o.net]} if o.net else NETS
    return {name: ((o.step_ms or step * o.batch / 256) * 1e-3, o.gradient_bytes or size)
            for name, (step, size) in nets.items()}


# --- the table and the picture ------------------------------------------------------------------


def rows_of(o):
    """(net, GPUs, algorithm for all gradients, its latency, its transfer, exposed, step, efficiency)"""
    for name, net in nets_of(o).items():
        for gpus in o.gpus:
            latency, transfer, algorithm = all_reduce(o, gpus, net[1])
            rest = exposed(o, gpus, *net)
            step = o.accumulate * net[0] + rest
            yield name, gpus, algorithm, latency, transfer, rest, step, efficiency(o, gpus, *net)


def print_table(o):
    print("| net | GPUs | all-reduce of all gradients | its latency, ms | its transfer, ms | not hidden, ms "
          "| step, ms | efficiency |\n|---|---:|---|---:|---:|---:|---:|---:|")
    for name, gpus, algorithm, *times, share in rows_of(o):
        cells = " | ".join(f"{1e3 * seconds:.3f}" for seconds in times)
        print(f"| {name} | {gpus} | {algorithm} | {cells} | {100 * share:.1f} % |")


def write_picture(o):
    from plot import pyplot
    figure, chart = pyplot().subplots(figsize=(7.6, 3.6), layout="constrained")
    powers, wanted = [2**i for i in range(13)], o.algorithm
    for i, (name, net) in enumerate(nets_of(o).items()):
        for o.algorithm, line in ((wanted, "-"), ("ring", "--")):
            chart.plot(powers, [100 * efficiency(o, gpus, *net) for gpus in powers], f"C{i}{line}",
                       label=f"{name}, {o.algorithm}")
    o.algorithm = wanted
    chart.set(xlabel="GPUs", ylabel="efficiency, %", ylim=(0, 102))
    chart.set_xscale("log", base=2)
    chart.set_xticks(powers, powers)
    chart.grid(alpha=0.3)
    chart.legend(frameon=False)
    figure.savefig(o.picture)


# --- what was measured --------------------------------------------------------------------------


def read_csv(path):
    """{(ranks, bytes): µs}: the least time, because other programs make some calls slower."""
    found = {}
    with open(path, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault((int(row["ranks"]), float(row["bytes"])), []).append(float(row["us"]))
    if not found or min(map(min, found.values())) <= 0:
        raise ValueError(f"{path} has no measurements, or a time that is not above 0 µs")
    return {key: min(values) for key, values in sorted(found.items())}


def ring_terms(ranks, size):
    """-> (a, b): a ring takes a x latency + b / bandwidth."""
    return 2 * (ranks - 1), 2 * (ranks - 1) / ranks * size


def fit(times):
    """Latency of a message in µs, and bytes per µs, with the least squares of relative errors."""
    aa = ab = bb = a1 = b1 = 0.0
    for (ranks, size), us in times.items():
        a, b = (term / us for term in ring_terms(ranks, size))
        aa, ab, bb, a1, b1 = aa + a * a, ab + a * b, bb + b * b, a1 + a, b1 + b
    determinant = aa * bb - ab * ab
    if determinant <= 1e-12 * aa * bb:
        raise ValueError("a fit needs at least two sizes")
    latency, inverse = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
    if inverse <= 0:
        raise ValueError("large messages are not slower than small ones")
    return latency, 1 / inverse


def print_fit(times):
    latency, bandwidth = fit(times)
    errors = {}
    for (ranks, size), us in times.items():
        a, b = ring_terms(ranks, size)
        errors[ranks, size] = (a * latency + b / bandwidth) / us - 1
    rms = math.sqrt(statistics.mean(error * error for error in errors.values()))
    worst = max(errors, key=lambda key: abs(errors[key]))
    names = " and ".join(str(n) for n in sorted({ranks for ranks, _ in times}))
    print(f"{names} ranks: latency {latency:.6g} us, bandwidth {bandwidth / 1e3:.6g} GB/s; off by {100 * rms:.1f} % "
          f"(rms), by {100 * errors[worst]:+.1f} % at most ({worst[1]:.0f} bytes, {worst[0]} ranks)")


def cmd_fit(words):
    parser = argparse.ArgumentParser(prog="scaling_model.py fit", description="latency and bandwidth of a ring")
    parser.add_argument("file")
    times = read_csv(parser.parse_args(words).file)
    ranks = sorted({ranks for ranks, _ in times})
    for one in ranks if len(ranks) > 1 else []:
        print_fit({key: us for key, us in times.items() if key[0] == one})
    print_fit(times)


# --- what was published -------------------------------------------------------------------------

# What, GPUs, GPUs that it is compared with, published efficiency, options. Sources:
# MXNet: NVIDIA DeepLearningExamples, MxNet/Classification/RN50v1.5, 22.10: 3,411 images/s on 1 GPU, 26,674 on 8.
# PyTorch: the same, PyTorch/Classification/ConvNets/resnet50v1.5, 21.03: AMP 2,470 and 16,621, TF32 938 and 7,248.
# About 200 GB/s between 8 A100: nccl-tests issue 149.
# Horovod: its docs/benchmarks.rst: 128 servers with 4 Pascal GPUs each, 25 Gbit/s. Step of ResNet-101: from its
# 1,656.82 images/s on 16 GPUs, batch 64. Others: TensorFlow's docs_src/performance/benchmarks.md, P100, May 2017:
# Inception V3 142, VGG-16 154 images/s with batch 64, ResNet-50 195 with batch 32. Assumed: 10 GB/s within a node.
# Goyal et al.: arXiv 1706.02677: about 90 % from 8 to 256 P100, 50 Gbit/s for 8.
# MLPerf: Training results v3.0, v3.1 and v4.0: 57,295 images/s on 8 H100, 100,780 on 16, 318,154 on 64, 2,255,982 on
# 512, 10,103,760 on 3,584.
# Gradients: float32, torchvision's parameter counts (Inception V3 without its second classifier); MLPerf's are 16-bit.
# MLPerf and Horovod use buckets of 64 MB.
A100 = "--gpus-per-node 8 --bandwidth-GBps 200,100 --gradient-bytes 102.2e6"
HOROVOD = "--algorithm ring --gpus-per-node 4 --bandwidth-GBps 10,3.125 --bucket-mb 64"
H100 = "--gpus-per-node 8 --bucket-mb 64 --gradient-bytes 51.1e6"
PUBLISHED = [
    ("ResNet-50, MXNet, AMP, DGX A100", 8, 1, 97.8, f"{A100} --step-ms {512e3 / 3411}"),
    ("ResNet-50, PyTorch, TF32, DGX A100", 8, 1, 96.6, f"{A100} --step-ms {256e3 / 938}"),
    ("ResNet-50, PyTorch, AMP, DGX A100", 8, 1, 84.1, f"{A100} --step-ms {256e3 / 2470}"),
    ("Inception V3, Horovod, Pascal, 25 GbE", 512, 1, 90,
     f"{HOROVOD} --gradient-bytes 95.3e6 --step-ms {64e3 / 142}"),
    ("ResNet-101, Horovod, Pascal, 25 GbE", 512, 1, 90,
     f"{HOROVOD} --gradient-bytes 178.2e6 --step-ms {64e3 / 103.55}"),
    ("VGG-16, Horovod, Pascal, 25 GbE", 512, 1, 68, f"{HOROVOD} --gradient-bytes 553.4e6 --step-ms {64e3 / 154}"),
    ("ResNet-50, Goyal et al., P100, 50 GbE", 256, 8, 90,
     f"--gpus-per-node 8 --bandwidth-GBps 10,6.25 --gradient-bytes 102.2e6 --step-ms {32e3 / 195}"),
    ("ResNet-50, MLPerf, H100, 200 images each", 16, 8, 88, f"{H100} --step-ms {200e3 / 7162}"),
    ("ResNet-50, MLPerf, H100, 50 images each", 64, 8, 69, f"{H100} --step-ms {50e3 / 7162}"),
    ("ResNet-50, MLPerf, H100, 40 images each", 512, 8, 62, f"{H100} --step-ms {40e3 / 7162}"),
    ("ResNet-50, MLPerf, H100, 16 images each", 3584, 8, 39, f"{H100} --step-ms {16e3 / 7162}"),
]


def model_of(gpus, base, options, overlap="1"):
    """-> the model's efficiency for a row of PUBLISHED, in %."""
    o = parse_model([*options.split(), "--overlap", overlap])
    (net,) = nets_of(o).values()
    return 100 * efficiency(o, gpus, *net) / efficiency(o, base, *net)


def cmd_check():
    print("| published | GPUs | against | efficiency, % | the model's | without overlap | off by, points |\n"
          "|---|---:|---:|---:|---:|---:|---:|")
    for what, gpus, base, published, options in PUBLISHED:
        values = [model_of(gpus, base, options, overlap) for overlap in "10"]
        print(f"| {what} | {gpus} | {base} | {published:g} | {values[0]:.1f} | {values[1]:.1f} "
              f"| {values[0] - published:+.1f} |")


def main():
    command, *words = sys.argv[1:] or [""]
    try:
        if command == "fit":
            cmd_fit(words)
        elif command == "check":
            cmd_check()
        else:
            o = parse_model(sys.argv[1:])
            if o.picture:
                write_picture(o)
            print_table(o)
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"scaling_model.py: {error}")


if __name__ == "__main__":
    main()
