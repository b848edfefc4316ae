#!/usr/bin/env bash
# Runs tools/check_series.sh, which also compares the pages with the code, on the steps, and on a copy of two steps with
# mistakes. Also tests ./ddp diff.
# shellcheck disable=SC2016,SC2317  # a $ in single quotes is for sed; functions are called by expect
. "$SRC/tests/test.sh"

check_series() { "$SRC/tools/check_series.sh" "$@"; }
readme_diff() { "$SRC/tools/readme_diff.sh" "$@"; }

expect 0 " lines to read in all" check_series "$SRC"
cat "$TMP/output"
changes=$(sed -n 's/^04_ddp_launcher to 05_ddp_amp: train.c \(.*\); .*/\1/p' "$TMP/output")

make_series()
{
    cd "$TMP" && rm -rf s && mkdir s && cd s || exit 1
    cp -r "$SRC"/0[45]_* .
    ln -s "$SRC/docs" .
}

# mistake TEXT COMMAND...: the command makes a mistake in the series, and check_series prints TEXT.
mistake()
{
    make_series
    "${@:2}" || not_so "could spoil the series: ${*:2}"
    expect 1 "$1" check_series .
}
spoil() { sed -i "$@"; }
more_lines() { yes "int i;" | head -"$1" >>"$2"; }
long_reading() { for file in a b c; do more_lines 300 "05_ddp_amp/$file.c"; done; }

make_series
expect 0 "04_ddp_launcher to 05_ddp_amp: train.c $changes; " check_series .
mistake "05_ddp_amp/sampler.c:1: must be the same as 04_ddp_launcher/sampler.c" spoil '1s/$/ /' 05_ddp_amp/sampler.c
mistake " hunks: at most " more_lines 60 05_ddp_amp/train.c
mistake "05_ddp_amp/long.c:350: a file beside train.c" more_lines 351 05_ddp_amp/long.c
mistake " lines to read that are not in 04_ddp_launcher: at most " long_reading
mistake ":#  ifdef CUDA: no #if in a step" spoil '$a #  ifdef CUDA' 05_ddp_amp/train.c
mistake "05_ddp_amp/README.md: out of date" spoil 's/amp_unscale(/amp_divide(/' 05_ddp_amp/train.c

make_series
printf '%s\n' '<!-- quote: 05_ddp_amp/sampler.h /Sampler/ /;/ -->' 'old' '<!-- quote end -->' >page.md
expect 1 "page.md: out of date" readme_diff --check .
expect 0 "written: page.md" readme_diff .
expect 0 "" readme_diff --check .
ddp_diff() { "$SRC/ddp" diff "$@"; }
expect 0 "new in 05_ddp_amp: accumulate.c (" ddp_diff 04 05
check "the summary comes last" grep -qxF "train.c: $changes" <(tail -1 "$TMP/output")

test_done
