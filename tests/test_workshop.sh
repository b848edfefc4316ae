#!/usr/bin/env bash
# ctest: TIMEOUT 300
# The workshop: its minutes add up, and the slides fit a projector.
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

page, wrong, of_step_03 = read("docs/workshop.md"), [], {}
known = {row.split("|")[1].strip() for row in page.split("## The blocks")[1].splitlines() if row.startswith("| ")}
known |= set(re.findall("<!-- block: (.*) -->", read("docs/workshop/slides.md")))
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
    done = []
    for minutes, block, what, work in rows:
        now = re.sub(r"\(.*\)", "", work).replace(",", " ").split()
        done += now
        if now and not 2 * sum(map(minutes_of, now)) <= int(minutes) <= 4 * sum(map(minutes_of, now)):
            wrong.append(f"{plan}: {work} has {minutes} minutes, not about three times those of one reader")
        if block not in known and block not in ("", "end", "beyond"):
            wrong.append(f"{plan}: block {block} is not explained")
    if sum(int(row[0]) for row in rows) != int(total):
        wrong.append(f"{plan}: {sum(int(row[0]) for row in rows)} minutes, not {total}")
    if done != ids:
        wrong.append(f"{plan}: the page has {done}, not {ids}")
    of_step_03[plan] = sum(int(row[0]) for row in rows if row[1].startswith("03"))
if len(plans) != 5 or of_step_03["a day"] <= of_step_03["half a day"]:
    wrong.append(f"step 03 has {of_step_03}")
print(*wrong, sep="\n")
sys.exit(bool(wrong))
END
check "each plan has its exercises and minutes on all pages" python3 plan.py "$SRC"
mkdir -p other/docs
cp -r "$SRC"/README{,.zh-CN}.md "$SRC/exercises" other && cp -r "$SRC"/docs/workshop{,.md} other/docs
drift() # FILE SCRIPT
{
    cp "other/$1" kept
    sed -i "$2" "other/$1"
    check "it is a change: $1, $2" not cmp -s kept "other/$1"
    check "a page that differs is found: $1, $2" not python3 plan.py other
    mv kept "other/$1"
}
check "the copy has the same plans" python3 plan.py other
drift README.md 's/03-1, 03-7, 03-2/03-1, 03-2, 03-7/'
drift README.zh-CN.md 's/start 04-7/start 04-4/'
drift docs/workshop.md 's/03-1, 03-7 (/03-7, 03-1 (/'
drift docs/workshop/plan.txt 's/, 07-1 5//'
drift exercises/07-1_twice/task.md 's/^- minutes: 5/- minutes: 15/'

expect 2 "slides: unknown argument" "$SRC/ddp" slides here
expect 1 "No such file or directory" "$SRC/ddp" slides -o nowhere/slides.html
expect 0 "written: slides.html" "$SRC/ddp" slides
mv slides.html day.html
for plan in half nccl; do
    expect 0 "written: $plan.html" "$SRC/ddp" slides "$plan" -o "$plan.html"
done
cat >text.py <<'END'
import html, re, sys

def words(part):
    return re.sub("(?s)<(pre|table|svg).*?</\\1>|<.*?>", " ", part).split()

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
        if columns > 90 or len(words(shown)) > 45 or not notes:
            wrong.append(f"{plan}: slide {number} has {columns} columns, {len(words(shown))} words, notes: {notes}")
print(*wrong, sep="\n")
sys.exit(bool(wrong))
END
check "the slides have the plan's blocks and exercises, few words, and notes" python3 text.py "$SRC"
PYTHONPATH=$SRC/tests python3 -c 'import browser, sys; sys.exit(not browser.find())' 2>/dev/null || {
    echo "the slides were not drawn, because there is no Chromium: apt install chromium"
    test_done
}
cat >drawn.py <<'END'
import base64, os, re, sys, browser

# What is too small or does not fit, on each slide, without and with its notes. A figure's text is measured as shown.
PROBLEMS = """(() => {
    const found = [];
    for (const [i, slide] of slides.entries()) for (const notes of [false, true]) {
        const say = what => found.push(`slide ${i + 1}: ${what}`);
        history.replaceState(null, '', '#' + (i + 1));
        show();
        document.body.classList.toggle('notes', notes);
        if (slide.scrollHeight > slide.clientHeight) say('too high: ' + slide.scrollHeight);
        if (slide.scrollWidth > slide.clientWidth) say('too wide: ' + slide.scrollWidth);
        for (const one of slide.querySelectorAll('*')) {
            const text = [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim());
            if (one.ownerSVGElement && !one.getScreenCTM) continue;
            const scale = one.ownerSVGElement ? Math.hypot(one.getScreenCTM().a, one.getScreenCTM().b) : 1;
            const size = parseFloat(getComputedStyle(one).fontSize) * scale, box = one.getBoundingClientRect();
            if (text && box.width && one.tagName !== 'style' && size < (one.ownerSVGElement ? 15 : 20) - 0.01)
                say(`${size} px: ${one.textContent}`);
            if (one.tagName === 'PRE' && one.scrollWidth > one.clientWidth) say('code too wide');
            if (box.left < -1 || box.right > innerWidth + 1 || box.bottom > innerHeight + 1)
                say(`outside: ${one.textContent.trim()}`);
        }
    }
    return found;
})()"""
wrong = []
for plan, size in (("half", "1280,720"), ("day", "1280,720"), ("day", "1920,1080"), ("nccl", "1280,720"),
                   ("nccl", "1920,1080")):
    page = browser.Page("file://" + os.path.abspath(plan + ".html"), size)
    width, height = map(int, size.split(","))
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    page.wait("document.querySelector('section')", 30)
    count = page.js("slides.length")
    found = page.js(PROBLEMS) + page.errors
    for key, expected in (("Home", "#1"), ("ArrowRight", "#2"), ("ArrowRight", "#3"), ("ArrowLeft", "#2"),
                          ("End", f"#{count}")):
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
        if not page.wait(f"location.hash === '{expected}' && !slides[{int(expected[1:]) - 1}].hidden", 10):
            found.append(f"{key} does not lead to {expected}")
    shown = page.js("document.body.classList.contains('notes')")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="n")
    if page.js("document.body.classList.contains('notes')") == shown:
        found.append("n does not show or hide the notes")
    pdf = base64.b64decode(page.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])
    if len(re.findall(rb"/Type\s*/Page\b", pdf)) != count:
        found.append("not a page of the PDF for each slide")
    page.js("document.body.classList.remove('notes')")
    for number in range(1, count + 1 if len(sys.argv) > 1 else 0):
        page.js(f"location.hash = {number}")
        with open(f"{sys.argv[1]}/{plan}_{size}_{number:02}.png", "wb") as file:
            file.write(base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"]))
    wrong += [f"{plan}, {size}: {problem}" for problem in found]
    page.close()
print(*wrong, sep="\n")
sys.exit(bool(wrong))
END
check "the slides fit" env PYTHONPATH="$SRC/tests" python3 drawn.py
test_done
