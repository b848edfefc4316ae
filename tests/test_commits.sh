#!/usr/bin/env bash
# Each hash after the word "commit" in a document must be a commit of this history, so that a reader can look it up.
. "$SRC/tests/test.sh"
if [ "$(git -C "$SRC" rev-parse --is-shallow-repository 2>&1)" != false ]; then
    echo "skipped: no whole history is here"
    exit 77
fi

# cited FOLDER: prints FILE:HASH for each.
cited() { (cd "$1" && grep -roP '\bcommit `?\K[0-9a-f]{7,40}\b' --include='*.md' docs ./*.md [0-9]*/*.md); }
# unknown FOLDER: those that are not in the history.
unknown()
{
    local place
    for place in $(cited "$1"); do
        git -C "$SRC" merge-base --is-ancestor "${place##*:}" HEAD 2>/dev/null || echo "$place"
    done
}
check "commits are cited" test "$(cited "$SRC" | wc -l)" -gt 5
unknown "$SRC" >unknown
check "all are in the history: $(paste -sd' ' unknown)" not test -s unknown

mkdir -p tree/docs
echo "Measured on an H200, commit 0123456." >tree/docs/page.md
echo "(commit $(git -C "$SRC" rev-parse --short=9 HEAD))" >tree/README.md
mkdir tree/01_one && echo "no commit" >tree/01_one/README.md
check "a mistake is found, and only that" is "$(unknown tree)" docs/page.md:0123456
test_done
