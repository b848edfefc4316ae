# shellcheck shell=bash disable=SC2034,SC2154
# One run waits before its first step until a second run has ended. Then checks --master-port, and the default port for
# several machines.
# fails with: two runs at once both succeed
# fails with: Address already in use
build --with check.c --wrap loader_start
cat >tell.sh <<'END'
echo $MASTER_PORT >$PORT_FILE
exec "$@"
END
HOLD=yes PORT_FILE=port.first "$launch" --nproc-per-node 2 -- bash tell.sh "$train" "${tiny[@]}" >first.out 2>&1 &
process=$!
for ((i = 0; i < 400; i++)); do
    if [ -e first.began ] || ! kill -0 $process 2>/dev/null; then break; fi
    sleep 0.05
done
export PORT_FILE=port
try second "$launch" --nproc-per-node 2 -- bash tell.sh "$train" "${tiny[@]}"
second=$status
touch second.ended
wait $process
first=$?
if [ "$first $second" != "0 0" ]; then
    why="Only one process at a time can listen on a port, so the second run needs a different one."
    wrong "two runs at once both succeed" < <(
        echo "the first (its rank 0 listens on port $(cat port.first 2>/dev/null)): exit status $first"
        [ "$first" = 0 ] || last_lines first 3
        echo "the second, at the same time: exit status $second"
        [ "$second" = 0 ] || last_lines second 3)
fi
passed "two runs at once both succeed"

free=$(cat port)
run third "$launch" --nproc-per-node 2 --master-port "$free" -- bash tell.sh "$train" "${tiny[@]}"
why="The launcher must use the port that you give it."
equal "--master-port chooses the port" "$free" "$(cat port)"

# Starts only the second machine's launcher, which does not bind the port.
try other "$launch" --nnodes 2 --node-rank 1 --master-addr 127.0.0.1 -- bash tell.sh true
why="The machines cannot communicate before the rendezvous, so each must choose the same port on its own."
equal "several machines use port 29500" "port 29500, exit status 0" "port $(cat port), exit status $status"
