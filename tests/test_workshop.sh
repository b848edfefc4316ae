#!/usr/bin/env bash
# ctest: TIMEOUT 300
# The workshop: its minutes add up, and the slides fit a projector.
. "$SRC/tests/test.sh"
type -P python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }

# --- the plan ------------------------------------------------------------------------------------------------------
# docs/workshop/plan.txt is on workshop.md (test_series.sh), which has a table for each of its lines.

cat >plan.py <<'END'
import glob, re, sys

def read(name):
    with open(f"{sys.argv[1]}/{name}", encoding="utf-8") as file:
        return file.read()

def minutes_of(exercise):
    task = glob.glob(f"exercises/{exercise}_*/task.md", root_dir=sys.argv[1])[0]
    return int(re.search("- minutes: (.*)", read(task))[1])

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
    readme = re.search(r"have a day\*\*(.*?)\n\n", read("README.md"), re.S)[1]
    if plan == "a day" and re.findall(r"\b\d\d-\d+", readme) != done:
        wrong.append(f"{plan}: README.md has other exercises")
    of_step_03[plan] = sum(int(row[0]) for row in rows if row[1].startswith("03"))
if len(plans) != 5 or of_step_03["a day"] <= of_step_03["half a day"]:
    wrong.append(f"step 03 has {of_step_03}")
print(*wrong, sep="\n")
sys.exit(bool(wrong))
END
check "the minutes of each plan add up" python3 plan.py "$SRC"

# --- the slides ----------------------------------------------------------------------------------------------------

expect 2 "slides: unknown argument" "$SRC/ddp" slides here
expect 1 "No such file or directory" "$SRC/ddp" slides -o nowhere/slides.html
expect 0 "written: slides.html" "$SRC/ddp" slides
slides=$(grep -c '^<section' slides.html)
check "at most 60" test "$slides" -gt 40 -a "$slides" -le 60
check "all have notes" test "$(grep -c '<aside>' slides.html)" = "$slides"
check "nothing is loaded" not grep -qE '(src|href)="[^#]|@import|url\((https?:)' slides.html
columns='import html, re, sys
code = re.findall("(?s)<pre[^>]*>(.*?)</pre>", sys.stdin.read())
print(max(len(html.unescape(line)) for one in code for line in one.split("\n")))'
check "code has 90 columns" test "$(python3 -c "$columns" <slides.html)" -le 90
PYTHONPATH=$SRC/tests python3 -c 'import browser, sys; sys.exit(not browser.find())' 2>/dev/null || {
    echo "the slides were not drawn, because there is no Chromium: apt install chromium"
    test_done
}
cat >drawn.py <<'END'
import base64, os, re, sys, browser

# What is too small or does not fit, on the slide that is shown; text in a figure is scaled.
PROBLEMS = """(() => {
    const slide = [...document.querySelectorAll('section')].find(one => !one.hidden), found = [];
    if (slide.scrollHeight > slide.clientHeight) found.push('too high: ' + slide.scrollHeight);
    if (slide.scrollWidth > slide.clientWidth) found.push('too wide: ' + slide.scrollWidth);
    for (const one of slide.querySelectorAll('*')) {
        const text = [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim());
        if (one.ownerSVGElement && !one.getScreenCTM) continue;
        const scale = one.ownerSVGElement ? Math.hypot(one.getScreenCTM().a, one.getScreenCTM().b) : 1;
        const size = parseFloat(getComputedStyle(one).fontSize) * scale, box = one.getBoundingClientRect();
        if (text && box.width && one.tagName !== 'style' && size < (one.ownerSVGElement ? 12 : 20) - 0.01)
            found.push(`${size} px: ${one.textContent}`);
        if (one.tagName === 'PRE' && one.scrollWidth > one.clientWidth) found.push('code too wide');
        if (!one.ownerSVGElement && (box.right > innerWidth + 1 || box.bottom > innerHeight + 1))
            found.push(`outside: ${one.textContent.trim()}`);
    }
    return found;
})()"""
wrong = []
for size in ("1280,720", "1920,1080"):
    page = browser.Page("file://" + os.path.abspath("slides.html"), size)
    width, height = map(int, size.split(","))
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    page.wait("document.querySelector('section')", 30)
    count = page.js("document.querySelectorAll('section').length")
    for number in range(1, count + 1):
        if not page.wait(f"!document.querySelectorAll('section')[{number - 1}].hidden", 10):
            wrong.append(f"{size}: the arrow does not lead to slide {number}")
        for notes in ("", " with notes"):
            wrong += [f"{size}: slide {number}{notes}: {problem}" for problem in page.js(PROBLEMS)]
            if len(sys.argv) > 1 and size == "1280,720" and not notes:
                with open(f"{sys.argv[1]}/{number:02}.png", "wb") as file:
                    file.write(base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"]))
            page.call("Input.dispatchKeyEvent", type="keyDown", key="n")
        page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Home")
    if not page.wait("location.hash === '#1'", 10):
        wrong.append(f"{size}: Home does not lead to slide 1")
    pdf = base64.b64decode(page.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])
    if len(re.findall(rb"/Type\s*/Page\b", pdf)) != count:
        wrong.append(f"{size}: not a page of the PDF for each slide")
    wrong += page.errors
    page.close()
print(*wrong, sep="\n")
sys.exit(bool(wrong))
END
check "the slides fit" env PYTHONPATH="$SRC/tests" python3 drawn.py
test_done
