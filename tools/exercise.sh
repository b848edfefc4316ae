#!/usr/bin/env bash
# exercise.sh - ./ddp exercise: gives you a copy of a step with a mistake or a missing piece, and checks your fix.
#
# exercises/ID_name/ contains an exercise: task.md, change.patch (from the step to the exercise), and check.sh, which
# exercises/check.sh runs. If the exercise's step is "none", its folder finished/ takes the place of the step. In any
# other exercise, finished/ contains files of the solution that the step lacks, and the build has a finished program ID.
# The learner's files are in exercises-work/: the copy of the step in ID/, the progress in .state/ID/, and what a check
# compiles and writes in .build/ID/.
#
# DDP_BUILD: the build to link with (build/). DDP_EXERCISES_WORK replaces exercises-work/.
#
# shellcheck disable=SC2128,SC2178  # step_command's `command` is an array
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
root=${self%/tools/*}
# shellcheck source=tools/shell.sh
. "$root/tools/shell.sh"
exercises=$root/exercises
work=$(readlink -m "${DDP_EXERCISES_WORK:-$root/exercises-work}")
build=$(readlink -m "${DDP_BUILD:-$root/build}")
plans=$root/docs/workshop/plan.txt
flags=compile_flags.txt     # for editors: clangd reads it
[ -t 1 ] || bold='' dim='' red='' green='' yellow='' plain=''

usage()
{
    cat <<'END'
./ddp exercise - fix a mistake or write missing code in a copy of a step; a check runs your program

  exercise list [STEP]      all exercises, or those of a step; * marks the current one
  exercise plan [hour|half|day|two|nccl]
                            the exercises of an hour, half a day, a day, two days or half a day of NCCL, in their
                            order; "next" follows the plan that you named last (without one: the day)
  exercise start ID         copy the step to exercises-work/ID and show the task
  exercise task [ID]        show the task again
  exercise check [ID]       build and run your program; show what was expected and what was found
  exercise run [ID] -- ...  run your program (after a check) with these options, as you would run the step
  exercise hint [ID]        the first hint; ask again for the next
  exercise solution [ID]    the difference between your copy and the solution
  exercise answer [ID]      once it is solved: the answer to its question
  exercise reset ID [--yes] delete your copy and start again

Without ID, each command uses the exercise that you started last.
END
}

# A path as you would type it from here.
here() { [[ $1 == "$PWD"/* ]] && echo "${1#"$PWD"/}" || echo "$1"; }

# --- reading task.md --------------------------------------------------------------------------------

list_exercises() { find "$exercises" -mindepth 2 -maxdepth 2 -name task.md -printf '%h\n' | LC_ALL=C sort -V; }
id_of() { local name=${1##*/}; echo "${name%%_*}"; }
title_of() { sed -n '1s/^# *//p' "$1/task.md"; }
# field EXERCISE step|difficulty|minutes|files: from the list below the title
field() { sed -n "/^## /q; s/^- $2: *//p" "$1/task.md" | head -1; }
# task_of EXERCISE: the text between that list and the first heading
task_of() { awk '/^## /{ exit } /^- [a-z]+: / || NR == 1 { next } { print }' "$1/task.md" | trim; }
# section EXERCISE "Hint 1": the text below that heading
section() { awk -v want="## $2" '/^## /{ on = $0 == want; next } on' "$1/task.md" | trim; }
hint_count() { grep -c '^## Hint ' "$1/task.md"; }
trim() { awk 'NF { for (; blank > 0; blank--) if (some) print ""; blank = 0; some = 1; print; next } { blank++ }'; }

# 03-1, 3-1, 03-1_set_epoch or set_epoch -> the exercise's folder
find_exercise()
{
    local typed=${1%/} folder
    typed=${typed##*/}
    [[ $typed =~ ^[0-9]-[0-9]+ ]] && typed=0$typed
    while read -r folder; do
        case ${folder##*/} in "$typed" | "$typed"_* | *-*_"$typed") echo "$folder"; return ;; esac
    done < <(list_exercises)
    die_usage "there is no exercise '$1'" "./ddp exercise list shows all of them"
}

# choose [ID]: sets the variables that the functions below use: exercise (its folder), id, step, source (the folder
# that is copied), program and finished (names in the build: of the program, of the finished one), copy, state. Without
# ID, chooses the exercise that was started last.
choose()
{
    local typed=${1:-$(current)}
    [ -n "$typed" ] || die_usage "which exercise? You have not started one yet" "./ddp exercise list"
    exercise=$(find_exercise "$typed")
    id=$(id_of "$exercise")
    step=$(field "$exercise" step)
    source=$root/$step program=$step
    [ "$step" != none ] || source=$exercise/finished program=$id
    finished=$program
    [ ! -d "$exercise/finished" ] || finished=$id
    copy=$work/$id
    state=$work/.state/$id
}
current() { cat "$work/.state/last" 2>/dev/null || true; }

hints_shown() { grep -m 1 -xE '[0-9]' "$state/hints" 2>/dev/null || echo 0; }      # bash would run other text

must_be_begun() { [ -d "$copy" ] || die_usage "you have not started $id yet" "./ddp exercise start $id"; }

# --- copies -----------------------------------------------------------------------------------------

# copy_step DIRECTORY [PATCH]: copies the step's sources, those in finished/, and the files that task.md names. Applies
# PATCH to the copy.
copy_step()
{
    local directory=$1 change=${2:-} file
    have patch || die "exercises need patch" "apt install patch"
    mkdir -p "$directory"
    for file in "$source"/*.[ch] "$source"/*.sbatch "$exercise"/finished/*.[ch]; do
        [ ! -f "$file" ] || cp "$file" "$directory"
    done
    for file in $(field "$exercise" files); do
        cp "$root/$file" "$directory"
    done
    [ -z "$change" ] || apply "$change" "$directory"
}

# apply PATCH DIRECTORY: patches a copy of the finished program. Removes the copy if the patch does not fit.
apply()
{
    patch -s -f -p1 --no-backup-if-mismatch -r - -d "$2" <"$1" >&2 || {
        rm -rf "$2"
        die "$id: ${1##*/} no longer applies to ${source#"$root"/}" \
            "restore that folder (git diff ${source#"$root"/}), or report this"
    }
}

# The solution is the step itself, or the step with solution.patch.
copy_solution()
{
    local change=$exercise/solution.patch
    [ -f "$change" ] || change=
    copy_step "$1" "$change"
}

# "train.c:98" for each TODO(ID)
places()
{
    (cd "$copy" && grep -nHF "TODO($id)" -- * | sed -E 's/^([^:]+):([0-9]+):.*/\1:\2/') || true
}

difficulty_in_words()
{
    case $(field "$exercise" difficulty) in 1) echo easy ;; 2) echo medium ;; *) echo hard ;; esac
}

# --- the commands -----------------------------------------------------------------------------------

heading() { printf '%s%s: %s%s\n' "$bold" "$id" "$(title_of "$exercise")" "$plain"; }

state_of()
{
    if [ -e "$state/solved" ]; then echo solved; elif [ -d "$copy" ]; then echo started; else echo -; fi
}

# print_rows: a row for each exercise whose folder is read from stdin. Sets solved, count and minutes.
print_rows()
{
    local folder color mark last
    solved=0 count=0 minutes=0
    last=$(current)
    while read -r folder; do
        choose "${folder##*/}"
        case $(state_of) in solved) color=$green solved=$((solved + 1)) ;; started) color=$yellow ;; *) color= ;; esac
        mark=' '
        [ "$id" != "$last" ] || mark='*'
        printf '%s%s %-6s %-7s%s  %-6s  %3s min  %s\n' "$mark" "$color" "$id" "$(state_of)" "$plain" \
            "$(difficulty_in_words)" "$(field "$exercise" minutes)" "$(title_of "$exercise")"
        count=$((count + 1)) minutes=$((minutes + $(field "$exercise" minutes)))
    done
}

cmd_list() # [STEP]
{
    local solved count minutes folder
    [[ ! ${1:-} =~ ^[0-9]$ ]] || set -- "0$1"
    print_rows < <(while read -r folder; do
        choose "${folder##*/}"
        [[ $program != "${1:-}"* ]] || echo "$folder"
    done < <(list_exercises))
    [ $count != 0 ] || die_usage "there are no exercises of step '$1'" "./ddp exercise list"
    echo "$solved of $count solved"
}

# in_plan NAME: the folders of a plan's exercises, in its order. "two" is the second of two days.
in_plan()
{
    local id
    for id in $(awk -v name="$1" '$1 == name' "$plans" | grep -oE '\b[0-9a-z]{2,3}-[0-9]+\b'); do
        find_exercise "$id"
    done
}
chosen_plan() { grep -m 1 -xE 'hour|half|day|two|nccl' "$work/.state/plan" 2>/dev/null || echo day; }
# in_chosen_plan: the same for the plan that the learner chose; for "two", the exercises of both days
in_chosen_plan() { [ "$(chosen_plan)" != two ] || in_plan day; in_plan "$(chosen_plan)"; }

may_not_write() { die "you may not write to $work" "DDP_EXERCISES_WORK=FOLDER chooses a different folder"; }

cmd_plan() # [NAME]
{
    local solved count minutes day days
    if [ -n "${1:-}" ]; then
        { mkdir -p "$work/.state" && echo "$1" >"$work/.state/plan"; } || may_not_write
    fi
    days=$(chosen_plan)
    [ "$days" != two ] || days="day two"
    for day in $days; do
        printf '%s%s%s\n' "$bold" "$(sed -nE "s/^$day +(.*[^ ]) +[0-9]+  .*/\1/p" "$plans")" "$plain"
        print_rows < <(in_plan "$day")
        echo "$solved of $count solved; $minutes minutes"
    done
    exercise=
    say_next
}

cmd_start()
{
    if [ -d "$copy" ]; then
        say "You have already started $id, so your copy was kept. ./ddp exercise reset $id starts again."
    else
        mkdir -p "$work" || may_not_write
        rm -rf "$work/.new-$id"
        copy_step "$work/.new-$id" "$exercise/change.patch"
        { printf '%s\n' -std=gnu11 -D_GNU_SOURCE "-I$root/common" "-I$exercises/gpu" -Wall -Wextra -fopenmp
          mpicc --showme:compile 2>/dev/null | xargs -n 1 || true; } >"$work/.new-$id/$flags"
        mv "$work/.new-$id" "$copy"
    fi
    mkdir -p "$state"
    echo "$id" >"$work/.state/last"
    cmd_task
    [ -f "$build/libddp_cpu.a" ] ||
        say "The first check builds what it needs, which takes some minutes. ./ddp setup builds all steps now."
}

cmd_task()
{
    must_be_begun
    local place
    printf '%s%s: %s%s  (%s, %s minutes)\n\n' "$bold" "$id" "$(title_of "$exercise")" "$plain" \
        "$(difficulty_in_words)" "$(field "$exercise" minutes)"
    task_of "$exercise"
    printf '\nOpen:\n'
    while read -r place; do
        printf '  %s\n' "$(here "$copy")/$place"
    done < <(places)
    printf '\nThen: ./ddp exercise check        If you are stuck: ./ddp exercise hint\n'
}

# This variable marks every process that a check starts, so that all can be found: ranks have their own process groups.
mark=DDP_EXERCISE_RUN=$$-${EPOCHREALTIME//[!0-9]/}
end_left()
{
    local pid
    for pid in $({ grep -lzxF "$mark" /proc/[0-9]*/environ 2>/dev/null || true; } | tr -dc '0-9\n'); do
        kill -KILL "$pid" 2>/dev/null || true
    done
}

# Runs the check. A solved exercise stays solved.
check()
{
    local status=0 result=solved limit=${DDP_EXERCISE_LIMIT:-120} scratch=$work/.build/$id/run
    mkdir -p "$work/.build" "$state"
    rm -rf "$scratch"
    mkdir -p "$scratch"
    trap end_left EXIT
    trap 'exit 143' TERM
    trap 'exit 130' INT
    heading
    env "$mark" timeout --foreground --kill-after=5 "$limit" \
        bash "$root/exercises/check.sh" "$exercise" "$copy" "$build" "$work/.build/$id" || status=$?
    end_left
    case $status in
    0)
        touch "$state/solved"
        printf '%ssolved%s: %s\n\n' "$green" "$plain" "$id"
        section "$exercise" Solved
        printf '\n./ddp exercise answer %s answers the question.\n\n' "$id"
        echo "$(find "$work/.state" -name solved | wc -l) of $(list_exercises | wc -l) solved"
        say_next
        ;;
    1 | 124 | 137)
        result=$(head -1 "$work/.build/$id/wrong" 2>/dev/null || echo "the check did not finish within $limit s")
        [ "$status" = 1 ] || echo "The check did not finish within $limit s."
        printf '%snot yet%s' "$yellow" "$plain"
        if [ -e "$work/.build/$id/not_built" ]; then echo; else echo ": ./ddp exercise hint"; fi
        status=1
        ;;
    130 | 143) exit $status ;;
    *) die "$id: the check itself failed (status $status)" "this is not your mistake: please report it" ;;
    esac
    echo "$result" >"$state/result"
    return $status
}

is_solved() { [ -e "$work/.state/$(id_of "$1")/solved" ]; }

# Prints the folder of the next unsolved exercise. Looks first in the plan after the current exercise, then in the whole
# plan, then in both days, then in all exercises. Prints nothing if all are solved.
next_exercise()
{
    local folder
    while read -r folder; do
        is_solved "$folder" || { echo "$folder"; return; }
    done < <(in_chosen_plan | sed "1,\\|^$exercise\$|d"; in_chosen_plan; in_plan day; in_plan two; list_exercises)
}
say_next()
{
    local next
    next=$(next_exercise)
    [ -z "$next" ] || echo "next: ./ddp exercise start $(id_of "$next")      $(title_of "$next")"
}

cmd_check()
{
    must_be_begun
    # `./ddp exercise check` builds the step first, unless DDP_BUILD is set.
    [ -f "$build/libddp_cpu.a" ] && [ -x "$build/cpu/$program/train" ] && [ -x "$build/cpu/$finished/train" ] ||
        die "the programs of this check are not all in $build" "./ddp setup builds them; or unset DDP_BUILD"
    check
}

# From step 04 on, the learner's launcher starts two ranks. If the step is "none", mpirun does; GPU=real uses GPUs.
cmd_run()
{
    must_be_begun
    local programs=$work/.build/$id
    if [ "$step" = none ] && [ "${GPU:-}" = real ]; then
        build_for_gpus "$programs/real"
        run_mpi "$programs/real" "$@"
    fi
    [ -x "$programs/train" ] || die "your program for $id is not built yet" "./ddp exercise check $id builds it"
    [ "$step" != none ] || run_mpi "$programs/train" "$@"
    if [ -e "$programs/launch" ]; then
        set -- "$programs/launch" --nproc-per-node 2 -- "$programs/train" "$@"
    else
        set -- "$programs/train" "$@"
    fi
    say "$dim$(printf '%q ' "$@")$plain"
    exec "$@"
}

run_mpi()
{
    say "${dim}mpirun -np 2 $(printf '%q ' "$@")$plain"
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    exec mpirun --oversubscribe -np 2 "$@"
}

# build_for_gpus PROGRAM: builds it from the learner's copy, with the libraries that CMake found, or those of CUDA_HOME.
build_for_gpus()
{
    local cuda=${CUDA_HOME:-/usr/local/cuda} include nccl cudart
    include=$(found_by_cmake NCCL_INCLUDE_DIR)
    nccl=$(found_by_cmake NCCL_LIBRARY)
    cudart=$(found_by_cmake CUDA_cudart_LIBRARY)
    mkdir -p "${1%/*}"
    mpicc -std=gnu11 -Wall ${include:+"-I$include"} "-I$cuda/include" "$copy"/*.c -o "$1" "${nccl:--lnccl}" \
        "${cudart:--lcudart}" "-L$cuda/lib64" "-Wl,-rpath,$cuda/lib64:${nccl%/*}" ||
        die "your program cannot be built for GPUs" "this needs the CUDA toolkit and NCCL; see ./ddp doctor"
}
found_by_cmake() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt" 2>/dev/null | grep -v NOTFOUND || true; }

cmd_hint()
{
    must_be_begun
    local given count i
    count=$(hint_count "$exercise")
    given=$(hints_shown)
    given=$((given < count ? given + 1 : count))
    mkdir -p "$state"
    echo $given >"$state/hints"
    heading
    for ((i = 1; i <= given; i++)); do
        [ $i = 1 ] || echo
        section "$exercise" "Hint $i"
    done
    if [ $given -lt "$count" ]; then
        say "${dim}(hint $given of $count; ./ddp exercise hint shows the next)$plain"
    else
        say "${dim}(that was the last hint; ./ddp exercise solution $id shows the solution)$plain"
    fi
}

# diff_copies FOLDER A B: the changes from FOLDER/A to FOLDER/B, which `patch -p1` applies in A
diff_copies()
{
    local skip=(-x '.*' -x '*~' -x '*.orig' -x '*.rej' -x '*.o' -x "$flags")
    { (cd "$1" && diff -d -U3 -r -N "${skip[@]}" "$2/" "$3/") || [ $? = 1 ]; } |
        sed -E -e '/^diff /d' -e 's/^(---|\+\+\+) ([^\t]*)\t.*/\1 \2/'
}

cmd_solution()
{
    must_be_begun
    local made=$work/.build/$id changes
    rm -rf "$made/solution"
    copy_solution "$made/solution"
    ln -sfn "$copy" "$made/yours"
    changes=$(diff_copies "$made" yours solution)
    echo "${changes:-your copy is identical to the solution}"
}

cmd_answer()
{
    must_be_begun
    [ -e "$state/solved" ] || die "$id is not solved yet, so its answer stays hidden" \
        "$(cat "$state/result" 2>/dev/null || echo "there was no check"): ./ddp exercise check $id"
    heading
    section "$exercise" Solved | sed -n 's/.*Question: /Question: /; /^Question: /,$p'
    echo
    section "$exercise" Answer
}

cmd_reset()
{
    must_be_begun
    local answer
    if [ -z "$yes" ]; then
        [ -t 0 ] || die_usage "reset: would delete what you wrote in $(here "$copy")" \
            "to delete it: ./ddp exercise reset $id --yes"
        read -r -p "Delete what you wrote in $(here "$copy")? [y/N] " answer || answer=
        [[ $answer == [yY]* ]] || die "nothing was changed"
    fi
    rm -rf "$copy" "$state" "$work/.build/$id"
    cmd_start
}

# --- the command line --------------------------------------------------------------------------------

# Checks the arguments. Sets command, yes, options (the arguments of cmd_COMMAND) and, if the command is about one
# exercise, what choose sets.
parse()
{
    command=${1:-help} yes='' options=()
    local typed='' unknown=''
    while [ $# -gt 1 ]; do
        shift
        case $command:$1 in
        *:-h | *:--help) command=help ;;
        run:--) options=("${@:2}"); break ;;
        reset:--yes | reset:-y) yes=yes ;;
        *:-*) unknown=$1; break ;;
        *) [ -z "$typed" ] || die_usage "exercise $command: '$1' is one argument too many"
           typed=$1 ;;
        esac
    done
    [[ $command != start || ! $typed =~ ^(0[1-7](_[a-z_]+)?|gpu)$ ]] || command=list
    case $command in
    help | -h | --help) command=help; return ;;
    list) options=("${typed%/}") ;;
    plan)
        [[ $typed =~ ^(|hour|half|day|two|nccl)$ ]] ||
            die_usage "exercise plan: there is no plan '$typed'" "the plans are hour, half, day, two and nccl"
        options=("$typed") ;;
    start | reset) [ -n "$typed" ] || die_usage "exercise $command: which one?" "./ddp exercise list" ;;
    task | check | run | hint | solution | answer) ;;
    *) die_usage "exercise: there is no command '$command'" "./ddp exercise help" ;;
    esac
    [ -z "$unknown" ] || die_usage "exercise $command: unknown option $unknown" "./ddp exercise help"
    [[ $command == @(list|plan|task|answer) || ! -e $work || -w $work ]] || may_not_write
    [[ $command == @(list|plan) ]] || choose "$typed"
}

# `needs ARGUMENTS` is for ./ddp: it checks the arguments and prints the programs that must be built first, if any.
if [ "${1:-}" = needs ]; then
    shift
    parse "$@"
    [ "$command" = check ] || exit 0
    must_be_begun
    [ "$step" != none ] || have mpicc || die "$id needs Open MPI" "./ddp setup installs it"
    # `one`, in exercises/check.sh, runs 01.
    {   ! grep -qwE 'one|know_images' "$exercise/check.sh" || echo 01_single_gpu
        printf '%s\n' "$program" "$finished"
    } | uniq
    exit 0
fi

# exercises/author.sh uses these functions with its own commands.
[ "${1:-}" != functions ] || return 0

parse "$@"
if [ "$command" = help ]; then usage; else "cmd_$command" "${options[@]}"; fi
