#!/usr/bin/env bash
# exercise.sh - ./ddp exercise: a step with a piece taken out, or a mistake put in, to be mended in a copy.
#
# exercises/ID_name/ holds an exercise: task.md, change.patch (from the step to the exercise), and check.sh, which
# exercises/check.sh runs. exercises-work/ is the learner's: a copy of the step in ID/, and what is known about it
# in .state/ID/; what is compiled and written by a check lies in .build/ID/.
#
# DDP_BUILD: the build to link with (build/); DDP_EXERCISES, DDP_EXERCISES_WORK: other places for these two.
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
root=${self%/tools/*}
# shellcheck source=tools/shell.sh
. "$root/tools/shell.sh"
exercises=${DDP_EXERCISES:-$root/exercises}
work=${DDP_EXERCISES_WORK:-$root/exercises-work}
build=${DDP_BUILD:-$root/build}
[ -t 1 ] || bold='' dim='' red='' green='' yellow='' plain=''

usage()
{
    cat <<'END'
./ddp exercise - a mistake to find or a piece to write, in a copy of a step; the check runs your program

  exercise list             all of them, and how far you are
  exercise start ID         begin: copies the step to exercises-work/ID, shows the task
  exercise check [ID]       does it do what it should? Shows what was expected and what was found
  exercise watch [ID]       the same each time you save a file, until Ctrl-C
  exercise hint [ID]        the first hint; asked again, the second
  exercise solution [ID]    the difference between your copy and the solution
  exercise reset ID [--yes] throw your copy away, and begin anew

Without ID it is the one that you began last.
END
}

# Paths as one would type them from here.
here() { [[ $1 == "$PWD"/* ]] && echo "${1#"$PWD"/}" || echo "$1"; }

# --- what an exercise says about itself -------------------------------------------------------------

list_exercises() { find "$exercises" -mindepth 2 -maxdepth 2 -name task.md -printf '%h\n' | LC_ALL=C sort -V; }
id_of() { local name=${1##*/}; echo "${name%%_*}"; }
title_of() { sed -n '1s/^# *//p' "$1/task.md"; }
# field EXERCISE step|difficulty|minutes: from the list below the title
field() { sed -n "/^## /q; s/^- $2: *//p" "$1/task.md" | head -1; }
# The text between that list and the first hint; or hint 1 or 2.
task_of() { awk '/^## /{ exit } /^- [a-z]+: / || NR == 1 { next } { print }' "$1/task.md" | trim; }
hint_of() { awk -v want="## Hint $2" '/^## /{ on = $0 == want; next } on' "$1/task.md" | trim; }
trim() { awk 'NF { for (; blank > 0; blank--) if (some) print ""; blank = 0; some = 1; print; next } { blank++ }'; }

# The names that are nearest to what was typed (edit distance), one of them.
nearest()
{
    list_exercises | awk -F/ -v typed="$1" '
        function least(a, b, c) { if (b < a) a = b; return c < a ? c : a }
        function distance(a, b,    i, j, d) {
            for (i = 0; i <= length(a); i++) d[i, 0] = i
            for (j = 0; j <= length(b); j++) d[0, j] = j
            for (i = 1; i <= length(a); i++) for (j = 1; j <= length(b); j++)
                d[i, j] = least(d[i - 1, j] + 1, d[i, j - 1] + 1,
                                d[i - 1, j - 1] + (substr(a, i, 1) != substr(b, j, 1)))
            return d[length(a), length(b)]
        }
        {
            id = name = $NF; sub(/_.*/, "", id); sub(/^[^_]*_/, "", name)
            n = least(distance(typed, id), distance(typed, name), distance(typed, $NF))
            if (NR == 1 || n < best) { best = n; found = $NF }
        }
        END { print found }'
}

# 03-1, 3-1, 03-1_set_epoch, set_epoch or a path that ends so -> the exercise's folder
find_exercise()
{
    local typed=${1%/} folder near
    typed=${typed##*/}
    [[ $typed =~ ^[0-9]-[0-9]+ ]] && typed=0$typed
    while read -r folder; do
        case ${folder##*/} in
        "$typed" | "$typed"_* | *-*_"$typed") [ -z "$typed" ] || { echo "$folder"; return; } ;;
        esac
    done < <(list_exercises)
    near=$(nearest "$typed")
    [ -n "$near" ] || die_usage "there are no exercises in $exercises"
    die_usage "there is no exercise '$1'" \
        "the nearest is ${near%%_*} ($(title_of "$exercises/$near")); ./ddp exercise list"
}

# Sets what everything below is about: exercise (its folder), id, step, copy, state.
choose()
{
    local typed=${1:-}
    if [ -z "$typed" ]; then
        typed=$(cat "$work/.state/last" 2>/dev/null || true)
        [ -n "$typed" ] || die_usage "which exercise? None was begun yet" "./ddp exercise list"
    fi
    exercise=$(find_exercise "$typed")
    id=$(id_of "$exercise")
    step=$(field "$exercise" step)
    copy=$work/$id
    state=$work/.state/$id
    [ -f "$root/$step/train.c" ] || die "$exercise/task.md: there is no step '$step'"
}

must_be_begun() { [ -d "$copy" ] || die_usage "$id was not begun yet" "./ddp exercise start $id"; }

# --- copies -----------------------------------------------------------------------------------------

# copy_step DIRECTORY [PATCH]: what the step is made of, changed so. What builds it alone is left behind: a check does.
copy_step()
{
    local directory=$1 change=${2:-} file
    mkdir -p "$directory"
    for file in "$root/$step"/*.[ch] "$root/$step"/*.sbatch; do
        [ ! -f "$file" ] || cp "$file" "$directory"
    done
    [ -n "$change" ] || return 0
    if have patch; then
        patch -s -f -p1 --no-backup-if-mismatch -r - -d "$directory" <"$change" >"$directory/.log" 2>&1
    else
        (cd "$directory" && GIT_CEILING_DIRECTORIES=${directory%/*} git apply "$change" >.log 2>&1)
    fi || { cat "$directory/.log" >&2
            rm -rf "$directory"
            die "$id: its change does not fit $step any more" "git pull may bring a newer one; else please report it"; }
    rm -f "$directory/.log"
}

# The finished program: the step itself, or the step with solution.patch where the step does not have the piece.
copy_solution()
{
    local change=$exercise/solution.patch
    [ -f "$change" ] || change=
    copy_step "$1" "$change"
}

# "train.c:98", each place that says TODO(ID).
places()
{
    (cd "$copy" && grep -nHF "TODO($id)" -- * | sed -E 's/^([^:]+):([0-9]+):.*/\1:\2/') || true
}

show_task()
{
    local place
    printf '%s%s: %s%s  (%s, %s minutes)\n\n' "$bold" "$id" "$(title_of "$exercise")" "$plain" \
        "$(difficulty_in_words)" "$(field "$exercise" minutes)"
    task_of "$exercise"
    printf '\n%s\n' "Open:"
    while read -r place; do
        printf '  %s\n' "$(here "$copy")/$place"
    done < <(places)
    printf '\n%s\n' "Then: ./ddp exercise check $id      stuck: ./ddp exercise hint $id"
}

difficulty_in_words()
{
    case $(field "$exercise" difficulty) in 1) echo easy ;; 2) echo medium ;; *) echo hard ;; esac
}

# --- the commands -----------------------------------------------------------------------------------

state_of()
{
    if [ ! -d "$copy" ]; then echo "not begun"; elif [ -e "$state/solved" ]; then echo solved; else echo begun; fi
}

cmd_list()
{
    local folder color solved=0 count=0
    while read -r folder; do
        choose "${folder##*/}"
        case $(state_of) in solved) color=$green solved=$((solved + 1)) ;; begun) color=$yellow ;; *) color= ;; esac
        printf '%s%-6s %-9s%s  %-6s  %3s min  %s\n' "$color" "$id" "$(state_of)" "$plain" "$(difficulty_in_words)" \
            "$(field "$exercise" minutes)" "$(title_of "$exercise")"
        count=$((count + 1))
    done < <(list_exercises)
    echo "$solved of $count solved"
}

cmd_start()
{
    if [ -d "$copy" ]; then
        say "$id was begun already: your copy stays as it is (./ddp exercise reset $id begins anew)"
    else
        mkdir -p "$work"
        rm -rf "$work/.new-$id"
        copy_step "$work/.new-$id" "$exercise/change.patch"
        mv "$work/.new-$id" "$copy"
        rm -rf "$state"
    fi
    mkdir -p "$state"
    echo "$id" >"$work/.state/last"
    show_task
    [ -f "$build/libddp_cpu.a" ] ||
        say "(The first check builds everything, which takes some minutes; ./ddp setup does it now.)"
}

# Every process that a check starts has this in its environment: ranks have process groups of their own.
mark=DDP_EXERCISE_RUN=$$-${EPOCHREALTIME//[!0-9]/}
end_left()
{
    local pid
    for pid in $({ grep -lzxF "$mark" /proc/[0-9]*/environ 2>/dev/null || true; } | tr -dc '0-9\n'); do
        kill -KILL "$pid" 2>/dev/null || true
    done
}

# Runs the check, and remembers how it went.
check()
{
    local status=0 limit=${DDP_EXERCISE_LIMIT:-120} scratch=$work/.build/$id/run
    mkdir -p "$work/.build" "$state"
    exec 9>"$work/.build/$id.lock"
    flock -n 9 || { say "another check of $id is under way: waiting for it"; flock 9; }
    rm -rf "$scratch"
    mkdir -p "$scratch"
    trap end_left EXIT
    trap 'exit 143' TERM
    trap 'exit 130' INT
    heading
    env "$mark" timeout --foreground --kill-after=5 "$limit" \
        bash "$root/exercises/check.sh" "$exercise" "$copy" "$build" "$work/.build/$id" 9>&- || status=$?
    end_left
    case $status in
    0)
        touch "$state/solved"
        printf '%ssolved%s: %s\n' "$green" "$plain" "$id"
        say_next
        ;;
    1 | 124 | 137)
        rm -f "$state/solved"
        [ "$status" = 1 ] || echo "The check was not done after $limit s."
        printf '%snot yet%s: ./ddp exercise hint %s\n' "$yellow" "$plain" "$id"
        status=1
        ;;
    130 | 143) exit $status ;;
    *) die "$id: the check itself failed (status $status)" "this is not your mistake: please report it" ;;
    esac
    return $status
}

heading() { printf '%s%s: %s%s\n' "$bold" "$id" "$(title_of "$exercise")" "$plain"; }

# An exercise that is not solved yet: the first behind this one, or else the first of all.
say_next()
{
    local folder next='' first='' behind=
    while read -r folder; do
        if [ "$folder" = "$exercise" ]; then
            behind=yes
        elif [ ! -e "$work/.state/$(id_of "$folder")/solved" ]; then
            [ -n "$first" ] || first=$folder
            [ -n "$next" ] || [ -z "$behind" ] || next=$folder
        fi
    done < <(list_exercises)
    next=${next:-$first}
    if [ -z "$next" ]; then
        echo "All exercises are solved."
    else
        echo "next: ./ddp exercise start $(id_of "$next")      $(title_of "$next")"
    fi
}

cmd_check()
{
    must_be_begun
    must_be_built
    check
}

# What the learner's files are linked with. ./ddp brings it up to date before it calls this script.
must_be_built()
{
    { [ -f "$build/libddp_cpu.a" ] && [ -x "$build/cpu/$step/train" ]; } ||
        die "nothing is built in $build yet" "./ddp setup does that"
}

# No inotify: the times of the files are looked at twice a second, and again before they are believed.
file_times() { find "$copy" -type f ! -name '.*' ! -name '*~' -printf '%p %s %T@\n' | sort; }

cmd_watch()
{
    local seen='' now
    must_be_begun
    must_be_built
    trap 'echo; exit 130' INT
    trap 'exit 143' TERM
    while :; do
        now=$(file_times)
        if [ "$now" != "$seen" ]; then
            sleep 0.2
            [ "$now" = "$(file_times)" ] || continue
            seen=$now
            ! [ -t 1 ] || printf '\e[2J\e[H'
            (check) || [ $? = 1 ] || exit
            echo "(watching $(here "$copy"); Ctrl-C ends)"
        fi
        sleep 0.5
    done
}

cmd_hint()
{
    must_be_begun
    local given
    mkdir -p "$state"
    given=$(cat "$state/hints" 2>/dev/null || echo 0)
    given=$((given < 2 ? given + 1 : 2))
    echo $given >"$state/hints"
    heading
    hint_of "$exercise" 1
    if [ $given = 1 ]; then
        say "${dim}(there is a second hint: ask again)$plain"
    else
        echo
        hint_of "$exercise" 2
        say "${dim}(there are no more; ./ddp exercise solution $id shows the solution)$plain"
    fi
}

cmd_solution()
{
    must_be_begun
    local solution=$work/.build/$id/solution status=0
    rm -rf "$solution"
    copy_solution "$solution"
    local ours=(-r -x '.*' -x '*~' -x '*.orig' -x '*.rej' -x '*.o')
    if diff -q "${ours[@]}" "$copy" "$solution" >/dev/null; then
        echo "your copy is the solution, to the letter"
        return
    fi
    # As a diff of files that are called as in the step, so that `patch -p1` in the copy takes it.
    ln -sfn "$copy" "$solution.yours"
    (cd "$work/.build/$id" && diff -d -u -N "${ours[@]}" solution.yours/ solution/) |
        sed -E -e '/^diff /d' -e 's/^--- solution.yours\/([^\t]*).*/--- yours\/\1/' \
            -e 's/^\+\+\+ solution\/([^\t]*).*/+++ solution\/\1/' || status=$?
    rm -f "$solution.yours"
    [ $status -le 1 ]
}

cmd_reset()
{
    must_be_begun
    local answer
    if [ -z "$yes" ]; then
        [ -t 0 ] || die_usage "reset: throws away what you wrote in $(here "$copy")" \
            "./ddp exercise reset $id --yes does it without a question"
        read -r -p "Throw away what you wrote in $(here "$copy")? [y/N] " answer
        [[ $answer == [yY]* ]] || die "nothing was changed"
    fi
    rm -rf "$copy" "$state" "$work/.build/$id"
    cmd_start
}

# --- what was asked for ------------------------------------------------------------------------------

# The words, looked through before anything is done.
parse()
{
    command=${1:-help} yes=''
    [ $# = 0 ] || shift
    local word typed=
    case $command in
    help | -h | --help) command=help; return ;;
    list | start | check | watch | hint | solution | reset) ;;
    *) die_usage "exercise: there is no command '$command'" "./ddp exercise help" ;;
    esac
    for word; do
        case $word in
        --yes | -y)
            [ "$command" = reset ] || die_usage "exercise $command: unknown option $word"
            yes=yes
            ;;
        -h | --help) command=help; return ;;
        -*) die_usage "exercise $command: unknown option $word" "./ddp exercise help" ;;
        *)
            [ -z "$typed" ] || die_usage "exercise $command: one exercise at a time, not '$word'"
            typed=$word
            ;;
        esac
    done
    case $command in
    list) [ -z "$typed" ] || die_usage "exercise list: takes no arguments" ;;
    start | reset)
        [ -n "$typed" ] || die_usage "exercise $command: which one?" "./ddp exercise list"
        choose "$typed"
        ;;
    *) choose "$typed" ;;
    esac
}

# For ./ddp: is anything wrong with these words? And which step must be built before they are followed?
if [ "${1:-}" = needs ]; then
    shift
    parse "$@"
    case $command in check | watch) must_be_begun; echo "$step" ;; esac
    exit 0
fi

# For exercises/author.sh, which has other words for the same things.
[ "${1:-}" != functions ] || return 0

parse "$@"
if [ "$command" = help ]; then usage; else "cmd_$command"; fi
