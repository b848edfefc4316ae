#!/usr/bin/env bash
# network.sh WHERE COMMAND... - runs comm_bench, and compares the rate of its largest message with known networks.
# WHERE is `machine` if all ranks run on one machine, else `nodes`.
set -euo pipefail
export LC_ALL=C     # awk reads and writes decimal points
where=$1
shift
out=$(setpriv --pdeathsig TERM "$@" -b 1024 -e $((64 << 20)) -f 256 -r 30)
echo "$out"
awk -v where="$where" '
BEGIN {
    n = split("1 Gbit/s,10 Gbit/s,25 Gbit/s,100 Gbit/s,400 Gbit/s,NVLink of an A100,NVLink of an H100", name, ",")
    split("0.12,1.2,3,12,48,230,370", speed, ",")
}
/^#.* on / { sub(/;.*/, ""); over = / gloo /  ? "TCP (Gloo)" : "NCCL" }
/^ / { if (!first) first = $5; bytes = $1; bandwidth = $7 }
END {
    for (i = 1; i < n && bandwidth > speed[i]; i++) { }
    near = i > 1 && bandwidth / speed[i - 1] < speed[i] / bandwidth ? i - 1 : i
    printf "\n%.2f GB/s over %s, and %.0f us for a small message: about as fast as %s (%s GB/s).\n", bandwidth, over,
        first, name[near], speed[near]
    if (where == "machine")
        print "These ranks share one machine, so this is not the speed of a network."
    printf "A step of ResNet-18 exchanges 16.9 MB of gradients: %.1f ms with two ranks, up to twice that with more.\n",
        16.9 / bandwidth
}' <<<"$out"
