# shellcheck shell=bash
# fake.sh - for tests of the CUDA programs on simulated GPUs (fake_cuda/fake.h). $tree is the build folder.
tree=${BUILD%/*}
[ -x "$tree/fake/07_dist_eval/train" ] || { echo "skipped: no cuda backend in this build"; exit 77; }
unset NCCL_COMM_ID

# trains COMMAND...: the command must succeed and print the weights' hash. Sets $hash; the output is in $TMP/output.
trains()
{
    hash=
    timeout -k 5 60 "$@" >"$TMP/output" 2>&1 </dev/null || { cat "$TMP/output"; return 1; }
    hash=$(hash_of)
    [ -n "$hash" ]
}
