#!/usr/bin/env bash
# ctest: PROCESSORS 2
# A language model in all programs: 07's numbers do not depend on the number of ranks, and ./ddp say's program prints
# text. A checkpoint of another text or network is refused.
# shellcheck disable=SC2317  # expect calls functions
. "$SRC/tests/test.sh"
one=$BUILD/01_single_gpu/train

cat "$SRC"/docs/*.md | head -c 12000 >pages.txt
sizes=(--layers 2 --heads 2 --width 32 --block 16)
small=(-a gpt --data text:pages.txt "${sizes[@]}" -b 24 --threads 1 -j 1 --dropout 0.1 --seed 3 -p 1 --epochs 2)

expect 0 "" "$one" -a gpt --data shakespeare --epochs 3 --help all
for option in optim=adamw lr=0.001 wd=0.01 block=64 layers=4 epochs=3; do
    check "defaults of a gpt: $option" grep -qE -- "--${option%=*} [^[]*\\[${option#*=}\\]" <(tr -s ' \n' ' ' <output)
done

windows="674 + 74 windows of 16 bytes"
for name in 01_single_gpu 02_data_parallel 03_ddp_fork 04_ddp_launcher 05_ddp_amp 06_slurm 07_dist_eval; do
    run=("$BUILD/$name/train" "${small[@]}" --epochs 1)
    [ $name = 02_data_parallel ] && run+=(--devices 2)
    [ $name = 03_ddp_fork ] && run+=(-n 2)
    [[ $name != 0[567]* ]] || run+=(--amp off)
    expect 0 "$windows | global batch" "${run[@]}" --save $name.st
    check "$name: it tests 74 * 16 bytes" grep -qE "== test: .* \| 1184 bytes$" output
    expect 0 "| 1184 bytes" "${run[@]}" -e --init $name.st
done

tr a '\001' <pages.txt >other.txt
tr -d 'xyz' <pages.txt >fewer.txt
for wrong in "other.txt --init" "fewer.txt -e --init" "other.txt --resume"; do
    # shellcheck disable=SC2086  # several words
    expect 1 "its ddp.vocabulary is" "$one" "${small[@]}" --epochs 2 --data text:$wrong 01_single_gpu.st
done
expect 1 "its ddp.heads is '2', but must be '4'" "$one" "${small[@]}" --heads 4 -e --init 01_single_gpu.st
expect 1 "use the options of the run that saved it (--arch" \
    "$one" "${small[@]}" --block 8 -e --init 01_single_gpu.st

for n in 1 3; do
    expect 0 "== test" "$BUILD/07_dist_eval/launch" -n $n -- "$BUILD/07_dist_eval/train" "${small[@]}" -b 10 --amp off \
        -e --init 01_single_gpu.st --per-class --predictions $n.csv --show-naive
    grep -E '== (test|[0-9]+ )' output >$n.out
    check "$n ranks: the numbers of one" cmp $n.out 1.out
    check "$n ranks: the predictions of one" cmp $n.csv 1.csv
done
check "each character is predicted" test "$(wc -l <1.csv)" = 1185

# A network that has learned "0123456789\n" by heart predicts the next character, wherever its window begins.
for _ in {1..400}; do seq -s '' 0 9; done >digits.txt
expect 0 "weight hash" "$one" -a gpt --data text:digits.txt --layers 1 --heads 2 --width 16 --block 12 -b 16 \
    --epochs 12 --threads 1 --lr 0.01 --save digits.st
say() { "$BUILD/say" "$@"; }
expect 0 "" say --threads 1 --prompt 456 --count 3 --temperature 0 digits.st
check "what it learned" diff "$TMP/output" <(printf '456789\n0123456789\n0123456789\n')

for seed in 0 0 1; do
    expect 0 "" say --threads 1 --seed $seed --count 5 --temperature 2 01_single_gpu.st
    mv output said.$((n++)).$seed
done
check "the same seed, the same text" cmp said.3.0 said.4.0
check "another seed, another text" not cmp -s said.3.0 said.5.1

test_done
