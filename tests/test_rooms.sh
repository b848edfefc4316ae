#!/usr/bin/env bash
# Checks the dependencies between the rooms (folders) of common/. A module is a contract (a header at the top of
# common/) or a source file in a room, with its header. A module uses another by #include. A room may use only the rooms
# that the table below gives it. No two modules may use each other, directly or through others.
. "$SRC/tests/test.sh"

# [room]="the rooms that it may use". "device" is device.h and ops.h, which several rooms implement. "types" is world.h
# and clock.h.
declare -A may=(
    [types]="" [base]="types" [world]="base types"
    [device]="base types" [cpu]="ops device base types" [cuda]="ops device base types"
    [ops]="cpu cuda device base types"
    [data]="ops cpu cuda device base types" [model]="ops cpu cuda device base types"
    [checkpoint]="model ops cpu cuda device base types" [comm]="world ops cpu cuda device base types"
)


# includes TREE: "module module" for each #include "..." in common/.
includes()
{
    (cd "$1/common" && grep -rHoE '^ *#include "[^"]+"' --include='*.[ch]' --include='*.cc' --include='*.cu' \
        --include='*.cuh' . | sed -E 's,^\./,,; s,: *#include "([^"]+)", \1,' |
        while read -r from to; do echo "$(module_of "$1" "$from") $(module_of "$1" "$to")"; done)
}

# module_of TREE FILE: base/log for base/log.c, and base/log.h for log.h, because log.c is in base/.
module_of()
{
    local stem=${2%.*} found
    case $stem in
    */*) echo "$stem"; return ;;
    device | ops) found=device/ ;;
    world | clock) found=types/ ;;
    *) found=$(cd "$1/common" && compgen -G "*/$stem.c") ;;
    esac
    echo "${found%/*}/$stem.h"
}

# Reads lines "module module", and prints each use that is not allowed and each cycle.
one_way()
{
    local from to bad=0
    sort -u | awk '$1 != $2' >edges
    while read -r from to; do
        [ "${from%%/*}" = "${to%%/*}" ] || [[ " ${may[${from%%/*}]-} " == *" ${to%%/*} "* ]] ||
            { echo "$from uses $to, but ${from%%/*}/ may use only: ${may[${from%%/*}]-}"; bad=1; }
    done <edges
    tsort edges >/dev/null || bad=1
    [ "$(wc -l <edges)" -gt 100 ] || { echo "found only $(wc -l <edges) edges"; bad=1; }
    return $bad
}

all() { includes "$SRC" | one_way; }
check "every room uses only the rooms that it may use, and there are no cycles" all

cp -r "$SRC/common" .
mistake() { includes "$TMP" | one_way >noticed 2>&1; grep -qF "$1" noticed; }
echo '#include "model.h"' >>common/base/rng.c
check "a use of a higher room is noticed" mistake "base/rng uses model/model.h"
test_done
