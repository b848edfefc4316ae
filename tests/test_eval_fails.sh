#!/usr/bin/env bash
# 07: the file of --predictions is never incomplete. An old file stays until the new one is complete, even if a run
# fails.
# shellcheck disable=SC2317  # check calls functions
. "$SRC/tests/test.sh"
. "$SRC/tests/eval.sh"
. "$SRC/tests/disk.sh"
ulimit -c 0
network
says() { grep -qE -- "$1" "$TMP/output"; }
small=("${convnet[@]}" --amp off --train-samples 64 --test-samples 40 -b 8 --epochs 1 -p 1)

expect 1 "no/such/file: cannot create this file: No such file or directory" \
    ranks 3 "$train" "${small[@]}" --predictions no/such/file
check "rank 0 reports it" says "^\[rank 0/3 .*no/such/file"
expect 1 "..: cannot create this file: Is a directory" ranks 1 "$train" "${small[@]}" --predictions ..
expect 1 "new/: cannot create this file: Is a directory" ranks 1 "$train" "${small[@]}" --predictions new/
check "before any training" not says "== step:"

echo index,label,old >all
expect 0 "weight hash" "$train" "${small[@]}" --max-steps 2 --predictions all
check "no evaluation: the old file" test "$(cat all)" = index,label,old

changed() # changed FILE TENSOR NUMBERS...: net.st, but TENSOR begins with these numbers (octal bytes, low one first)
{
    local header offset
    header=$(od -An -N8 -t u8 net.st)
    offset=$(head -c $((header + 8)) net.st | tail -c +9 |
        sed 's/.*"'"$2"'":{[^}]*"data_offsets":\[\([0-9]*\),.*/\1/')
    cp net.st "$1"
    # shellcheck disable=SC2059  # the numbers are formats
    printf "$(printf '%s' "${@:3}")" | dd of="$1" bs=1 seek=$((header + 8 + offset)) conv=notrunc status=none
}
# The largest finite weights give results that are not finite. (A checkpoint with infinite weights would be refused.)
mapfile -t largest < <(yes '\377\377\177\177' | head -64)
changed nan.st fc.weight "${largest[@]}"
expect 3 "hint: load an earlier checkpoint" ranks 3 "$train" "${small[@]}" -e --init nan.st --predictions nan
check "no result" not says "== test"
check "no file" test ! -e nan
# With one bias of 1e30, each image of another class has a loss of 1e30. It counts as 2^30; otherwise the sum would
# overflow.
changed large.st fc.bias '\312\362\111\161'
expect 0 "== test" "$train" "${small[@]}" -e --init large.st --metrics large
check "a mean of large losses: $(field large eval test_loss)" \
    awk -v loss="$(field large eval test_loss)" 'BEGIN { exit !(loss > 1e8 && loss <= 2 ^ 30) }'
# The file is replaced by the same calls as a checkpoint, for which test_save_fails.sh kills a program at each call.
mkdir results
echo index,label,old >results/list
expect 0 "== test" env LD_PRELOAD="$TMP/fault.so" FAULT_PATH=results FAULT_LOG=calls "$train" "${small[@]}" -e \
    --init net.st --predictions results/list
check "write, fsync, rename" replaces results list
check "the file is new" test "$(wc -l <results/list)" = 41
test_done
