#!/usr/bin/env python3
"""./ddp why RUN.json... [RUN.jsonl] - explains where the time of a training step went, and what would change it.

RUN.json: the run's --trace file, or one of each rank. RUN.jsonl: its --metrics file, which adds the options. The
times are medians over the steps of the run's second half. Predictions use the model of docs/scaling.md with this run's
own numbers.
"""
import math
import re
import signal
import statistics
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass

import scaling_model
from plot import FILE_ERRORS, draw_curves, end_with, read_events, view_of

UNITS = {"B": 1, "KB": 1e3, "MB": 1e6}
COMPUTE = r"forward|loss|backward|optimizer|cast|unscale|clip"
EXCHANGE = r"all_|wait for gradients|slow network|compare|broadcast"
# name: (ranks (0: as many as this run), latency in us, GB/s that each rank sends), for the model of docs/scaling.md
NETWORKS = {"1 Gbit/s": (0, 50, 0.118), "25 Gbit/s": (8, 14, 2.9), "NVLink": (8, 3.4, 370)}

scaling_model.FIRST_BUCKET = math.inf   # ddp.c has no smaller first bucket


def kind_of(span):
    return ("compute" if re.match(COMPUTE, span.name) else "exchange" if re.match(EXCHANGE, span.name)
            else "images" if span.name == "wait for data" else "other")


def milliseconds(span):
    return span.end - span.begin


# --- reading ----------------------------------------------------------------------------------------


@dataclass
class Span:
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


def read_timeline(path):
    """{(process, track), as numbers: [Span], sorted by begin}. A span that a killed run never ended ends with the
    timeline."""
    lanes, begun = {}, {}
    end = 0
    for e in read_events(path):
        lane, begin = (e["pid"], e["tid"]), e.get("ts", 0) / 1e3
        end = max(end, begin + e.get("dur", 0) / 1e3)
        if e["ph"] in "BX":
            span = Span(begin, begin + e["dur"] / 1e3 if "dur" in e else None, e["name"],
                        e.get("args", {}).get("call", ""))
            lanes.setdefault(lane, []).append(span)
            if e["ph"] == "B":
                begun.setdefault(lane, []).append(span)
        elif e["ph"] == "E" and begun.get(lane):
            begun[lane].pop().end = begin
    if not lanes:
        raise ValueError("there are no spans in it; make one with --trace FILE")
    for spans in lanes.values():
        for span in spans:
            span.end = end if span.end is None else span.end
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


def find_steps(spans):
    """[(begin, end)] of the training steps in a lane. A step lasts from the first forward after an update (a batch in
    parts has several) to the next such forward, or to the end of the epoch."""
    inner, last = {"forward", "evaluate"}, max(span.end for span in spans)
    found = [span for span in spans if span.name == "forward" and not any(outer.name in inner for outer in span.around())]
    updates = [span.begin for span in spans if span.name == "optimizer"]
    if updates:
        found = [span for span, before in zip(found, [None] + found)
                 if not before or any(before.begin < update < span.begin for update in updates)]
    begins = [span.begin for span in found] + [last]
    ends = [span.parent.end if span.parent else last for span in found]
    return [(begin, min(end, after)) for begin, end, after in zip(begins, ends, begins[1:])]


def read_run(paths):
    """-> {rank: its lanes}, the options and facts of the run's last start, with its `rates`, in samples/s"""
    ranks, config = defaultdict(dict), {}
    for path in paths:
        if view_of(path)[1] is draw_curves:
            for e in read_events(path):         # a run that resumes appends to its metrics
                if e.get("event") == "config":
                    config = {**e, "rates": []}
                elif e.get("event") == "step" and config and e.get("samples_per_s"):
                    config["rates"].append(e["samples_per_s"])
        else:
            for lane, spans in read_timeline(path).items():
                ranks[lane[0]][lane] = spans
    if not ranks:
        raise ValueError("there is no timeline among these files; make one with --trace RUN.json")
    return dict(sorted(ranks.items())), config


def read_steps(lanes):
    """-> one rank's steps of the run's second half: [(ms of each kind, ms of each span's name, calls)]. calls:
    {number: (bytes, ms, ms of the simulated network)} of the gradients' all-reduces."""
    main = next((spans for spans in lanes.values() if any(s.name == "forward" for s in spans)), [])
    units, steps = find_steps(main), []
    for begin, end in units[len(units) // 2:-1]:        # the last step contains the evaluation
        kinds, names, calls = defaultdict(float), defaultdict(float), {}
        for span in main:
            if not begin <= span.begin < end or span.name == "epoch":
                continue
            inside, kind = [s for s in span.around() if s.name != "epoch"], kind_of(span)
            if not inside:
                kinds[kind] += milliseconds(span)
                names[span.name] += milliseconds(span)
                if span.name == "backward":     # of a batch in parts, the last part's
                    kinds["hides"] = milliseconds(span)
            elif kind == "exchange" and kind_of(inside[0]) == "compute":    # without overlap
                kinds["exchange"] += milliseconds(span)
                kinds["compute"] -= milliseconds(span)
                names[inside[0].name] -= milliseconds(span)
                kinds["hides"] -= milliseconds(span) if inside[0].name == "backward" else 0
        for spans in lanes.values():
            here = [s for s in spans if begin <= s.begin < end]
            for span, after in zip(here, here[1:] + [None]):
                kinds["norms"] += milliseconds(span) if span.call.startswith("norms #") else 0
                if span.call.startswith("gradients #"):
                    size, unit = re.search(r"([\d.]+) (B|KB|MB)", span.name).groups()
                    slow = milliseconds(after) if after and after.name == "slow network" else 0
                    calls[span.call] = float(size) * UNITS[unit], milliseconds(span), slow
        kinds["step"] = end - begin
        steps.append((kinds, names, calls))
    return steps


# --- what the numbers mean ----------------------------------------------------------------------------


class Run:
    """What one run shows. ranks: as read_run returns them. Times are in ms."""

    def __init__(self, ranks, config):
        self.steps = {rank: read_steps(lanes) for rank, lanes in ranks.items()}
        self.count = min(len(steps) for steps in self.steps.values())
        if self.count < 3:
            raise ValueError("too few steps: train at least 8")
        self.config, self.options, self.size = config, config.get("options", {}), len(ranks)
        self.ms = {kind: statistics.median(step[0][kind] for steps in self.steps.values() for step in steps)
                   for kind in ("step", "exchange", "images")}
        self.ms["compute"] = self.ms["step"] - self.ms["exchange"] - self.ms["images"]
        backward = statistics.median(step[0]["hides"] for steps in self.steps.values() for step in steps)
        self.backward = min(max(backward / self.ms["compute"], 0.01), 1)
        self.find_messages()
        # What the network adds to a step: the shortest wait of any rank. The others also wait for that rank.
        self.exposed = statistics.median(min(steps[number - self.count][0]["exchange"] for steps in self.steps.values())
                                         for number in range(self.count))
        self.late, self.late_share, self.late_ms = self.find_late()

    def find_messages(self):
        """A call's time on the network is its shortest time on any rank: the others also wait for that rank."""
        times = defaultdict(list)
        for of_rank in self.steps.values():
            for _, _, calls in of_rank:
                for call, (size, ms, slow) in calls.items():
                    times[call].append((ms + slow, size))
        by_size = defaultdict(list)
        for found in times.values():
            by_size[found[0][1]].append(min(found)[0])
        self.messages = {size: statistics.median(found) for size, found in by_size.items()}
        calls = [step[2] for step in self.steps[min(self.steps)]]
        self.gradients = statistics.median(sum(call[0] for call in of_step.values()) for of_step in calls)
        self.calls = statistics.median(map(len, calls))
        self.network = statistics.median(sum(min(times[call])[0] for call in of_step) for of_step in calls)
        # A message is never smaller than a layer, whatever --bucket-mb says. So self.bucket, if not 0, is at least
        # the mean size of a message.
        self.sent = 1 if self.options.get("compress", "none") == "none" else 0.5     # of --bucket-mb, which counts f32
        self.bucket = self.options.get("bucket_mb", 4) * self.sent
        if self.bucket and self.calls:
            self.bucket = max(self.bucket, self.gradients / self.calls / 2**20)

    def find_late(self):
        """-> the rank that most often has the shortest all-reduces in a step (with --sync-bn, calls of all kinds), in
        which share of the steps, by how much. The others wait for that rank, so their all-reduces are longer. The ranks'
        clocks need not agree."""
        last, by = Counter(), defaultdict(list)
        for number in range(self.count if self.size > 1 else 0):
            found = {rank: steps[number - self.count] for rank, steps in self.steps.items()}
            waits = {rank: kinds["exchange"] if kinds["norms"] else sum(call[1] for call in calls.values())
                     for rank, (kinds, _, calls) in found.items()}
            rank = min(waits, key=waits.get)
            last[rank] += 1
            by[rank].append(max(waits.values()) - waits[rank])
        if not last:
            return None, 0, 0
        rank, times = last.most_common(1)[0]
        return rank, times / self.count, statistics.median(by[rank])

    def is_late(self):
        """Is one rank last so often, by more than two standard deviations, and by so much time that it matters?"""
        chance = 1 / self.size
        chance += 2 * (chance * (1 - chance) / self.count) ** 0.5
        return self.size > 1 and self.late_share > chance and self.late_ms >= 0.02 * self.ms["step"]

    def excess(self):
        """-> the span in which the late rank loses most time against the others, and how much"""
        names = {name for steps in self.steps.values() for step in steps for name in step[1]} - {"wait for gradients"}

        def typical(rank, name):
            return statistics.mean(step[1][name] for step in self.steps[rank])
        more = {name: typical(self.late, name) - statistics.median(typical(rank, name) for rank in self.steps
                                                                  if rank != self.late) for name in names}
        name = max(more, key=more.get)
        return name, more[name]


class Prediction:
    """scaling_model with this run's numbers. Where the run waited longer than the model says, the rest of the wait
    stays; where it waited less, all waits are shorter by the same factor."""

    def __init__(self, run):
        self.run = run
        times = {(run.size, size): 1e3 * ms for size, ms in run.messages.items()}
        try:
            self.latency, self.bandwidth = scaling_model.fit(times)        # us, bytes per us
            self.latency = max(0.0, self.latency)
            self.one_size = False
        except ValueError:                                              # fewer than two sizes, or only noise
            factor = 2 * (run.size - 1) / run.size
            self.latency, self.bandwidth = 0.0, run.gradients * factor / (1e3 * run.network)
            self.one_size = True
        if not 0 < self.bandwidth < 1e15:
            raise ArithmeticError
        self.modelled = self.wait()

    def wait(self, ranks=None, batch=1, shrink=1, network=None, **changed):
        latency, bandwidth = network or (self.latency, self.bandwidth / 1e3)
        run = self.run
        gradients, compute = run.gradients / shrink, batch * run.ms["compute"] * 1e-3
        bucket = changed["bucket_mb"] * run.sent if "bucket_mb" in changed else run.bucket
        o = scaling_model.parse_model([
            "--step-ms", "1", "--gradient-bytes", "1", "--backward", f"{run.backward}", 
            "--bucket-mb", f"{bucket / shrink}", "--algorithm", "ring",
            "--latency-us", f"{latency}", "--bandwidth-GBps", f"{bandwidth}", "--call-us", "0"])
        return 1e3 * scaling_model.exposed(o, ranks or run.size, compute, gradients)

    def step(self, batch=1, network=None, **changed):
        """ms of a step, and the share of it that computes"""
        compute, wait = batch * self.run.ms["compute"], self.wait(batch=batch, network=network, **changed)
        measured, modelled = self.run.ms["exchange"], self.modelled
        if not network:
            wait = wait * measured / modelled if modelled > measured else wait + measured - modelled
        total = compute + batch * self.run.ms["images"] + wait
        return total, 100 * compute / total


# --- the report -----------------------------------------------------------------------------------------


def print_time(run):
    ms = run.ms
    print(f"{ms['step']:.1f} ms a step, {run.size} rank{'s' * (run.size > 1)} ({run.count} steps)")
    hidden = max(0.0, run.network - run.exposed)
    notes = {"exchange": f"the all-reduce takes {run.network:.1f} ms, of which {hidden:.1f} are hidden"
             + f"; most of this wait is for rank {run.late}" * (run.is_late() and run.late_ms > ms["exchange"] / 2)}
    for kind, what in (("compute", "forward, backward, optimizer"), ("exchange", "waiting for gradients"),
                       ("images", "waiting for images")):
        if kind != "exchange" or run.size > 1:
            note = notes.get(kind, "")
            print(f"  {what:<29} {ms[kind]:8.1f} ms {100 * ms[kind] / ms['step']:4.0f} %    {note}".rstrip())
    if run.is_late():
        name, more = run.excess()
        print(f"  rank {run.late} is last in {100 * run.late_share:.0f} % of the steps, by {run.late_ms:.1f} ms: "
              f"it spends {more:.1f} ms more in '{name}'")
    elif run.size > 1:
        print(f"  no rank is clearly slower: rank {run.late} is last most often, in {100 * run.late_share:.0f} % of "
              f"the steps, by {run.late_ms:.1f} ms")


def print_cause(run):
    ms = run.ms
    causes = {"The network limits this run.": run.exposed,
              f"Rank {run.late} limits this run: the others wait for it.": run.late_ms if run.is_late() else 0,
              "Loading limits this run: use more --workers, or smaller images.": ms["images"]}
    cause = max(causes, key=causes.get)
    print(cause if causes[cause] > 0.1 * ms["step"] else "Computing limits this run.")


def print_predictions(run):
    p, now, options = Prediction(run), run.ms["step"], run.options
    print(f"From the same numbers (a message takes {2e-3 * (run.size - 1) * p.latency:.2g} ms plus its bytes at "
          f"{p.bandwidth / 1e3:.3g} GB/s):")
    rows, current = [], options.get("bucket_mb")
    if current is not None:
        sizes = {mb: p.step(bucket_mb=mb)[0] for mb in ((4,) if p.one_size else (1, 2, 4, 8, 25, 100))}
        best = min(sizes, key=sizes.get)
        rows = [(f"--bucket-mb {best:g}", sizes[best])] if sizes[best] < 0.98 * now and best != current else []
    if options.get("compress", "none") == "none":
        rows.append(("--compress bf16" + " (from 05 on)" * ("compress" not in options), p.step(shrink=2)[0]))
    if run.is_late():
        rows.append((f"rank {run.late} as fast as the others", now - min(run.late_ms, run.ms["exchange"])))
    for what, ms in rows:
        print(f"  {what:<30} {ms:8.1f} ms a step instead of {now:.1f}")
    if current is not None and not p.one_size and not any("bucket" in row[0] for row in rows):
        print(f"  --bucket-mb {current:g} is {'' if best == current else 'almost '}the best size")
    batch = options.get("batch_size")
    print(f"  {'-b ' + str(2 * batch) if batch else 'twice the batch':<30} {p.step(batch=2)[1]:8.0f} % of the time "
          f"spent computing instead of {p.step()[1]:.0f} %")
    for name, (ranks, *network) in NETWORKS.items():
        ms, share = p.step(ranks=ranks or run.size, network=network)
        print(f"  {f'{ranks or run.size} ranks on {name}':<30} {share:8.0f} %, {ms:.1f} ms a step")
    if p.one_size:
        print("The latency is unknown: the messages have one size, or noisy times. A run with a smaller --bucket-mb "
              "may show it.")


def print_limits(run):
    cores, threads = run.config.get("cores"), run.options.get("threads") or 1
    if not run.config:
        print("The options and the number of cores are unknown: add the run's --metrics file. (If the run used a GPU, the "
              "times above say nothing.)")
    elif run.size > 1 and run.size * (threads + 1) > cores:
        print(f"The ranks and their network threads share {cores} cores: work that overlaps slows backward down, so gains "
              "may be smaller. More ranks here would share the same cores.")


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)       # | head
    paths = sys.argv[1:]
    if not paths or any(path.startswith("-") for path in paths):
        print(__doc__.strip())
        sys.exit(0 if paths and paths[0] in ("-h", "--help") else 2)
    try:
        ranks, config = read_run(paths)
        if any(span.name == "scatter" for lanes in ranks.values() for spans in lanes.values() for span in spans):
            print("Several devices of one process (02): the run prints the time of each phase, in '== a step takes'.")
            return
        if not config.get("device", "CPU").startswith("CPU"):
            rates = config["rates"][max(1, len(config["rates"]) // 2):]     # the first one includes the start
            step = f"{1e3 * config['global_batch'] / statistics.median(rates):.1f} ms a step. " if rates else ""
            print(f"{step}On a GPU, spans show when the host made the calls, not when they ran: NVIDIA's nsys shows that.")
            return
        run = Run(ranks, config)
        print_time(run)
        print_cause(run)
        if run.size > 1 and run.messages:
            print_predictions(run)
        print_limits(run)
    except FILE_ERRORS as error:
        end_with("why", paths, error)


if __name__ == "__main__":
    main()
