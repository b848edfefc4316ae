#!/usr/bin/env bash
# Training on a folder of images: all programs, the same weights after --resume, each file used once, and bad files.
#
# ctest: PROCESSORS 2
# shellcheck disable=SC2317  # its functions are called, by expect and check
. "$SRC/tests/test.sh"

small=(--arch lenet --image-size 32 --threads 1 -b 16 --seed 3 -j 2)
ranks() { timeout -k 5 100 "$BUILD/04_ddp_launcher/launch" -n "$1" -- "${@:2}"; }

"$BUILD/as_folder" --data synthetic --train-samples 200 --test-samples 60 --as-folder tree --scale 48 --format jpeg \
    >output || exit 1

for step in 01_single_gpu "02_data_parallel --devices 2" "03_ddp_fork --ranks 2" 04_ddp_launcher 05_ddp_amp 06_slurm \
    07_dist_eval; do
    # shellcheck disable=SC2086
    set -- $step
    expect 0 "folder (tree), 200 + 60 images" "$BUILD/$1/train" "${small[@]}" "${@:2}" --data tree --epochs 1
done
train=$BUILD/04_ddp_launcher/train
expect 0 "weight hash" "$train" "${small[@]}" --data tree --epochs 2 --save whole.st
hash=$(hash_of)

expect 0 "saved" "$train" "${small[@]}" --data tree --epochs 2 --max-steps 17 --save half.st
expect 0 "resumed" "$train" "${small[@]}" --data tree --epochs 2 --resume half.st
check "the same weights when resumed" is "$(hash_of)" "$hash"

cp -r tree bad
victim=$(find bad/train -name '*.jpg' | head -1)
truncate -s 500 "$victim"
expect 1 "$victim: JPEG: the file is truncated" "$train" "${small[@]}" --data bad --epochs 1

eval=("$BUILD/07_dist_eval/train" "${small[@]}" --amp off --data tree -e --init whole.st --per-class)
expect 0 "== 003         top1" "${eval[@]}" --predictions one.csv
expect 0 "== 003         top1" timeout 100 "$BUILD/07_dist_eval/launch" -n 3 -- "${eval[@]}" --predictions three.csv
check "the same predictions" cmp one.csv three.csv
sed -n '2,$s/.*,//p' one.csv | sort >seen
(cd tree && find val -name '*.jpg' | sort) >there
check "each test file once: $(diff seen there | head -3)" cmp seen there
check "the names of the classes" grep -q '^0,0,[0-9],000,00[0-9],val/000/' one.csv

cp -r tree badval
victim=$(find badval/val -name '*.jpg' | sort | head -1)
truncate -s 500 "$victim"
expect 1 "$victim: JPEG: the file is truncated" ranks 3 "$train" "${small[@]}" --data badval --epochs 1
cp -r tree copy
rm "$(find copy/train -name '*.jpg' | sort | head -1)"
mixed() { # each rank reads a different folder
    ranks 2 bash -c 'cd "$TMP" && exec "$@" --data "$([ "$RANK" = 0 ] && echo tree || echo copy)"' bash "$@"
}
expect 2 "data: rank 1" mixed "$train" "${small[@]}" --epochs 1

test_done
