#!/usr/bin/env python3
"""diff_html.py A B OUT.html - a page with two steps side by side, and a reason for each change.
diff_html.py --site FOLDER  - such a page for each pair of neighbours, and an index.

The hunks come from tools/steps.sh. If B builds on A, the reasons come from B's README.md: the paragraphs above the
marks of the hunks. `./ddp diff A B --html` calls this script.
"""
import difflib
import html
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 110em; padding: 0 1em; color: #1f2328; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2em; } p.why { margin: 1.6em 0 .4em; max-width: 60em; }
p.why b { color: #0550ae; } nav a { margin-right: 1.2em; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; border: 1px solid #d1d9e0; }
td { font: 12.5px/1.45 ui-monospace, Menlo, Consolas, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
     vertical-align: top; padding: 0 .6em; }
td.n { width: 3.2em; text-align: right; color: #8b949e; user-select: none; }
td.old { background: #ffebe9; } td.new { background: #dafbe1; } td.none { background: #f6f8fa; }
.old b { background: #ffc1bb; font-weight: normal; } .new b { background: #aceebb; font-weight: normal; }
details { margin: .5em 0; } pre { font: 12.5px/1.45 ui-monospace, Menlo, monospace; overflow-x: auto; }
@media (prefers-color-scheme: dark) {
  body { background: #0d1117; color: #e6edf3; } a { color: #4493f8; } p.why b { color: #79c0ff; } table { border-color: #3d444d; }
  td.old { background: #47191d; } td.new { background: #12341d; } td.none { background: #151b23; }
  .old b { background: #8e1519; } .new b { background: #1f6f2d; }
}
"""


def steps():
    return sorted(name for name in os.listdir(ROOT) if re.match(r"\d\d_", name))


def neighbours():
    """[(A, B)]: step B builds on A."""
    found, before, branch = [], None, shell('printf %s "$branch"')
    for step in steps():
        if before:
            found.append((before, step))
        before = before if step == branch else step
    return found


def shell(command, *args):
    """The output of a bash command that may use the functions of tools/steps.sh."""
    run = subprocess.run(["bash", "-c", f'. tools/steps.sh\n{command}', "diff_html", *args], cwd=ROOT, text=True,
                         capture_output=True, check=True)
    return run.stdout


def compare(a, b):
    """{"added": [...], "removed": [...], "changed": [...]}: files of the steps, train.c last."""
    out = shell('compare_steps "$1" "$2"; for kind in added removed changed; do\n'
                'declare -n files=$kind; printf "%s %s\\n" "$kind" "${files[*]}"; done', a, b)
    found = {}
    for line in out.splitlines():
        kind, *files = line.split()
        found[kind] = [name for name in files if name != "CMakeLists.txt"]
    return found


def hunks(a, b, name):
    """For each hunk: the first line numbers of both sides, and its lines with ' ', '-' or '+' before them."""
    found = []
    for line in shell('unified_diff "$1" "$2"', f"{a}/{name}", f"{b}/{name}").splitlines()[2:]:
        head = re.match(r"@@ -(\d+)(?:,\d+)? \+(\d+)", line)
        if head:
            found.append((int(head[1]), int(head[2]), []))
        else:
            found[-1][2].append(line)
    return found


def sentences(b, name):
    """{N: sentence}: the paragraphs of README.md above its marks `<!-- hunk: N -->`, below the heading that ends with
    the file's name."""
    found, on, paragraph, blank = {}, False, [], True
    with open(os.path.join(ROOT, b, "README.md"), encoding="utf-8") as readme:
        for line in readme:
            mark = re.match(r"<!-- hunk: (\d+) -->", line)
            if line.startswith("#"):
                on = line.split()[-1] == name
            elif on and mark:
                found[int(mark[1])] = re.sub(r"^\*\*\d+\.\*\* ", "", " ".join(paragraph))
            if mark or re.match("[#`<]", line):
                paragraph = []
            elif line.strip():
                paragraph = ([] if blank else paragraph) + [line.strip()]
            blank = not line.strip()
    return found


def inline(text):
    """Markdown's `code`, *emphasis* and [links](...) in a sentence."""
    text = html.escape(text, quote=False)
    text = re.sub(r"`([^`]*)`", r"<code>\1</code>", text)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\*+([^*]+)\*+", r"<em>\1</em>", text)


def marked(old, new):
    """Both lines as HTML. If the lines are similar, the differences are bold."""
    match = difflib.SequenceMatcher(None, old, new, autojunk=False)
    if match.ratio() < 0.5:
        return html.escape(old), html.escape(new)
    sides = ["", ""]
    for kind, i1, i2, j1, j2 in match.get_opcodes():
        for side, text in enumerate((old[i1:i2], new[j1:j2])):
            text = html.escape(text)
            sides[side] += f"<b>{text}</b>" if text and kind != "equal" else text
    return sides


def rows(at_a, at_b, lines):
    """Table rows of a hunk: removed lines on the left of the added lines that replace them."""
    out, old, new = [], [], []

    def cell(number, text, kind):
        return f'<td class="n">{number or ""}</td><td class="{kind}">{text}</td>'

    def flush():
        nonlocal at_a, at_b
        for i in range(max(len(old), len(new))):
            left, right = i < len(old), i < len(new)
            if left and right:
                texts = marked(old[i], new[i])
            else:
                texts = [html.escape(side[i]) if i < len(side) else "" for side in (old, new)]
            out.append("<tr>" + cell(at_a if left else 0, texts[0], "old" if left else "none")
                       + cell(at_b if right else 0, texts[1], "new" if right else "none") + "</tr>")
            at_a, at_b = at_a + left, at_b + right
        old.clear()
        new.clear()

    for line in lines:
        if line[0] == "-":
            old.append(line[1:])
        elif line[0] == "+":
            new.append(line[1:])
        else:
            flush()
            text = html.escape(line[1:])
            out.append("<tr>" + cell(at_a, text, "") + cell(at_b, text, "") + "</tr>")
            at_a, at_b = at_a + 1, at_b + 1
    flush()
    return "\n".join(out)


def source(step, name):
    with open(os.path.join(ROOT, step, name), encoding="utf-8") as file:
        return file.read()


def reading_order(b, names):
    """Files that the step's page quotes, then the others that it names, in the page's order, each header after its .c.
    train.c is last, because it only calls the others."""
    text = source(b, "README.md")

    def place(name):
        stem = name.rsplit(".", 1)[0]
        found = [re.search(start + rf"{stem}\.(c|sbatch)\b", text) for start in (f"<!-- quote: {b}/", "[`(]")]
        return name == "train.c", *(at.start() if at else len(text) for at in found), name

    return sorted(names, key=place)


def page(a, b, links=""):
    files = compare(a, b)
    title = f"{a} → {b}"
    out = [f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>',
           '<meta name="viewport" content="width=device-width">', f"<style>{STYLE}</style>", links,
           f"<h1>{title}</h1>"]
    question = re.search(r"\*\*([^*]*\?)\*\*", source(b, "README.md"))
    if question:
        out.append(f"<p><em>{inline(question[1])}</em></p>")
    for name in reading_order(b, files["added"] + files["changed"]):
        out.append(f"<h2>{name}</h2>")
        if name in files["added"]:
            text = source(b, name)
            out.append(f"<details{'' if name.endswith('.h') else ' open'}><summary>new, {text.count(chr(10))} lines"
                       f"</summary><pre>{html.escape(text)}</pre></details>")
            continue
        why = sentences(b, name) if (a, b) in neighbours() else {}
        for i, (at_a, at_b, lines) in enumerate(hunks(a, b, name), 1):
            text = inline(why.get(i, ""))
            out.append(f'<p class="why"><b>{i}.</b> {text}</p><table>{rows(at_a, at_b, lines)}</table>')
    if files["removed"]:
        out.append("<h2>Files that are gone</h2>")
    for name in files["removed"]:
        text = source(a, name)
        out.append(f"<details><summary>{name}, {text.count(chr(10))} lines</summary>"
                   f"<pre>{html.escape(text)}</pre></details>")
    return "\n".join(out) + "\n</html>\n"


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def site(folder):
    os.makedirs(folder, exist_ok=True)
    pairs = neighbours()
    links = "<nav>" + "".join(f'<a href="{a[:2]}-{b[:2]}.html">{a[:2]} → {b[:2]}</a>' for a, b in pairs) + "</nav>"
    for a, b in pairs:
        write(os.path.join(folder, f"{a[:2]}-{b[:2]}.html"), page(a, b, links))
    items = "".join(f'<li><a href="{a[:2]}-{b[:2]}.html">{a} → {b}</a></li>' for a, b in pairs)
    write(os.path.join(folder, "index.html"),
          f'<!doctype html><html lang="en"><meta charset="utf-8"><title>ddp.c, step by step</title><style>{STYLE}</style>'
          f"<h1>ddp.c, step by step</h1><p>Each page shows two neighbouring programs side by side, and why each place "
          f"changed.</p><ol>{items}</ol></html>\n")


def main():
    args = sys.argv[1:]
    try:
        if len(args) == 2 and args[0] == "--site":
            site(args[1])
        elif len(args) == 3:
            write(args[2], page(args[0], args[1]))
        else:
            sys.exit(__doc__)
    except OSError as error:
        sys.exit(f"diff: {error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
