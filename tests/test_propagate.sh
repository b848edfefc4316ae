#!/usr/bin/env bash
# tools/propagate carries a mend in one step's file into the later ones, in a repository of its own.
# shellcheck disable=SC2317  # functions are called by expect and check
. "$SRC/tests/test.sh"
type -P git >/dev/null || { echo "skipped: no git"; exit 77; }
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
git() { command git -c user.name=test -c user.email=test@localhost -c commit.gpgsign=false "$@"; }

mkdir -p "$TMP/a tree"
cd "$TMP/a tree" || exit 1
mkdir 01_one 02_two 03_three 04_four common
for step in 0*; do
    printf 'line %d\n' {1..30} >"$step/train.c"
    echo "README of $step" >"$step/README.md"
done
printf 'line %d\n' {1..9} | tee common/net.c 02_two/ddp.c >04_four/ddp.c
sed -i 's/line 20/line twenty/' 03_three/train.c 04_four/train.c     # 02's train.c is 01's
git init -q .
git add .
git commit -qm "as it was"

again() { git reset -q --hard "${1:-HEAD}"; }
mend() { sed -i "s/$1/$2/" "$3"; }
changed_files() { git status --porcelain | cut -c4- | paste -sd' '; }
only_changed() { check "what is changed: $*" test "$(changed_files)" = "$*"; }
propagate() { "$SRC/tools/propagate" "$@"; }
says() { check "$1" grep -qxF -- "$1" "$TMP/output"; }

# --- copied and merged ---------------------------------------------------------------------------------------

expect 0 "01_one/train.c: the same as in HEAD, nothing to carry" propagate 01_one/train.c
only_changed
mend 'line 5' 'line V' 01_one/train.c
expect 0 "02_two/train.c: copied" propagate 01_one/train.c
says "03_three/train.c: merged"
says "04_four/train.c: merged"
only_changed 01_one/train.c 02_two/train.c 03_three/train.c 04_four/train.c
check "the same again" cmp 01_one/train.c 02_two/train.c
check "the mend is there" grep -qx 'line V' 04_four/train.c
check "and so is its own line" grep -qx 'line twenty' 04_four/train.c
check "nothing else" test "$(git diff --numstat 04_four/train.c | cut -f1,2)" = $'1\t1'

# What has it is left alone; so a mend that is committed here and there can be carried all the way.
again
mend 'line 5' 'line V' 01_one/train.c
mend 'line 5' 'line V' 03_three/train.c
git commit -qam "mended in two places"
expect 0 "nothing to carry" propagate 01_one/train.c
expect 0 "03_three/train.c: has it already" propagate 01_one/train.c --from HEAD~1
says "02_two/train.c: copied"
says "04_four/train.c: merged"
only_changed 02_two/train.c 04_four/train.c
again HEAD~1

# From the middle, from another directory, where a step between does not have the file.
mend 'line 5' 'line V' 02_two/ddp.c
(cd 02_two && expect 0 "04_four/ddp.c: copied" propagate ddp.c; exit $failed) || failed=$((failed + 1))
only_changed 02_two/ddp.c 04_four/ddp.c
again
mend 'line 5' 'line V' 02_two/train.c
expect 0 "01_one/train.c is still what 02_two/train.c was" propagate 02_two/train.c
only_changed 02_two/train.c 03_three/train.c 04_four/train.c
again
mend 'line 5' 'line V' 04_four/ddp.c
expect 0 "04_four/ddp.c: no later step has it" propagate 04_four/ddp.c
only_changed 04_four/ddp.c
again

# --- a conflict ------------------------------------------------------------------------------------------------

mend 'line 20' 'line XX' 01_one/train.c
expect 1 "03_three/train.c: CONFLICT in 1 place, marked" propagate 01_one/train.c
says "02_two/train.c: copied"
says "04_four/train.c: not touched"
only_changed 01_one/train.c 02_two/train.c 03_three/train.c
check "both sides stand there" grep -qx -e '<<<<<<< 03_three/train.c' 03_three/train.c
check "the mend below" grep -qx -e '>>>>>>> 01_one/train.c' 03_three/train.c
expect 1 "03_three/train.c has conflict markers in it" propagate 03_three/train.c
sed -i -e '/^<<<<<<< /d' -e '/^=======/,/^>>>>>>> /d' -e 's/line twenty/line twenty: XX/' 03_three/train.c
expect 0 "04_four/train.c: copied" propagate 03_three/train.c
check "resolved once for all" cmp 03_three/train.c 04_four/train.c
again

# --- changes that are not committed --------------------------------------------------------------------------------

mend 'line 5' 'line V' 01_one/train.c
mend 'line 29' 'line ..' 03_three/train.c
expect 1 "03_three/train.c has changes that are not committed: nothing was touched" propagate 01_one/train.c
only_changed 01_one/train.c 03_three/train.c
expect 0 "03_three/train.c: merged" propagate 01_one/train.c --force
check "they are kept" grep -qx 'line \.\.' 03_three/train.c
check "beside the mend" grep -qx 'line V' 03_three/train.c
again
mkdir 05_five
cp 04_four/train.c 05_five
mend 'line 5' 'line V' 01_one/train.c
expect 1 "05_five/train.c has changes that are not committed" propagate 01_one/train.c
expect 0 "05_five/train.c: merged" propagate --force 01_one/train.c
expect 1 "05_five/train.c is not in HEAD" propagate 05_five/train.c
rm -r 05_five
again

# --- wrong words -----------------------------------------------------------------------------------------------------

expect 2 "which file?" propagate
expect 2 "there is no file '01_one/tarin.c'" propagate 01_one/tarin.c
expect 2 "is not a step's file" propagate common/net.c
expect 2 "one file at a time" propagate 01_one/train.c 02_two/train.c
expect 2 "unknown option --form" propagate 01_one/train.c --form HEAD
expect 2 "--from needs a revision" propagate 01_one/train.c --from
expect 2 "there is no revision 'yesterday'" propagate 01_one/train.c --from yesterday
only_changed

test_done
