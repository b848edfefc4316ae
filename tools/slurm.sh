#!/usr/bin/env bash
# slurm.sh - a real Slurm cluster of several nodes on this one machine, from the distribution's packages. `./ddp slurm`
# installs them and calls this script. Commands: usage(), below.
#
#     up -- starts --> keeper         process 1 in its own namespaces: the host "head"
#     (ends when all     |- munged, slurmctld
#     nodes are idle)    |- node 1    process 1 in its own namespaces: the host "node1", with slurmd and its jobs
#                        `- node 2    and so on; a cable (a veth) connects each node to a bridge on the head
#
# The head and each node have their own processes, hostname, network, mounts and shared memory. Slurm keeps its files
# (configuration, logs, state) in a tmpfs on /etc/slurm (or /mnt) that only the cluster sees. So when the keeper dies,
# even by kill -9, the kernel removes all of these.
#
# The keeper locks $dir/slurm.lock. $dir/keeper holds its pid, $dir/cluster settings for other calls of this script.
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
root=${self%/tools/*}
# shellcheck source=tools/shell.sh
. "$root/tools/shell.sh"
export PATH=$PATH:/usr/sbin:/sbin

usage()
{
    cat <<'END'
./ddp slurm - a real Slurm cluster of several nodes on this machine

  slurm up N [--cpus C] [--gpus G] [--mpi TYPE]
                            start node1 ... nodeN and wait until all are idle
                            --cpus: cores that Slurm assumes per node (default 4; need not match this machine)
                            --gpus: GPUs that each node claims to have (default 0), for options such as --gpus-per-task
                            --mpi: what srun's --mpi is by default (default none; pmix on many clusters)
  slurm run COMMAND...      run a command on the head: ./ddp slurm run sbatch job.sbatch, ... run squeue, ... run bash
  slurm node K COMMAND...   run a command on node K: ./ddp slurm node 2 ps aux
  slurm disconnect K        pull out node K's network cable; after 5 s Slurm suspects the node, then requeues its jobs
  slurm reconnect K         plug node K's cable in again
  slurm down                end the cluster and everything that runs on it
  slurm hold N [OPTIONS]    for scripts: like up, but in the foreground; ends with the process that started it

The nodes share this machine's files except /dev/shm and /etc/slurm, and cannot reach other networks;
the logs: ./ddp slurm run ls /etc/slurm/log
The cluster's directory is DDP_SLURM_DIR, by default build/slurm.
END
}

wrong() { die_usage "slurm: $1" "${2:-./ddp slurm help}"; }

# wait_for SECONDS COMMAND...: waits until the command succeeds. Fails after SECONDS.
wait_for()
{
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $deadline ] || return 1
        sleep 0.05
    done
}

# --- the configuration ----------------------------------------------------------------------------------------------

# For $nodes nodes, each with $cpus cores and $gpus GPUs; $mpi is the default of srun --mpi. All files are in $base.
print_slurm_conf()
{
    local me k gres=''
    [ "$gpus" = 0 ] || gres=Gres=gpu:$gpus
    me=$(id -un)
    cat <<END
ClusterName=ddp
SlurmctldHost=head(10.77.0.1)
SlurmUser=$me
SlurmdUser=$me
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until its old credential expires: by default for 120 s. 5 s is the least.
AuthInfo=socket=$base/munge/socket,cred_expire=5

StateSaveLocation=$base/state
SlurmctldPidFile=$base/slurmctld.pid
SlurmctldLogFile=$base/log/slurmctld.log
SlurmdSpoolDir=$base/spool.%n
SlurmdPidFile=$base/slurmd.%n.pid
SlurmdLogFile=$base/log/slurmd.%n.log
# A folder per node: in a shared one, PMIx would mix up the nodes.
TmpFS=$base/tmp.%n

# No cgroups; the number of cores below counts, not the real one.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
MpiDefault=$mpi

# A silent node is given up within seconds. It may return.
SlurmctldTimeout=10
SlurmdTimeout=5
MessageTimeout=5
ReturnToService=2
KillWait=3
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
JobRequeue=1
MailProg=/bin/true
END
    [ -z "$gres" ] || echo "GresTypes=gpu"
    for ((k = 1; k <= nodes; k++)); do
        echo "NodeName=node$k NodeAddr=10.77.0.$((10 + k)) CPUs=$cpus RealMemory=1000 $gres State=UNKNOWN"
    done
    echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
}

write_files()
{
    local k
    mkdir -p "$base"/{state,log,munge,tmp}
    for ((k = 1; k <= nodes; k++)); do
        mkdir -p "$base/spool.node$k" "$base/tmp.node$k"
    done
    chmod 755 "$base" "$base/munge"
    chmod 1777 "$base/tmp"
    (umask 077 && head -c 1024 /dev/urandom >"$base/munge/key")
    mkfifo -m 600 "$base/control"
    print_slurm_conf >"$base/slurm.conf"
    echo "CgroupPlugin=cgroup/v1" >"$base/cgroup.conf"
    for ((k = 0; k < gpus; k++)); do            # Slurm wants to see a device file for each GPU
        ln -s /dev/null "$base/gpu$k"
        echo "Name=gpu File=$base/gpu$k"
    done >"$base/gres.conf"
}

# --- in the cluster -------------------------------------------------------------------------------------------------
# These functions, except pass_on, run in the keeper or in process 1 of a node.

# pass_on VARIABLE...: hands these variables to the processes that this one starts with `"$self" inside FUNCTION`.
pass_on()
{
    DDP_SLURM_SETTINGS=$(declare -p "$@")
    export DDP_SLURM_SETTINGS
}

# daemon NAME COMMAND...: runs COMMAND without the capabilities that a user other than root has in the namespaces. The
# output goes to log/NAME.out.
daemon() { setpriv --inh-caps=-all --ambient-caps=-all -- "${@:2}" >>"$base/log/$1.out" 2>&1 </dev/null; }

# started WHAT COMMAND...: gives up the cluster unless the command succeeds within 30 s.
started()
{
    wait_for 30 "${@:2}" || {
        echo "slurm: $1 did not start"
        tail -n 5 "$base"/log/* 2>/dev/null || true
        exit 1
    }
}

all_idle() { [ "$(timeout 5 sinfo -h -o '%T %D')" = "idle $nodes" ]; }

make_head()
{
    local k
    mount -t tmpfs -o mode=755 ddp-slurm "$base"
    write_files
    printf '127.0.0.1 localhost\n10.77.0.1 head\n' >"$base/hosts"
    for ((k = 1; k <= nodes; k++)); do
        echo "10.77.0.$((10 + k)) node$k" >>"$base/hosts"
    done
    mount --bind "$base/hosts" /etc/hosts
    hostname head
    ip link set lo up
    ip link add br0 type bridge
    ip addr add 10.77.0.1/24 dev br0
    ip link set br0 up
}

# make_node K: starts the node's process 1, and connects a cable (nodeK on the bridge, eth0 in the node). unshare itself
# stays in our process namespace, but is in the node's network, so `ip` can find this network by unshare's pid.
make_node()
{
    unshare --mount --net --uts --ipc --pid --fork --kill-child "$self" inside be_node "$1" 9>&- &
    wait_for 10 test -s "$base/pid.node$1" || die "slurm: node$1 did not start within 10 s"
    # From Debian 13 on, ip looks in /proc for the process; here, /proc still has the numbers outside.
    unshare --mount bash -c 'mount -t proc proc /proc && exec "$@"' - \
        ip link add "node$1" type veth peer name eth0 netns $!
    ip link set "node$1" master br0 up
}

# Gives the head or a node its own /proc and /dev/shm.
mount_own()
{
    mount -t proc proc /proc
    mount -t tmpfs -o mode=1777 shm /dev/shm
}

# be_node K: process 1 of a node.
be_node()
{
    outer_pid >"$base/pid.node$1"
    hostname "node$1"
    ip link set lo up
    wait_for 10 ip addr add "10.77.0.$((10 + $1))/24" dev eth0
    ip link set eth0 up
    mount_own
    wait_for 60 test -e "$base/controlled"
    daemon "slurmd.node$1" slurmd -D -N "node$1"
}

# Prints this process's pid outside the cluster. Call it before mount_own, while /proc is still the outer one.
outer_pid()
{
    local pid
    read -r pid _ </proc/self/stat
    echo "$pid"
}

start_daemons()
{
    daemon munged munged -F -f --key-file="$base/munge/key" --socket="$base/munge/socket" \
        --pid-file="$base/munge/pid" --log-file="$base/log/munged.log" --seed-file="$base/munge/seed" \
        --num-threads=2 9>&- &
    started munged munge -n -S "$base/munge/socket"
    daemon slurmctld slurmctld -D -i 9>&- &
    started slurmctld scontrol ping
    : >"$base/controlled"
    started "a node" all_idle
}

# The keeper, which is process 1 in the head's namespaces.
keep()
{
    local k node state
    local -A pids=()
    trap 'exit 143' TERM
    trap 'exit 130' INT
    outer_pid >"$dir/keeper"
    pids[head]=$(cat "$dir/keeper")
    make_head
    for ((k = 1; k <= nodes; k++)); do
        make_node $k
        pids[node$k]=$(cat "$base/pid.node$k")
    done
    mount_own
    start_daemons
    declare -p base nodes pids >"$dir/cluster"
    echo ready                                  # the keeper ends here if its reader is gone
    exec 7<>"$base/control" >>"$base/log/keeper.out" 2>&1
    while read -r -u 7 node state; do
        # The controller asks a silent node only every 16 s. After HUP each slurmd reports to the controller.
        ip link set "$node" "$state" && pkill -HUP -x slurmd || true
    done
}

# --- starting and ending the cluster --------------------------------------------------------------------------------

# Root needs no user namespace. For other users, unshare first creates one. They keep their identity there.
spaces=(--mount --net --uts --ipc --pid)
[ $EUID = 0 ] || spaces=(--user "${spaces[@]}")
unshare_all()
{
    local user=()
    [ $EUID = 0 ] || user=(--map-current-user --keep-caps)
    exec unshare "${spaces[@]}" "${user[@]}" --fork --kill-child "$self" inside "$@"
}

# Tries some operations that need a capability, in new namespaces. Prints nothing if they work.
probe()
{
    mount -t tmpfs probe /dev/shm
    mount -t proc proc /proc
    mount --bind /proc/version /etc/hosts
    hostname head
    ip link add br0 type bridge
    ip link add node1 type veth peer name eth0
    ip link set node1 master br0
    unshare --mount --net --uts --ipc --pid --fork mount -t proc proc /proc
}

# Sets $base, the folder of Slurm's files.
check_spaces()
{
    local why
    why=$( (unshare_all probe) 2>&1 </dev/null) ||
        die "slurm: this system refuses namespaces (${why%%$'\n'*})" \
            "run this with sudo; a container must be started with --privileged"
    base=/etc/slurm
    [ -d $base ] || base=/mnt
}

# Locks $dir/slurm.lock as descriptor 9, which exec keeps.
take_lock()
{
    mkdir -p "$dir" || die "slurm: $dir: cannot create this folder" "DDP_SLURM_DIR chooses another"
    dir=$(cd "$dir" && pwd -P)
    while :; do
        mkdir -p "$dir"
        exec 9>>"$dir/slurm.lock"
        flock -w 3 9 || die "slurm: a cluster runs in $dir already" \
            "./ddp slurm down ends it; DDP_SLURM_DIR chooses another folder"
        [ ! "$dir/slurm.lock" -ef /dev/fd/9 ] || break          # else down has just removed this file
    done
    rm -f "$dir/keeper" "$dir/cluster"          # they remain if the keeper was killed
}

# Becomes the keeper. $caller: for `hold`, the parent process, which the keeper must not outlive; for `up`, empty.
start()
{
    [ "${caller:-$PPID}" = $PPID ] || exit 1
    # shellcheck disable=SC2086
    unset ${!SLURM_@} ${!SBATCH_@} ${!SRUN_@} ${!SALLOC_@}
    take_lock
    check_spaces
    pass_on dir base nodes cpus gpus mpi
    unshare_all keep
}

# --- commands ---------------------------------------------------------------------------------------------------------

# Sets $nodes, $cpus, $gpus, $mpi.
parse_start()
{
    nodes='' cpus=4 gpus=0 mpi=none
    while [ $# -gt 0 ]; do
        case $1 in
        --cpus) number "$1" "${2:-}" 1 256; cpus=$2; shift ;;
        --gpus) number "$1" "${2:-}" 0 16; gpus=$2; shift ;;
        --mpi)
            [[ ${2:-} =~ ^(none|pmi2|pmix)$ ]] || wrong "--mpi is none, pmi2 or pmix, not '${2:-}'"
            mpi=$2
            shift ;;
        -*) wrong "unknown option $1" ;;
        *) [ -z "$nodes" ] || wrong "give only one number of nodes, not also '$1'"; nodes=$1 ;;
        esac
        shift
    done
    [ -n "$nodes" ] || wrong "how many nodes?"
    number "the number of nodes" "$nodes" 1 32
}

# number WHAT VALUE LEAST MOST: ends the script unless VALUE is a number from LEAST to MOST.
number()
{
    if ! [[ $2 =~ ^(0|[1-9][0-9]{0,3})$ ]] || (($2 < $3 || $2 > $4)); then
        wrong "$1 must be a number from $3 to $4, not '$2'"
    fi
}

check_programs()
{
    local program
    for program in slurmctld slurmd srun munged; do
        have $program || die "slurm: $program is not installed" "apt install slurmctld slurmd slurm-client munge"
    done
    [ "$(id -un 2>/dev/null)" ] || die "slurm: the user $EUID has no name, and Slurm needs one"
}

cmd_up()
{
    local line took before=${EPOCHREALTIME/[.,]/}
    parse_start "$@"
    check_programs
    caller=
    pass_on dir nodes cpus gpus mpi caller
    exec 8< <(exec setsid "$self" inside start 2>&1 </dev/null)
    while read -r -t 60 -u 8 line; do
        if [ "$line" = ready ]; then
            took=$(((${EPOCHREALTIME/[.,]/} - before) / 100000))
            say "the cluster is up after $((took / 10)).$((took % 10)) s; try ./ddp slurm run srun -N $nodes hostname"
            return
        fi
        say "$line"
    done
    kill -KILL $! 2>/dev/null || true           # only the keeper started here, if it is still trying
    die "slurm: the cluster did not start"
}

# Like up, but in the foreground, and the kernel kills the keeper when the caller ends.
cmd_hold()
{
    parse_start "$@"
    check_programs
    caller=$PPID
    pass_on dir nodes cpus gpus mpi caller
    exec setpriv --pdeathsig KILL "$self" inside start
}

runs() { [ -e "$dir/slurm.lock" ] && ! flock -s -n "$dir/slurm.lock" true; }

# True inside a cluster, for example in a shell that `run bash` has started.
within() { [ -n "${DDP_SLURM:-}" ] && [ -e "$DDP_SLURM/hosts" ]; }

# Ends the script if no cluster is ready, if this user may not use the cluster, or if this shell is inside it. Sets
# $base, $nodes, and $pids: each host's process 1.
find_cluster()
{
    ! within || die "slurm: this shell already runs inside the cluster"
    runs || die "slurm: no cluster runs in $dir" "./ddp slurm up 2 starts one"
    [ -e "$dir/cluster" ] || die "slurm: the cluster in $dir is not ready yet"
    eval "$(sed 's/^declare /declare -g /' "$dir/cluster")"
    kill -0 "${pids[head]}" 2>/dev/null || die "slurm: the cluster in $dir belongs to another user" "run this with sudo"
}

# enter HOST COMMAND...: execs COMMAND on HOST. COMMAND gets SIGTERM when this process is killed.
enter()
{
    local host=$1 user=() environment
    shift
    environment=("SLURM_CONF=$base/slurm.conf" "DDP_SLURM=$base" "OMPI_MCA_orte_tmpdir_base=$base/tmp")
    [ $EUID != 0 ] || environment+=(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
    [ $EUID = 0 ] || user=(--preserve-credentials)
    exec nsenter "${spaces[@]}" "${user[@]}" --target "${pids[$host]}" --root --wdns="$PWD" -- \
        setpriv --pdeathsig TERM -- env "${environment[@]}" "$@"
}

cmd_run()
{
    [ $# -gt 0 ] || wrong "run: which command?"
    ! within || exec "$@"
    find_cluster
    enter head "$@"
}

# check_node K: sets $node to nodeK. Ends the script if there is no such node. K may also be nodeK.
check_node()
{
    find_cluster
    if ! [[ $1 =~ ^(node)?[1-9][0-9]?$ ]] || ((${1#node} > nodes)); then
        wrong "there is no node '$1'" "nodes 1 to $nodes exist"
    fi
    node=node${1#node}
}

cmd_node()
{
    [ $# -gt 1 ] || wrong "node: which node, and which command?"
    check_node "$1"
    enter "$node" "${@:2}"
}

# cable up|down K: asks the keeper to connect or disconnect node K. Only the keeper may change the network.
cable()
{
    [ $# = 2 ] || wrong "which node?"
    check_node "$2"
    # shellcheck disable=SC2016
    enter head sh -c 'echo "$1" >"$2/control"' cable "$node $1" "$base"
}
cmd_disconnect() { cable down "$@"; }
cmd_reconnect() { cable up "$@"; }

# Returns when all processes of the cluster have ended.
cmd_down()
{
    [ $# = 0 ] || wrong "down: takes no arguments"
    runs || die "slurm: no cluster runs in $dir"
    [ -s "$dir/keeper" ] || die "slurm: the cluster in $dir is not ready yet"
    kill -KILL "$(cat "$dir/keeper")" || die "slurm: the cluster in $dir belongs to another user"
    flock -w 15 "$dir/slurm.lock" rm -f "$dir/keeper" "$dir/cluster" "$dir/slurm.lock" ||
        die "slurm: a process of the cluster in $dir does not exit"
    rmdir "$dir" 2>/dev/null || true
}

dir=${DDP_SLURM_DIR:-$root/build/slurm}
verb=${1:-help}
[ $# = 0 ] || shift
case ${1:-} in -h | --help) verb=help ;; esac
case $verb in
up | hold | run | node | disconnect | reconnect | down) "cmd_$verb" "$@" ;;
check) parse_start "$@" ;;                      # only checks the arguments of up
inside)
    eval "$DDP_SLURM_SETTINGS"
    export SLURM_CONF=${base:-}/slurm.conf
    "$@"
    ;;
help | -h | --help) usage ;;
*) wrong "there is no command '$verb'" ;;
esac
