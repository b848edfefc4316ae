#!/usr/bin/env python3
"""Draws pictures of runs with matplotlib, which ./ddp plot installs if it is missing.

    ./ddp plot RUN.jsonl...      loss and accuracy from --metrics files: lines are training batches (or means of
                                 several), points are the test set after each epoch
    ./ddp plot RUN.json          timeline of a training step from a --trace file, with a lane for each thread
    ./ddp plot RUN.json [RUN.jsonl] -o RUN.html     the page of ./ddp run --watch, with the whole run inside
    ./ddp plot PREDICTIONS.csv   confusion matrix from a --predictions file
    ./ddp plot docs/steps.csv    time of an epoch: the article's programs, and ours, which ./ddp bench steps measured
"""
# Only the functions draw_* need matplotlib.
import argparse
import csv
import itertools
import json
import os
import re
import shutil
import statistics
import sys
from dataclasses import dataclass

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
    """-> the points of training and of the test set, [(epochs, loss, accuracy in %)], and the last step's (loss,
    accuracy) as the run prints them: means since its epoch began. A resumed run writes some steps twice: the last ones
    count. A loss that is not finite is null in the file and gives no point."""
    points, running = {"step": {}, "epoch": {}}, {}
    for e in read_events(path):
        if e.get("event") == "step":
            at = e["epoch"] - 1 + e["step"] / e["steps"]
            points["step"][at] = e["loss"], e["acc"]
            running[at] = e["running_loss"], e["running_acc"]
        elif e.get("event") == "epoch":
            points["epoch"][e["epoch"]] = e["test_loss"], e["top1"]
    train, test = ([(x, *y) for x, y in sorted(some.items()) if None not in y] for some in points.values())
    if not train and not test:
        raise ValueError("no steps and no epochs in it; make one with --metrics FILE")
    return means(train), test, running[train[-1][0]] if train else None


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
        for i, (path, (train, test, _)) in enumerate(zip(paths, runs)):
            chart.plot([p[0] for p in train], [p[column] for p in train], f"C{i % 10}", lw=1, label=name_of(path))
            chart.plot([p[0] for p in test], [p[column] for p in test], f"C{i % 10}o", ms=4,
                       label=f"{name_of(path)}, test")
        chart.set(title=title, xlabel="epoch")
        chart.set_xlim(left=0)
        chart.grid(alpha=0.3)
        chart.legend(frameon=False)
    figure.savefig(output)
    return "loss and accuracy"


def print_curves(paths):
    """In the terminal: a, b, ... are training, A, B, ... the test set."""
    runs = [read_run(path) for path in paths]
    wide = min(max(shutil.get_terminal_size().columns, 40), 112) - 12
    for column, title in ((1, "loss"), (2, "accuracy, %")):
        print_chart(title, [(letter(i, k), point[0], point[column]) for k in (0, 1) for i, run in enumerate(runs)
                            for point in run[k]], wide, 16)
    for i, (path, (_, test, running)) in enumerate(zip(paths, runs)):
        print(f"{path}, at the end:")
        if running:
            print("  {} training: loss {:.3f}, accuracy {:.2f} % (mean since the epoch began)".format(letter(i, 0),
                                                                                                  *running))
        if test:
            print(f"  {letter(i, 1)} test:     loss {test[-1][1]:.3f}, accuracy {test[-1][2]:.2f} %")


def letter(run, is_test):
    return chr(ord("A" if is_test else "a") + run % 26)


def print_chart(title, points, wide, high):
    """points: [(mark, x, y)]; a later point covers an earlier one."""
    right, top, bottom = max(p[1] for p in points), max(p[2] for p in points), min(p[2] for p in points)
    range_y = top - bottom or 1
    rows = [[" "] * wide for _ in range(high)]
    for mark, x, y in points:
        rows[round((top - y) / range_y * (high - 1))][round(x / right * (wide - 1))] = mark
    print(title)
    for i, row in enumerate(rows):
        scale = f"{top - i * range_y / (high - 1):9.3f}" if i % 5 == 0 else " " * 9
        print(f"{scale} |" + "".join(row).rstrip())
    print(" " * 10 + "+" + "-" * wide + f"\n{'0':>12}{right:{wide - 8}.4g} epochs\n")


# --- timelines ------------------------------------------------------------------------------------


@dataclass
class Span:
    process: str
    track: str
    begin: float                # ms
    end: float
    name: str
    call: str = ""              # of a collective: "gradients #212", the same on all ranks
    parent: "Span" = None       # the span around it, on the same track

    def around(self):
        span = self.parent
        while span:
            yield span
            span = span.parent

    def depth(self):
        return sum(1 for _ in self.around())


def read_timeline(path):
    """{(process, track), as numbers: [Span], sorted by begin}. A span that a killed run never ended ends with the
    timeline."""
    names, lanes, begun = {}, {}, {}
    end = 0
    for e in read_events(path):
        lane, begin = (e["pid"], e["tid"]), e.get("ts", 0) / 1e3
        end = max(end, begin + e.get("dur", 0) / 1e3)
        if e["ph"] == "M" and "name" in e["args"]:
            names[lane if e["name"] == "thread_name" else e["pid"]] = e["args"]["name"]
        elif e["ph"] in "BX":
            span = Span("", "", begin, begin + e["dur"] / 1e3 if "dur" in e else None, e["name"],
                        e.get("args", {}).get("call", ""))
            lanes.setdefault(lane, []).append(span)
            if e["ph"] == "B":
                begun.setdefault(lane, []).append(span)
        elif e["ph"] == "E" and begun.get(lane):
            begun[lane].pop().end = begin
    if not lanes:
        raise ValueError("there are no spans in it; make one with --trace FILE")
    for lane, spans in lanes.items():
        for span in spans:
            span.process, span.track = names.get(lane[0], ""), names.get(lane, "")
            span.end = end if span.end is None else span.end
            if span.end < span.begin:
                raise ValueError(f"the span '{span.name}' ends before it begins")
        spans.sort(key=lambda span: (span.begin, -span.end))
        set_parents(spans)
    return dict(sorted(lanes.items()))


def set_parents(spans):
    inside = []
    for span in spans:
        while inside and inside[-1].end <= span.begin:
            inside.pop()
        span.parent = inside[-1] if inside else None
        inside.append(span)


def find_units(lanes, name):
    """[(begin, end)] of the spans of this name, in the first lane that has any; of training steps if name is None. A
    step lasts from the first forward after an update (a batch in parts has several) to the next such forward, or to
    the end of the epoch."""
    last = max(span.end for spans in lanes.values() for span in spans)
    inner = {name} if name else {"forward", "evaluate"}
    for spans in lanes.values():
        found = [span for span in spans if span.name == (name or "forward")
                 and not any(outer.name in inner for outer in span.around())]
        updates = [span.begin for span in spans if span.name == "optimizer"]
        if not name and updates:
            found = [span for span, before in zip(found, [None] + found)
                     if not before or any(before.begin < update < span.begin for update in updates)]
        begins = [span.begin for span in found] + [last]
        ends = [span.end if name else span.parent.end if span.parent else last for span in found]
        if found:
            return [(begin, min(end, after)) for begin, end, after in zip(begins, ends, begins[1:])]
    return []


def choose_window(lanes, name=None, first=None, count=1):
    """-> begin, end, title: of `count` units from number `first` on (1, 2, ...), or of a typical one."""
    units, what = find_units(lanes, name), name or ("step" if count == 1 else "steps")
    if not units and not name and first is None:
        spans = list(itertools.chain(*lanes.values()))
        return min(span.begin for span in spans), max(span.end for span in spans), "the whole run"
    windows = [(units[i][0], units[i + count - 1][1], i + 1) for i in range(len(units) - count + 1)]
    if (first or 1) > len(windows):
        wanted = f"spans '{name}'" if name else "training steps"
        raise ValueError(f"there are only {len(units)} {wanted}")
    skipped = len(windows) // 4             # typical: of median length among the middle half
    middle = sorted(windows[skipped:len(windows) - skipped], key=lambda window: window[1] - window[0])
    begin, end, number = windows[first - 1] if first else middle[(len(middle) - 1) // 2]
    numbers = f"{number} to {number + count - 1}" if count > 1 else number
    return begin, end, f"{what} {numbers} of {len(units)}"


def choose_rows(lanes, begin, end):
    """[(process, track, [(row, Span)])]: the visible spans of a window. Spans around all of it, like an epoch, are left
    out. Rows that contain only spans too short to see are also left out."""
    def length(span):
        return (min(span.end, end) - max(span.begin, begin)) / (end - begin)

    found = []
    for spans in lanes.values():
        visible = [(span.depth(), span) for span in spans if length(span) > 0]
        deepest = max((depth for depth, span in visible if length(span) >= 0.005), default=-1)
        around = max((depth for depth, span in visible if depth < deepest and length(span) >= 0.95), default=-1)
        rows = [(depth, span) for depth, span in visible if around < depth <= deepest]
        top = min((depth for depth, _ in rows), default=0)
        if rows:
            found.append((rows[0][1].process, rows[0][1].track, [(depth - top, span) for depth, span in rows]))
    return found


KINDS = (("forward", "#8ab8f0", "^forward"), ("backward", "#c0a8ee", "^backward"),
         ("optimizer", "#8fd19e", "^optimizer"),
         ("communication", "#f5b562", "^(all_|reduce|broadcast|scatter|gather|send|receive|barrier|compare|slow)"),
         ("waiting", "#c6cad0", "^(wait|meet)"), ("loading", "#7ed0c8", "^load"), ("other", "#e6a9c6", ""))


def kind_of(name):
    return next(kind for kind in KINDS if re.match(kind[2], name))


def label(name, room):
    """As much of a name as fits into `room` letters: all of it, its first word, the size at its end, or nothing."""
    size = re.sub(r"^\D*", "", name)
    return next((text for text in (name, name.split(" ")[0], size, "") if len(text) <= room))


def draw_timeline(paths, output, name=None, first=None, count=1):
    (path,) = paths
    lanes = read_timeline(path)
    begin, end, what = choose_window(lanes, name, first, count)
    plt, rows = pyplot(), choose_rows(lanes, begin, end)
    high = sum(1.3 + max(row for row, _ in spans) for _, _, spans in rows)
    figure, chart = plt.subplots(figsize=(9, 1.15 + 0.21 * high), layout="constrained")
    legend = 0.5 / figure.get_figheight()       # its share of the height
    figure.get_layout_engine().set(rect=(0, legend, 1, 1 - legend))
    y, ticks, used = 0, [], {}
    for process, track, spans in rows:
        for row, span in spans:
            kind = kind_of(span.name)
            left, right = (min(max(t, begin), end) - begin for t in (span.begin, span.end))
            used[kind] = chart.barh(y + row, right - left, left=left, height=0.95, color=kind[1])
            chart.text((left + right) / 2, y + row, label(span.name, (right - left) / (end - begin) * 118),
                       ha="center", va="center", fontsize=8, clip_on=True)
        several = len({row[0] for row in rows}) > 1
        ticks.append((y, f"{process}: {track}" if several else track))
        y += 1.3 + max(row for row, _ in spans)
    chart.set(xlim=(0, end - begin), ylim=(y - 0.7, -0.6), xlabel="ms")
    chart.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
    chart.grid(axis="x", alpha=0.3)
    figure.legend(used.values(), [kind[0] for kind in used], ncols=len(KINDS), loc="lower left",
                  frameon=False, title=what, alignment="left")
    figure.savefig(output)
    return f"{what}: {end - begin:.1f} ms"


def write_page(paths, output):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "run.html"), encoding="utf-8") as file:
        before, after = file.read().split("[]</script>")
    events = [event for path in paths for event in read_events(path)]
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


def draw_bars(paths, output):
    """A pair of bars for each row of ./ddp bench steps, ours below the article's."""
    (path,) = paths
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    figure, chart = pyplot().subplots(figsize=(8.5, 3.4), layout="constrained")
    for below, column, color, label in ((-0.2, "article", "#9aa4b2", "the article: four V100, ImageNet"),
                                        (0.2, "here", "#5fa5f0", "here: two ranks on one CPU")):
        times = [float(row[column]) for row in rows]
        bars = chart.barh([place + below for place in range(len(rows))], times, 0.38, color=color, label=label)
        chart.bar_label(bars, [f"{value:.2f}" if value else "" for value in times], padding=3)
    chart.set_yticks(range(len(rows)), [plain(row["program"]) for row in rows])
    chart.invert_yaxis()
    chart.set(xlabel="seconds per epoch, relative to DistributedDataParallel")
    chart.legend(frameon=False)
    figure.savefig(output)
    return f"{len(rows)} programs"


# --- which view ---------------------------------------------------------------------------------------

# How a file begins: the default name of the picture, and the function that draws it.
VIEWS = {'{"event":': ("runs.svg", draw_curves), "[": ("timeline.svg", draw_timeline),
         "index,": ("confusion.svg", draw_confusion), "program,": ("steps.svg", draw_bars)}


def view_of(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        begin = file.read(9)
    for prefix, view in VIEWS.items():
        if begin.startswith(prefix):
            return view
    raise ValueError("neither metrics nor a timeline nor predictions; "
                     "train with --metrics RUN.jsonl, --trace RUN.json or --predictions FILE.csv")


def positive(text):
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise argparse.ArgumentTypeError(f"must be at least 1, not '{text}'")
    return int(text)


def parse():
    parser = argparse.ArgumentParser(prog="./ddp plot", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("-o", dest="output", help="FILE.svg or FILE.png; for a --trace file also FILE.html")
    parser.add_argument("--text", action="store_true", help="curves: draw in the terminal")
    parser.add_argument("--step", type=positive, metavar="N", help="timeline: training step N instead of a typical one")
    parser.add_argument("--steps", type=positive, default=1, metavar="K", help="timeline: number of steps (1)")
    parser.add_argument("--span", metavar="NAME", help="timeline: spans of this name instead of steps: --span evaluate")
    args = parser.parse_args()
    if args.output and not args.output.endswith((".svg", ".png", ".html")):
        parser.error(f"-o must be FILE.svg, FILE.png or FILE.html, not '{args.output}'")
    return parser, args


def choose_view(parser, args):
    """-> the picture's path, and a function that draws it. Wrong combinations of options end the program."""
    views = [view_of(path) for path in args.files]
    output, draw = views[0]
    kinds = {view[1] for view in views}
    if args.output and args.output.endswith(".html"):
        if draw_timeline not in kinds or kinds - {draw_timeline, draw_curves} or args.text:
            parser.error("FILE.html is for --trace files, with or without the run's --metrics")
        return args.output, write_page
    if len(views) > 1 and kinds != {draw_curves}:
        parser.error("only --metrics files can share a picture")
    if args.text and draw is not draw_curves:
        parser.error("--text is for --metrics files")
    if draw is draw_timeline:
        return args.output or output, lambda *files: draw(*files, args.span, args.step, args.steps)
    if args.step or args.span or args.steps > 1:
        parser.error("--step, --steps and --span are for --trace files")
    return args.output or output, draw


def main():
    parser, args = parse()
    try:
        output, draw = choose_view(parser, args)
        if args.text:
            print_curves(args.files)
        else:
            print(f"{output}: {draw(args.files, output)}", file=sys.stderr)
    except FILE_ERRORS as error:
        end_with("plot", args.files, error)


if __name__ == "__main__":
    main()
