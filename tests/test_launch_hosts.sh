#!/usr/bin/env bash
# 04's launch on two hosts, which train together. A different revision, a wrong token, a host without an answer, a cut
# cable or a firewall ends the run with a message that names the cause.
# ctest: PROCESSORS 2 TIMEOUT 240 LABELS deadlines
# shellcheck disable=SC2317  # expect calls the functions
. "$SRC/tests/test.sh"
hosts=$SRC/tests/hosts.sh
if [ -z "${HOSTS_DIR:-}" ]; then
    "$hosts" run 2 bash "$0"
    exit
fi
train=$BUILD/04_ddp_launcher/train
options=(-a lenet --data synthetic --epochs 1 --max-steps 20 -b 8 --test-samples 8 --threads 1 --timeout 5)
address=10.77.0.11
export OMP_NUM_THREADS=1

# on NODE PROGRAM...: launch of this node.
on()
{
    "$hosts" on "node$(($1 + 1))" timeout 60 "$BUILD/04_ddp_launcher/launch" --nnodes 2 --node-rank "$1" \
        --master-addr $address -n "${ranks:-1}" -- "${@:2}"
}
# both PROGRAM...: on both nodes, with NODE replaced by 0 and 1.
both()
{
    local status=0 first
    rm -f first second
    on 0 "${@//NODE/0}" >first 2>&1 &
    first=$!
    on 1 "${@//NODE/1}" >second 2>&1 || status=$?
    wait "$first" || status=$?
    sed 's/^/node1: /' first
    sed 's/^/node2: /' second
    return "$status"
}

ranks=2 expect 0 "node1:    == step: [ 20/" both "$train" "${options[@]}" -p 20
check "two ranks on each" grep -qF "global rank: 3 of 4" "$TMP/output"
address=10.78.0.11
expect 0 "node1:    == step: [ 20/" both "$train" "${options[@]}" -p 20 --iface eth1
address=10.77.0.11
DDP_TOKEN=same expect 0 "node1: weight hash" both "$train" "${options[@]}"
expect 1 "" both env DDP_TOKEN=ofNODE "$train" "${options[@]}"
check "a wrong token" grep -q "its token is not rank 0's" second
cp "$train" train.0
sed 's/^revision ./revision ?/' train.0 >train.1
chmod +x train.1
expect 1 "node1: [rank 0/2 node1" both ./train.NODE "${options[@]}"
check "another revision" grep -q 'program: rank 1 (node2) has revision ?' first
address=10.77.0.99
expect 1 "could not join rank 0 within " on 1 "$train" "${options[@]}"
address=10.77.0.11

pull()
{
    both "$train" "${options[@]}" --max-steps 1000000 --epochs 1000000 --timeout 3 -p 10 &
    until_so 30 grep -q 'step: \[ *10/' first
    "$hosts" cut node2
    ! wait $!
}
expect 0 "node1: " pull
"$hosts" join node2
check "the first machine names the lost rank" grep -q 'rank 1 of 2 (node2' first
check "and the second one" grep -q 'rank 0' second

# A firewall that lets rank 0's port through, but not those of Gloo.
if "$hosts" on node1 sh -c 'ip rule add pref 10 lookup local && ip rule del pref 0 &&
    ip rule add pref 5 iif eth0 ipproto tcp dport 30000-65534 blackhole' 2>ip_rule; then
    expect 1 "a firewall must allow all ports" both "$train" "${options[@]}"
else
    echo "no firewall can be imitated here"
fi
test_done
