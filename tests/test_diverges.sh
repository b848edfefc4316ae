#!/usr/bin/env bash
# ctest: PROCESSORS 2 LABELS deadlines
# Ranks that call different collectives or have different weights, and a loss or gradient that is not finite: all ranks
# end together, and a line names the reason. After a loss or gradient that is not finite, nothing is saved. An
# evaluation that takes longer than --timeout is not an error.
# shellcheck disable=SC2016  # words in single quotes are C
. "$SRC/tests/test.sh"
train=$BUILD/03_ddp_fork/train
small=(--arch lenet --data synthetic --train-samples 480 --test-samples 32 -b 8 --threads 1 --seed 3 --epochs 2)

# from CONDITION: prints C code for ddp.c. In this code, `now` is true in rank 1 if the number of the rank's gradient
# messages meets CONDITION, such as ">= 3".
reduce="comm_all_reduce(comm, stream, grads, count, COMM_F32);"
from() { echo "static int messages; bool now = comm_rank(comm) == 1 && ++messages $1;"; }

# fails STATUS PROGRAM [OPTIONS]: PROGRAM must end with STATUS. Leaves PROGRAM's messages in err, without the warning
# about few cores.
fails()
{
    local wanted=$1 status
    shift
    "$@" "${small[@]}" >out 2>said
    status=$?
    sed '/ devices with .* share .* cores*: /,+1d' said >err
    cp err output
    check "status $wanted of: $* (it is $status)" [ $status = "$wanted" ]
}
says() { check "it prints: $1" grep -qE -- "$1" err; }
lines() { check "at most $1 lines" [ "$(wc -l <err)" -le "$1" ]; }

for n in 1 3; do
    fails 3 "$train" -n $n --lr 900 -p $((n * n)) --save nan.st
    says "\[(rank 0/$n )?.*the loss is not finite in epoch 1, at or before step [0-9]+$"
    lines $((2 * n))
    check "all ranks name the same step" [ "$(sed -n 's/.*before step \([0-9]*\)$/\1/p' err | sort -u | wc -l)" = 1 ]
    check "nothing saved" not made nan.st
done

# One gradient of one rank is NaN. A run looks for NaN in steps that print a line (-p), and before it saves.
check "bad: builds" build_with bad 03_ddp_fork \
    ddp.c "$reduce" "$(from '== 13') if (now) grads[7] = 0.0f / 0.0f; $reduce"
fails 3 ./bad -n 3 -p 5 --save nan.st
says "rank 0/3 .*a gradient on some rank is not finite in epoch 1, at or before step 15$"
lines 2
check "nothing saved" not made nan.st
fails 3 ./bad -n 2 -p 100 --save nan.st --max-steps 14
says "at or before step 14$"
check "nothing saved" not made nan.st

# Even in a run that continues, a step with a NaN gradient changes the weights of no rank.
check "blind: builds" build_with blind 03_ddp_fork \
    ddp.c "$reduce" "$(from '>= 13') if (now) grads[7] = 0.0f / 0.0f; $reduce" \
    train.c "if (stats.not_finite > 0 || stats.bad_gradients > 0)" "if (0)"
expect 0 "weight hash" "$train" -n 2 "${small[@]}" --max-steps 12
before=$(hash_of output)
expect 0 "weight hash: $before" ./blind -n 2 "${small[@]}" --max-steps 16

check "another: builds" build_with another 03_ddp_fork ddp.c "$reduce" \
    "$(from '== 3') if (now) comm_broadcast(comm, stream, grads, count, COMM_F32, 0); else $reduce"
check "fewer: builds" build_with fewer 03_ddp_fork ddp.c "$reduce" \
    "$(from '== 3') comm_all_reduce(comm, stream, grads, count - now, COMM_F32);"

last="after step 2 of epoch 1; [0-9]+ calls, the last:"
fails 1 ./another -n 3 --timeout 1
says "progress for 1 s \(--timeout\); at call [0-9]+, rank 0 is in all_reduce of ([0-9]+) \(gradients\), in \
backward, rank 1 in broadcast of \1 \(gradients\), in backward$"
says "rank 1 of 3 \(.*, pid [0-9]+\): $last broadcast of [0-9]+ \(gradients\), in backward$"
lines 5
fails 134 ./fewer -n 2         # Gloo aborts one of them

for ((samples = 8000; samples < 1000000; samples *= 2)); do
    expect 0 "weight hash" "$train" -n 3 "${small[@]}" --train-samples 24 --epochs 1 --timeout 1 \
        --test-samples $samples --trace trace
    took=$(awk -F'"ts":' '/"pid":0,.*"name":"evaluate"/ { a = $2 + 0 } /"pid":0,.*"name":"all_gather/ { b = $2 + 0 }
        END { print (b - a) / 1e6 }' trace)
    awk -v s="$took" 'BEGIN { exit !(s > 1.5) }' && break
done
check "an evaluation of $took s" awk -v s="$took" 'BEGIN { exit !(s > 1.5) }'
test_done
