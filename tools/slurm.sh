#!/usr/bin/env bash
# slurm.sh - a real Slurm cluster of several nodes on this one machine, from the distribution's own packages.
# `./ddp slurm` calls it, once the packages are there. What it can do: usage(), below.
#
#     up -- starts --> keeper         process 1 in namespaces of its own: the host "head"
#     (ends when all     |- munged, slurmctld
#     nodes are idle)    |- node 1    process 1 in namespaces of its own: the host "node1", with slurmd and its jobs
#                        `- node 2    and so on; each has a cable (a veth) to a bridge on the head
#
# The cluster, and in it each node, has its own processes, hostname, network, mounts and shared memory. What Slurm
# keeps in files (configuration, logs, state) is in a tmpfs that only the cluster sees, mounted on /etc/slurm. So
# when the keeper dies, even by kill -9, the kernel removes everything else.
#
# Where namespaces are refused, each node is a slurmd on the loopback interface of this host. There a second process,
# the sweeper, cleans up after the keeper.
#
# $dir/slurm.lock is locked while any process of the cluster lives; $dir/cluster holds the pids and names.
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

  slurm up N [--cpus C] [--gpus G] [--timeout S] [--loopback]
                            start node1 ... nodeN and wait until all are idle
                            --cpus: cores that Slurm assumes per node (default 4; need not match this machine)
                            --gpus: GPUs that each node claims to have (default 0), for --gpus-per-task and similar
                            --timeout: seconds (default 5) after which Slurm suspects a silent node; its jobs are
                            requeued after two or three times as long
                            --loopback: run all nodes on this host, without namespaces, as 127.0.0.11,
                            127.0.0.12, ...; the default where namespaces are refused
  slurm run COMMAND...      run a command on the head: ./ddp slurm run sbatch job.sbatch, ... run squeue, ... run bash
  slurm node K COMMAND...   run a command on node K: ./ddp slurm node 2 ps aux
  slurm cut K, mend K       disconnect node K's network cable; connect it again
  slurm status              show nodes, jobs, and the place of the logs
  slurm down                end the cluster and everything that runs on it
  slurm hold N [OPTIONS]    for scripts: like up, but in the foreground; ends with the process that started it

The nodes share this machine's files except /dev/shm and /etc/slurm, and cannot reach other networks.
The cluster's directory is --dir DIR (right after the first word), otherwise DDP_SLURM_DIR, otherwise build/slurm.
END
}

wrong() { die_usage "slurm: $1" "${2:-./ddp slurm help}"; }

# wait_for SECONDS COMMAND...: until it succeeds; fails when it has not by then.
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

# That of $nodes nodes with $cpus cores and $gpus GPUs, all files in $base.
print_slurm_conf()
{
    local me k
    me=$(id -un)
    cat <<END
ClusterName=ddp
SlurmctldHost=$(controller_address)
SlurmUser=$me
SlurmdUser=$me
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until its old credential has expired: 120 s, or this, at least 5.
AuthInfo=socket=$base/munge/socket,cred_expire=5

StateSaveLocation=$base/state
SlurmctldPidFile=$base/slurmctld.pid
SlurmctldLogFile=$base/log/slurmctld.log
SlurmdSpoolDir=$base/spool.%n
SlurmdPidFile=$base/slurmd.%n.pid
SlurmdLogFile=$base/log/slurmd.%n.log
# One for each node, or the steps of PMIx meet in it.
TmpFS=$base/tmp.%n

# No cgroups, and cores as they are written below, not as they are.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE

# A node that does not answer is given up within seconds, and is taken back when it does.
SlurmctldTimeout=10
SlurmdTimeout=$timeout
MessageTimeout=$timeout
ReturnToService=2
KillWait=3
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
JobRequeue=1
MailProg=/bin/true
END
    [ "$gpus" = 0 ] || echo "GresTypes=gpu"
    [ "$mode" = hosts ] || echo "SlurmctldPort=$port"
    for ((k = 1; k <= nodes; k++)); do
        echo "NodeName=$(node_name $k) $(node_address $k) CPUs=$cpus RealMemory=1000 $(node_gpus) State=UNKNOWN"
    done
    echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
}

controller_address()
{
    if [ "$mode" = hosts ]; then echo "head(10.77.0.1)"; else echo "${HOSTNAME%%.*}(127.0.0.1)"; fi
}

# On the loopback interface, all of 127.0.0.0/8 is there; and a number is a name that resolves.
node_name()
{
    if [ "$mode" = hosts ]; then echo "node$1"; else echo "127.0.0.$((10 + $1))"; fi
}

node_address()
{
    if [ "$mode" = hosts ]; then
        echo "NodeAddr=10.77.0.$((10 + $1))"
    else
        echo "NodeHostname=${HOSTNAME%%.*} NodeAddr=$(node_name "$1") Port=$((port + $1))"
    fi
}

node_gpus() { [ "$gpus" = 0 ] || echo "Gres=gpu:$gpus"; }

# Slurm wants to see a device file for each GPU.
print_gres_conf()
{
    local g
    for ((g = 0; g < gpus; g++)); do
        ln -s /dev/null "$base/gpu$g"
        echo "Name=gpu File=$base/gpu$g"
    done
}

write_files()
{
    local k
    mkdir -p "$base"/{state,log,munge,tmp}
    for ((k = 1; k <= nodes; k++)); do
        mkdir -p "$base/spool.$(node_name $k)" "$base/tmp.$(node_name $k)"
    done
    chmod 755 "$base" "$base/munge"
    chmod 1777 "$base/tmp"
    (umask 077 && head -c 1024 /dev/urandom >"$base/munge/key")
    mkfifo -m 600 "$base/control"
    print_slurm_conf >"$base/slurm.conf"
    echo "CgroupPlugin=cgroup/v1" >"$base/cgroup.conf"
    : >"$base/log/restarts"
    print_gres_conf >"$base/gres.conf"
}

# --- in the cluster -------------------------------------------------------------------------------------------------
# What runs in the keeper and in process 1 of each node. $mode is "hosts" (with namespaces) or "loopback".

# What start found out, through the calls of this script.
take_settings()
{
    settings=("$@")
    dir=$1 mode=$2 base=$3 port=$4 nodes=$5 cpus=$6 gpus=$7 timeout=$8
    export SLURM_CONF=$base/slurm.conf
}

# As the user who started the cluster: without the rights over its namespaces, which a user other than root has here.
plain() { setpriv --inh-caps=-all --ambient-caps=-all -- "$@"; }

# supervise NAME DAEMON...: runs it, and again when it dies. Does not return.
supervise()
{
    local name=$1 status
    shift
    while :; do
        status=0
        plain "$@" >>"$base/log/$name.out" 2>&1 </dev/null || status=$?
        echo "$(date +%T) $name ended with status $status" >>"$base/log/restarts"
        sleep 0.5
    done
}

# started WHAT COMMAND...: as wait_for, but does not wait for a daemon that dies again and again.
started()
{
    local what=$1 deadline=$((SECONDS + 30))
    shift
    until "$@" >/dev/null 2>&1; do
        if [ $SECONDS -ge $deadline ] || [ "$(wc -l <"$base/log/restarts")" -gt 3 ]; then
            echo "slurm: $what did not start"
            tail -n 5 "$base"/log/* 2>/dev/null || true
            exit 1
        fi
        sleep 0.05
    done
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

# make_node K: its process 1. unshare itself stays outside of its processes, but has its network.
make_node()
{
    unshare --mount --net --uts --ipc --pid --fork --kill-child "$self" inside be_node "$1" "${settings[@]}" 9>&- &
    roots[$1]=$!
    wait_for 10 test -s "$base/pid.node$1"
}

# plug_in K: a cable from br0 to its eth0.
plug_in()
{
    ip link add "node$1" type veth peer name eth0 netns "${roots[$1]}"
    ip link set "node$1" master br0 up
}

# A host's own view of its processes, and its own shared memory.
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
    supervise "slurmd.node$1" slurmd -D -N "node$1"
}

# What this process is called outside, as long as /proc is the one from there.
outer_pid()
{
    local pid
    read -r pid _ </proc/self/stat
    echo "$pid"
}

start_daemons()
{
    local k
    supervise munged munged -F -f --key-file="$base/munge/key" --socket="$base/munge/socket" \
        --pid-file="$base/munge/pid" --log-file="$base/log/munged.log" --seed-file="$base/munge/seed" \
        --num-threads=2 9>&- &
    started munged munge -n -S "$base/munge/socket"
    supervise slurmctld slurmctld -D -i 9>&- &
    started slurmctld scontrol ping
    : >"$base/controlled"
    [ "$mode" = hosts ] || for ((k = 1; k <= nodes; k++)); do
        supervise "slurmd.$(node_name $k)" slurmd -D -N "$(node_name $k)" 9>&- &
        roots[k]=$!
    done
    started "a node" all_idle
}

# The keeper, which is process 1 of the head. It holds the lock. Below roots[K] are all processes of node K.
keep()
{
    local verb k roots=()
    trap 'exit 143' TERM
    trap 'exit 130' INT
    outer_pid >"$dir/keeper"
    if [ "$mode" = hosts ]; then
        make_head
        for ((k = 1; k <= nodes; k++)); do make_node $k; done
        mount_own                               # not before the nodes have seen their numbers outside
        for ((k = 1; k <= nodes; k++)); do plug_in $k; done
    else
        write_files
    fi
    start_daemons
    print_cluster >"$dir/cluster"
    echo ready                                  # the keeper ends here if its reader is gone
    exec 7<>"$base/control" >>"$base/log/keeper.out" 2>&1
    while read -r -u 7 verb k; do
        "${verb}_$mode" "$k" || true
        echo "$verb" >"$base/cable.node$k"
    done
}

# What the rest of this script has to know, for those who come later.
print_cluster()
{
    local k
    printf '%s %s\n' mode "$mode" base "$base" nodes "$nodes" head "$(cat "$dir/keeper")"
    [ "$mode" = loopback ] || for ((k = 1; k <= nodes; k++)); do
        echo "node$k $(cat "$base/pid.node$k")"
    done
}

cut_hosts() { ip link set "node$1" down; }
mend_hosts() { ip link set "node$1" up && report_back "$1"; }

# Here there is no cable: all processes of the node stand still instead.
cut_loopback() { tree "${roots[$1]}" | xargs kill -STOP; }
mend_loopback() { tree "${roots[$1]}" | xargs kill -CONT && report_back "$1"; }

# The controller asks a node that is down every so often, up to 16 s apart. Told to read its configuration again, the
# node asks the controller.
report_back()
{
    local pid
    for pid in $(tree "${roots[$1]}"); do
        [ "$(cat "/proc/$pid/comm")" != slurmd ] || kill -HUP "$pid"
    done
}

# tree PID: it, and all processes below it.
tree()
{
    local child
    echo "$1"
    for child in $(ps -o pid= --ppid "$1"); do tree "$child"; done
}

# --- its beginning and end ------------------------------------------------------------------------------------------

# Root has the right to namespaces; others may have it in a user namespace, in which they stay who they are.
spaces=(--mount --net --uts --ipc --pid)
[ $EUID = 0 ] || spaces=(--user "${spaces[@]}")
unshare_all()
{
    local user=()
    [ $EUID = 0 ] || user=(--map-current-user --keep-caps)
    exec unshare "${spaces[@]}" "${user[@]}" --fork --kill-child "$self" inside "$@"
}

# Everything that needs a right, in namespaces of its own: prints nothing when all is well.
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

# Sets $mode, $base and $port.
choose_mode()
{
    local why
    mode=loopback base=$files port=$(free_ports)
    [ -z "$loopback" ] || return 0
    if ! why=$( (unshare_all probe) 2>&1 </dev/null); then
        echo "slurm: no namespaces here (${why%%$'\n'*}): all nodes are on this host's loopback interface"
        return
    fi
    mode=hosts base=/etc/slurm
    [ -d $base ] || base=/mnt
}

# The first of $nodes + 1 ports that are free, below those that the system gives away.
free_ports()
{
    local first k
    while :; do
        first=$((12000 + (RANDOM * 32768 + RANDOM) % 20000))
        for ((k = 0; k <= nodes; k++)); do
            ! (exec 3<>"/dev/tcp/127.0.0.1/$((first + k))") 2>/dev/null || continue 2
        done
        echo $first
        return
    done
}

# Takes the lock on $dir as file 9, for this process and what it becomes. Whoever ends a cluster removes the file.
take_lock()
{
    mkdir -p "$dir"
    dir=$(cd "$dir" && pwd -P)
    # All that is there will be removed in the end.
    [ -e "$dir/slurm.lock" ] || [ -z "$(ls -A "$dir")" ] ||
        wrong "$dir is not empty: --dir needs an empty directory"
    while :; do
        mkdir -p "$dir"
        exec 9>>"$dir/slurm.lock"
        flock -w 3 9 || die "slurm: a cluster runs in $dir already" "./ddp slurm down, or use a different --dir"
        [ ! "$dir/slurm.lock" -ef /dev/fd/9 ] || break
    done
    rm -rf "$dir/keeper" "$dir/cluster" "$dir/files"        # this machine was switched off, say
}

# start NODES CPUS GPUS TIMEOUT LOOPBACK: becomes the keeper.
start()
{
    local nodes=$1 cpus=$2 gpus=$3 timeout=$4 loopback=$5 files
    # shellcheck disable=SC2086
    unset ${!SLURM_@} ${!SBATCH_@} ${!SRUN_@} ${!SALLOC_@}
    take_lock
    # Slurm has no quotes in its configuration, and sockets no long names.
    files=$dir/files
    [[ $files =~ ^[A-Za-z0-9./_+-]{1,60}$ ]] || files=$(mktemp -d /tmp/ddp-slurm.XXXXXX)
    setsid "$self" inside sweep "$dir" "$files" </dev/null >/dev/null 2>&1 9>&- &
    choose_mode
    settings=("$dir" "$mode" "$base" "$port" "$nodes" "$cpus" "$gpus" "$timeout")
    if [ "$mode" = hosts ]; then unshare_all keep "${settings[@]}"; fi
    export DDP_SLURM=$base
    exec "$self" inside keep "${settings[@]}"
}

# sweep DIR FILES, the sweeper: waits until the keeper is gone, and removes what is left.
sweep()
{
    local dir=$1 base=$2 left
    exec 8>>"$dir/slurm.lock"
    flock 8
    for _ in {1..50}; do
        left=$(of_this_cluster)
        [ -n "$left" ] || break
        # shellcheck disable=SC2086
        kill -KILL $left 2>/dev/null || true
        sleep 0.05
    done
    rm -rf "$base"
    rm -f "$dir/keeper" "$dir/cluster" "$dir/slurm.lock"
    rmdir "$dir" 2>/dev/null || true
}

# Processes that have its name in their environment; tasks that were given none have at least Slurm's own variables.
of_this_cluster()
{
    {
        grep -lzxF "DDP_SLURM=$base" /proc/[0-9]*/environ || true       # some are not ours to read, some are gone
        grep -lzxF "SLURM_CONF=$base/slurm.conf" /proc/[0-9]*/environ | xargs -r grep -lz '^SLURM_JOB_ID=' || true
    } 2>/dev/null | tr -dc '0-9\n' | sort -u
}

# --- what one types ---------------------------------------------------------------------------------------------------

# Sets $nodes, $cpus, $gpus, $timeout, $loopback.
parse_start()
{
    nodes='' cpus=4 gpus=0 timeout=5 loopback=''
    while [ $# -gt 0 ]; do
        case $1 in
        --cpus) number "$1" "${2:-}" 1 256; cpus=$2; shift ;;
        --gpus) number "$1" "${2:-}" 0 16; gpus=$2; shift ;;
        --timeout) number "$1" "${2:-}" 2 600; timeout=$2; shift ;;
        --loopback) loopback=yes ;;
        --dir) set_dir "${2:-}"; shift ;;
        -*) wrong "unknown option $1" ;;
        *) [ -z "$nodes" ] || wrong "give one number of nodes, not '$1' too"; nodes=$1 ;;
        esac
        shift
    done
    [ -n "$nodes" ] || wrong "how many nodes?"
    number "the number of nodes" "$nodes" 1 32
}

set_dir()
{
    [ -n "$1" ] || wrong "--dir needs a directory"
    dir=$1
}

# number WHAT VALUE LEAST MOST
number()
{
    if ! [[ $2 =~ ^(0|[1-9][0-9]{0,3})$ ]] || (($2 < $3 || $2 > $4)); then
        wrong "$1 is from $3 to $4, not '$2'"
    fi
}

check_programs()
{
    local program
    for program in slurmctld slurmd srun munged; do
        have $program || die "slurm: there is no $program" "apt install slurmctld slurmd slurm-client munge"
    done
    [ "$(id -un 2>/dev/null)" ] || die "slurm: the user $EUID has no name, and Slurm needs one"
}

cmd_up()
{
    local line took before=${EPOCHREALTIME/./}
    parse_start "$@"
    check_programs
    exec 8< <(exec setsid "$self" inside start "$dir" "$nodes" "$cpus" "$gpus" "$timeout" "$loopback" 2>&1 </dev/null)
    while read -r -t 60 -u 8 line; do
        if [ "$line" = ready ]; then
            took=$(((${EPOCHREALTIME/./} - before) / 100000))
            say "up after $((took / 10)).$((took % 10)) s: ./ddp slurm run srun -N $nodes hostname"
            return
        fi
        say "$line"
    done
    kill -KILL $! 2>/dev/null || true           # the keeper, if it still tries; never one that was there before
    die "slurm: the cluster did not start"
}

# The kernel ends it when the caller is gone.
cmd_hold()
{
    parse_start "$@"
    check_programs
    [ -n "${DDP_SLURM_CALLER:-}" ] ||
        DDP_SLURM_CALLER=$PPID exec setpriv --pdeathsig KILL "$self" hold --dir "$dir" "$@"
    [ "$DDP_SLURM_CALLER" = $PPID ] || exit 1           # it has gone already
    unset DDP_SLURM_CALLER
    start "$nodes" "$cpus" "$gpus" "$timeout" "$loopback"
}

runs() { [ -e "$dir/slurm.lock" ] && ! flock -s -n "$dir/slurm.lock" true; }

# Finds the cluster: $mode, $base, $nodes, and in $pids the processes 1.
find_cluster()
{
    local key value
    declare -gA pids=()
    [ -z "${DDP_SLURM:-}" ] || [ ! -e "$DDP_SLURM/hosts" ] || die "slurm: this shell already runs inside the cluster"
    runs || die "slurm: no cluster runs in $dir" "./ddp slurm up 2"
    [ -e "$dir/cluster" ] || die "slurm: the cluster in $dir is not ready yet"
    while read -r key value; do
        case $key in
        mode) mode=$value ;;
        base) base=$value ;;
        nodes) nodes=$value ;;
        *) pids[$key]=$value ;;
        esac
    done <"$dir/cluster"
    kill -0 "${pids[head]}" 2>/dev/null || die "slurm: the cluster in $dir belongs to another user" "as the user who started it: sudo"
}

# enter HOST COMMAND...: becomes the command, on that host. It ends when this process is ended.
enter()
{
    local host=$1 user=() environment
    shift
    environment=("SLURM_CONF=$base/slurm.conf" "DDP_SLURM=$base" "OMPI_MCA_orte_tmpdir_base=$base/tmp")
    [ $EUID != 0 ] || environment+=(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
    # Here all nodes have one name, and Open MPI would take them for one host: no shared memory.
    [ "$mode" = hosts ] || exec env -u OMPI_MCA_btl_tcp_if_exclude "${environment[@]}" \
        OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo "$@"
    [ $EUID = 0 ] || user=(--preserve-credentials)
    exec nsenter "${spaces[@]}" "${user[@]}" --target "${pids[$host]}" --wdns="$PWD" -- \
        setpriv --pdeathsig TERM -- env "${environment[@]}" "$@"
}

cmd_run()
{
    [ $# -gt 0 ] || wrong "run: which command?"
    [ -z "${DDP_SLURM:-}" ] || [ ! -e "$DDP_SLURM/hosts" ] || exec "$@"      # from within: ./ddp slurm run bash
    find_cluster
    enter head "$@"
}

# The number of a node that there is.
check_node()
{
    find_cluster
    if ! [[ $1 =~ ^(node)?[1-9][0-9]?$ ]] || ((${1#node} > nodes)); then
        wrong "there is no node '$1'" "there are $nodes"
    fi
}

cmd_node()
{
    [ $# -gt 1 ] || wrong "node: which node, and which command?"
    check_node "$1"
    enter "node${1#node}" "${@:2}"
}

# cable cut|mend K: returns when it is done.
cable()
{
    [ $# = 2 ] || wrong "$1: which node?"
    check_node "$2"
    # shellcheck disable=SC2016
    (enter head timeout 10 bash -c 'rm -f "$3/cable.node$2" && echo "$1 $2" >"$3/control" &&
        until [ "$(cat "$3/cable.node$2" 2>/dev/null)" = "$1" ]; do sleep 0.02; done' cable "$1" "${2#node}" "$base") ||
        die "slurm: $1 $2: the cluster does not answer"
}
cmd_cut() { cable cut "$@"; }
cmd_mend() { cable mend "$@"; }

cmd_status()
{
    [ $# = 0 ] || wrong "status: takes no arguments"
    find_cluster
    say "$nodes nodes, $([ "$mode" = hosts ] && echo "each with a network of its own" || echo "all on this host")"
    (enter head timeout 10 sinfo -N -o '%.10N %.10T %.5c %.10G %E')
    (enter head timeout 10 squeue -o '%.6i %.16j %.10T %.8M %.8l %.20R')
    say "logs: ./ddp slurm run ls $base/log"
}

# All of it has gone when this returns.
cmd_down()
{
    [ $# = 0 ] || wrong "down: takes no arguments"
    runs || die "slurm: no cluster runs in $dir"
    kill -KILL "$(cat "$dir/keeper")" || die "slurm: the cluster in $dir belongs to another user"
    wait_for 15 test ! -e "$dir/slurm.lock" || die "slurm: a process of the cluster in $dir does not exit"
}

dir=${DDP_SLURM_DIR:-$root/build/slurm}
verb=${1:-help}
[ $# = 0 ] || shift
case ${1:-} in -h | --help) verb=help ;; esac
if [ "${1:-}" = --dir ]; then
    set_dir "${2:-}"
    shift 2
fi
case $verb in
up | hold | run | node | cut | mend | status | down) "cmd_$verb" "$@" ;;
check) parse_start "$@" ;;                      # only whether up would understand these words
inside)
    case $1 in
    start) dir=$2; start "${@:3}" ;;
    probe) probe ;;
    sweep) sweep "$2" "$3" ;;
    be_node) take_settings "${@:3}"; be_node "$2" ;;
    *) take_settings "${@:2}"; "$1" ;;
    esac
    ;;
help | -h | --help) usage ;;
*) wrong "there is no command '$verb'" ;;
esac
