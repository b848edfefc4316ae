#!/usr/bin/env bash
# The workshop: its minutes add up, and its slides have the plans' exercises.
. "$SRC/tests/test.sh"
type -P python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }

# docs/workshop/plan.txt has the plans. workshop.md and exercises/README.md quote it; test_series.sh checks the quotes.
# Each plan needs a table in workshop.md, and both READMEs list the exercises of an hour and of a day.

cat >plan.py <<'END'
import glob, re, sys

def read(name):
    with open(f"{sys.argv[1]}/{name}", encoding="utf-8") as file:
        return file.read()

def minutes_of(exercise):
    task = glob.glob(f"exercises/{exercise}_*/task.md", root_dir=sys.argv[1])[0]
    return int(re.search("- minutes: (.*)", read(task))[1])

page, wrong = read("docs/workshop.md"), []
plans = read("docs/workshop/plan.txt").splitlines()[1:]
lists = {"README.md": (r"\*\*If you have an hour\*\*", r"\*\*If you have a day\*\*"),
         "README.zh-CN.md": (r"\*\*如果只有一个小时\*\*", r"\*\*如果有一天时间\*\*")}
for line in plans:
    key, plan, total, exercises = re.fullmatch(r"(\w+) +(\S.*\S) +(\d+)  (.*)", line).groups()
    exercises = [tuple(one.split()) for one in exercises.split(", ")]
    ids = [one for one, _ in exercises]
    if exercises != [(one, str(minutes_of(one))) for one in ids]:
        wrong.append(f"{plan}: task.md has other minutes than {exercises}")
    for readme, (hour, day) in lists.items():
        text = re.search(rf"{hour}(.*?){day}(.*?)\n\n", read(readme), re.S)
        if key in ("hour", "day") and re.findall(r"\d\d-\d+", text[1 if key == "hour" else 2]) != ids:
            wrong.append(f"{plan}: {readme} has other exercises than {ids}")
    rows = re.search(rf"^## {plan}\n(.*?)^## ", page, re.S | re.M | re.I)[1]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows.splitlines() if re.match(r"\| \d", row)]
    done = [one for row in rows for one in re.sub(r"\(.*\)", "", row[3]).replace(",", " ").split()]
    if sum(int(row[0]) for row in rows) != int(total):
        wrong.append(f"{plan}: {sum(int(row[0]) for row in rows)} minutes, not {total}")
    if done != ids:
        wrong.append(f"{plan}: the page has {done}, not {ids}")
print(*wrong, sep="\n")
sys.exit(bool(wrong))
END
check "each plan has its exercises and minutes on all pages" python3 plan.py "$SRC"

expect 0 "written: slides.html" "$SRC/ddp" slides
mv slides.html day.html
for plan in half nccl; do
    expect 0 "written: $plan.html" "$SRC/ddp" slides "$plan" -o "$plan.html"
done
cat >text.py <<'END'
import html, re, sys

def blocks_of(plan):
    table = re.search(rf"^## {plan}\n(.*?)^## ", page, re.S | re.M)[1]
    rows = [[cell.strip() for cell in row.split("|")] for row in table.splitlines() if re.match(r"\| \d", row)]
    return list(dict.fromkeys(row[2] for row in rows if row[2]))

with open(sys.argv[1] + "/docs/workshop.md", encoding="utf-8") as file:
    page = file.read()
with open(sys.argv[1] + "/docs/workshop/plan.txt", encoding="utf-8") as file:
    plans = {line.split()[0]: re.findall(r"\b\w{2,3}-\d+", line) for line in file}
wrong = []
for plan, name in (("half", "Half a day"), ("day", "A day"), ("nccl", "NCCL, half a day")):
    with open(plan + ".html", encoding="utf-8") as file:
        source = file.read()
    slides = re.findall("(?s)<section.*?</section>", source)
    blocks = list(dict.fromkeys(re.search("<footer>(.*?) &nbsp;", one)[1] for one in slides))
    exercises = re.findall("<h1>Exercise (.*?):", source)
    if (blocks, exercises) != (blocks_of(name), plans[plan]):
        wrong.append(f"{plan}: the slides have {blocks}, {exercises}, not {blocks_of(name)}, {plans[plan]}")
    if len(slides) > 60 or re.search(r'(src|href)="[^#]|@import|url\(https?:', source):
        wrong.append(f"{plan}: {len(slides)} slides, or something is loaded")
    for number, one in enumerate(slides, 1):
        shown, notes = re.fullmatch("(?s)(.*)<footer>.*<aside>(.*)</aside>.*", one).groups()
        code = "\n".join(re.findall("(?s)<pre[^>]*>(.*?)</pre>", shown))
        columns = max(len(html.unescape(line)) for line in code.split("\n"))
        if columns > 90 or not notes:
            wrong.append(f"{plan}: slide {number} has {columns} columns, notes: {notes}")
print(*wrong, sep="\n")
sys.exit(bool(wrong))
END
check "the slides have the plan's blocks and exercises, and notes" python3 text.py "$SRC"
test_done
