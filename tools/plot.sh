#!/usr/bin/env bash
# plot.sh - pictures of runs:
#
#   ./ddp plot [-o FILE.svg|FILE.png] [--text] RUN.jsonl...
#       Loss and accuracy, as their --metrics files tell them, in one picture (runs.svg). Without gnuplot,
#       or with --text, in the terminal. Thin lines are training batches (means of them where there are
#       many), points are the test set after each epoch.
#
#   ./ddp plot [-o FILE.svg] [--span NAME] [--step N] [--steps K] RUN.json
#       What ran when, as a --trace file tells it: a training step (timeline.svg), with a lane for each
#       thread. Step N and, with K, those behind it; a typical one if there is no N. With NAME it is a span
#       of that name: --span evaluate.
#
#   ./ddp plot [-o FILE.svg|FILE.png] CONFUSION.csv
#       Which classes are taken for which, as a --confusion file tells it (confusion.svg).
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
. "$root/tools/shell.sh"

# Makes $tmp/N.train and $tmp/N.test of the N-th run: epochs, loss, accuracy in percent.
#
# A run that was resumed tells some steps twice: the last word counts. A run that was killed may end in
# the middle of a line: half a line is no event. At most 150 training points stay: each a mean of
# neighbours.
read_run()
{
    local file=$1 out=$2
    awk -v out="$out" '
        function number(key) {                      # the value of "key", or "" if it has none
            if (!match($0, "\"" key "\":-?[0-9][0-9.eE+-]*"))
                return ""
            return substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
        }
        function tell(file, x, loss, acc) {
            if (x != "" && loss != "" && acc != "")
                printf "%.6f %s %s %d\n", x, loss, acc, NR > file
        }
        !/}$/ { next }
        /^{"event":"step",/ && number("steps") > 0 {
            tell(out ".steps", number("epoch") - 1 + number("step") / number("steps"), number("loss"),
                 number("acc"))
        }
        /^{"event":"epoch",/ { tell(out ".epochs", number("epoch"), number("test_loss"), number("top1")) }
    ' "$file"
    touch "$out.steps" "$out.epochs"
    last_word "$out.steps" | awk '
        { x[NR] = $1; loss[NR] = $2; acc[NR] = $3 }
        END {
            per = int((NR + 149) / 150)
            for (i = 1; i <= NR; i += n) {
                sx = sl = sa = 0
                for (n = 0; n < per && i + n <= NR; n++) {
                    sx += x[i + n]; sl += loss[i + n]; sa += acc[i + n]
                }
                printf "%.6f %.6g %.6g\n", sx / n, sl / n, sa / n
            }
        }' >"$out.train"
    last_word "$out.epochs" | cut -d' ' -f1-3 >"$out.test"
    [ -s "$out.train" ] || [ -s "$out.test" ] ||
        die "$file: no steps and no epochs in it" "make one with --metrics FILE"
}
last_word() { sort -k1,1g -k4,4n "$1" | awk 'NR > 1 && $1 != x { print line } { x = $1; line = $0 } END { if (NR) print line }'; }

# In the terminal: one chart of column 2 (loss) or 3 (accuracy). a, b, ... train; A, B, ... test.
text_chart()
{
    local title=$1 column=$2 width=$3 height=$4 i
    for i in "${!runs[@]}"; do
        awk -v run="$i" -v column="$column" '{ print run, "train", $1, $column }' "$tmp/$i.train"
        awk -v run="$i" -v column="$column" '{ print run, "test", $1, $column }' "$tmp/$i.test"
    done | awk -v title="$title" -v width="$width" -v height="$height" '
        BEGIN { small = "abcdefghijklmnopqrstuvwxyz"; large = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" }
        {
            mark[NR] = substr($2 == "train" ? small : large, $1 % 26 + 1, 1)
            x[NR] = $3; y[NR] = $4
            if (NR == 1) { top = bottom = $4; right = $3 }
            if ($4 > top) top = $4
            if ($4 < bottom) bottom = $4
            if ($3 > right) right = $3
        }
        END {
            if (top == bottom) { top += 1; bottom -= 1 }
            if (right <= 0) right = 1
            for (i = 1; i <= NR; i++) {             # training first, so that test stands above it
                c = int(x[i] / right * (width - 1) + 0.5)
                r = int((top - y[i]) / (top - bottom) * (height - 1) + 0.5)
                if (!((r, c) in cell) || mark[i] ~ /[A-Z]/)
                    cell[r, c] = mark[i]
            }
            printf "%s\n", title
            for (r = 0; r < height; r++) {
                line = ""
                for (c = 0; c < width; c++)
                    line = line ((r, c) in cell ? cell[r, c] : " ")
                sub(/ +$/, "", line)
                label = r % 5 == 0 || r == height - 1
                printf label ? "%9.3f |%s\n" : "%9s |%s\n",
                       label ? top - r * (top - bottom) / (height - 1) : "", line
            }
            line = sprintf("%" width "s", ""); gsub(/ /, "-", line)
            printf "%9s +%s\n%9s  0%*.4g epochs\n\n", "", line, "", width - 8, right
        }'
}

text()
{
    local i width=${COLUMNS:-$(tput cols 2>/dev/null || echo 80)}
    width=$((width < 40 ? 28 : width > 112 ? 100 : width - 12))
    text_chart "loss" 2 $width 16
    text_chart "accuracy, %" 3 $width 16
    for i in "${!runs[@]}"; do
        awk -v run="$i" -v name="${runs[i]}" '
            FILENAME ~ /train$/ { loss = $2; acc = $3; train = 1 }
            FILENAME ~ /test$/ { test_loss = $2; top1 = $3; test = 1 }
            END {
                printf "%s %s:", substr("abcdefghijklmnopqrstuvwxyz", run % 26 + 1, 1), name
                if (train) printf " at the end loss %.3f, accuracy %.2f %%", loss, acc
                if (test) printf "; on the test set (%s) %.3f, %.2f %%",
                    substr("ABCDEFGHIJKLMNOPQRSTUVWXYZ", run % 26 + 1, 1), test_loss, top1
                print ""
            }' "$tmp/$i.train" "$tmp/$i.test"
    done
}

# A gnuplot string: in single quotes, where only the single quote itself is special.
gnuplot_quoted() { printf "'%s'" "${1//\'/\'\'}"; }

picture()
{
    local terminal i column lines
    case $output in
    *.svg) terminal='svg size 960,380 dynamic enhanced background rgb "white" font "sans,12"' ;;
    *.png) terminal='pngcairo size 1200,475 font "sans,11"' ;;
    *) die_usage "plot: -o FILE.svg or FILE.png, not $output" ;;
    esac
    {
        echo "set terminal $terminal"
        echo "set output $(gnuplot_quoted "$tmp/picture")"
        echo "set multiplot layout 1,2"
        echo "set grid lc rgb '#dddddd' lt 1; set border 3 lc rgb '#666666'; set tics nomirror"
        echo "set xlabel 'epoch'; set xrange [0:*]"
        for column in 2 3; do
            [ $column = 2 ] && echo "set title 'loss'; set key top right" ||
                echo "set title 'accuracy, %'; set key bottom right"
            lines=()
            for i in "${!runs[@]}"; do
                [ -s "$tmp/$i.train" ] && lines+=("$(gnuplot_quoted "$tmp/$i.train") using 1:$column with lines lw 1.5 lc $((i + 1)) title $(gnuplot_quoted "${names[i]}") noenhanced")
                [ -s "$tmp/$i.test" ] && lines+=("$(gnuplot_quoted "$tmp/$i.test") using 1:$column with points pt 7 ps 0.7 lc $((i + 1)) title $(gnuplot_quoted "${names[i]}, test") noenhanced")
            done
            printf 'plot '
            (IFS=,; echo "${lines[*]}")
        done
    } >"$tmp/script"
    run gnuplot "$tmp/script" || die "gnuplot could not draw it" "./ddp plot --text ..."
    mv "$tmp/picture" "$output" || die "$output cannot be written"
    say "$output"
}

# --- timelines -----------------------------------------------------------------------------------------

# What a file is, by its first bytes: runs, timeline, confusion or nothing that we know.
kind_of()
{
    local begin=''
    IFS= read -r -n 9 begin <"$1" || true
    case $begin in
    '{"event":') echo runs ;;
    '['*) echo timeline ;;
    label,*) echo confusion ;;
    *) die "$1: neither the numbers of a run nor a timeline nor a confusion matrix" \
        "train with --metrics RUN.jsonl, --trace RUN.json or --confusion FILE.csv" ;;
    esac
}

timeline()
{
    local said status=0 what="training steps"
    [ -z "$span" ] || what="spans '$span'"
    [ ${#runs[@]} = 1 ] || die_usage "plot: one timeline at a time, and nothing with it"
    [ $text = no ] || die_usage "plot: --text is for --metrics files; a timeline is a picture"
    case $output in *.svg) ;; *) die_usage "plot: a timeline is drawn as FILE.svg, not '$output'" ;; esac
    export LC_ALL=C                             # a point in numbers, not a comma
    awk -f "$root/tools/spans.awk" "${runs[0]}" |
        sort -t "$(printf '\t')" -k1,1n -k3,3n -k5,5n -k6,6nr -s >"$tmp/spans"
    said=$(awk -v step="${step:-0}" -v steps="${steps:-1}" -v unit="$span" -v picture="$tmp/picture" \
        -f "$root/tools/svg.awk" -f "$root/tools/timeline.awk" "$tmp/spans") || status=$?
    case $status in
    0) ;;
    3) die "${runs[0]}: there are no spans in it" "make one with --trace FILE" ;;
    4) die "${runs[0]}: not that many $what: it has $said" ;;
    *) die "${runs[0]}: awk could not draw it" ;;
    esac
    { cat "$tmp/picture" >"$output"; } 2>/dev/null || die "$output cannot be written"
    say "$output: $said"
}

# --- confusion matrices --------------------------------------------------------------------------------

confusion()
{
    local said status=0
    [ ${#runs[@]} = 1 ] || die_usage "plot: one confusion matrix at a time, and nothing with it"
    [ $text = no ] || die_usage "plot: --text is for --metrics files; a confusion matrix is a picture"
    [[ $output = *.svg ]] || have rsvg-convert ||
        die "there is no rsvg-convert, which makes a PNG of it" "apt install librsvg2-bin, or -o FILE.svg"
    export LC_ALL=C
    said=$(awk -v picture="$tmp/picture" -f "$root/tools/svg.awk" -f "$root/tools/confusion.awk" \
        <"${runs[0]}") || status=$?
    case $status in
    0) ;;
    3) die "${runs[0]}: $said" "--confusion FILE writes one" ;;
    *) die "${runs[0]}: awk could not draw it" ;;
    esac
    if [[ $output = *.png ]]; then
        run rsvg-convert --background-color white --zoom 2 -o "$tmp/png" "$tmp/picture" ||
            die "rsvg-convert could not draw it" "./ddp plot -o FILE.svg ..."
        mv "$tmp/png" "$tmp/picture"
    fi
    { cat "$tmp/picture" >"$output"; } 2>/dev/null || die "$output cannot be written"
    say "$output: $said"
}

output='' text=no step='' steps='' span='' runs=()
while [ $# -gt 0 ]; do
    case $1 in
    -o) [ $# -gt 1 ] || die_usage "plot: -o needs a file name"; output=$2; shift ;;
    --text) text=yes ;;
    --step | --steps)
        [[ ${2:-} =~ ^[1-9][0-9]{0,8}$ ]] || die_usage "plot: $1 needs a number from 1 on"
        [ "$1" = --step ] && step=$2 || steps=$2
        shift ;;
    --span)
        [[ ${2:-} =~ ^[A-Za-z0-9_][A-Za-z0-9_\ .]*$ ]] || die_usage "plot: --span needs a name, like evaluate"
        span=$2
        shift ;;
    -*) die_usage "plot: unknown option $1" ;;
    *) runs+=("$1") ;;
    esac
    shift
done
[ ${#runs[@]} -gt 0 ] || die_usage "plot: which runs?" "train with --metrics RUN.jsonl, then ./ddp plot RUN.jsonl"
case $output in '' | *.svg | *.png) ;; *) die_usage "plot: -o is FILE.svg or FILE.png, not '$output'" ;; esac

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT
names=() kind=''
for i in "${!runs[@]}"; do
    [ -f "${runs[i]}" ] || die "${runs[i]}: no such file"
    kind=$(kind_of "${runs[i]}")
    [ "$kind" = runs ] || break
done
if [ "$kind" = timeline ]; then
    output=${output:-timeline.svg}
    timeline
    exit
fi
[ -z "$step$steps$span" ] || die_usage "plot: --span, --step and --steps are for timelines (--trace)"
if [ "$kind" = confusion ]; then
    output=${output:-confusion.svg}
    confusion
    exit
fi
output=${output:-runs.svg}
for i in "${!runs[@]}"; do
    read_run "${runs[i]}" "$tmp/$i"
    name=${runs[i]##*/}
    names+=("${name%.jsonl}")
done
if [ $text = no ] && ! have gnuplot; then
    hint "for a picture: apt install gnuplot-nox"
    text=yes
fi
if [ $text = yes ]; then text; else picture; fi
