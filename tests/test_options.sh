#!/usr/bin/env bash
# Wrong command lines of the program: exit status 2, one line on stderr (and perhaps a hint), nothing on
# stdout, no file, no work: well under 100 ms.
. "$SRC/tests/test.sh"
train=$BUILD/01_single_gpu/train
mkdir "$TMP/here" && cd "$TMP/here" || exit 1

# Runs the rest of its arguments, three times at most, until it took less than 100 ms (a busy machine
# may need that).
at_once()
{
    local try begin status
    for try in 1 2 3; do
        begin=$(date +%s%N)
        "$@" >"$TMP/stdout" 2>"$TMP/output" </dev/null
        status=$?
        [ $((($(date +%s%N) - begin) / 1000000)) -lt 100 ] && return $status
    done
    echo "took more than 100 ms, $try times" >>"$TMP/output"
    return $status
}

# wrong LINE HINT OPTIONS...: stderr is "train: LINE", then "hint: HINT" unless HINT is empty.
wrong()
{
    local line="train: $1" hint=${2:+hint: $2} what
    shift 2
    what=$(printf "'%s' " "$@")
    # Files that a careless program would have made by the time it sees what is wrong.
    at_once "$train" --save made.safetensors --metrics made.jsonl --trace made.json "$@"
    check "exit status 2 of $what" test $? = 2
    check "$what says '$line'" test "$(sed -n 1p "$TMP/output")" = "$line"
    check "$what has the hint '$hint'" test "$(sed 1d "$TMP/output")" = "$hint"
    check "$what prints nothing on stdout" test ! -s "$TMP/stdout"
    check "$what makes no file" test -z "$(ls -A)"
}

list="--help lists all options"
dash="every option begins with a dash; --help lists them"

# unknown and misspelt
wrong "unknown option '--nonsense'" "$list" --nonsense
wrong "unknown option '--zzz'" "$list" --zzz=3
wrong "unknown option '-q'" "$list" -q
wrong "unknown option '--epoch'" "did you mean --epochs?" --epoch 3
wrong "unknown option '--epcohs'" "did you mean --epochs?" --epcohs 3
wrong "unknown option '--batch_sizes'" "did you mean --batch-size?" --batch_sizes 3
wrong "unknown option '--batchsize'" "did you mean --batch-size?" --batchsize=3
wrong "unknown option '--no-nestrov'" "did you mean --no-nesterov?" --no-nestrov
wrong "unknown option '--momentun'" "did you mean --momentum?" --momentun 0.9
wrong "unknown option '-lr'" "did you mean --lr?" -lr 0.1
wrong "unknown option '--no-lr'" "$list" --no-lr

# a value that is missing, or that nobody asked for
wrong "--epochs: a value is missing" "" --epochs
wrong "--batch-size: a value is missing" "" -b
wrong "--batch-size: a value is missing before '--lr'" "--batch-size=--lr if that is the value" -b --lr 0.1
wrong "--init: a value is missing before '-e'" "--init=-e if that is the value" --init -e
wrong "--evaluate: takes no value, but got '1'" "" --evaluate=1

# out of range
wrong "--batch-size: '0' is out of range: 1 to 65536" "" -b 0
wrong "--batch-size: '-1' is out of range: 1 to 65536" "" -b -1
wrong "--batch-size: '99999999999' is out of range: 1 to 65536" "" -b 99999999999
wrong "--batch-size: '99999999999999999999' is out of range: 1 to 65536" "" -b 99999999999999999999
wrong "--epochs: '0' is out of range: 1 to 1000000" "" --epochs=0
wrong "--print-freq: '0' is out of range: 1 to 1000000000" "" -p0
wrong "--seed: '-1' is out of range: 0 to 1000000000000000" "" --seed -1
wrong "--lr: '1e999' is out of range: it is too large for a double" "" --lr 1e999

# malformed
wrong "--lr: 'nan' is not a finite number" "" --lr nan
wrong "--lr: 'NaN' is not a finite number" "" --lr=NaN
wrong "--lr: 'inf' is not a finite number" "" --lr inf
wrong "--lr: '-inf' is not a finite number" "" --lr=-inf
wrong "--lr: '0.1x' is not a finite number" "" --lr 0.1x
wrong "--lr: '0,1' is not a finite number" "" --lr 0,1
wrong "--lr: '0x1' is not a finite number" "" --lr 0x1
wrong "--lr: the value is empty" "" --lr ''
wrong "--batch-size: '1x' is not a whole number" "" -b 1x
wrong "--batch-size: '1.5' is not a whole number" "" -b1.5
wrong "--batch-size: '1e2' is not a whole number" "" -b 1e2
wrong "--batch-size: ' 1' is not a whole number" "" -b ' 1'
wrong "--batch-size: the value is empty" "" -b ''
wrong "--batch-size: the value is empty" "" --batch-size=
wrong "--save: the value is empty" "" --save ''
wrong "--arch: 'resnet' is none of lenet|convnet|resnet18|resnet50" "" --arch resnet
wrong "--arch: 'RESNET18' is none of lenet|convnet|resnet18|resnet50" "" -aRESNET18
wrong "--schedule: 'linear' is none of constant|step|multistep|cosine" "" --schedule linear
wrong "--tf32: 'yes' is not 0 or 1" "" --tf32 yes
wrong "--milestones: '60,30' is not a rising list of positive numbers such as 30,60,90" "" --milestones 60,30

# bounds: each number may be its least and its most, and not the next one beyond

# numbers PROGRAM: a line for each option that is a number: its name, the least and the most that it may be, as the
# program itself says, and the next numbers below and above.
numbers()
{
    local name
    for name in $("$1" --help | sed -nE 's/^ +(-., )?--([a-z0-9-]+) .*/\2/p'); do
        echo "$name" "$("$1" "--$name=99999999999999999999" --zzz 2>&1 |
            sed -n "s/^.*: --$name: .* is out of range: \(.*\) to /\1 /p")" \
            "$("$1" "--$name=.5" --zzz 2>&1 | grep -c "not a whole number")"
    done | awk 'NF == 4 { print $1, $2, $3, $4 ? $2 - 1 : $2 - 1e-300, $4 ? $3 + 1 : $3 * (1 + 2 ^ -52) }' OFMT=%.17g
}
for program in "$BUILD"/0*/{train,launch}; do
    numbers "$program" >"$TMP/numbers"
    cut -d ' ' -f 1-3 "$TMP/numbers" >>"$TMP/bounds"
    for column in 2 3; do
        # shellcheck disable=SC2046
        expect 2 "unknown option '--zzz'" "$program" $(awk -v c=$column '{ print "--" $1 "=" $c }' "$TMP/numbers") --zzz
    done
    while read -r name least most below above; do
        for value in "$below" "$above"; do
            expect 2 "--$name: '$value' is out of range: $least to $most" "$program" "--$name=$value"
        done
    done <"$TMP/numbers"
done
tr -s ',\n' '\n' <<END | sed 's/^ //' >"$TMP/wanted"
accumulate 1 65536, batch-size 1 65536, bucket-mb 0 65536, clip-norm 0 1e+09, devices 1 64, epochs 1 1000000,
gamma 0 1, growth-interval 1 1000000000, image-size 8 1024, local-rank -1 65535, loss-scale 0 1099511627776,
lr 0 1000, master-port -1 65535, master-port 0 65535, max-restarts 0 1000000, max-steps 1 1000000000, momentum 0 1,
nnodes 1 4096, node-rank 0 4095, nproc-per-node 1 256, print-freq 1 1000000000, rank -1 65535, ranks 0 256,
save-every 0 1000000000, seed 0 1000000000000000, step-size 1 1000000, test-samples 0 100000000, threads 0 1024,
timeout 0 1e+06, train-samples 0 100000000, warmup 0 1e+06, wd 0 1000, workers 0 64, world-size -1 65535
END
check "the bounds are those that are promised" diff <(LC_ALL=C sort -u "$TMP/bounds") "$TMP/wanted"

# positional
wrong "unexpected argument 'photos'" "$dash" photos
wrong "unexpected argument '--'" "$dash" --
wrong "unexpected argument '-'" "$dash" -
wrong "unexpected argument ''" "$dash" ''

# what is typed cannot play with the terminal, or fill it
wrong "unknown option '--a?b?[2J'" "$list" --a$'\n'b$'\e'[2J
long=$(printf '%0300d' 0)
wrong "--batch-size: '${long:0:100}' is out of range: 1 to 65536" "" -b "$long"

# several options that do not go together
wrong "--evaluate: needs --resume FILE or --init FILE: whose weights?" "" -e
wrong "--resume: does not go with --init: one of them gives the weights" "" --resume a --init b
launch=$BUILD/04_ddp_launcher/launch
expect 2 "--node-rank" "$launch" --nnodes 2 --node-rank 2 --master-addr 127.0.0.1 -- true
expect 2 "--master-addr" "$launch" --nnodes 2 -- true
expect 2 "--master-port" "$launch" --nnodes 2 --master-addr 127.0.0.1 --master-port 0 -- true
expect 2 "--log-dir" "$launch" --prefix --log-dir logs -- true

# a file that one option would write over another's; what is no file may be given twice
wrong "--trace: that is the file of --metrics" "" --trace ./made.jsonl -e
wrong "--metrics: that is the file of --resume" "" --resume made.jsonl --init b
touch "$TMP/there"
ln "$TMP/there" "$TMP/linked"
wrong "--metrics: that is the file of --init" "" --init "$TMP/there" --metrics "$TMP/linked" --resume a
wrong "--resume: does not go with --init: one of them gives the weights" "" --resume a --init b \
    --metrics /dev/null --trace /dev/null
for option in metrics trace confusion predictions; do
    expect 2 "--$option: that is the file of --init" "$BUILD/07_dist_eval/train" --init one --$option one --resume a
done
test_done
