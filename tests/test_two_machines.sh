#!/usr/bin/env bash
# Imitates three different machines: on rank 1, oneDNN uses only AVX2; on rank 2, only SSE4.1. The ranks have the losses
# of equal machines up to rounding, and end with equal weights.
# ctest: PROCESSORS 2 LABELS slow
. "$SRC/tests/test.sh"
step=05_ddp_amp

cat >machine <<'END'
#!/bin/sh
[ -n "$EQUAL" ] || case $RANK in 1) export DNNL_MAX_CPU_ISA=AVX2 ;; 2) export DNNL_MAX_CPU_ISA=SSE41 ;; esac
exec "$BUILD/05_ddp_amp/train" "$@"
END
chmod +x machine
all=("$BUILD/$step/launch" --nproc-per-node 3 -- ./machine --threads 1 --max-steps 5 --epochs 1 --print-freq 1)

# alike FAR OPTIONS...: trains on different machines, and on equal ones. Losses may be FAR apart.
alike()
{
    # The program compares the ranks' weights before it prints a hash.
    expect 0 "weight hash:" "${all[@]}" --metrics "$PWD/different" "${@:2}"
    expect 0 "weight hash:" env EQUAL=1 "${all[@]}" --metrics "$PWD/equal" "${@:2}"
    check "five steps" test "$(field equal step loss | wc -l)" = 5
    check "the losses are those of equal machines" near <(field different step loss) <(field equal step loss) "$1"
}

alike 0.002 -a resnet18 --data synthetic -b 8 --test-samples 8 --amp off --lr 0.0005 --clip-norm 1
alike 0.004 -a gpt --data "text:$SRC/README.md" -b 8 --amp bf16
test_done
