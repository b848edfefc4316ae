#!/usr/bin/env bash
# ./ddp run 04 --host and --join: two machines on a desk. The first prints the command for the second, and both train
# together. A different revision, a wrong token, a host without an answer, a cut cable or a firewall ends the run with a
# message that names the cause.
# ctest: PROCESSORS 2 TIMEOUT 240 LABELS deadlines
# shellcheck disable=SC2016,SC2317  # expect calls the functions
. "$SRC/tests/test.sh"
hosts=$SRC/tests/hosts.sh
if [ -z "${HOSTS_DIR:-}" ]; then
    "$hosts" run 2 bash "$0"
    exit
fi

# A tree for each node, in which everything is built already.
for node in node1 node2; do
    mkdir -p "$node/build/cpu/04_ddp_launcher" bin
    cp -r "$SRC"/{ddp,tools} "$node"
    ln -s "$SRC"/{common,cmake,0*} "$node"
    cp "$BUILD"/04_ddp_launcher/{train,launch} "$node/build/cpu/04_ddp_launcher"
    echo cpu >"$node/build/backends"
    echo "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD/$node" >"$node/build/CMakeCache.txt"
    touch "$node/build/build.ninja"
done
printf '#!/bin/sh\n[ "$1" != --version ] || exec %s --version\n' "$(type -P cmake)" >bin/cmake
chmod +x bin/cmake
export PATH=$PWD/bin:$PATH NO_COLOR=1 OMP_NUM_THREADS=1

# desk HOST_OPTIONS: node1 runs `./ddp run 04 --host HOST_OPTIONS`. node2 runs the command that node1 has printed, after
# the sed script $edit has changed it.
desk()
{
    local status=0 first
    rm -f first second
    "$hosts" on node1 timeout 60 node1/ddp run 04 --host "$@" >first 2>&1 &
    first=$!
    until_so 20 grep -q 'run 04 --join' first || { cat first; return 1; }
    joins=$(sed -n 's/^ *\(\.\/ddp run 04 --join .*\)/\1/p' first)
    [ -z "${edit:-}" ] || joins=$(sed -E "$edit" <<<"$joins")
    (cd node2 && eval "'$hosts' on node2 timeout 60 $joins") >second 2>&1 || status=$?
    wait "$first" || status=$?
    sed 's/^/node1: /' first
    sed 's/^/node2: /' second
    return "$status"
}
lenet="-a lenet --data synthetic --epochs 1 --max-steps 20 -b 8 --test-samples 8 --threads 1 --timeout 5 --patience 8"

# shellcheck disable=SC2086
{
    expect 0 "node1:    == step: [ 20/" desk -- $lenet -p 20 --save "a b.st" --iface eth1
    check "its own network, and the others' options" grep -qF -- "--join 10.78.0.11:" first
    check "all options but --iface" grep -qE -- '-- -a lenet .* --save a\\ b.st$' <<<"$joins"
    expect 0 "global rank: 3 of 4" desk -n 2 -- $lenet
    edit='s/:[0-9a-f]+ --/:abcd --/'
    expect 1 "" desk -- $lenet
    check "a wrong token" grep -q "its token is not rank 0's" first
    edit=''
    sed -i 's/^revision ./revision ?/' node2/build/cpu/04_ddp_launcher/train
    expect 1 "node1: [rank 0/2 node1" desk -- $lenet
    check "another revision" grep -q 'program: rank 1 (node2) has revision ?' first
    cp "$BUILD"/04_ddp_launcher/train node2/build/cpu/04_ddp_launcher
    expect 1 "looking for rank 0 at 10.77.0.99:20000" \
        "$hosts" on node2 timeout 60 node2/ddp run 04 --join 10.77.0.99:20000:12ab -- $lenet
    check "what to do" grep -q firewall output
}
pull()
{
    desk -- -a lenet --data synthetic -b 8 --max-steps 1000000 --threads 1 --timeout 3 --patience 8 -p 10 &
    until_so 30 grep -q 'step: \[ *10/' first
    "$hosts" cut node2
    ! wait $!
}
expect 0 "node1: " pull
"$hosts" join node2
check "the first machine names the lost rank" grep -q 'rank 1 of 2 (node2' first
check "and the second one" grep -qE 'rank 0' second

# A firewall that lets rank 0's port through, but not those of Gloo.
if "$hosts" on node1 sh -c 'ip rule add pref 10 lookup local && ip rule del pref 0 &&
    ip rule add pref 5 iif eth0 ipproto tcp dport 30000-65534 blackhole' 2>ip_rule; then
    # shellcheck disable=SC2086
    expect 1 "a firewall must allow all ports" desk -- $lenet
else
    echo "no firewall can be imitated here"
fi

expect 2 "--join needs ADDRESS:PORT:TOKEN" node2/ddp run 04 --join 10.77.0.99
expect 2 "from 04 on" node2/ddp run 03 --host
test_done
