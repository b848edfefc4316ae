#!/usr/bin/env bash
# The Slurm cluster that this project makes for itself, tools/slurm.sh, where nobody may make namespaces, as in most
# containers: all nodes are on this host's loopback interface.
#
# ctest: TIMEOUT 240 LABELS deadlines
# shellcheck disable=SC2317,SC2016  # functions are called by expect and check; words for shells in the cluster
. "$SRC/tests/test.sh"
. "$SRC/tests/slurm/cluster.sh"
. "$SRC/tests/slurm/self.sh"
cd "$TMP" || exit 1
export OMPI_MCA_rmaps_base_oversubscribe=1

# --- wrong words: exit 2, and nothing done --------------------------------------------------------------------------

expect 0 "slurm up N" "$slurm" help
expect 0 "slurm up N" "$SRC/ddp" slurm --help
expect 2 "there is no 'upp'" "$slurm" upp
expect 2 "how many nodes?" "$slurm" up
expect 2 "the number of nodes is from 1 to 32, not '0'" "$slurm" up 0
expect 2 "not '33'" "$slurm" up 33
expect 2 "not 'two'" "$SRC/ddp" slurm up two
expect 2 "one number of nodes" "$slurm" up 2 3
expect 2 "unknown option --cpu" "$slurm" hold 2 --cpu
expect 2 "--cpus is from 1 to 256, not '0'" "$slurm" up 2 --cpus 0
expect 2 "--gpus is from 0 to 16, not ''" "$slurm" up 2 --gpus
expect 2 "--dir needs a directory" "$slurm" up --dir
expect 2 "run: which command?" "$slurm" run
expect 2 "takes no arguments" "$slurm" down all
for words in "run true" "node 1 true" "cut 1" "mend 1" status down; do
    # shellcheck disable=SC2086
    expect 1 "no cluster runs in $TMP/slurm" "$slurm" $words
done
check "nothing was done" test ! -e "$TMP/slurm"

# --- without namespaces ----------------------------------------------------------------------------------------------

mkdir bin
printf '#!/bin/sh\necho "unshare failed: Operation not permitted" >&2\nexit 1\n' >bin/unshare
chmod +x bin/unshare
expect 0 "no namespaces here (unshare failed: Operation not permitted): all nodes are on this host's loopback" \
    env PATH="$TMP/bin:$PATH" "$slurm" up 2 --timeout 3 --gpus 2
expect 0 "all on this host" "$slurm" status
expect 0 "1: $(hostname)" on_head srun -N 2 -l hostname
expect 0 "127.0.0.12" on_head srun -N 1 --nodelist 127.0.0.12 printenv SLURMD_NODENAME
expect 0 "0" on_head srun -n 1 --gpus-per-task=1 printenv CUDA_VISIBLE_DEVICES
make_mpi
[ ! -x mpi ] || expect 0 "3 on $(hostname): 6" \
    mpi_twice "$slurm" run timeout 60 srun --mpi=pmix -N 2 --ntasks-per-node=2 ./mpi
cat >stopped.sh <<'END'
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --requeue --open-mode=append --output=stopped.out
echo "start ${SLURM_RESTART_COUNT:-0}"
[ "$SLURM_RESTART_COUNT" ] || srun sleep 778
srun --label hostname
END
two_sleep() { [ "$(pgrep -fxc '(/usr/bin/|/bin/|)sleep 778')" = 2 ]; }
stopped=$(on_head sbatch --parsable stopped.sh)
check "the job runs" until_so 20 test -s stopped.out
check "on both nodes" until_so 20 two_sleep
check "cut" "$slurm" cut 2
timed "standing still, until the job is requeued" until_so 40 job_has "$stopped" Restarts=1
check "requeued" job_has "$stopped" Restarts=1
check "mend" "$slurm" mend 2
check "the job ends" until_so 40 job_is "$stopped" COMPLETED
check "on both" test "$(grep -c "^[01]: $(hostname)\$" stopped.out)" = 2
expect 0 "" "$slurm" down
check "nothing is left ($SECONDS s)" gone "$TMP/slurm"
all_deaths --loopback

export DDP_SLURM_DIR="$TMP/a directory with blanks in its name"
check "a name that Slurm would not take" cluster_up 1 --loopback
blanks=$(on_head printenv DDP_SLURM)
check "they are in /tmp" test -e "$blanks/slurm.conf"
expect 0 "$(hostname)" on_head srun hostname
check "down" cluster_down
check "nothing is left" gone "$DDP_SLURM_DIR"
check "nor of its files" not ls -d "$blanks"
export DDP_SLURM_DIR=$TMP/slurm

# --- somebody else than root ------------------------------------------------------------------------------------------

if [ $EUID = 0 ] && id nobody >/dev/null 2>&1; then
    mkdir -p his/tools
    cp "$SRC"/tools/{slurm,shell}.sh his/tools
    chown -R nobody his
    chmod 711 "$TMP"
    as_nobody() { (cd his && DDP_SLURM_DIR=$TMP/his/slurm setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"); }
    expect 0 "up after" as_nobody tools/slurm.sh up 2
    grep -F 'no namespaces' "$TMP/output"
    expect 0 "1: nobody" as_nobody tools/slurm.sh run srun -N 2 -l id -un
    [ ! -x mpi ] || cp mpi his
    [ ! -x mpi ] || expect 0 "3 on " \
        mpi_twice as_nobody tools/slurm.sh run timeout 60 srun --mpi=pmix -N 2 --ntasks-per-node=2 ./mpi
    expect 0 "" as_nobody tools/slurm.sh cut 2
    expect 0 "" as_nobody tools/slurm.sh mend 2
    expect 0 "" as_nobody tools/slurm.sh down
    check "nothing is left" gone "$TMP/his/slurm"
else
    echo "not tried, since this is not root: to be somebody else"
fi

echo "all of it: $SECONDS s, on $(nproc) cores"
test_done
