#!/usr/bin/env bash
# ctest: TIMEOUT 300
# The workshop: its minutes add up, and the slides fit a projector.
. "$SRC/tests/test.sh"
type -P python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }

# --- the plan ------------------------------------------------------------------------------------------------------
# docs/workshop/plan.txt is on three pages (test_series.sh). For each of its lines, workshop.md has a table.

cat >plan.py <<'END'
import glob, re, sys

def read(name):
    with open(f"{sys.argv[1]}/{name}", encoding="utf-8") as file:
        return file.read()

def minutes_of(exercise):
    return int(re.search("- minutes: (.*)", read(glob.glob(f"exercises/{exercise}_*/task.md", root_dir=sys.argv[1])[0]))[1])

page, wrong, of_step_03 = read("docs/workshop.md"), [], {}
known = {row.split("|")[1].strip() for row in page.split("## The blocks")[1].splitlines() if row.startswith("| ")}
plans = read("docs/workshop/plan.txt").splitlines()[1:]
for line in plans:
    plan, total, exercises = re.fullmatch(r"(\S.*\S) +(\d+)  (.*)", line).groups()
    exercises = [tuple(one.split()) for one in exercises.split(", ")]
    rows = re.search(rf"^## {plan}\n(.*?)^## ", page, re.S | re.M | re.I)[1]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows.splitlines() if re.match(r"\| \d", row)]
    done = []
    for minutes, block, what, work in rows:
        ids = re.sub(r"\(.*\)", "", work).replace(",", " ").split()
        done += ids
        if ids and sum(map(minutes_of, ids)) != int(minutes):
            wrong.append(f"{plan}: {work} has {minutes} minutes")
        if block not in known and block not in ("", "end", "beyond"):
            wrong.append(f"{plan}: block {block} is not explained")
    if sum(int(row[0]) for row in rows) != int(total):
        wrong.append(f"{plan}: {sum(int(row[0]) for row in rows)} minutes, not {total}")
    if [(one, str(minutes_of(one))) for one in done] != exercises:
        wrong.append(f"{plan}: the page has {done}, or task.md has other minutes")
    of_step_03[plan] = sum(int(row[0]) for row in rows if row[1].startswith("03"))
if len(plans) != 5 or of_step_03["a day"] <= of_step_03["half a day"]:
    wrong.append(f"step 03 has {of_step_03}")
print(*wrong, sep="\n")
sys.exit(bool(wrong))
END
check "the minutes of each plan add up" python3 plan.py "$SRC"
test_done
