#!/usr/bin/env bash
# docs/troubleshooting.md has every text with which programs, tools and scripts complain, and no other: messages.pl
# compares them. Then, in a copy, that it notices what it should, and only that.
# shellcheck disable=SC2016  # code in single quotes
. "$SRC/tests/test.sh"
type -P perl >/dev/null || { echo "skipped: there is no perl"; exit 77; }

expect 0 "" perl "$SRC/tests/messages.pl" "$SRC"
tail -1 "$TMP/output"
read -r texts _ messages _ < <(tail -1 "$TMP/output")
check "texts were found, and messages" test "$texts" -gt 450 -a "$messages" -gt 400
[ "$failed" = 0 ] || test_done          # the rest would only repeat it

tree=$TMP/tree
page=docs/troubleshooting.md
mkdir -p "$tree/tests"
cp -r "$SRC"/{common,tools,cmake,docs,ddp,CMakeLists.txt} "$SRC"/[0-9][0-9]_* "$tree"
cp "$SRC"/tests/CMakeLists.txt "$tree/tests"
cd "$tree" || exit 1

# add FILE CODE [COMPLAINT]
complaints=()
add() { printf '%s\n' "$2" >>"$1"; [ $# = 2 ] || complaints+=("$3"); }

# change FILE FROM TO [COMPLAINT]: what is FROM, to the letter, becomes TO.
change()
{
    check "in $1: $2" grep -qF -- "$2" "$1"
    FROM=$2 TO=$3 perl -pi -e 's/\Q$ENV{FROM}\E/$ENV{TO}/g' "$1"
    [ $# = 3 ] || complaints+=("$4")
}

# All complaints, and no others.
noticed()
{
    local status=1 complaint
    [ ${#complaints[@]} -gt 0 ] || status=0
    expect $status "" perl "$SRC/tests/messages.pl" "$tree"
    for complaint in "${complaints[@]}"; do
        check "\"$complaint\" in the output" grep -qF -- "$complaint" "$TMP/output"
    done
    check "$1: ${#complaints[@]} complaints" test "$(wc -l <"$TMP/output")" = $((${#complaints[@]} + 1))
    complaints=()
}

no="no message of $page is"

# --- what is no complaint, and what is said already ----------------------------------------------------------

add common/data/data.c '// FAIL("", "the moon is in the way");'
add common/data/data.c '/* FAIL("",
    "the moon is in the way"); */'
add common/data/data.c 'static void f(Log *log) { log_say(log, "the moon is in the way"); }'
add common/data/data.c 'static void f(int n) { CHECK(n > 0 && g(n, "the moon"), "no %d", "rank %d: fork: %s", n, "sun"); }'
add common/data/data.c 'static void f(const char *the_moon) { FAIL_ERROR(&error); }'
add ddp '# die "the moon is in the way"'
add ddp 'say "the moon is in the way"'
noticed "harmless"

# --- texts that the page does not have ------------------------------------------------------------------------

add common/world/tcp.c 'static void f(int n) { FAIL("", "the moon is in the way of rank %d", n); }' \
    "$no \"the moon is in the way of rank N\""
add common/cpu/onednn.c 'static void f(int n) {
    CHECK(g(n, "a, b)") > 1, n ? "c" : "d, e", "the %s, \"%5.3g %%\" " "of a"
          " %s moon", "c", 1.0, "d"); }' "$no \"the ..., \"N %\" of a ... moon\""
add 07_dist_eval/eval.c 'static void f(int n) { WARN(h(1, "x"), n ? "no moon, %lld" : "a moon of %08" PRIx64, n); }' \
    "$no \"no moon, N\""
complaints+=("$no \"a moon of N\"")
add common/world/supervise.c 'static bool f(Error *e) { return error_set(e, "x", "%s: %s", "a", b ? "no moon" : "y"); }' \
    "$no \"no moon\""
complaints+=("\"%s: %s\" has no word of its own: say in tests/messages.pl")
add common/world/tcp_store.c 'static int f(Search *s) { return fails(s, 1, 0, "", "its moon is full"); }' \
    "$no \"its moon is full\""
add 03_ddp_fork/sampler.c 'static void f(Args *a) { args_reject(a, "moon", "only at night, %d", 1); }' \
    "$no \"only at night, N\""
add common/log.h 'void moan(int n, const char *format, ...)
    __attribute__((format(printf, 2, 3)));' "moan() takes a format: say in tests/messages.pl whether it complains"
add common/supervise.h '#define MOAN(hint, ...) \
    fail_at(__FILE__, __LINE__, 4, hint, __VA_ARGS__)' "MOAN() complains: say so in tests/messages.pl"
add ddp 'die_usage "run: the moon is at $(echo "${x:-"y"}" | tr -d ")") \"$x\", not $2" "hint"' \
    "$no \"run: the moon is at ... \"...\", not ...\""
add tools/plot.sh 'have moon ||
    die \
        "no moon here"' "$no \"no moon here\""
add tools/bench_table.py 'sys.exit(f"bench: no {moon} over {path}")' "$no \"bench: no ... over ...\""
add tools/confusion.awk 'NR == 9 { refuse(9, "moon " NR " is not full") }' "$no \"line N: moon ... is not full\""
add cmake/ddp.cmake 'message(FATAL_ERROR "the moon ${MOON} is not there")' "$no \"the moon ... is not there\""
noticed "new texts"

# --- messages that nobody says ---------------------------------------------------------------------------------

rm -r common tools ddp cmake [0-9][0-9]_*
cp -r "$SRC"/{common,tools,cmake,ddp} "$SRC"/[0-9][0-9]_* .
change common/comm/calls.c "has lost another one in" "misses another one in" \
    "nobody says \"rank N of N has lost another one in CALL (NAME): TEXT\" any more"
complaints+=("$no \"rank N of N misses another one in")
change common/checkpoint/safetensors.c 'error_set(r->err, "the file is damaged", "tensor %.100s is there twice",' 'f(r,' \
    "nobody says \"tensor NAME is there twice\" any more"
change ddp 'die "the build failed"' 'exit 1' "nobody says \"the build failed\" any more"
change "$page" '`signalfd: ERROR`' 'x' "$no \"signalfd: ...\""
change "$page" '`no GPU is there`' '`no GPU is in there`' "nobody says \"no GPU is in there\" any more"
complaints+=("$no \"no GPU is there\"")
change "$page" '`URL could not be' '`the moon could not be' "nobody says 'the' (what differs stands in capitals)"
noticed "what is gone"
test_done
