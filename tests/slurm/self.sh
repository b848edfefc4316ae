# shellcheck shell=bash
# self.sh - for the tests of the cluster itself: is all of it gone afterwards? After cluster.sh.

# Processes that inherited this directory from who started the cluster, jobs included.
processes_of() { env -u DDP_SLURM_DIR grep -lzxF "DDP_SLURM_DIR=$1" /proc/[0-9]*/environ 2>/dev/null; }

# Only what no other test beside this one could have made.
traces()
{
    ip -o link | grep -oE ' node[0-9]+[:@]'
    grep -E ' /etc/(slurm|hosts) ' /proc/mounts
    cat /etc/hosts
    ls -lR /etc/slurm
}
before=$(traces 2>/dev/null)

# gone DIR: nothing is left of the cluster in DIR, now or in a moment.
gone() { until_so 2 is_gone "$1"; }
is_gone() { [ ! -e "$1" ] && [ -z "$(processes_of "$1")" ] && [ "$(traces 2>/dev/null)" = "$before" ]; }

# timed WHAT COMMAND...: says how long it takes, to a tenth of a second.
timed()
{
    local what=$1 from=${EPOCHREALTIME/./} took status
    shift
    "$@"
    status=$?
    took=$(((${EPOCHREALTIME/./} - from) / 100000))
    echo "$what: $((took / 10)).$((took % 10)) s"
    return $status
}

# --- MPI -------------------------------------------------------------------------------------------------------------

# Open MPI 4.1.4 crashes in MPI_Init, in btl_tcp, once in a hundred times on a machine that has much to do.
mpi_twice() { "$@" || { echo "once more:"; "$@"; }; }

# make_mpi: ./mpi says who it is, and the sum of all ranks' numbers.
make_mpi()
{
    if ! type -P mpicc >/dev/null; then
        echo "not tried, since it is not here: MPI (mpicc)"
        return
    fi
    cat >mpi.c <<'END'
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    int rank, sum;
    char host[MPI_MAX_PROCESSOR_NAME];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Get_processor_name(host, &sum);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("%d on %s: %d\n", rank, host, sum);
    return MPI_Finalize();
}
END
    check "an MPI program" mpicc -o mpi mpi.c
}

# --- death -----------------------------------------------------------------------------------------------------------

nap=$((1000000 + $$))       # no other test's job sleeps so long
sleeping() { pgrep -fx "/bin/sleep $nap"; }

# dies WHAT PID: it is killed once the cluster runs a job, one that does not know from whom it has its environment.
dies()
{
    check "$1: up" until_so 20 on_head true
    on_head sbatch --export=NONE -N 2 --output=/dev/null --wrap "srun /bin/sleep $nap" >/dev/null
    check "$1: a job" until_so 10 sleeping
    kill -KILL "$2"
    check "$1: nothing is left" gone "$DDP_SLURM_DIR"
    check "$1: nor of the job" until_so 2 not sleeping
}

all_deaths() # all_deaths [OPTION]
{
    local after
    bash -c "'$slurm' hold 2 $* & wait" >/dev/null 2>&1 &
    dies "hold's parent" $!
    "$slurm" hold 2 "$@" >/dev/null 2>&1 &
    dies "hold" $!
    "$slurm" up 2 "$@" >/dev/null 2>&1
    dies "keeper" "$(cat "$DDP_SLURM_DIR/keeper")"
    for after in 0.1 0.2 0.3; do
        timeout --foreground -s KILL $after "$slurm" up 2 "$@" >/dev/null 2>&1
        [ -e "$DDP_SLURM_DIR/cluster" ] && "$slurm" down            # it was quicker
        check "killed after $after s, while it starts" until_so 10 is_gone "$DDP_SLURM_DIR"
    done
} 2>/dev/null
