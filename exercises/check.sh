#!/usr/bin/env bash
# check.sh EXERCISE COPY BUILD WORK - runs EXERCISE/check.sh, which uses the functions below.
#
# A check makes claims. The first claim that fails is explained (expected, found) and ends the check.
# `./ddp exercise check` calls this script and kills any process that the check leaves running.
#
# A check starts in an empty directory, with these variables:
#   root       the repository            step     03_ddp_fork, or "none"
#   copy       the learner's folder      id       03-1
#   source     the step, or finished/    program  the folder in build/cpu: 03_ddp_fork; gpu-1 if step is "none"
#   finished   the folder in build/cpu of the finished program: the step's, or the exercise's own (05-6)
#   exercise   the exercise's folder     limit    deadline of one run, in s (60); a check may change it
#   why        explanation of the next claim: printed if the claim fails, cleared if it holds
set -u
exercise=$1 copy=$2 build=$3 made=$4
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
. "$root/tools/shell.sh"
id=${exercise##*/} id=${id%%_*}
step=$(sed -n 's/^- step: *//p' "$exercise/task.md" | head -1)
source=$root/$step program=$step
[ "$step" != none ] || source=$exercise/finished program=$id
finished=$program
[ ! -d "$exercise/finished" ] || finished=$id
limit=60 why='' status=0 train='' launch='' harness=''

good=✓ bad=✗
[[ ${LC_ALL:-${LC_CTYPE:-${LANG:-}}} == *[Uu][Tt][Ff]* ]] || good=ok bad=no

# Unsets the variables of a cluster job or a launcher in which the learner's shell may run.
for name in RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE "${!MASTER_@}" "${!OMPI_@}" "${!PMIX_@}" "${!SLURM_@}" \
    "${!DDP_TOKEN@}"; do
    unset "$name"
done
# mpirun may run as root, and start more ranks than there are cores (Open MPI 4's variable, then 5's).
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
# The ranks of a check share a machine. With TCP, Open MPI 5 prints lines about network interfaces that it cannot use.
export OMPI_MCA_btl=^tcp
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-1000} LC_ALL=C

# The options of every run of a step: a small network, a few synthetic images, and one thread so that results do not
# depend on the number of cores. If an option is repeated, the last one wins.
tiny=(--arch lenet --data synthetic --train-samples 96 --test-samples 32 --epochs 1 --threads 1 -b 8 --print-freq 1)
hang_limit=(--timeout 8)            # from 03 on: a hang is reported before the limit

[ -t 1 ] || green='' red='' plain=''

# ==== Claims =====================================================================================

# passed WHAT: reports that the claim holds.
passed() { printf '  %s%s%s %s\n' "$green" "$good" "$plain" "$1"; why=''; }

# wrong WHAT <FILE: reports that the claim fails, prints the first 40 lines of FILE (or of <<<TEXT) and $why, and ends
# the check.
wrong()
{
    [ -e "$made/wrong" ] || echo "$1" >"$made/wrong"    # in a pipeline, exit would end only the subshell
    printf '  %s%s%s %s\n' "$red" "$bad" "$plain" "$1"
    head -c 20000 | head -40 | sed 's/^/        /'
    [ -z "$why" ] || printf '\n%s\n\n' "$why" | sed 's/^\(.\)/    \1/'
    exit 1
}

# holds WHAT COMMAND...: the command succeeds; if not, what it prints is shown.
holds()
{
    local what=$1
    shift
    if "$@" >"$made/claim" 2>&1; then passed "$what"; else wrong "$what" <"$made/claim"; fi
}

# equal WHAT EXPECTED FOUND: the texts are the same.
equal()
{
    if [ "$2" = "$3" ]; then passed "$1"; else wrong "$1" < <(expected "$2" "$3"); fi
}

# Further lines of a text are indented like its first.
expected()
{
    sed '1!s/^/          /' <<<"expected  ${1:-nothing}"
    sed '1!s/^/          /' <<<"found     ${2:-nothing}"
}

# near WHAT TOLERANCE EXPECTED FOUND: the numbers differ by no more than the tolerance.
near()
{
    if are_near "$2" "$3" "$4"; then passed "$1"; else wrong "$1" < <(expected "$3" "$4"); fi
}
are_near()
{
    awk -v t="$1" -v a="$2" -v b="$3" 'BEGIN {
        number = "^[-+]?[0-9.]+([eE][-+]?[0-9]+)?$"
        d = a - b
        exit !(a ~ number && b ~ number && d <= t + 0 && -d <= t + 0) }'
}

# beside WHAT TOLERANCE ROW TITLE FILE TITLE FILE [TITLE FILE]...: the first file (expected) and the second (found)
# agree line by line: as numbers within TOLERANCE or, if TOLERANCE is "same", as texts. If not, up to ten lines of all
# files are shown side by side, around the first difference. ROW is the heading of the line numbers, such as "step".
beside()
{
    local what=$1 tolerance=$2 row=$3 titles='' files=()
    shift 3
    while [ $# -gt 1 ]; do
        titles+="$1"$'\t' files+=("$2")
        shift 2
    done
    if paste "${files[@]}" | awk -F'\t' -v t="$tolerance" -v row="$row" -v titles="$titles" '
        function is_number(s) { return s ~ /^[-+]?[0-9.]+([eE][-+]?[0-9]+)?$/ }
        function line(n,    i, text, differs) {
            text = sprintf("%5d", n)
            for (i = 1; i <= columns; i++)
                text = text sprintf("   %-*s", width[i], cell[n, i] == "" ? "-" : cell[n, i])
            print text (different[n] ? "  <-" : "")
        }
        function widen(i, text) { if (length(text) > width[i]) width[i] = length(text) }
        BEGIN {
            columns = split(titles, title, "\t") - 1
            for (i = 1; i <= columns; i++) { width[i] = 12; widen(i, title[i]) }
        }
        {
            for (i = 1; i <= columns; i++) { cell[NR, i] = $i; widen(i, $i) }
            d = $1 - $2
            different[NR] = t == "same" ? $1 != $2 : !is_number($1) || !is_number($2) || d > t + 0 || -d > t + 0
            if (different[NR] && !first) first = NR
            count += different[NR]
        }
        END {
            if (NR == 0) { print "there are no lines"; exit 1 }
            if (!first) exit 0
            text = sprintf("%5s", row)
            for (i = 1; i <= columns; i++) text = text sprintf("   %-*s", width[i], title[i])
            print text
            from = first > 3 ? first - 2 : 1
            for (n = from; n <= NR && n < from + 10; n++) line(n)
            if (n <= NR) print "  ...   (" count " of " NR " differ)"
            exit 1
        }' >"$made/claim"; then passed "$what"; else wrong "$what" <"$made/claim"; fi
}

# ==== Building ===================================================================================

# build [--with FILE.c] [--wrap FUNCTION]...: builds the learner's copy: $train, and from 04 on $launch. --with: links
# the exercise's FILE.c (check.c) into train. --wrap: calls of FUNCTION, except in the file that defines it, go to
# check.c's __wrap_FUNCTION, which may call the original as __real_FUNCTION.
build()
{
    local file extra=() more=()
    objects=()
    while [ $# -gt 1 ]; do
        case $1 in
        --with) more+=("$2") ;;
        --wrap) extra+=("-Wl,--wrap=$2") ;;
        *) fail_check "build: unknown option $1" ;;
        esac
        shift 2
    done
    mkdir -p "$made/objects"
    for file in "$source"/*.c; do
        [ -f "$copy/${file##*/}" ] || { echo "${file##*/} is missing in your copy" >&2; cannot_build; }
    done
    for file in "$copy"/*.c; do
        case ${file##*/} in launch.c | ddp_naive.c) continue ;; esac
        compile "$file" || cannot_build
        objects+=("$object")
    done
    for file in "${more[@]}"; do
        compile "$exercise/$file" || cannot_build
        objects+=("$object")
    done
    train=$made/train
    link_program "$train" train "${extra[@]}" "${objects[@]}" || cannot_build
    wrapped=("${extra[@]}")
    if [ -f "$copy/launch.c" ]; then
        launch=$made/launch
        if cmp -s "$copy/launch.c" "$source/launch.c"; then
            ln -sf "$build/cpu/$step/launch" "$launch"
        else
            compile "$copy/launch.c" || cannot_build
            link_program "$launch" train "$object" || cannot_build
        fi
    fi
    passed "your program builds"
}

# build_naive: call it after build. Builds $naive, the same program with ddp_naive.c instead of ddp.c.
build_naive()
{
    local rest=() file
    for file in "${objects[@]}"; do [[ $file == */ddp.c.o ]] || rest+=("$file"); done
    compile "$copy/ddp_naive.c" || cannot_build
    naive=$made/train_naive
    link_program "$naive" train "${wrapped[@]}" "${rest[@]}" "$object" || cannot_build
}

# harness FILE.c [LEARNERS.c]...: makes $harness, the exercise's program FILE.c, linked with common/ and with these
# files of the learner.
harness()
{
    local file objects=()
    mkdir -p "$made/objects"
    compile "$exercise/$1" || cannot_build
    objects+=("$object")
    shift
    for file; do
        compile "$copy/$file" || cannot_build
        objects+=("$object")
    done
    harness=$made/harness
    link_program "$harness" train "${objects[@]}" || cannot_build
    passed "your program builds"
}

cannot_build()
{
    touch "$made/not_built"
    why=
    wrong "your program does not build" </dev/null
}
fail_check() { echo "$exercise/check.sh: $1" >&2; exit 3; }

# Files are compiled and linked with the commands that built the step, so the options fit this machine.

# compile FILE: sets $object: the step's object file if neither FILE nor a header has changed, or else a new one.
compile()
{
    local file=$1 name=${1##*/} theirs header
    theirs=$build/$program/CMakeFiles/${program}_cpu.dir/$name.o
    [ "$name" != ddp_naive.c ] || theirs=$build/$program/CMakeFiles/${program}_train_naive_cpu.dir/$name.o
    object=$made/objects/$name.o
    if same_headers && cmp -s "$file" "$source/$name" && [ "$theirs" -nt "$source/$name" ]; then
        for header in "$source"/*.h; do
            [ "$theirs" -nt "$header" ] || break
        done
        [ ! "$theirs" -nt "$header" ] || { object=$theirs; return 0; }
    fi
    rm -f "$object"
    if [ -z "${compiler:-}" ]; then
        compiler=$(awk -v object=" -o [^ ]*CMakeFiles/${program}_cpu\\.dir/" '
            /^ *"command": / && $0 ~ object { sub(/^ *"command": "/, ""); sub(/",?$/, ""); print; exit }' \
            "$build/compile_commands.json" | sed -e 's/\\\(["\\]\)/\1/g' -e 's/ -o [^ ]* -c .*//' -e 's/ -Werror\b//')
        [ -n "$compiler" ] || fail_check "$build/compile_commands.json has no command that compiles $program"
        compiler+=" -Werror=implicit-function-declaration"
    fi
    # File names relative to the root let an editor jump from an error to its line.
    (cd "$root" &&
        eval "$compiler $(printf '%q ' "-I$copy" "-I$root/exercises" -o "$object" -c "${file#"$root"/}")") >&2
}

same_headers()
{
    local header
    [ -n "${headers:-}" ] || {
        headers=same
        for header in "$copy"/*.h "$source"/*.h; do
            [ ! -f "$header" ] || cmp -s "$copy/${header##*/}" "$source/${header##*/}" || headers=other
        done
    }
    [ "$headers" = same ]
}

# link_program PROGRAM NAME WORDS...: links PROGRAM like the finished NAME, but with these objects and options.
link_program()
{
    local out=$1 name=$2 line directory words=''
    shift 2
    if [ -f "$build/build.ninja" ]; then
        directory=$build
        line=$(cd "$build" && ninja -t commands "cpu/$program/$name" | tail -1)
    else
        directory=$build/$program
        [ "$step" != none ] || directory=$build/exercises/gpu
        line=$(cat "$directory/CMakeFiles/${program}_cpu.dir/link.txt")
    fi
    line=$(sed -e 's/ [^ ]*\.dir\/[^ ]*\.o\b"\?//g' -e 's/ -o [^ ]* / @@ /' <<<"$line")
    [[ $line == *" @@ "* ]] || fail_check "the build folder $build has no command that links $program"
    words=$(printf ' %q' "$@" -o "$out")
    (cd "$directory" && eval "${line/ @@ /"$words" }") >&2
}

# ==== Running ====================================================================================

# try NAME COMMAND...: runs the command for at most $limit s. Its output is in NAME.out, its exit status in $status
# (124: it did not end in time, or SIGKILL ended it). Zero bytes, which Open MPI 5 prints after an abort, are left out:
# grep takes a file with one for binary.
try()
{
    local name=$1
    shift
    timeout --foreground --kill-after=2 "$limit" "$@" >"$name.out" 2>&1 </dev/null
    status=$?
    tr -d '\0' <"$name.out" >"$name.text" && mv "$name.text" "$name.out"
    [ $status != 137 ] || status=124
}

# run NAME COMMAND...: as try, but if the command fails, so does the check.
run()
{
    local name=$1
    try "$@"
    case $status in
    0) ;;
    124) wrong "the run \"$name\" did not end within $limit s: it hangs" < <(last_lines "$name") ;;
    *) wrong "the run \"$name\" failed: exit status $status" < <(last_lines "$name") ;;
    esac
}
last_lines() { echo "its last lines:"; grep -v "^stopping after this step" "$1.out" | tail -"${2:-8}"; }

# set_command NAME N TRAIN LAUNCH OPTIONS...: sets $command to start N ranks of TRAIN (01: one; 02: N devices). Rank R
# of a step writes its metrics to NAME.R.jsonl (01, 02: NAME.0.jsonl). Without a step, mpirun starts the ranks, and
# their timeline is NAME.json.
set_command()
{
    local name=$1 n=$2 train=$3 launch=$4
    shift 4
    case $step in
    none) command=(env GPU_TRACE="$PWD/$name.json" mpirun --bind-to none -np "$n" "$train" "$@") ;;
    01_*) command=("$train" "${tiny[@]}" --metrics "$name.0.jsonl" "$@") ;;
    02_*) command=("$train" "${tiny[@]}" --metrics "$name.0.jsonl" --devices "$n" "$@") ;;
    03_*) command=("$train" "${tiny[@]}" "${hang_limit[@]}" --metrics "$name.%r.jsonl" -n "$n" "$@") ;;
    *) command=("$launch" --nproc-per-node "$n" "${launch_options[@]}" -- "$train" "${tiny[@]}" "${hang_limit[@]}"
            --metrics "$name.%r.jsonl" "$@") ;;
    esac
}
launch_options=()

# learner NAME N OPTIONS...: runs the learner's program with N ranks; it must succeed. try_learner: it may fail.
learner() { set_command "$1" "$2" "$train" "$launch" "${@:3}"; run "$1" "${command[@]}"; }
# shellcheck disable=SC2034  # for the exercises' checks
try_learner() { set_command "$1" "$2" "$train" "$launch" "${@:3}"; try "$1" "${command[@]}"; }

# finished NAME N OPTIONS...: as learner, but with the finished program.
finished()
{
    local programs=$build/cpu/$finished
    set_command "$1" "$2" "$programs/train" "$programs/launch" "${@:3}"
    run "$1" "${command[@]}"
}

# one NAME OPTIONS...: runs step 01 in one process, as the reference for parallel runs.
one() { run "$1" "$build/cpu/01_single_gpu/train" "${tiny[@]}" --metrics "$1.0.jsonl" "${@:2}"; }

# ==== The programs' words ========================================================================
# What checks look for in the output of a program is here, and nowhere else. NAME is that of a run.

# shellcheck disable=SC2034  # for the exercises' checks
# Ranks that never meet, or that hang, give up after this time.
meet_limit=(--timeout 5)

# all_wait NAME: did the run end because no rank made progress?
all_wait() { grep -q "no rank has made progress for .*(--timeout)" "$1.out"; }
# local_rank_of NAME RANK: the local rank of RANK in the list that rank 0 prints
local_rank_of() { sed -n "s/^\[init\] == local rank: \([0-9]*\), global rank: $2 .*/\1/p" "$1.out"; }
# first_error NAME: the first error or warning, without its place in the source
first_error() { sed -n 's/.*\.c:[0-9]*: //p' "$1.out" | head -1; }
# who_is_missing NAME: "1, after 3 s" if rank 0 gave up waiting for rank 1
who_is_missing()
{
    sed -nE 's/.* ranks connected within ([0-9.]+) s; missing: ranks? (.*)/\2, after \1 s/p' "$1.out" | head -1
}
# looked_for_rank_0 NAME: after how many whole seconds a rank gave up looking for rank 0
looked_for_rank_0() { sed -n 's/.*could not join rank 0 within \([0-9]*\)[.0-9]* s:.*/\1/p' "$1.out" | head -1; }
global_batch() { sed -n 's/.*global batch \([0-9]*\).*/\1/p' "$1.out"; }
# of a step's timeline (--trace): how many all-reduces, how many collective calls, how many saves
all_reduces() { grep -c '"all_reduce ' "$1"; }
all_calls() { grep -c '"call":' "$1"; }
# calls_of FILE COMM: rank 0's calls of the communicator COMM, in order: "all_gather 1.2 KB"
calls_of() { sed -n "s/.*\"pid\":0,.*\"name\":\"\([^\"]*\)\".*\"call\":\"$2 #.*/\1/p" "$1"; }
saves() { grep -c '"save"' "$1"; }

# ==== Reading ====================================================================================

# values FILE EVENT KEY [KEY=VALUE]...: prints KEY of each EVENT that has these values, one per line.
#   values a.0.jsonl step loss epoch=2
values()
{
    local file=$1 event=$2 key=$3
    shift 3
    [ -f "$file" ] || return 0
    awk -v event="$event" -v key="$key" -v conditions="$*" '
        function member(name,    at, text) {
            at = index($0, "\"" name "\":")
            if (!at) return "missing"
            text = substr($0, at + length(name) + 3)
            if (substr(text, 1, 1) == "\"") { sub(/^"/, "", text); sub(/".*/, "", text) }
            else sub(/[,}].*/, "", text)
            return text
        }
        BEGIN { count = split(conditions, condition, " ") }
        member("event") == event {
            for (i = 1; i <= count; i++) {
                split(condition[i], part, "=")
                if (member(part[1]) != part[2]) next
            }
            text = member(key)
            if (text != "missing") print text
        }' "$file"
}
# value ...: the last of these values.
value() { values "$@" | tail -1; }

# mean FILE...: the mean of the files' numbers, line by line.
mean() { paste "$@" | awk '{ sum = 0; for (i = 1; i <= NF; i++) sum += $i; printf "%.9g\n", sum / NF }'; }

# timeline FILE RANK: what the rank's streams did, in order: "begin ncclAllReduce", "end ncclAllReduce". FILE is from
# a run with GPU_TRACE=FILE.
timeline()
{
    [ -f "$1" ] || return 0
    awk -v rank="$2" '
        function member(name) { return match($0, "\"" name "\":\"?[^\",}]*") ? substr($0, RSTART, RLENGTH) : "" }
        function value(name,    text) { text = member(name); sub(/^[^:]*:"?/, "", text); return text }
        value("pid") == rank && value("ts") != "" {
            print value("ts"), value("tid"), value("ph"), value("name")
        }' "$1" | sort -n | awk '
        { thread = $2; kind = $3; $1 = $2 = $3 = ""; sub(/^ */, "") }
        kind == "B" { open[thread, ++depth[thread]] = $0 }
        { name = open[thread, depth[thread]] }
        kind == "E" { depth[thread]-- }
        name ~ /^(nccl|copy|fill|host)/ { print kind == "B" ? "begin" : "end", name }'
}

# ==== Which images? ==============================================================================
# With learning rate 0, one image per batch and no augmentation, each image can be recognized by its loss.
#
#   know_images 24                     first, once, for 24 training images
#   learner a 2 "${seeing[@]}" --epochs 2
#   images a.1.jsonl 2                 prints the numbers of rank 1's images in epoch 2, one per line, in order

seeing=()
know_images()
{
    seeing=(--train-samples "$1" --lr 0 -b 1 --no-augment)
    one "$made/all" "${seeing[@]}" --no-shuffle
    values "$made/all.0.jsonl" step loss | awk '{ print $1, NR - 1 }' >"$made/losses"
    [ "$(awk '{ print $1 }' "$made/losses" | sort -u | wc -l)" = "$1" ] || fail_check "two images have the same loss"
}
images()
{
    values "$1" step loss epoch="$2" | awk '
        NR == FNR { image[$1] = $2; next } { print $1 in image ? image[$1] : "?" }' "$made/losses" -
}
# in_a_row FILE [MOST]: the file's first MOST (12) lines in one row, such as "5 2 7 0". Appends "..." if there are more.
in_a_row()
{
    awk -v most="${2:-12}" 'NR <= most { printf "%s%s", sep, $0; sep = " " }
        END { print (NR > most ? " ..." : "") }' "$1"
}
# in_both FILE FILE: how many lines the two files share. Equal lines of a file count once.
in_both() { sort "$1" | uniq >"$made/a" && sort "$2" | uniq | comm -12 "$made/a" - | wc -l; }

# ==== The check ==================================================================================

cd "$made/run" || exit 3
exec </dev/null
trap 'exit 130' INT
rm -f "$made/wrong" "$made/not_built"
# shellcheck source=/dev/null
. "$exercise/check.sh"
[ ! -e "$made/wrong" ]
