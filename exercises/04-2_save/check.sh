# shellcheck shell=bash disable=SC2016,SC2034,SC2154
# First each rank has its own folder: which ranks save? Then the ranks share one folder: does the saved model have
# the printed test loss?
# fails with: only rank 0 saves
# fails with: found     rank 1: net.st
build
net=(--arch convnet --train-samples 64)

# tested FILE: prints the test loss of this checkpoint.
tested() { learner tested 1 "${net[@]}" --evaluate --resume "$1" && value tested.0.jsonl eval test_loss; }
files() { (cd "disk$1" && find . -type f -name 'net*' -printf '%f\n' | sort | paste -sd' '); }

# This run saves within an epoch, at the end of an epoch, and when it stops. On two machines with a rank each, both
# ranks have local rank 0.
mkdir disk0 disk1
why="Before a save, all ranks compare their weights (compare_hashes). A rank that does not save must still take part."
run own "$launch" --nproc-per-node 2 -- bash -c 'cd "disk$RANK" && LOCAL_RANK=0 exec "$@"' rank "$train" "${tiny[@]}" \
    "${net[@]}" --timeout 4 --save net.st --save-every 1 --epochs 2 --max-steps 6
printf 'rank 0: %s\nrank 1: %s\n' "net.st net.st.best" "no file" >expected
for rank in 0 1; do
    list=$(files $rank)
    echo "rank $rank: ${list:-no file}" >>found
done
if ! cmp -s expected found && [ -f disk0/net.st ] && [ -f disk1/net.st ]; then
    why="Two ranks write two different states under one name. On a shared disk, the last write wins. (These ranks are
on two machines, so both have local rank 0.)"
    wrong "only rank 0 saves" < <(
        expected "$(sed -n 2p expected)" "$(sed -n 2p found)"
        echo "both claim to be the checkpoint of this run; on a shared disk either may survive"
        echo "rank 0's net.st: test loss $(tested disk0/net.st)"
        echo "rank 1's net.st: test loss $(tested disk1/net.st)")
fi
why="Which rank evaluates the model, and so has the state that was tested?"
beside "only rank 0 saves" same "" "expected                  " expected found found

learner shared 2 "${net[@]}" --save net.st
why="The checkpoint should hold rank 0's state after the test."
near "it has the test loss that was printed" 1e-4 "$(value shared.0.jsonl epoch test_loss)" "$(tested net.st)"
