#!/usr/bin/env bash
# A wrong option ends the program with exit status 2 and one line on stderr. It prints nothing on stdout and
# writes no file.
. "$SRC/tests/test.sh"
train=$BUILD/01_single_gpu/train
mkdir "$TMP/here" && cd "$TMP/here" || exit 1

# wrong LINE OPTIONS...: stderr is "train: LINE".
wrong()
{
    local line="train: $1" what
    shift
    what=$(printf "'%s' " "$@")
    "$train" --save made.safetensors --metrics made.jsonl --trace made.json "$@" \
        >"$TMP/stdout" 2>"$TMP/output" </dev/null
    check "exit status 2 of $what" test $? = 2
    check "$what prints '$line'" test "$(cat "$TMP/output")" = "$line"
    check "$what prints nothing on stdout" test ! -s "$TMP/stdout"
    check "$what makes no file" test -z "$(ls -A)"
}

wrong "unknown option '--epoch'; --help lists all options, and docs/pytorch.md has other programs' names for them" \
    --epoch 3
wrong "--lr: 'nan' is not a number from 0 to 1000" --lr nan
wrong "--arch: 'RESNET18' is not one of lenet|convnet|resnet18|resnet50|gpt" -aRESNET18
for list in x 30,,60 30x; do
    wrong "--milestones: '$list' is not a list of epochs, such as 30,60,80" --schedule step --milestones $list
done
for text in x -1 5s 1e99 100stepss; do
    wrong "--warmup: '$text' is neither epochs, such as 0.5, nor steps, such as 100steps" --warmup=$text
done
wrong "--image-size: '27' is not a whole number from 28 to 1024" --image-size 27

check "01: --help fits a screen" test "$("$train" --help | wc -l)" -le 30
check "07: at most 60 options" \
    test "$("$BUILD/07_dist_eval/train" --help all | grep -cE '^(  -., |      )--')" -le 60

# bounds: an option that takes a number takes its minimum and its maximum, but nothing just beyond them

# numbers PROGRAM: prints each option that takes a number, its bounds, and numbers just below and above them. Also
# checks that --help has at most 80 columns.
numbers()
{
    local name
    check "$1 --help has 80 columns" test "$("$1" --help all | wc -L)" -le 80
    for name in $("$1" --help all | sed -nE 's/^ +(-., )?--([a-z0-9-]+) .*/\2/p'); do
        "$1" "--$name=99999999999999999999" --zzz 2>&1 |
            sed -n "s/^.*: --$name: .* is not a \(.*\)number from \(.*\) to \(.*\)/$name \2 \3 \1/p"
    done | awk '{ less = $2 == 0 ? -1e-300 : $2 * (1 - 2 ^ -52)
        print $1, $2, $3, NF == 4 ? $2 - 1 : less, NF == 4 ? $3 + 1 : $3 * (1 + 2 ^ -52) }' OFMT=%.17g
}
for program in "$BUILD"/0*/{train,launch}; do
    numbers "$program" >"$TMP/numbers"
    cut -d ' ' -f 1-3 "$TMP/numbers" >>"$TMP/bounds"
    sed "s|^|$program |" "$TMP/numbers" >>"$TMP/all"
    for column in 2 3; do
        # shellcheck disable=SC2046
        expect 2 "unknown option '--zzz'" "$program" $(awk -v c=$column '{ print "--" $1 "=" $c }' "$TMP/numbers") --zzz
    done
done
# Steps share most options, so an option is tried beyond the same bounds only once.
sort -u -k 2,4 "$TMP/all" >"$TMP/once"
while read -r program name least most below above; do
    for value in "$below" "$above"; do
        expect 2 "number from $least to $most" "$program" "--$name=$value"
    done
done <"$TMP/once"
tr -s ',\n' '\n' <<END | sed 's/^ //' >"$TMP/wanted"
accumulate 1 65536, batch-size 1 65536, beta1 0 0.999999, beta2 0 0.999999, block 2 4096, bucket-mb 0.001 65536,
clip-norm 0 1000000000, cosine-steps 0 1000000000, devices 0 64, dropout 0 0.99, epochs 1 1000000,
gamma 0 1, growth-interval 1 1000000000, heads 1 256, image-size 28 1024, layers 1 48,
loss-scale 0 1099511627776,
lr 0 1000, master-port -1 65535, master-port 0 65535, max-restarts 0 1000000, max-steps 0 1000000000,
min-lr 0 1000, momentum 0 1, nnodes 1 4096, node-rank 0 4095,
print-freq 1 1000000000, ranks 0 256, save-every 0 1000000000,
seed 0 1000000000000000, shared-link 0 1000000, slow-network 0 1000000,
test-samples 0 100000000, threads 0 1024,
timeout 0 1000000, train-samples 0 100000000,
virtual-ranks 1 4096,
wd 0 1000, width 1 8192, workers 0 64
END
check "the bounds are as listed here" diff <(LC_ALL=C sort -u "$TMP/bounds") "$TMP/wanted"

printf -- '--lr 0.5\n--epochs none\n' >"$TMP/wrong"
"$train" --save made.safetensors "@$TMP/wrong" >"$TMP/stdout" 2>"$TMP/output" </dev/null
check "a file of words: exit status 2" test $? = 2
check "a file of words: file and line" test "$(cat "$TMP/output")" = \
    "$TMP/wrong:2: --epochs: 'none' is not a whole number from 1 to 1000000"
check "a file of words: no work" test -z "$(ls -A)"

# A program that is started with closed stdin, stdout and stderr must not print into a file or socket of its run.
small=(-a lenet --data synthetic --train-samples 64 --test-samples 16 --threads 1 -b 16 --epochs 1 -p 1)
for name in 01_single_gpu 02_data_parallel 07_dist_eval; do
    "$BUILD/$name/train" "${small[@]}" --metrics "$TMP/metrics" --trace "$TMP/trace" <&- >&- 2>&-
    check "$name, closed: it trains" test $? = 0
    check "$name, closed: only events in its files" not grep -qvE '^(\{.*\},?|\[)$' "$TMP/metrics" "$TMP/trace"
    rm "$TMP/metrics" "$TMP/trace"
done
"$BUILD/04_ddp_launcher/launch" -n 2 -- "$BUILD/04_ddp_launcher/train" "${small[@]}" <&- >&- 2>&-
check "launch, closed: the run ends well" test $? = 0

wrong "--image-size: has no effect with --data text:a.txt" --data text:a.txt --image-size 40
wrong "--image-size: has no effect with --data auto" --image-size 40
wrong "--block: has no effect without a text, such as --data text:FILE" --block 40
wrong "--evaluate: needs weights: --resume FILE or --init FILE" -e
wrong "--resume: cannot be combined with --init: both load weights" --resume a --init b
wrong "--save: has no effect with --evaluate" -e --init a

expect 2 "--sync-bn: has no effect without --arch=convnet|resnet18|resnet50" \
    "$BUILD/03_ddp_fork/train" -a lenet --sync-bn
expect 2 "--growth-interval: has no effect with --loss-scale" \
    "$BUILD/05_ddp_amp/train" --amp fp16 --loss-scale 8 --growth-interval 9

test_done
