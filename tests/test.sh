# shellcheck shell=bash
# test.sh - functions for the tests that are scripts, test_*.sh. They run in $TMP:
#
#   . "$SRC/tests/test.sh"
#   expect 2 "there is no step '09'" "$SRC/ddp" run 09
#   check "the file is there" test -f "$TMP/out"
#   test_done
set -u
cd "$TMP" || exit 1
passed=0 failed=0

# mpirun may start more ranks than there are cores (OMPI: Open MPI 4, PRTE: 5 and later), and root may call it.
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PYTHONDONTWRITEBYTECODE=1

not_so()
{
    failed=$((failed + 1))
    echo "${BASH_SOURCE[2]##*/}:${BASH_LINENO[1]}: not so: $1"
    tail -40 "$TMP/output" 2>/dev/null | sed 's/^/    | /'
}

# expect STATUS TEXT COMMAND...: the command must end with STATUS and print TEXT. Its output stays in $TMP/output.
expect()
{
    local wanted=$1 text=$2 status
    shift 2
    "$@" >"$TMP/output" 2>&1 </dev/null
    status=$?
    if [ $status != "$wanted" ]; then
        not_so "exit status $wanted of: $* (it is $status)"
    elif [ -n "$text" ] && ! grep -qF -- "$text" "$TMP/output"; then
        not_so "\"$text\" in the output of: $*"
    else
        passed=$((passed + 1))
    fi
}

check()
{
    local what=$1
    shift
    if "$@" >"$TMP/checked" 2>&1; then
        passed=$((passed + 1))
    else
        not_so "$what"
    fi
}

not() { ! "$@"; }

# is VALUE WANTED: succeeds if both are the same, and not empty. Used with check.
is() { [ -n "$2" ] && [ "$1" = "$2" ] || { echo "'$1', not '$2'"; false; }; }

# made FILE: succeeds if the file, FILE.best or a temporary file is there. A lock file, which may stay, does not count.
made() { compgen -G "$1*" | grep -v '[.]lock$'; }

# until_so SECONDS COMMAND...: repeats the command until it succeeds. Fails after SECONDS, a limit for hangs.
until_pause=0.05
until_so()
{
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $deadline ] || return 1
        sleep $until_pause
    done
}

hash_of() { sed -n 's/^weight hash: //p' "${1:-$TMP/output}"; }

# field FILE EVENT NAME: prints the values of NAME in the EVENT events of a metrics file.
field() { sed -n 's/.*"event":"'"$2"'".*"'"$3"'":\([^,}]*\)[,}].*/\1/p' "$1"; }

# near FILE FILE FAR: succeeds if the two numbers of each line are at most FAR apart.
near()
{
    paste "$1" "$2" | awk -v far="$3" '
        { d = $1 - $2 } NF != 2 || !(d <= far && d >= -far) { print "line " NR ": " $1 ", not " $2; bad = 1 }
        END { exit bad || NR == 0 }'
}

# by_hand RANK N COMMAND...: runs the command as RANK of N ranks that meet at $port, below the ports that the system
# assigns.
port=$((10000 + $$ * 5 % 20000))
while (: 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 5)); done
by_hand() { RANK=$1 WORLD_SIZE=$2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "${@:3}"; }

# cached NAME: prints the build's CMake variable NAME. Prints nothing if CMake has not found the file.
cached() { sed -n "s/^$1:[A-Z]*=//p" "$BUILD/../CMakeCache.txt" | grep -v NOTFOUND; }

# put_in FILE FROM TO: replaces FROM by TO in the file. FROM must be in exactly one line.
put_in()
{
    [ "$(grep -cF -- "$2" "$1")" = 1 ] || { echo "$1: not exactly one line contains: $2"; return 1; }
    FROM=$2 TO=$3 perl -pi -e 's/\Q$ENV{FROM}\E/$ENV{TO}/' "$1"
}

# build_with NAME STEP [FILE FROM TO]...: builds the program NAME from a copy of STEP in which these texts are replaced.
build_with()
{
    local name=$1 compiler
    rm -rf copy && cp -r "$(cd "$SRC" && realpath "$2")" copy && rm -f copy/launch.c copy/ddp_naive.c
    shift 2
    while [ $# -gt 0 ]; do
        put_in "copy/$1" "$2" "$3" || return 1
        shift 3
    done
    compiler=$(cached CMAKE_C_COMPILER)
    OMPI_CC=$compiler "$(type -P mpicc || echo "$compiler")" -std=c11 -O1 -D_GNU_SOURCE -I"$SRC/common" copy/*.c \
        -o "$name" "$BUILD/../libddp_cpu.a" -fopenmp -ldnnl -lgloo -ljansson -lz -ljpeg -lpng -lm -lstdc++
}

test_done()
{
    echo "$passed passed, $failed failed"
    [ $failed = 0 ] && [ $passed -gt 0 ]
    exit
}
