#!/usr/bin/env bash
# ctest: SANITIZERS asan tsan
# Small runs of all programs: learning, saving, resuming, evaluating, metrics and timelines.
. "$SRC/tests/test.sh"
data=fashion-mnist wanted=50        # percent of 500 images, after 2 epochs of 1,000 images
[ -d /usr/share/datasets/fashion-mnist ] || data=synthetic wanted=20    # slower to learn
# shellcheck disable=SC2317  # it is called, by expect
train() { "$BUILD/01_single_gpu/train" --arch lenet --data "$data" --train-samples 1000 --test-samples 500 \
    -b 10 --lr 0.02 --threads 1 -j 2 "$@"; }

expect 0 "weight hash: " train --epochs 2 --save run.st --metrics run.jsonl --trace run.json -p 25
check "every kind of event" \
    test "$(sed 's/^{"event":"\([a-z]*\)".*/\1/' run.jsonl | sort | uniq -c | tr -s ' \n' ' ')" = \
    " 1 config 1 end 2 epoch 8 step "
top1=$(sed -n 's/^{"event":"epoch","epoch":2,.*"top1":\([0-9]*\).*/\1/p' run.jsonl)
check "it learns (test accuracy $top1 %)" test "${top1:-0}" -ge "$wanted"

expect 0 "top1" train -e --resume run.st

tiny=(--arch lenet --data synthetic --train-samples 40 --test-samples 20 -b 10 --threads 1 -j 1)
epoch_of() { sed -n 's/^{"event":"epoch"\(.*\),"seconds".*/\1/p' "$1"; }
for name in 01_single_gpu 02_data_parallel 03_ddp_fork 04_ddp_launcher 05_ddp_amp 06_slurm 07_dist_eval; do
    run=("$BUILD/$name/train" "${tiny[@]}")
    [ "$name" = 03_ddp_fork ] && run+=(-n 2)
    expect 0 "== saved" "${run[@]}" --epochs 1 --save "$name.st" --metrics "$name"
    check "$name: the best first" \
        test "$(grep -o "$name.st.*" "$TMP/output" | tr '\n' ' ')" = "$name.st $name.st.best $name.st "
    cp "$name.st.best" first.st
    expect 0 "== resumed" "${run[@]}" --epochs 2 --lr 0 --resume "$name.st" --save "$name.st"
    check "$name: the first of two equally good ones is kept" cmp "$name.st.best" first.st
    check "$name: the other file is the last" not cmp -s "$name.st" first.st

    expect 0 "== saved" "${run[@]}" --max-steps 1 --save half.st
    expect 0 "epoch 1, step 1" "${run[@]}" --epochs 1 --resume half.st --metrics "$name.half"
    whole=$(epoch_of "$name")
    check "$name: an epoch in two parts" test -n "$whole" -a "$(epoch_of "$name.half")" = "$whole"
done

small=(--arch convnet --data synthetic --train-samples 60 --test-samples 20 -b 10 --threads 1 -j 1 --epochs 2)
expect 0 "weight hash: " "$BUILD/02_data_parallel/train" "${small[@]}" --devices 3 --trace devices.json
expect 0 "weight hash: " "$BUILD/03_ddp_fork/train" "${small[@]}" -n 3 --bucket-mb 0.01 --trace ranks.json \
    --save ranks.st
expect 0 "weight hash: " "$BUILD/03_ddp_fork/train" "${small[@]}" -n 2 --sync-bn \
    --resume ranks.st -b 15 --epochs 3
check "one timeline of all ranks" test "$(grep -c '"process_name"' ranks.json)" = 3
test_done
