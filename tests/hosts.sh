#!/usr/bin/env bash
# hosts.sh - several hosts on one machine, for tests that need a network:
#
#   hosts.sh run N COMMAND...     makes node1 ... nodeN and runs the command on a host connected to them all. When the
#                                 command ends, so do the hosts and all their processes. Status 77: not possible here
#
# Within that command:
#   hosts.sh on HOST COMMAND...   runs a command there, with the hostname and the networks of that host
#   hosts.sh cut HOST             unplugs its cables; join HOST plugs them in again
#   hosts.sh agent HOST WORDS...  replaces ssh: mpirun --mca plm_rsh_agent "hosts.sh agent" -H node1,node2
#
# Each node has eth0 (10.77.0.11, ...), eth1 (10.78.0.11, ...) and, as a trap, docker0 with the same address everywhere.
# They share the disk and /dev/shm. A node is a sleeping process in its own namespaces.
set -u
self=$(readlink -f "$0")

make_bridge() { ip link add "$1" type bridge && ip addr add "$2/24" dev "$1" && ip link set "$1" up; }

plug() # plug HOST NUMBER INTERFACE BRIDGE ADDRESS
{
    ip link add "$4n$2" type veth peer name "$3" netns "$(cat "$HOSTS_DIR/$1")" &&
        ip link set "$4n$2" master "$4" up && on "$1" ip addr add "$5/24" dev "$3" && on "$1" ip link set "$3" up
}

on()
{
    local host=$1
    shift
    nsenter -t "$(cat "$HOSTS_DIR/$host")" --net --uts -- "$@"
}

make_host() # make_host NUMBER
{
    local host=node$1
    unshare --net --uts sleep infinity &
    echo $! >"$HOSTS_DIR/$host"
    while [ "$(readlink "/proc/$!/ns/net")" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
    on "$host" hostname "$host" && on "$host" ip link set lo up &&
        on "$host" ip link add docker0 type bridge && on "$host" ip addr add 172.17.0.1/16 dev docker0 &&
        on "$host" ip link set docker0 up &&
        plug "$host" "$1" eth0 br0 "10.77.0.$((10 + $1))" && plug "$host" "$1" eth1 br1 "10.78.0.$((10 + $1))"
    echo "10.77.0.$((10 + $1)) $host" >>"$HOSTS_DIR/hosts"
}

# Runs in its own namespaces, as process 1.
make_all() # make_all N COMMAND...
{
    local n=$1 i
    shift
    HOSTS_DIR=$(mktemp -d) || exit 1
    export HOSTS_DIR
    mount --make-rprivate / && mount -t tmpfs hosts "$HOSTS_DIR" && hostname head && ip link set lo up &&
        make_bridge br0 10.77.0.1 && make_bridge br1 10.78.0.1 || exit 77
    printf '127.0.0.1 localhost\n10.77.0.1 head\n' >"$HOSTS_DIR/hosts"
    for ((i = 1; i <= n; i++)); do
        make_host $i || exit 77
    done
    mount --bind "$HOSTS_DIR/hosts" /etc/hosts || exit 77
    "$@"
    i=$?
    umount /etc/hosts && umount -l "$HOSTS_DIR" && rmdir "$HOSTS_DIR"
    exit $i
}

run()
{
    local user=() namespaces=(--mount --net --uts --ipc --pid --fork --kill-child --mount-proc)
    [ $EUID = 0 ] || user=(--user --map-root-user)
    if ! type -P ip unshare nsenter >/dev/null ||
        ! unshare "${user[@]}" "${namespaces[@]}" ip link add br0 type bridge 2>/dev/null; then
        echo "skipped: simulated hosts need iproute2 and the right to create namespaces"
        exit 77
    fi
    exec unshare "${user[@]}" "${namespaces[@]}" "$self" inside "$@"
}

cable() # cable HOST up|down
{
    nsenter -t 1 --net ip link set "br0n${1#node}" "$2" && nsenter -t 1 --net ip link set "br1n${1#node}" "$2"
}

verb=${1:-}
shift
case $verb in
run) run "$@" ;;
inside) make_all "$@" ;;
on) pid=$(cat "$HOSTS_DIR/$1") && shift && exec nsenter -t "$pid" --net --uts -- "$@" ;;
cut) cable "$1" down ;;
join) cable "$1" up ;;
agent)
    while [[ $1 = -* ]]; do shift; done
    pid=$(cat "$HOSTS_DIR/$1") && shift &&
        exec nsenter -t "$pid" --net --uts -- env -i HOME="${HOME:-/}" PATH="$PATH" HOSTS_DIR="$HOSTS_DIR" sh -c "$*"
    ;;
*) sed -n '2,13s/^# \{0,1\}//p' "$self" >&2; exit 2 ;;
esac
