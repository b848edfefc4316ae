#!/usr/bin/env bash
# Checks the documents with docs.pl. Then docs.pl must find each mistake in a page that this test writes, and nothing
# else.
# shellcheck disable=SC2016  # code in single quotes
. "$SRC/tests/test.sh"
type -P perl >/dev/null || { echo "skipped: there is no perl"; exit 77; }

expect 0 "" perl "$SRC/tests/docs.pl" "$SRC" "$BUILD"
tail -1 "$TMP/output"
read -r documents _ links _ options _ names _ < <(tail -1 "$TMP/output")
check "there are documents, links, options and names" \
    test "$documents" -gt 15 -a "$links" -gt 150 -a "$options" -gt 400 -a "$names" -gt 250

if type -P python3 >/dev/null; then
    check "docs/beyond.md has the numbers that its command prints" diff <(python3 "$SRC/docs/beyond.py") \
        <(sed -n '/<!-- beyond:begin -->/,/<!-- beyond:end -->/{/<!--/!p}' "$SRC/docs/beyond.md")
fi
[ "$failed" = 0 ] || test_done          # the rest would only repeat the complaints

tree=$TMP/tree
mkdir "$tree"
cd "$tree" || exit 1
cp -r "$SRC"/{*.md,LICENSE,docs,ddp,Dockerfile,apptainer.def,.devcontainer} "$SRC"/[0-9][0-9]_* .
ln -s "$SRC"/{common,tools,tests,exercises,cmake,recipes} .
page=docs/page.md

# wrong TEXT COMPLAINT: adds TEXT to the page. docs.pl must print the COMPLAINT, a regular expression.
wrong() { printf '%s\n\n' "$1" >>$page; complaints+=("$2"); }

complaints=()
echo "# A page" >$page
wrong '    weight hash: 0123456789abcdef' 'a hash depends on the processor: show that those of two runs are equal'
wrong '[x](nowhere.md)' 'the link nowhere.md leads nowhere'
wrong '[x](concepts.md#buckets)' 'the link concepts.md#buckets: there is no such heading'
wrong '[12 lines](../03_ddp_fork/ddp.c)' '03_ddp_fork/ddp.c has [0-9]+ lines, not 12'
wrong '    $ ./ddp rnu 01' './ddp has no command rnu'
wrong '`A=1 ./ddp run STEP -- --epoch=1 && true`' 'no program has an option --epoch'
wrong '    launch -n 2 -- \\
        train --savee net' 'no program has an option --savee'
wrong '`build/cpu/03_ddp_fork/trian -n 2`' 'there is no build/cpu/03_ddp_fork/trian'
wrong 'the exercise 03-77' 'there is no exercise 03-77'
wrong '[ddp.c](../03_ddp_fork/ddp.c): `ddp_new`, `ddp_old`' 'no ddp_old in 03_ddp_fork/ddp.c'
expect 1 "" perl "$SRC/tests/docs.pl" "$tree" "$BUILD"
for complaint in "${complaints[@]}"; do
    check "\"$complaint\" in the output" grep -qxE -- "$page:[0-9]+: $complaint" "$TMP/output"
done
check "${#complaints[@]} complaints" test "$(wc -l <"$TMP/output")" = $((${#complaints[@]} + 1))
test_done
