#!/usr/bin/env bash
# faults.sh - seeded faults: mistakes that the tests must notice. tests/faults/NAME.patch, whose NAME begins with an
# area, is a patch to the sources, after two lines:
#
#   Symptom: what a user would see
#   Caught by: the tests that notice it, best first (names as in ctest)
#
#   faults.sh prove [NAME...]   applies each fault (default: all) to a copy of the sources and runs the tests that it
#                               names, until one fails
#   faults.sh prove --sample N  the same for N faults; a checksum of the sources chooses them
#
# The faults of the area cuda need a build with the cuda backend, but no GPU. Without that backend, these faults are
# left out, unless they are named.
#
# FAULTS_WORK: a folder for the copy and its build, which is kept; default: a temporary one.
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
root=${self%/tests/*}
faults=$root/tests/faults

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$self" | sed '$d'; }
die() { echo "faults.sh: $1" >&2; exit "${2:-1}"; }
names() { (cd "$faults" && ls -- *.patch) | sed 's/\.patch$//'; }
provable() { names | if grep -qsw cuda "$root/build/backends"; then cat; else grep -v ^cuda-; fi; }

# Brings the copy of the sources up to date and configures it. Replaces only files that are older than the source's, so
# that little is recompiled.
copy()
{
    local cuda=OFF file
    [[ " $*" != *" cuda-"* ]] || cuda=ON
    mkdir -p "$work/tree"
    take_back                                   # left by a run that was killed
    (cd "$root" && find . \
        \( -path ./build -o -path ./data -o -path ./.git -o -path ./exercises-work -o -path ./runs \) \
        -prune -o -type f -print0 | xargs -0 cp -pu --parents -t "$work/tree")
    (cd "$work/tree" && find . -type f | while read -r file; do [ -e "$root/$file" ] || rm "$file"; done)
    cmake -S "$work/tree" --preset default -B "$work/build" -G Ninja -DDDP_CUDA=$cuda \
        -DCMAKE_CUDA_ARCHITECTURES=90-real >"$work/log" 2>&1 ||
        { cat "$work/log"; die "the copy cannot be configured"; }
}

# Applies a patch to the copy, and keeps the patch, so that a later run can revert it.
put() { patch -s -p1 --no-backup-if-mismatch -d "$work/tree" <"$1" >"$work/log" 2>&1 && cp "$1" "$work/applied"; }
take_back()
{
    [ ! -f "$work/applied" ] || patch -s -R -p1 --no-backup-if-mismatch -d "$work/tree" <"$work/applied"
    rm -f "$work/applied"
}

sample()
{
    local sum name
    sum=$(cd "$root" && find common 0* tests exercises tools -name __pycache__ -prune -o -type f -print0 |
        LC_ALL=C sort -z | xargs -0 cat | sha256sum)
    for name in $(provable); do
        echo "$(sha256sum <<<"$sum $name") $name"
    done | sort | head -n "$1" | sed 's/.* //'
}

# ninja's targets for these tests
make_targets() { sed -nE "s/^($(IFS='|'; echo "$*")) //p" "$work/build/test_targets" | sort -u; }
compile() { [ $# = 0 ] || cmake --build "$work/build" --target "$@" >"$work/log" 2>&1; }

# True if a test fails; leaves its name in $caught.
run_tests()
{
    local out
    ! (cd "$work/build" && ctest --stop-on-failure --timeout 300 "$@" >"$work/tested" 2>&1) || return 1
    out=$(sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .*(\*\*\*|Failed|Timeout).*/\1/p' "$work/tested" |
        head -1)
    caught=$out
    [ -n "$caught" ]
}

tests_of() { sed -n '1,/^---/s/^Caught by: *//p' "$faults/$1.patch" | tr -d ' ' | tr ',' '\n'; }

prove()
{
    local name=$1 first caught='' begin=$SECONDS
    mapfile -t first < <(tests_of "$name")
    [ ${#first[@]} -gt 0 ] || die "$name.patch does not name the tests that catch it"
    put "$faults/$name.patch" ||
        { cat "$work/log"; die "$name.patch no longer applies"; }
    # shellcheck disable=SC2046
    compile $(make_targets "${first[@]}") || { cat "$work/log"; die "$name does not compile, so it proves nothing"; }
    run_tests -R "^($(IFS='|'; echo "${first[*]}"))\$" || :
    take_back
    printf '%-36s %-28s %3d s\n' "$name" "${caught:-NOT CAUGHT}" $((SECONDS - begin))
    [ -n "$caught" ]
}

check_without()
{
    local tests caught
    mapfile -t tests < <(for name; do tests_of "$name"; done | sort -u)
    # shellcheck disable=SC2046
    compile $(make_targets "${tests[@]}") || { cat "$work/log"; die "the sources do not compile"; }
    ! run_tests -R "^($(IFS='|'; echo "${tests[*]}"))\$" || die "$caught fails even without a fault"
}

cmd_prove()
{
    local chosen=("$@") name missed=0
    if [ "${1:-}" = --sample ]; then
        mapfile -t chosen < <(sample "$2")
    elif [ $# = 0 ]; then
        mapfile -t chosen < <(provable)
    fi
    for name in "${chosen[@]}"; do
        [ -f "$faults/$name.patch" ] || die "there is no fault '$name'" 2
    done
    work=${FAULTS_WORK:-$(mktemp -d)}
    [ -n "${FAULTS_WORK:-}" ] || trap 'rm -rf "$work"' EXIT
    copy "${chosen[@]}"
    check_without "${chosen[@]}"
    for name in "${chosen[@]}"; do
        prove "$name" || missed=$((missed + 1))
    done
    echo "${#chosen[@]} faults, $missed not caught"
    [ $missed = 0 ]
}

case ${1:-} in
prove) shift; cmd_prove "$@" ;;
-h | --help | help) usage ;;
*) usage >&2; exit 2 ;;
esac
