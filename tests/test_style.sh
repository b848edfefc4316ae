#!/usr/bin/env bash
# Checks what CONTRIBUTING.md promises of C and shell files (columns, no tabs, and no warnings of ShellCheck where
# that is installed). Also checks that CITATION.cff and CHANGELOG.md have the version of CMakeLists.txt.
# ctest: PROCESSORS 2 TIMEOUT 400
# shellcheck disable=SC2317  # check calls functions
. "$SRC/tests/test.sh"
cd "$SRC" || exit 1
type -P git perl >/dev/null && git rev-parse >"$TMP/output" 2>&1 ||
    { echo "skipped: the sources are not in a Git repository, or there is no perl"; exit 77; }

files() { git ls-files -- "$@" | while read -r file; do [ ! -f "$file" ] || echo "$file"; done; }

fits()
{
    LIMIT=$1 perl -CSD -ne 'chomp;
        if (length > $ENV{LIMIT}) { print "$ARGV:$.: ", length, " columns, more than $ENV{LIMIT}\n"; $bad = 1 }
        if (/\t/) { print "$ARGV:$.: a tab\n"; $bad = 1 }
        close ARGV if eof;
        END { exit $bad }' "${@:2}"
}

# is_shell FILE: a script of bash or sh, or a part of one.
is_shell() { head -3 "$1" | grep -qE '^#!.*[/ ](ba)?sh$|^# shellcheck shell='; }

mapfile -t steps < <(files {common,0[1-7]_\*}/{,\*/}\*.{c,h,cc,cu,cuh})
mapfile -t others < <(files {tests,tools,exercises}/{,\*/,\*/\*/}\*.{c,h,cc,cu,cuh})
mapfile -t scripts < <(files | grep -vE '\.(md|patch|svg)$' |
    while read -r file; do ! is_shell "$file" || echo "$file"; done)
check "there are sources" test ${#steps[@]} -gt 150 -a ${#others[@]} -gt 60 -a ${#scripts[@]} -gt 100
check "C has 100 columns in common/ and the steps" fits 100 "${steps[@]}"
cat "$TMP/checked"
check "C has 120 columns elsewhere" fits 120 "${others[@]}"
cat "$TMP/checked"
check "shell has 120 columns" fits 120 "${scripts[@]}"
cat "$TMP/checked"

printf 'a\n%0101d\n\tb\n' 0 >"$TMP/long"
check "a long line and a tab are noticed" test "$(fits 100 "$TMP/long" | grep -cE 'long:(2: 101 columns|3: a tab)')" = 2

if type -P shellcheck >/dev/null; then
    lint() { printf '%s\n' "${scripts[@]}" | xargs -n 8 -P "$(nproc)" shellcheck -x --severity=warning -f gcc; }
    check "shellcheck has nothing to warn about" lint
    cat "$TMP/checked"
else
    echo "no shellcheck: ./ddp setup"
fi

version=$(sed -n 's/^project(ddp VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)
check "CMakeLists.txt has a version" test -n "$version"
check "CITATION.cff has it" grep -qx "version: $version" CITATION.cff
check "CHANGELOG.md begins with it" test "$(sed -n 's/^## \([^ ]*\).*/\1/p' CHANGELOG.md | head -1)" = "$version"
test_done
