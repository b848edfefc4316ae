#!/usr/bin/env bash
# ctest: PROCESSORS 2 TIMEOUT 600 LABELS slow
# The loops of the CPU backend compute with vectors: gcc and clang compile them as the default preset does, and their
# functions may have only a few instructions for single numbers of f32. (Totals are added up in f64, once for 64 rows;
# f16, which no processor here computes with, has the same loops.)
# shellcheck disable=SC2317  # check calls functions
. "$SRC/tests/test.sh"
[ "$(uname -m)" = x86_64 ] || { echo "skipped: it knows only the instructions of x86-64"; exit 77; }

# FUNCTION TYPE COMPILER: how many such instructions it may have, and why. The first row that fits counts.
limits='
add_gradient      BF16 clang  40  where channels are planes, a pack has one number; clang computes only that
gelu              BF16 clang  40  likewise
images            *    *      45  FOR_ROW: the row ends with fewer than 16 numbers
layer_norm        *    *      70  likewise
layer_norm_dx     *    *      95  likewise
judge_row         *    *      30  likewise
maxpool_gradient  *    *      35  blocks of fewer than 16 channels
softmax           *    *      20  once for a row: its largest number, 1 / its sum
softmax_gradient  *    *      20  likewise
*                 *    gcc     5  once for a loop: what all numbers share, such as the learning rate
*                 *    clang  20  likewise; and the one number of packs of planes
'

# objects COMPILER: compiles the loops in $TMP/COMPILER.
objects()
{
    cmake --preset default -S "$SRC" -B "$TMP/$1" -DCMAKE_C_COMPILER="$1" -DDDP_CUDA=OFF -DDDP_MARCH=x86-64-v3 &&
        cmake --build "$TMP/$1" --target ddp_compute_cpu --parallel 2
}

# count COMPILER: prints "N FUNCTION" for each loop over f32 or bf16, with N instructions for single numbers.
count()
{
    local object
    for object in "$TMP/$1"/CMakeFiles/ddp_compute_cpu.dir/common/{ops,cpu}/*.o; do
        objdump -d --no-show-raw-insn "$object"
    done | awk '/^[0-9a-f]+ </ { f = $2; gsub(/[<>:]/, "", f); sub(/\..*/, "", f); loop = f ~ /_(F32|BF16)(_wide)?$/ }
                loop { n[f] += $2 ~ /^v?(add|sub|mul|div|min|max|sqrt|cmp[a-z]*|u?comi)ss$|^vfn?m(add|sub)[0-9]+ss$/ }
                END { for (f in n) print n[f], f }' | sort -k 2
}

# scalar COMPILER <COUNTS: prints the functions with too many. Fails if there are any, or suspiciously few functions.
scalar()
{
    awk -v compiler="$1" -v limits="$limits" '
        BEGIN { rows = split(limits, row, "\n") }
        function fits(pattern, word) { return pattern == "*" || pattern == word }
        { match($2, /_(F32|BF16)(_wide)?$/)
          fn = substr($2, 1, RSTART - 1); type = substr($2, RSTART + 1); sub(/_wide/, "", type)
          for (i = 1; i <= rows; i++)
              if (split(row[i], word, " ") > 4 && fits(word[1], fn) && fits(word[2], type) && fits(word[3], compiler))
                  break
          if (i > rows || $1 > word[4]) {
              print "    " $2 ": " $1 " instructions for single numbers, more than " word[4]
              bad = 1
          } }
        END { if (NR < 100) print "    only " NR " loops were found"
              exit bad || NR < 100 }'
}

for name in gcc clang; do
    if ! type -P "$name" >/dev/null; then
        echo "skipped: $name is not installed"
        continue
    fi
    if ! objects "$name" >"$TMP/output" 2>&1; then
        if [ $name = clang ] && grep -q "has no OpenMP" "$TMP/output"; then
            echo "skipped: $name has no OpenMP"
        else
            not_so "$name compiles the loops"
        fi
        continue
    fi
    : >"$TMP/output"
    count $name >$name.counts
    echo "$name: $(wc -l <$name.counts) loops"
    check "$name makes vector code of all loops" scalar $name <$name.counts
    cat "$TMP/checked"
done

test_done
