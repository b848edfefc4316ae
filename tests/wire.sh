#!/usr/bin/env bash
# wire.sh COMMAND... - runs COMMAND in its own network, whose only interface is lo, and then prints
# "bytes on the wire: N": all bytes that its processes sent each other, with packet headers and the rendezvous. The exit
# status is COMMAND's, or 77 if this machine allows no such network.
set -u

if [ "${1:-}" != inside ]; then
    user=()
    [ $EUID = 0 ] || user=(--user --map-root-user)
    if ! type -P ip unshare >/dev/null || ! unshare "${user[@]}" --net ip link set lo up 2>/dev/null; then
        echo "skipped: a private network needs iproute2 and the right to create namespaces"
        exit 77
    fi
    exec unshare "${user[@]}" --net "$0" inside "$@"
fi

shift
sent() { awk '$1 == "lo:" { print $10 }' /proc/net/dev; }
ip link set lo up || exit 77
before=$(sent)
"$@"
status=$?
echo "bytes on the wire: $(($(sent) - before))"
exit $status
