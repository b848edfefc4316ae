#!/usr/bin/env bash
# bare.sh RELEASE [CTEST OPTIONS] - runs ./ddp run and ./ddp test on a Debian with nothing installed. Only root can
# run it, and it needs debootstrap.
#
# RELEASE is a name that debootstrap knows: bookworm is Debian 12, trixie is Debian 13. It is installed in a temporary
# folder (in TMPDIR; 6 GB), with a clone of the last commit, and deleted at the end. The log stays in
# build/bare-RELEASE.log. MIRROR: where the packages come from, if not from this machine's first source of packages.
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
root=${self%/tools/*}
. "$root/tools/shell.sh"
release=${1:-}
[[ $release =~ ^[a-z]+$ ]] || die_usage "bare.sh: which release?" "tools/bare.sh trixie"
[ "$(id -u)" = 0 ] || die "only root can mount file systems and change the root directory" "sudo tools/bare.sh $release"
have debootstrap || die "there is no debootstrap" "apt install debootstrap"

# Mounts and processes of its own, which end with this script.
[ "${DDP_BARE:-} $$" = "inside 1" ] ||
    exec env DDP_BARE=inside unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
        bash "$self" "$@"
shift
bare=$(mktemp -d "${TMPDIR:-/tmp}/ddp-bare.XXXXXX") log=$root/build/bare-$release.log
clean()
{
    kill -KILL -1 2>/dev/null || true       # -1: all processes in this namespace
    umount -R "$bare" 2>/dev/null || true
    rm -rf --one-file-system "$bare"
}
trap clean EXIT
mount --bind "$bare" "$bare"            # only below a mount point can tests make hosts with mounts of their own
trap 'exit 130' INT TERM
mkdir -p "$root/build"
: >"$log"

mirror=${MIRROR:-}
if [ -z "$mirror" ] && grep -q '^ID=debian' /etc/os-release; then
    # shellcheck disable=SC2016  # apt's variable
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -v security | head -n 1 || true)
fi
say "installing $release in $bare"
debootstrap --variant=minbase "$release" "$bare" ${mirror:+"$mirror"} >>"$log" 2>&1 ||
    die "debootstrap failed: $(tail -n 1 "$log")" "all it said is in $log"
cp /etc/resolv.conf "$bare/etc/"
# As an installer or Docker writes it. Without its own name here, a machine may ask a name server for 5 s per mpirun.
echo "127.0.0.1 localhost $(hostname)" >"$bare/etc/hosts"
apt-config dump | grep -i '^Acquire::.*proxy' >"$bare/etc/apt/apt.conf.d/90proxy" || true
git -c safe.directory="$root" clone -q "$root" "$bare/root/ddp"
for folder in sys dev dev/pts; do
    mount --bind "/$folder" "$bare/$folder"
done
mount -t proc proc "$bare/proc"
mount -t tmpfs tmpfs "$bare/dev/shm"

# there COMMAND...: runs it in the clone, and shows how long it took. Its output is added to the log.
there()
{
    local begin=$SECONDS status=0
    show "$@"
    chroot "$bare" env -i HOME=/root LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        ${http_proxy:+http_proxy="$http_proxy"} sh -c 'cd /root/ddp && exec "$@"' sh "$@" \
        >>"$log" 2>&1 </dev/null || status=$?
    say "status $status after $((SECONDS - begin)) s"
    return $status
}
there ./ddp run 01_single_gpu -- --epochs 1 || die "the first run failed" "what it said is in $log"
there ./ddp test "$@" || failed=true
grep -E '\*\*\*|tests passed|tests failed' "$log" || true
[ -z "${failed:-}" ] || die "tests failed" "what they said is in $log"
