#!/usr/bin/env python3
"""What tools/bench.sh measured -> the tables of docs/benchmarks.md. Needs nothing but Python.

    bench_table.py best FOLDER [WHAT]    the mode in which PyTorch's steps (or WHAT) were fastest
    bench_table.py write FOLDER DOC      the table of ours against PyTorch
    bench_table.py parallel FOLDER DOC   the tables of two ranks and two devices
    bench_table.py amp FOLDER DOC        the table of bf16 against PyTorch's autocast and f32
    bench_table.py amp-curve FOLDER DOC  accuracy in f32 and bf16; fails when it is out of bounds
    bench_table.py eval FOLDER DOC       the table of evaluation against PyTorch, and of two ranks
    bench_table.py steps FOLDER DOC      the steps side by side
    bench_table.py curve FOLDER DOC      the articles' recipe; fails when it is out of bounds

FOLDER holds one file for each measurement: ours-WHAT-ROUND.jsonl (what --metrics writes),
torch-WHAT-MODE-ROUND.json (what bench_torch.py prints), for `first` seconds alone, and
exchange-WHAT-ROUND.txt (what comm_bench prints), wire-WHAT-STEPS.txt (bytes of so many steps),
peak-WHAT.kb, ours-WHAT-ROUND.json (what --trace writes), series.txt (what check_series.sh prints).
"""
import glob
import json
import os
import platform
import re
import statistics
import sys
from datetime import date

IMAGE_BYTES = 3072 + 4          # an image of ours in memory, and its label


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.startswith("{")]


def files(folder, pattern):
    return sorted(glob.glob(os.path.join(folder, pattern)))


def middle(values):
    return statistics.median(values)


# --- reading ------------------------------------------------------------------------------------


def ours_step(path):
    """Samples a second: the median over printed lines, without the first two."""
    return middle([e["samples_per_s"] for e in read_lines(path) if e["event"] == "step"][2:])


def ours_epoch(path):
    events = read_lines(path)
    config = next(e for e in events if e["event"] == "config")
    epoch = next(e for e in events if e["event"] == "epoch")
    waited = sum(e["data_wait_ms"] for e in events if e["event"] == "step")
    end = next(e for e in events if e["event"] == "end")
    count = config["options"]["train_samples"] or 50000
    data_mb = (count + epoch["n"]) * IMAGE_BYTES / 2**20
    return {"samples_per_s": count / epoch["seconds"], "seconds": epoch["seconds"],
            "wait_share": waited / 1e3 / epoch["seconds"], "data_mb": data_mb,
            "peak_mb": end["peak_rss_mb"], "config": config}


def torch_modes(folder, what):
    """{mode: [what was printed, round by round]}"""
    found = {}
    for path in files(folder, f"torch-{what}-*-*.json"):
        mode = re.match(rf"torch-{what}-(\w+)-\d+\.json", os.path.basename(path)).group(1)
        found.setdefault(mode, []).extend(read_lines(path))
    return {mode: rows for mode, rows in found.items() if rows}


def best_mode(folder, what="step"):
    rates = {mode: middle([r["samples_per_s"] for r in rows])
             for mode, rows in torch_modes(folder, what).items()}
    return max(rates, key=rates.get), rates


def number_in(path):
    with open(path, encoding="ascii") as file:
        return float(file.read())


# --- the table of ours against PyTorch ----------------------------------------------------------


def machine():
    model = platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next(line.split(":")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def row(what, ours, theirs, digits, wanted, holds):
    ratio = f"{ours / theirs:.2f}" if theirs else ""
    numbers = f"{ours:.{digits}f} | {theirs:.{digits}f} | {ratio}"
    mark = f"{wanted} {'✓' if holds else '✗'}" if wanted else ""
    return f"| {what} | {numbers} | {mark} |"


def table_rows(folder, best, rates):
    steps = [ours_step(p) for p in files(folder, "ours-step-*.jsonl")]
    if steps:
        a, b = middle(steps), rates[best]
        yield row("training step, images/s", a, b, 0, "≥ 1.5", a >= 1.5 * b)
        yield row("training step of 256, ms", 256e3 / a, 256e3 / b, 0, "≤ 0.67", a >= 1.5 * b)
    ours = [ours_epoch(p) for p in files(folder, "ours-epoch-*.jsonl")]
    theirs = torch_modes(folder, "epoch").get(best, [])
    if ours and theirs:
        a, b = (middle([r["samples_per_s"] for r in rows]) for rows in (ours, theirs))
        yield row("whole epoch with its data, images/s", a, b, 0, "≥ 1.5", a >= 1.5 * b)
    first = [number_in(p) for p in files(folder, "ours-first-*.s")]
    first_torch = [number_in(p) for p in files(folder, "torch-first-*.s")]
    if first and first_torch:
        a, b = middle(first), middle(first_torch)
        yield row("start of process to end of first step, s", a, b, 2, "≤ 0.5 s", a <= 0.5)
    if ours and theirs:
        a, b = (middle([r["peak_mb"] - r["data_mb"] for r in rows]) for rows in (ours, theirs))
        yield row("peak memory without the data set, MB", a, b, 0, "≤ 0.6", a <= 0.6 * b)
        a, b = (100 * middle([r["wait_share"] for r in rows]) for rows in (ours, theirs))
        yield row("waiting for data, % of the epoch", a, b, 2, "< 2 %", a < 2)


def comparison(folder):
    best, rates = best_mode(folder)
    torch = torch_modes(folder, "step")[best][0]
    epochs = torch_modes(folder, "epoch").get(best, [])
    rounds = len(files(folder, "ours-step-*.jsonl"))
    yield f"{machine()}; {torch['threads']} threads; PyTorch {torch['torch']}; {date.today()}. "
    yield "ResNet-18, 3x32x32, batch 256, float32. "
    yield f"Medians of {rounds} rounds, ours and PyTorch in turns.\n\n"
    yield "| | ours | PyTorch | ratio | wanted |\n|---|---:|---:|---:|---|\n"
    yield "\n".join(table_rows(folder, best, rates)) + "\n\n"
    yield "PyTorch's training step by mode, images/s: "
    yield ", ".join(f"{mode} {rate:.0f}" for mode, rate in rates.items())
    yield f". The table has the best, {best}.\n"
    yield from failed_modes(folder)
    if epochs:
        yield (f"\nData: {dataset(folder)}. PyTorch's comes through a DataLoader with "
               f"{epochs[0]['workers']} workers and torchvision's transforms on PIL images (crop, "
               "flip, ToTensor, Normalize), the pipeline of the articles; its workers' own memory, "
               f"{middle([r['worker_mb'] for r in epochs]):.0f} MB, is not counted, and its peak "
               "begins after the files were read. Waiting for data includes the workers' start.\n")


def failed_modes(folder):
    for path in files(folder, "torch-failed-*.txt"):
        mode = os.path.basename(path)[len("torch-failed-"):-len(".txt")]
        yield f"{mode} did not run here: see {os.path.basename(path)}.\n"


def dataset(folder):
    paths = files(folder, "ours-epoch-*.jsonl")
    return ours_epoch(paths[0])["config"].get("dataset", "?") if paths else "?"


# --- the tables of two ranks and two devices ----------------------------------------------------


def ours_rate(folder, name):
    """Images a second of all ranks of a program, median over the rounds."""
    return middle([ours_step(p) for p in files(folder, f"ours-{name}-*.jsonl")])


def exchange(folder, what):
    """{bytes: (microseconds, the library's own, bus bandwidth in GB/s)}, medians of the rounds."""
    found = {}
    for path in files(folder, f"exchange-{what}-*.txt"):
        with open(path, encoding="utf-8") as file:
            for line in file:
                if not line.startswith("#"):
                    size, _, _, _, us, _, bus, ratio = line.split()
                    found.setdefault(int(size), []).append(
                        (float(us), float(us) / float(ratio), float(bus)))
    return {size: [middle(column) for column in zip(*rows)] for size, rows in found.items()}


def parallel_rows(rates, bound, ms, own_ms, theirs):
    a, b = rates["ddp"], theirs["ddp"]
    yield row("03, 2 ranks, against PyTorch's DDP, images/s", a, b, 0, "≥ 1.5", a >= 1.5 * b)
    yield row("03 against what its parts allow, images/s", a, bound, 0, "≥ 0.95", a >= 0.95 * bound)
    b = 2 * rates["alone"]
    yield row("03 against twice 01 alone, images/s", a, b, 0, "about 0.80", a >= 0.75 * b)
    if len(os.sched_getaffinity(0)) > 2:
        b = rates["unhidden"]
        yield row("03 against itself without overlap, images/s", a, b, 0, "> 1", a > b)
    yield row("all-reduce of 44.7 MB against the library's own, ms", ms, own_ms, 1, "≤ 1.15",
              ms <= 1.15 * own_ms)
    a, b = rates["devices"], theirs["step"]
    yield row("02, 2 devices, against PyTorch with 2 threads, images/s", a, b, 0, "≥ 1.3",
              a >= 1.3 * b)


def rate_rows(rates, bound):
    for what, rate in (("01 alone", rates["alone"]),
                       ("01, two programs at the same time, together", 2 * rates["beside_*"]),
                       ("and one all-reduce after each step: what 03's parts allow", bound),
                       ("03: gradients in buckets, overlapped with backward", rates["ddp"]),
                       ("03 --overlap 0: the buckets wait for backward", rates["unhidden"]),
                       ("03 --bucket-mb 0: one all-reduce after backward", rates["naive"]),
                       ("02 --devices 2, batch 256", rates["devices"])):
        yield f"| {what} | {rate:.0f} | {rate / rates['alone']:.2f} |"


def size_rows(sizes):
    for size, (us, own_us, bus) in sorted(sizes.items()):
        yield f"| {size} | {us:.1f} | {own_us:.1f} | {us / own_us:.2f} | {bus:.2f} |"


def parallel(folder):
    names = ("ddp", "alone", "beside_*", "unhidden", "naive", "devices")
    rates = {name: ours_rate(folder, name) for name in names}
    modes = {what: best_mode(folder, what) for what in ("ddp", "step")}
    theirs = {what: tried[best] for what, (best, tried) in modes.items()}
    (us, own_us, _), = exchange(folder, "gradients").values()
    bound = 256 / (128 / rates["beside_*"] + us / 1e6)
    torch = torch_modes(folder, "ddp")[modes["ddp"][0]][0]
    rounds = len(files(folder, "ours-ddp-*.jsonl"))
    yield f"{machine()}; 1 thread for each rank and device; PyTorch {torch['torch']}; "
    yield f"{date.today()}. ResNet-18, 3x32x32, float32, batch 128 for each of 2 ranks. "
    yield f"Medians of {rounds} round{'s'[:rounds > 1]}, all in turns.\n\n"
    yield "| | ours | compared with | ratio | wanted |\n|---|---:|---:|---:|---|\n"
    yield "\n".join(parallel_rows(rates, bound, us / 1e3, own_us / 1e3, theirs)) + "\n\n"
    yield "| images of all ranks, a second | | of 01 alone |\n|---|---:|---:|\n"
    yield "\n".join(rate_rows(rates, bound)) + "\n\n"
    yield "| all-reduce, bytes | µs | the library's own, µs | ratio | bus bandwidth, GB/s |\n"
    yield "|---:|---:|---:|---:|---:|\n"
    yield "\n".join(size_rows(exchange(folder, "sizes"))) + "\n\n"
    for what, title in (("ddp", "DDP on Gloo"), ("step", "single process with 2 threads")):
        best, tried = modes[what]
        listed = ", ".join(f"{mode} {rate:.0f}" for mode, rate in tried.items())
        yield f"PyTorch's {title} by mode, images/s: {listed}. The table has the best, {best}.\n"


# --- mixed precision ----------------------------------------------------------------------------


def event(path, name):
    return next(e for e in read_lines(path) if e["event"] == name)


def peak_mb(folder, name):
    """The largest resident size of a run, without the images of its data set."""
    paths = files(folder, f"ours-{name}-*.jsonl")
    options = event(paths[0], "config")["options"]
    count = (options["train_samples"] or 50000) + (options["test_samples"] or 10000)
    peaks = [event(path, "end")["peak_rss_mb"] for path in paths]
    return middle(peaks) - count * IMAGE_BYTES / 2**20


def channel_mb(folder, name):
    """What ranks send in one step, in MB, from runs of two lengths; None: it was not counted."""
    bytes_of = {int(re.search(r"-(\d+)\.txt", path).group(1)): number_in(path)
                for path in files(folder, f"wire-{name}-*.txt")}
    if len(bytes_of) < 2:
        return None
    return (bytes_of[13] - bytes_of[3]) / 10 / 1e6


def amp_rows(folder, theirs):
    ours, wide = ours_rate(folder, "bf16"), ours_rate(folder, "f32")
    yield row("bf16 against PyTorch's autocast, images/s", ours, theirs, 0, "≥ 1.6",
              ours >= 1.6 * theirs)
    yield row("bf16 against f32, images/s", ours, wide, 0, "≥ 1.25", ours >= 1.25 * wide)
    a, b = (event(files(folder, f"ours-{name}-*.jsonl")[0], "amp")["activation_bytes"] / 1e6
            for name in ("bf16", "f32"))
    yield row("activations and their gradients, MB", a, b, 1, "≤ 0.55", a <= 0.55 * b)
    a, b = (peak_mb(folder, f"large_{name}") for name in ("bf16", "f32"))
    yield row("peak memory without the data set, batch 2048, MB", a, b, 0, "≤ 0.75", a <= 0.75 * b)
    a, b = (channel_mb(folder, name) for name in ("bf16", "f32"))
    if a and b:
        yield row("on the wire with --compress bf16, MB a step of 2 ranks", a, b, 1, "half",
                  0.48 * b <= a <= 0.52 * b)


def amp(folder):
    best, tried = best_mode(folder, "amp")
    torch = torch_modes(folder, "amp")[best][0]
    rounds = len(files(folder, "ours-bf16-*.jsonl"))
    yield f"{machine()}; {torch['threads']} threads; PyTorch {torch['torch']}; {date.today()}. "
    yield "ResNet-18, 3x32x32, batch 256. "
    yield f"Medians of {rounds} round{'s'[:rounds > 1]}, all in turns.\n\n"
    yield "| | ours | compared with | ratio | wanted |\n|---|---:|---:|---:|---|\n"
    yield "\n".join(amp_rows(folder, tried[best])) + "\n\n"
    listed = ", ".join(f"{mode} {rate:.0f}" for mode, rate in tried.items())
    yield f"PyTorch's bf16 autocast by mode, images/s: {listed}. The table has the best, {best}.\n"


AMP_BOUND = 1.5                 # points of accuracy on the test set


def amp_curve(folder):
    """-> the text, and whether bf16 ends where f32 does."""
    runs = {mode: [[e for e in read_lines(path) if e["event"] == "epoch"]
                   for path in files(folder, f"curve-{mode}-*.jsonl")] for mode in ("off", "bf16")}
    seeds = len(runs["off"])
    lines = [f"{seeds} seed{'s'[:seeds > 1]}. {machine()}; {date.today()}.\n",
             "| test accuracy after 5 epochs, % | each seed | mean |", "|---|---|---:|"]
    means = {}
    for mode, name in (("off", "f32"), ("bf16", "bf16")):
        ends = [run[-1]["top1"] for run in runs[mode]]
        means[mode] = statistics.mean(ends)
        lines.append(f"| {name} | {', '.join(f'{end:.2f}' for end in ends)} | {means[mode]:.2f} |")
    off = means["bf16"] - means["off"]
    whole = all(len(run) == 5 for ends in runs.values() for run in ends)
    holds = whole and len(runs["off"]) == len(runs["bf16"]) and abs(off) <= AMP_BOUND
    lines.append(f"\nbf16 is off by {off:+.2f}; wanted: within {AMP_BOUND} {'✓' if holds else '✗'}")
    return "\n".join(lines) + "\n", holds


# --- evaluating ---------------------------------------------------------------------------------


def spans(path, name):
    """{process: [ms of each span of this name]} of a timeline."""
    found, open_spans = {}, {}
    with open(path, encoding="utf-8") as file:
        for e in json.load(file):
            inside = open_spans.setdefault((e["pid"], e.get("tid")), [])
            if e["ph"] == "B":
                inside.append(e)
            elif e["ph"] == "E":
                begin = inside.pop()
                if begin["name"] == name:
                    found.setdefault(e["pid"], []).append((e["ts"] - begin["ts"]) / 1e3)
    return found


def eval_rate(folder, name):
    """Images a second, median over rounds: each evaluation but the first, of the slowest rank."""
    rates = []
    for path in files(folder, f"ours-{name}-*.json"):
        longest = [max(ms) for ms in zip(*spans(path, "evaluate").values())]
        rates.append(1e3 * event(path + "l", "epoch")["n"] / middle(longest[1:]))
    return middle(rates)


def eval_rows(folder, theirs, threads):
    many = f"{threads} thread{'s'[:threads > 1]}"
    for kind in ("f32", "bf16"):
        a, b = eval_rate(folder, f"eval_{kind}"), theirs[kind]
        yield row(f"{kind}, {many}, against PyTorch, images/s", a, b, 0, "≥ 1.5", a >= 1.5 * b)
    for kind in ("f32", "bf16"):
        a, b = (eval_rate(folder, f"{ranks}_{kind}") for ranks in ("two", "one"))
        yield row(f"{kind}, 2 ranks against 1, a thread each, images/s", a, b, 0, "≥ 1.7", a >= 1.7 * b)
    for kind in ("f32", "bf16"):
        a, b = (middle([number_in(path) for path in files(folder, f"{who}-whole_{kind}-*.s")])
                for who in ("ours", "torch"))
        yield row(f"{kind}, start of the process to the result, against PyTorch, s", a, b, 2, "", True)


def eval_text(folder, modes, threads):
    rounds = len(files(folder, "ours-eval_f32-*.jsonl"))
    best, _ = modes["f32"]
    yield f"{machine()}; PyTorch {torch_modes(folder, 'eval_f32')[best][0]['torch']}; {date.today()}. "
    yield "ResNet-18, 3x32x32, batch 256. "
    yield f"Medians of {rounds} round{'s'[:rounds > 1]}, all in turns.\n\n"
    yield "| | ours | compared with | ratio | wanted |\n|---|---:|---:|---:|---|\n"
    yield "\n".join(eval_rows(folder, {k: rates[best] for k, (best, rates) in modes.items()}, threads))
    yield "\n\n"
    for kind, (best, rates) in modes.items():
        listed = ", ".join(f"{mode} {rate:.0f}" for mode, rate in rates.items())
        yield f"PyTorch's {kind} by mode, images/s: {listed}. The table has the best, {best}.\n"
    yield from failed_modes(folder)
    dataset_of = event(files(folder, "ours-eval_f32-*.jsonl")[0], "config").get("dataset")
    for kind in modes if dataset_of == "cifar10" else ():       # else each makes up its own images
        a, b = (read_lines(files(folder, f"{who}-whole_{kind}-*.json")[0])[0]["top1"]
                for who in ("ours", "torch"))
        yield f"Of the same weights ours says in {kind} that {a:.2f} % are right, PyTorch {b:.2f} %.\n"


def evaluation(folder):
    modes = {kind: best_mode(folder, f"eval_{kind}") for kind in ("f32", "bf16")}
    threads = torch_modes(folder, "eval_f32")[modes["f32"][0]][0]["threads"]
    yield from eval_text(folder, modes, threads)


# --- the steps side by side -----------------------------------------------------------------------

STEPS = (
    ("one", 1, "01, on half of the cores"),
    ("all", 1, "01, on all cores"),
    ("devices", 2, "02, 2 devices in a process"),
    ("fork", 3, "03, 2 ranks, forked"),
    ("launch", 4, "04, 2 ranks, started by `launch`"),
    ("bf16", 5, "05, the same, `--amp bf16`"),
    ("compress", 5, "05, the same, `--amp bf16 --compress bf16`"),
    ("slurm", 6, "06, 2 nodes, a rank on each, `--amp off`"),
    ("eval", 7, "07, as 04, `--amp off`"),
)
STATISTICS = 2 * 4800           # floats: running mean and variance of ResNet-18's channels


def changes_of_steps(folder):
    """{number of a step: (lines of train.c changed, lines to read)}, as cells."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with open(f"{root}/01_single_gpu/train.c", encoding="utf-8") as file:
        cells = {1: (f"all {len(file.readlines())}", "")}
    with open(f"{folder}/series.txt", encoding="utf-8") as file:
        for line in file:
            found = re.match(r"\S+ to (\d+)_\S+: train\.c (\d+) line.*; (\d+) lines to read", line)
            if found:
                cells[int(found.group(1))] = found.group(2, 3)
    return cells


def sent_cell(folder, name, parameters):
    """What a rank sends in a step, in MB. Devices of a process: by what replicas.c copies."""
    if name in ("one", "all"):
        return "0"
    if name == "devices":
        out = 4 * (parameters + STATISTICS) + 128 * 4 * (3072 + 10)
        back = 4 * (parameters + 128 * 10)
        return f"{out / 1e6:.1f} out, {back / 1e6:.1f} back"
    sent = channel_mb(folder, name)
    return "not counted" if sent is None else f"{sent / 2:.1f}"


def steps_rows(folder, alone):
    cells, before = changes_of_steps(folder), 0
    for name, step, what in STEPS:
        changed, reading = cells.get(step, ("?", "?")) if step != before else ("", "")
        before = step
        paths = files(folder, f"ours-{name}-*.jsonl")
        if not paths:
            yield f"| {what} | skipped | | | | {changed} | {reading} |"
            continue
        rate = ours_rate(folder, name)
        peak = number_in(f"{folder}/peak-{name}.kb") / 1024
        sent = sent_cell(folder, name, event(paths[0], "config")["parameters"])
        yield (f"| {what} | {rate:.0f} | {rate / alone:.2f} | {f'{peak:.0f}' if peak else 'not counted'} | {sent} "
               f"| {changed} | {reading} |")


def steps_text(folder):
    config = event(files(folder, "ours-all-1.jsonl")[0], "config")
    rounds, threads = len(files(folder, "ours-all-*.jsonl")), config["options"]["threads"]
    images = ((config["options"]["train_samples"] or 50000) + 256) * IMAGE_BYTES / 2**20
    yield f"{machine()}, {config['device'].split(', ')[1]}; {threads} threads, {threads // 2} for each of two ranks or "
    yield f"devices; {date.today()}. ResNet-18, 3x32x32, global batch {config['global_batch']}, "
    yield f"data: {config['dataset']}. "
    yield f"Medians of {rounds} round{'s'[:rounds > 1]}, all in turns.\n\n"
    yield "| | images/s | of 01 on all cores | memory, MB | a rank sends, MB a step | train.c: lines changed "
    yield "| lines to read |\n|---|---:|---:|---:|---:|---:|---:|\n"
    yield "\n".join(steps_rows(folder, ours_rate(folder, "all"))) + "\n\n"
    yield f"The images are {images:.0f} MB of the memory of each process.\n"
    for path in files(folder, "slurm-skipped.txt"):
        with open(path, encoding="utf-8") as file:
            yield f"06 was skipped: {file.read().strip()}\n"


# --- the articles' recipe -----------------------------------------------------------------------

# Running training loss and accuracy at the last step of each epoch, one GPU, as published
PUBLISHED = [(1.658, 39.198), (1.317, 52.200), (1.165, 58.072), (1.054, 62.022), (0.977, 65.076)]
# PyTorch with the same recipe, mean of seeds 1 to 3, at the end: loss, accuracy, test accuracy
PYTORCH, BOUNDS = (0.990, 64.6, 67.0), (0.04, 1.5, 2.0)


def curve(folder):
    """-> the text, and whether the end is within bounds."""
    runs = [[e for e in read_lines(path) if e["event"] == "epoch"]
            for path in files(folder, "curve-*.jsonl")]
    epochs = min(map(len, runs))
    keys = ("train_loss", "train_acc", "top1")
    means = [[statistics.mean(run[i][k] for run in runs) for k in keys] for i in range(epochs)]
    lines = [f"Mean of {len(runs)} seeds. {machine()}; {date.today()}.\n",
             "| epoch | loss | accuracy, % | test accuracy, % | articles: loss | accuracy, % |",
             "|---:|---:|---:|---:|---:|---:|"]
    for i, (loss, acc, top1) in enumerate(means):
        published = PUBLISHED[i] if i < len(PUBLISHED) else ("", "")
        lines.append(f"| {i + 1} | {loss:.3f} | {acc:.2f} | {top1:.2f} "
                     f"| {published[0]} | {published[1]} |")
    offs = [a - b for a, b in zip(means[-1], PYTORCH)]
    holds = epochs == 5 and all(abs(off) <= bound for off, bound in zip(offs, BOUNDS))
    lines.append("\nPyTorch with this recipe ends at loss {:.3f}, accuracy {:.1f}, test accuracy "
                 "{:.1f} (mean of 3 seeds).".format(*PYTORCH))
    lines.append("Ours is off by {:+.3f}, {:+.2f} and {:+.2f}; ".format(*offs)
                 + "wanted: within {}, {} and {} {}".format(*BOUNDS, "✓" if holds else "✗"))
    return "\n".join(lines) + "\n", holds


# --- writing ------------------------------------------------------------------------------------


def replace_between(path, name, text):
    """Puts text between the lines <!-- NAME:begin --> and <!-- NAME:end --> of a document."""
    with open(path, encoding="utf-8") as file:
        document = file.read()
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
    if begin not in document or end not in document:
        sys.exit(f"bench: {path} has no place for {name}: the lines {begin.strip()} and {end}")
    head, rest = document.split(begin, 1)
    with open(path, "w", encoding="utf-8") as file:
        file.write(head + begin + text + end + rest.split(end, 1)[1])


def main():
    what, folder = sys.argv[1:3]
    if what == "best":
        print(best_mode(folder, *sys.argv[3:])[0])
        return 0
    if what == "write":
        text, holds = "".join(comparison(folder)), True
        replace_between(sys.argv[3], "bench", text)
    elif what == "parallel":
        text, holds = "".join(parallel(folder)), True
        replace_between(sys.argv[3], "parallel", text)
    elif what == "amp":
        text, holds = "".join(amp(folder)), True
        replace_between(sys.argv[3], "amp", text)
    elif what == "eval":
        text, holds = "".join(evaluation(folder)), True
        replace_between(sys.argv[3], "eval", text)
    elif what == "steps":
        text, holds = "".join(steps_text(folder)), True
        replace_between(sys.argv[3], "steps", text)
    elif what == "amp-curve":
        text, holds = amp_curve(folder)
        replace_between(sys.argv[3], "amp-curve", text)
    else:
        text, holds = curve(folder)
        replace_between(sys.argv[3], "curve", text)
    print(text)
    return not holds


if __name__ == "__main__":
    sys.exit(main())
