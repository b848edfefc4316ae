#!/usr/bin/env python3
"""killed.py OUT.svg - trains with two ranks, kills one, and draws the terminal's output, which appears line by line.

The run restarts from its checkpoint. The picture also shows the same run without the kill, which must end with the
same weight hash. The programs of step 04 must be built (./ddp setup).
"""
import html
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

SPEED, HOLD = 4, 8          # the picture plays so many times as fast, and holds the last line so many seconds
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STEP = "build/cpu/04_ddp_launcher"
OPTIONS = "-a lenet --lr 0.05 -b 64 --epochs 2 -p 200"
SAVING = "--save net.st --save-every 100 --resume auto"


def run(folder, kill):
    """Runs the training -> (seconds, line) pairs. kill: sends SIGKILL to rank 1 after step 200."""
    launch, train = (os.path.join(ROOT, STEP, name) for name in ("launch", "train"))
    command = [launch, "--max-restarts", "1", "--nproc-per-node", "2", "--", train, *OPTIONS.split(), *SAVING.split()]
    lines, rank1, begin = [], None, time.monotonic()
    with subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for line in process.stdout:
            lines.append((time.monotonic() - begin, line.rstrip()))
            found = re.search(r"global rank: 1 of 2.*pid (\d+)", line)
            rank1 = int(found[1]) if found else rank1
            if kill and "step: [200/" in line:
                time.sleep(0.2)
                os.kill(rank1, signal.SIGKILL)
                lines.append((time.monotonic() - begin, f"$ kill -KILL {rank1}"))
                kill = False
    if process.returncode != 0:
        sys.exit("killed.py: the run failed:\n" + "\n".join(line for _, line in lines))
    return lines


def wrap(line, width=104):
    while len(line) > width:
        cut = line.rfind(" ", 0, width)
        yield line[:cut]
        line = "    " + line[cut + 1:]
    yield line


def color(line):
    if line.startswith("$"):
        return "#f0f0f0"
    if "killed by" in line or line.startswith("    "):
        return "#ff8080"
    if "weight hash" in line:
        return "#80e080"
    if "restart" in line or "resumed" in line:
        return "#f0d060"
    return "#b8c4d0"


def cover(rows, height):
    """A rectangle over the lines that are still to come. For readers who prefer no motion, it is below the picture."""
    at = [(seconds or 0) / SPEED for seconds, _ in rows]
    at = [max(at[:i + 1]) for i in range(len(at))]          # a line without a time comes with the one before
    period = at[-1] + HOLD
    stops = {f"{100 * time / period:.2f}%": f"translateY({18 * (i + 1) + 16}px)" for i, time in enumerate(at)}
    return ("<style>@media (prefers-reduced-motion: no-preference) {"
            f"#cover {{ animation: lines {period:.1f}s step-end infinite }} }} @keyframes lines {{ "
            + " ".join(f"{time} {{ transform: {place} }}" for time, place in stops.items()) + " }</style>"
            f'<rect id="cover" width="960" height="{height}" fill="#1c2128" transform="translate(0 {height})"/>')


def draw(rows):
    height = 18 * len(rows) + 28
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="960" height="{height}" viewBox="0 0 960 {height}">',
           f'<rect width="960" height="{height}" rx="8" fill="#1c2128"/>',
           '<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13" xml:space="preserve">']
    for i, (seconds, line) in enumerate(rows):
        y = 18 * i + 28
        if seconds is not None:
            out.append(f'<text x="52" y="{y}" text-anchor="end" fill="#667">{seconds:.1f} s</text>')
        fill, line = color(line), re.sub(r"^\$     ", "      ", line)
        out.append(f'<text x="64" y="{y}" fill="{fill}">{html.escape(line)}</text>')
    return "\n".join(out + ["</g>", cover(rows, height), "</svg>", ""])


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: tools/killed.py OUT.svg")
    rows = [(None, f"$ launch --max-restarts 1 --nproc-per-node 2 -- train {OPTIONS} \\"), (None, f"$     {SAVING}")]
    with tempfile.TemporaryDirectory() as folder:
        killed = run(folder, kill=True)
    with tempfile.TemporaryDirectory() as folder:
        whole = run(folder, kill=False)
    if killed[-1][1] != whole[-1][1]:
        sys.exit(f"killed.py: the hashes differ: {killed[-1][1]}, {whole[-1][1]}")
    for seconds, line in killed:
        line = line.strip()
        if "====" in line or line.startswith(("hint:", "== saved", "lenet,")):
            continue
        line = re.sub(r"^\[[^]]*\] \w+\.c:\d+: ", "", line)
        for i, part in enumerate(wrap(line)):
            rows.append((seconds if i == 0 else None, part))
    rows += [(None, ""), (None, "$ launch ... (the same run without the kill)"), (whole[-1][0], whole[-1][1])]
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write(draw(rows))


main()
