#!/usr/bin/env bash
# ctest: PROCESSORS 2
# Three ranks of 07 and PyTorch must classify 10,000 test images alike. tests/reference/eval-* has the trained networks
# and PyTorch's results (made by tools/reference/make.py). The images are synthetic, and also CIFAR-10's if $DDP_CIFAR10
# names its folder or archive.
# shellcheck disable=SC2317  # check calls functions
. "$SRC/tests/test.sh"
. "$SRC/tests/eval.sh"
reference=$SRC/tests/reference

# like_torch NAME EVALUATION: counts, loss and each image's class must be PyTorch's. If PyTorch's two largest logits are
# almost equal, rounding may decide the class.
like_torch()
{
    sed -n 's/.*"event":"class","class":\(.*\),"n":\(.*\),"correct1":\(.*\),"correct5":\(.*\)}/class \1 \2 \3 \4/p' \
        "$2.0.jsonl" >"$2.classes"
    awk -v loss="$(field "$2.0.jsonl" eval test_loss)" -v n="$(field "$2.0.jsonl" eval n)" '
        function wrong(what) { print what; bad = 1 }
        FILENAME ~ /reference/ {
            if ($1 == "images") images = $2
            if ($1 == "loss") wanted = $2
            if ($1 == "class") of[$2] = $0
            if ($1 == "predictions") digits = digits $2
            if ($1 == "margin") margin[$2] = $3
            next
        }
        FILENAME ~ /predictions/ {
            if (FNR == 1) next
            split($0, our, ",")
            seen++
            if (our[3] != substr(digits, our[1] + 1, 1)) {
                differ++
                if (!(our[1] in margin && margin[our[1]] < 1e-4)) wrong("image " our[1] " is " our[3] " here")
            }
            next
        }
        { classes++; if ($0 != of[$2] && !differ) wrong($0 ", not " of[$2]) }
        END {
            d = loss - wanted
            printf "%d of %d images get a different class, in a tie; the loss is off by %.1e\n", differ, seen, d
            exit bad || seen != images || n != images || classes != 10 || differ > 5 ||
                !(d <= 1e-6 && d >= -1e-6)
        }' "$reference/eval-$1.txt" "$2.predictions" "$2.classes"
}

evaluated_like()
{
    local name=$1
    shift
    check "$name: 3 ranks" shown evaluate many 3 10000 250 --init "$reference/eval-$name.safetensors" "$@"
    check "$name: as PyTorch" shown like_torch "$name" many
    echo "$name: $(tail -1 output)"
}
evaluated_like synthetic --seed 0

if [ -d "${DDP_CIFAR10:-}" ]; then
    convnet=(--arch convnet --threads 1 -j 1)
    evaluated_like cifar10 --data "cifar10:$DDP_CIFAR10"
elif [ -f "${DDP_CIFAR10:-}" ]; then
    # Nothing is trained, so the training files only need the right sizes.
    mkdir cifar
    truncate -s 30730000 cifar/data_batch_{1..5}.bin
    tar xf "$DDP_CIFAR10" -O cifar-10-batches-bin/test_batch.bin >cifar/test_batch.bin
    convnet=(--arch convnet --threads 1 -j 1)
    evaluated_like cifar10 --data cifar10:cifar
else
    echo "not tried: CIFAR-10 (DDP_CIFAR10 is not set)"
fi
test_done
