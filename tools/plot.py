#!/usr/bin/env python3
"""Draws pictures of runs with matplotlib, which ./ddp plot installs if it is missing.

    ./ddp plot RUN.jsonl...      loss and accuracy from --metrics files: lines are training batches (or means of
                                 several), points are the test set after each epoch
    ./ddp plot RUN.json [RUN.jsonl]      the page of ./ddp run --watch, with a whole run inside: the timeline of a
                                 --trace file. https://ui.perfetto.dev opens this file, too
    ./ddp plot PREDICTIONS.csv   confusion matrix from a --predictions file
"""
# Only the functions draw_* need matplotlib.
import argparse
import csv
import itertools
import json
import os
import re
import statistics
import sys

NO_MATPLOTLIB = 69              # the exit status


def pyplot():
    """matplotlib's pyplot, set up to work without a display."""
    try:
        import matplotlib
    except ImportError:
        print("plot: matplotlib is not installed: apt install python3-matplotlib", file=sys.stderr)
        sys.exit(NO_MATPLOTLIB)
    matplotlib.use("agg")
    matplotlib.rcParams.update({"font.size": 9, "text.parse_math": False, "svg.fonttype": "none",
                                "axes.spines.top": False, "axes.spines.right": False})
    from matplotlib import pyplot as plt
    return plt


NUMBER, MOST_LINE = (int, float), 1 << 20
TYPES = {**dict.fromkeys("pid tid epoch step steps".split(), int), **dict.fromkeys("ph name call event".split(), str),
         **dict.fromkeys("ts dur t cpu bucket_mb threads batch_size cores".split(), NUMBER),
         **dict.fromkeys("loss acc running_loss running_acc test_loss top1".split(), (*NUMBER, type(None))),
         **dict.fromkeys("device compress".split(), str), **dict.fromkeys(("args", "options"), dict)}
LEAST = {**{key: 0 for key, kind in TYPES.items() if kind in (int, NUMBER)}, "steps": 1}


def plain(text):
    """The text without characters that a terminal takes for commands."""
    return re.sub(r"[\0-\x1f\x7f-\x9f]", " ", text)


def checked(event):
    """-> the event, with harmless text. Refuses what no program of ours writes: the file may come from anywhere."""
    for key, value in event.items():
        if not isinstance(value, TYPES.get(key, object)) or (
                isinstance(value, NUMBER) and not LEAST.get(key, -1e16) <= value <= 1e16):
            raise ValueError(f"no program of ddp.c writes such a value of '{plain(key)[:40]}'")
        event[key] = plain(value) if isinstance(value, str) else checked(value) if isinstance(value, dict) else value
    return event


def read_events(path):
    """The JSON objects of a file, one per line. A killed run may end in the middle of a line."""
    with open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MOST_LINE), b""), 1):
            try:
                if len(line) == MOST_LINE:
                    raise RecursionError
                event = json.loads(line.strip().rstrip(b","))
            except ValueError:
                continue
            except RecursionError:
                raise ValueError(f"line {number} is too long or too deeply nested") from None
            if isinstance(event, dict):
                yield checked(event)


def end_with(command, paths, error):
    """Ends the program with a message about one of these files."""
    if isinstance(error, OSError):
        sys.exit(f"{command}: {error.filename}: {error.strerror}")
    what = f"an event has no {error}" if isinstance(error, KeyError) else "its numbers contradict each other" \
        if isinstance(error, (ArithmeticError, TypeError)) else error
    sys.exit(f"{command}: {plain(', '.join(paths))}: {what}")


FILE_ERRORS = OSError, ValueError, KeyError, TypeError, ArithmeticError, csv.Error


# --- curves ---------------------------------------------------------------------------------------

MOST_POINTS = 150               # of a training curve


def read_run(path):
    """-> the points of training and of the test set, [(epochs, loss, accuracy in %)]. A resumed run writes some steps
    twice: the last ones count. A loss that is not finite is null in the file and gives no point."""
    points = {"step": {}, "epoch": {}}
    for e in read_events(path):
        if e.get("event") == "step":
            points["step"][e["epoch"] - 1 + e["step"] / e["steps"]] = e["loss"], e["acc"]
        elif e.get("event") == "epoch":
            points["epoch"][e["epoch"]] = e["test_loss"], e["top1"]
    train, test = ([(x, *y) for x, y in sorted(some.items()) if None not in y] for some in points.values())
    if not train and not test:
        raise ValueError("no steps and no epochs in it; make one with --metrics FILE")
    return means(train), test


def means(points):
    """Averages neighbours, so that at most MOST_POINTS are left."""
    size = -(-len(points) // MOST_POINTS) or 1
    groups = [points[i:i + size] for i in range(0, len(points), size)]
    return [tuple(map(statistics.mean, zip(*group))) for group in groups]


def name_of(path):
    return os.path.basename(path).removesuffix(".jsonl")


def draw_curves(paths, output):
    runs = [read_run(path) for path in paths]
    figure, charts = pyplot().subplots(1, 2, figsize=(9.6, 3.8), layout="constrained")
    for column, (chart, title) in enumerate(zip(charts, ("loss", "accuracy, %")), 1):
        for i, (path, (train, test)) in enumerate(zip(paths, runs)):
            chart.plot([p[0] for p in train], [p[column] for p in train], f"C{i % 10}", lw=1, label=name_of(path))
            chart.plot([p[0] for p in test], [p[column] for p in test], f"C{i % 10}o", ms=4,
                       label=f"{name_of(path)}, test")
        chart.set(title=title, xlabel="epoch")
        chart.set_xlim(left=0)
        chart.grid(alpha=0.3)
        chart.legend(frameon=False)
    figure.savefig(output)
    return "loss and accuracy"


# --- the page of a run ---------------------------------------------------------------------------


def write_page(paths, output):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "run.html"), encoding="utf-8") as file:
        before, after = file.read().split("[]</script>")
    events = [event for path in paths for event in read_events(path)]
    if not events:
        raise ValueError("there is no event in it")
    with open(output, "w", encoding="utf-8") as file:
        file.write(before + json.dumps(events, separators=(",", ":")).replace("<", "\\u003c") + "</script>" + after)
    return f"{len(events)} events"


# --- confusion matrices -----------------------------------------------------------------------------


def read_confusion(path):
    """-> the classes, and counts[class][predicted class]"""
    names, pairs = {}, []
    with open(path, encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                label, prediction = int(row["label"]), int(row["prediction"])
                names |= {label: plain(row["class"]), prediction: plain(row["predicted"])}
            except (KeyError, TypeError, ValueError):
                raise ValueError(f"line {number}: no prediction; --predictions FILE writes a correct file") from None
            pairs.append((label, prediction))
    if not pairs:
        raise ValueError("no images were counted")
    labels = sorted(names)
    if len(labels) > 10000:
        raise ValueError(f"{len(labels)} classes are too many for a picture")
    counts = [[0] * len(labels) for _ in labels]
    for label, prediction in pairs:
        counts[labels.index(label)][labels.index(prediction)] += 1
    return [names[label] or str(label) for label in labels], counts


def describe_confusion(classes, counts):
    images, right = sum(map(sum, counts)), sum(row[i] for i, row in enumerate(counts))
    most, a, b = max((count, -i, -j) for i, row in enumerate(counts) for j, count in enumerate(row + [0]) if i != j)
    worst = f"{classes[-a]} is predicted as {classes[-b]} most often, {most} times" if most else "no mistakes"
    return f"{100 * right / images:.2f} % of {images} images right; {worst}"


def draw_confusion(paths, output):
    """A cell's color is its share of the row: blue for right answers, else orange. Orange uses the root of the share,
    so that rare mistakes are visible. Bars on the right: the accuracy of each class."""
    (path,) = paths
    classes, counts = read_confusion(path)
    plt, size, shares = pyplot(), len(classes), []
    for i, row in enumerate(counts):
        total = sum(row) or 1
        shares.append([shade(count / total, i == j) for j, count in enumerate(row)])
    figure, (chart, bars) = plt.subplots(1, 2, figsize=(8.5, 6.5), layout="constrained", sharey=True,
                                         width_ratios=(6, 1))
    chart.imshow(shares, aspect="auto")
    every = -(-size // 40)
    chart.set_xticks(range(0, size, every), classes[::every], rotation=45, ha="right")
    chart.set_yticks(range(0, size, every), classes[::every])
    chart.set(xlabel="predicted class", ylabel="class", title=describe_confusion(classes, counts))
    if size <= 20:
        for i, j in itertools.product(range(size), range(size)):
            chart.text(j, i, counts[i][j] or "", ha="center", va="center", fontsize=8)
    right = [100 * row[i] / (sum(row) or 1) for i, row in enumerate(counts)]
    bars.barh(range(size), right, color="#5fa5f0")
    bars.set(xlim=(0, 100), xlabel="right, %")
    figure.savefig(output)
    return describe_confusion(classes, counts)


def shade(share, is_right):
    part = share if is_right else share ** 0.5
    light, full = (238, 240, 243), (95, 165, 240) if is_right else (242, 140, 60)
    return [(a + (b - a) * part) / 255 for a, b in zip(light, full)]


# --- which view ---------------------------------------------------------------------------------------

# How a file begins: the default name of the picture, and the function that draws it.
VIEWS = {'{"event":': ("runs.svg", draw_curves), "[": ("run.html", write_page),
         "index,": ("confusion.svg", draw_confusion)}


def view_of(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        begin = file.read(9)
    for prefix, view in VIEWS.items():
        if begin.startswith(prefix):
            return view
    raise ValueError("neither metrics nor a timeline nor predictions; "
                     "train with --metrics RUN.jsonl, --trace RUN.json or --predictions FILE.csv")


def parse():
    parser = argparse.ArgumentParser(prog="./ddp plot", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("-o", dest="output", help="FILE.svg or FILE.png; for a --trace file FILE.html")
    args = parser.parse_args()
    if args.output and not args.output.endswith((".svg", ".png", ".html")):
        parser.error(f"-o must be FILE.svg, FILE.png or FILE.html, not '{args.output}'")
    return parser, args


def choose_view(parser, args):
    """-> the picture's path, and a function that draws it. Wrong combinations of files and options end the program."""
    views = [view_of(path) for path in args.files]
    output, draw = max(views, key=lambda view: view[1] is write_page)
    kinds = {view[1] for view in views}
    if len(views) > 1 and not kinds <= {draw_curves, write_page}:
        parser.error("only --metrics files can share a picture, and only with a --trace file a page")
    output = args.output or output
    if output.endswith(".html") != (draw is write_page):
        parser.error("FILE.html is for --trace files, FILE.svg and FILE.png for the others")
    return output, draw


def main():
    parser, args = parse()
    try:
        output, draw = choose_view(parser, args)
        print(f"{output}: {draw(args.files, output)}", file=sys.stderr)
    except FILE_ERRORS as error:
        end_with("plot", args.files, error)


if __name__ == "__main__":
    main()
