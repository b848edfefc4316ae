#!/usr/bin/env python3
"""Draws pictures of runs with matplotlib, which ./ddp plot installs if it is missing.

    ./ddp plot RUN.jsonl...      loss and accuracy from --metrics files: lines are training batches (or means of
                                 several), points are the test set after each epoch
    ./ddp plot RUN.json [RUN.jsonl]      the page of ./ddp run --watch, with a whole run inside: the timeline of a
                                 --trace file. https://ui.perfetto.dev opens this file, too
"""
# Only the functions draw_* need matplotlib.
import argparse
import json
import os
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


def read_events(path):
    """The JSON objects of a file, one per line. A killed run may end in the middle of a line."""
    with open(path, "rb") as file:
        for line in file:
            try:
                event = json.loads(line.strip().rstrip(b","))
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event


def end_with(command, paths, error):
    """Ends the program with a message about one of these files."""
    if isinstance(error, OSError):
        sys.exit(f"{command}: {error.filename}: {error.strerror}")
    what = f"an event has no {error}" if isinstance(error, KeyError) else "its numbers contradict each other" \
        if isinstance(error, (ArithmeticError, TypeError)) else error
    sys.exit(f"{command}: {', '.join(paths)}: {what}")


FILE_ERRORS = OSError, ValueError, KeyError, TypeError, ArithmeticError


# --- curves ---------------------------------------------------------------------------------------

MOST_POINTS = 150               # of a training curve


def read_run(path):
    """-> the points of training and of the test set, [(epochs, loss, accuracy in %)]. A resumed run writes some steps
    twice: the last ones count. A loss that is not finite is null in the file and gives no point."""
    points = {"step": {}, "epoch": {}}
    for e in read_events(path):
        if e.get("event") == "step":
            points["step"][e["epoch"] - 1 + e["step"] / e["steps"]] = e["loss"], e["acc"]
        elif e.get("event") == "epoch" and "test_loss" in e:    # before 07, only rank 0 evaluates
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


# --- which view ---------------------------------------------------------------------------------------

# How a file begins: the default name of the picture, and the function that draws it.
VIEWS = {'{"event":': ("runs.svg", draw_curves), "[": ("run.html", write_page)}


def view_of(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        begin = file.read(9)
    for prefix, view in VIEWS.items():
        if begin.startswith(prefix):
            return view
    raise ValueError("neither metrics nor a timeline; train with --metrics RUN.jsonl or --trace RUN.json")


def main():
    parser = argparse.ArgumentParser(prog="./ddp plot", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("-o", dest="output", help="FILE.svg or FILE.png; for a --trace file FILE.html")
    args = parser.parse_args()
    try:
        views = [view_of(path) for path in args.files]
        output, draw = max(views, key=lambda view: view[1] is write_page)       # the page if any is a timeline
        output = args.output or output
        if not output.endswith((".html",) if draw is write_page else (".svg", ".png")):
            parser.error("-o: FILE.html is for --trace files, FILE.svg and FILE.png for the others")
        print(f"{output}: {draw(args.files, output)}", file=sys.stderr)
    except FILE_ERRORS as error:
        end_with("plot", args.files, error)


if __name__ == "__main__":
    main()
