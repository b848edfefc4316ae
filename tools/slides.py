#!/usr/bin/env python3
"""slides.py [half | day | nccl] [-o FILE] - ./ddp slides: writes slides as one page of HTML (slides.html).

The plan is one of docs/workshop.md: half a day, a day (if none is named), or half a day of NCCL. The slides are in
docs/workshop/slides.md, separated by "---". What follows a line "Notes:" is for the speaker: the key n shows it. Two
comments at the top of a slide are for this tool: `block: NAME` (of this slide and those after it) and `in: PLAN ...`
(without it: half and day).
"""
import html
import os
import re
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

STYLE = """
html { font: min(1.5625vw, 2.7777vh)/1.35 system-ui, sans-serif; color: #1f2328; }     /* 20 px at 1280 x 720 */
body { margin: 0; } [hidden] { display: none; }
section { box-sizing: border-box; width: 100vw; height: 100vh; overflow: hidden; position: relative;
          padding: 1.8rem 2.6rem; font-size: 1.6rem; background: #fff; }
section.first, section.predict { background: #0b3d63; color: #fff; }
section.predict, section.exercise { font-size: 1.9rem; } section.exercise { background: #e8f3e8; }
h1 { font-size: 2.2rem; line-height: 1.15; margin: 0 0 1.3rem; } .first h1 { font-size: 3rem; margin-top: 8rem; }
em { font-style: normal; font-weight: bold; }
p, ul, ol, table, pre { margin: 0 0 1rem; } ul, ol { padding-left: 1.8rem; } li { margin-bottom: .45rem; }
section > svg { width: 100%; height: auto; overflow: visible; }
pre, code { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; } code { font-size: .9em; }
td code { white-space: nowrap; font-size: .8em; }
pre { line-height: 1.28; background: #f3f5f8; color: #1f2328; padding: .6rem .9rem;
      border-radius: .4rem; }
table { border-collapse: collapse; }
td, th { text-align: left; padding: .2rem 1.2rem .2rem 0; border-bottom: 1px solid #bbb; }
footer { position: absolute; right: 1rem; bottom: .4rem; font-size: 1rem; opacity: .6; }
aside { position: absolute; left: 0; right: 0; bottom: 0; padding: 1rem 2.6rem; background: #fff6d5; color: #1f2328;
        font-size: 1.1rem; border-top: 2px solid #c9a400; } body:not(.notes) aside { display: none; }
@page { size: 1280px 720px; margin: 0; }
@media print { section[hidden] { display: block; } section { break-after: page; print-color-adjust: exact; }
               #cover { display: none; } }
"""

SCRIPT = """
const slides = [...document.querySelectorAll('section')];
const number = () => Math.min(slides.length, Math.max(1, parseInt(location.hash.slice(1)) || 1));
const show = () => slides.forEach((slide, i) => { slide.hidden = i + 1 !== number(); });
const steps = { ArrowRight: 1, ArrowDown: 1, PageDown: 1, ' ': 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1,
                Home: -slides.length, End: slides.length };
addEventListener('hashchange', show);
addEventListener('keydown', event => {
    if (event.key === 'n') document.body.classList.toggle('notes');
    if (!steps[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    location.hash = Math.min(slides.length, Math.max(1, number() + steps[event.key]));
});
show();
"""


def inline(text):
    """Markdown's `code`, *emphasis* and [links](...) in a sentence."""
    text = html.escape(text, quote=False)
    text = re.sub(r"`([^`]*)`", r"<code>\1</code>", text)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\*+([^*]+)\*+", r"<em>\1</em>", text)


def figure(path):
    """The file, as wide as the slide, small text a little larger; its style applies to no other figure."""
    name = re.sub(r"\W", "-", path)
    with open(os.path.join(ROOT, "docs/workshop", path), encoding="utf-8") as file:
        svg = re.sub(r"(?s)^.*?(?=<svg)|<metadata>.*?</metadata>", "", file.read())
    svg = re.sub(r"\b(font(?:-size)?: ?)([89])px", lambda size: f"{size[1]}{int(size[2]) * 1.2:.1f}px", svg)
    svg = re.sub(r"(?s)(<style[^>]*>)(.*?)(</style>)",
                 lambda style: style[1] + re.sub(r"([^{}]+)\{", rf".{name} \1{{", style[2]) + style[3], svg)
    return re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', rf'\1 class="{name}"', svg, count=1)


def code(lines):
    """As large as fits. In a line that is too long for a slide, a comment ends at its colon, or is left out."""
    lines = [re.sub(r"\s+(// [^:]*):.*|\s+//.*", lambda end: f"   {end[1]}" if end[1] else "", line) if len(line) > 90
             else line for line in lines]
    lines = textwrap.dedent("\n".join(lines)).split("\n")
    size = max(1.02, min(1.5, 94 / max(map(len, lines))))
    return f'<pre style="font-size: {size:.2f}rem">' + html.escape("\n".join(lines).strip("\n"), quote=False) + "</pre>"


def cells(line, kind):
    return "<tr>" + "".join(f"<{kind}>{inline(c.strip())}</{kind}>" for c in line[1:-1].split("|")) + "</tr>"


def block(lines):
    """A paragraph, list, table, figure or piece of code as HTML."""
    image = re.fullmatch(r"!\[.*\]\((.*\.svg)\)", lines[0])
    if image:
        return figure(image[1])
    if lines[0].startswith("```"):
        return block(lines[1:-1]) if lines[1].startswith("|") else code(lines[1:-1])
    if lines[0].startswith("    "):
        return code([line[4:] for line in lines])
    if lines[0].startswith("# "):
        return f"<h1>{inline(lines[0][2:])}</h1>"
    if lines[0].startswith("|"):
        return "<table>" + cells(lines[0], "th") + "".join(cells(line, "td") for line in lines[2:]) + "</table>"
    item = r"- |\d+\. "
    if re.match(item, lines[0]):
        items = re.split(rf"\n(?:{item})", "\n" + "\n".join(lines))[1:]
        kind = "ul" if lines[0][0] == "-" else "ol"
        return f"<{kind}>" + "".join(f"<li>{inline(' '.join(i.split()))}</li>" for i in items) + f"</{kind}>"
    return f"<p>{inline(' '.join(lines))}</p>"


def blocks(text):
    """The pieces between blank lines; code may contain some."""
    pieces = re.findall(r"(?m)^```(?:.*\n)+?```$|(?:^    .*\n?(?:^\n(?=    ))?)+|(?:^(?!```|    ).+\n?)+", text)
    return "\n".join(block(piece.rstrip("\n").split("\n")) for piece in pieces)


def slide(text, name, number, count):
    text, _, notes = text.partition("\nNotes:\n")
    title = re.match(r"# (.*)", text)[1]
    kind = "first" if number == 1 else re.match(r"(predict|exercise)?", title.lower())[0]
    return (f'<section class="{kind}">{blocks(text)}<footer>{name} &nbsp; {number} / {count}</footer>'
            f"<aside>{blocks(notes)}</aside></section>")


def main():
    args = sys.argv[1:]
    if args in (["-h"], ["--help"]):
        sys.exit(print(__doc__))
    plan = args.pop(0) if args[:1] and args[0] in ("half", "day", "nccl") else "day"
    if args and (len(args) != 2 or args[0] != "-o"):
        print(f"slides: unknown argument {args[0]}\nhint: ./ddp slides --help", file=sys.stderr)
        sys.exit(2)
    with open(os.path.join(ROOT, "docs/workshop/slides.md"), encoding="utf-8") as file:
        texts = re.sub(r"<!-- quote.*-->\n", "", file.read()).strip().split("\n---\n\n")
    chosen, marks = [], {}
    for text in texts:
        marks = {"block": marks.get("block"), "in": "half day", **dict(re.findall("<!-- (block|in): (.*) -->\n", text))}
        if plan in marks["in"].split():
            chosen.append((re.sub("<!--.*-->\n", "", text).strip(), marks["block"]))
    slides = "\n".join(slide(*one, i, len(chosen)) for i, one in enumerate(chosen, 1))
    out = args[1] if args else "slides.html"
    try:
        with open(out, "w", encoding="utf-8") as file:
            file.write(f'<!doctype html><html lang="en"><meta charset="utf-8"><title>ddp.c: a workshop</title>'
                       f"<style>{STYLE}</style>\n{slides}\n<script>{SCRIPT}</script></html>\n")
    except OSError as error:
        sys.exit(f"slides: {error.filename}: {error.strerror}")
    print(f"written: {out}, {len(chosen)} slides")


main()
