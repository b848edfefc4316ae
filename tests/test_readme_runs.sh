#!/usr/bin/env bash
# Every command line in README.md, the steps' READMEs, exercises/README.md, docs/ and CONTRIBUTING.md is run, as it
# stands there; or it says beside it what it needs (a GPU, a second host, minutes); or another test runs it, whose file
# has its words. What is not run stands in how(), below; what is new in a document is run.
#
# Where: in one directory, which is a copy of the tree (the build is linked, nothing is built), document by document,
# as a reader would. So a file that a command reads was written by one above it. A command's output has each line of
# what the document shows below it, but for numbers and names of this machine (shape, below).
#
# What makes it quick: `train` there puts options before those that are given, which therefore win: a small network,
# made-up images, one thread, and one step of 64 images; 512 images if the command line itself ends it after some steps
# (--max-steps). Likewise comm_bench sends short messages. srun and sbatch are typed in the cluster of
# `./ddp slurm up 2`, and jobs must end well.
#
# ctest: TIMEOUT 300
# shellcheck disable=SC2016  # code in single quotes
. "$SRC/tests/test.sh"
type -P perl >/dev/null || { echo "skipped: there is no perl"; exit 77; }
for name in RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT DDP_TOKEN DDP_LISTEN DDP_SLURM_DIR DDP_EXERCISES \
    DDP_EXERCISES_WORK OMP_NUM_THREADS "${!SLURM_@}"; do
    unset "$name"
done

# --- what is not run as it stands ------------------------------------------------------------------------------------

# how FILE COMMAND KIND: one of
#   marked WORDS        it is not run; WORDS (a regular expression) stand beside it: in its row or paragraph, or around
#                       its block
#   marked_above WORDS  ... in the first lines of the document
#   tested FILE WORDS   tests/FILE runs it; WORDS stand in one of its lines that is no comment
#   like COMMAND        that is run, with something for what "..." or ID stand for
#   counted PATTERN     there are tests of that name
#   mentioned           a command's name, nothing that one would type
how()
{
    local pattern="(a pattern without a command to run)"
    case "$1: $2" in
    # tests and builds
    "README.md: ./ddp test") marked "a quarter of an hour" ;;
    "CONTRIBUTING.md: ./ddp test") marked "a quarter of an hour" ;;
    "docs/slurm.md: ./ddp test") mentioned ;;
    *": tests/faults.sh prove") tested test_faults.sh 'faults.sh" prove' ;;
    *": pip install cmake") marked "without root" ;;
    *": ./ddp test -R "*) counted "${2##* -R }" ;;
    *": ctest -R "*) counted "${2##* -R }" ;;
    *": ./ddp setup") tested test_ddp_build.sh './ddp setup' ;;
    *": ./ddp clean") tested test_ddp_build.sh './ddp clean' ;;
    *": cmake --preset default && cmake --build build" | *": cmake --preset default" | \
        *": cmake --build build --target steps") tested test_ddp_build.sh 'cmake --build' ;;
    *": cmake --build build --target 01_single_gpu_cpu") tested test_ddp.sh 'cmake --build build --target 01_single_gpu_cpu' ;;
    *": cmake -S 04_ddp_launcher -B /anywhere") tested test_ddp_build.sh 'cmake -S 04_ddp_launcher -B' ;;
    *": cmake --preset default -DCMAKE_CUDA_"*) marked "GPU" ;;
    *": cmake --preset default -D"*) tested test_ddp_build.sh 'cmake --preset default' ;;

    *": ./ddp bundle" | *": ./ddp bundle 1 2") tested test_gpu_bundle.sh 'bare bundle 1 2' ;;
    *": ./ddp bundle pack") tested test_gpu_bundle.sh 'tools/gpu_bundle.sh' ;;
    *": ./ddp doctor --gpu") tested test_gpu_check.sh 'ddp doctor --gpu' ;;
    *": ./ddp doctor --gpu --report") tested test_gpu_bundle.sh 'bare doctor --gpu --report' ;;
    *": gpu-bundle/run "* | *": tar xf gpu-bundle.tar.xz"*) marked "GPU" ;;

    # what has to be fetched, takes long, or wants another machine
    *": ./ddp data cifar10") tested test_ddp_data.sh 'ddp data cifar10' ;;
    *": ./ddp bench --help") run ;;
    "docs/benchmarks.md: ./ddp bench"*) marked_above "minutes" ;;
    *": ./ddp bench"*) marked "minutes|\(benchmarks.md\)" ;;
    *": torchrun --no-python --nproc-per-node 2 build/cpu/04_ddp_launcher/train -b 128")        # if there is a torchrun
        tested test_launchers.sh '"$torchrun" --no-python --nproc-per-node'
        ;;
    *"--devices 0,2") marked "GPUs" ;;
    *"--backend cuda-gloo") marked "GPU" ;;
    *" --master-addr node1 "* | *"mpirun -H node1:2,node2:2 "*)
        marked "two hosts|several machines" ;;
    *": RANK=0 WORLD_SIZE=2 "*"&") by_hand "${2/=4711/=$((10000 + $$ % 20000))}" ;;
    *": kill -KILL "*) tested test_chaos.sh 'kill -KILL' ;;
    *": taskset -cp 4,5 "*) marked "another pair of numbers for each" ;;

    # clusters
    *": tail -F ddp-"*) like "cat ${2#tail -F }" ;;
    *": sbatch --nodes=4 06_slurm/job.sbatch --epochs 90") marked "four nodes" ;;
    "06_slurm/README.md: srun ... train "*) like "${2/.../-N2}" ;;
    *": srun --mpi=pmix ... train") tested test_slurm.sh '--mpi=pmix' ;;
    *": mpirun train") tested test_slurm.sh 'mpirun in a job' ;;
    *": scancel --batch --signal=USR1 1") tested test_slurm.sh 'scancel --batch --signal=USR1' ;;
    *": ./ddp slurm cut 2") tested test_slurm.sh '"$slurm" cut 2' ;;
    *": ./ddp slurm mend 2") tested test_slurm.sh '"$slurm" mend 2' ;;
    *": srun getent hosts node1") tested test_slurm_cluster.sh 'getent hosts node1' ;;
    *": srun --pty bash") marked "all nodes see" ;;
    *": module load "*) marked "modules" ;;
    *": apptainer "* | *" apptainer exec "*) marked "a machine where you are root" ;;
    *": tar xf libsodium-"* | *": cd libsodium-"* | *": ./configure --prefix="* | *": make install" | *": cd -") marked "libsodium" ;;
    *": ~/ddp-tools/bin/pip install "* | *": python3 -m venv ~/ddp-tools") marked "1 GB" ;;
    "README.md: docker "*) marked "Codespaces" ;;

    # exercises
    *": ./ddp exercise check") tested test_exercise.sh 'exercise check' ;;
    *": ./ddp exercise check [ID]") tested test_exercise.sh 'exercise check 03-1' ;;
    *": ./ddp exercise run [ID] -- OPTIONS") tested test_exercise.sh 'exercise run --' ;;
    *": ./ddp exercise list [STEP]") like "./ddp exercise list 03" ;;
    *": ./ddp exercise watch [ID]") tested test_exercise.sh 'ddp exercise watch 03-1' ;;
    *": ./ddp exercise start ID" | *": ./ddp exercise task "* | *": ./ddp exercise hint "* | *": ./ddp exercise solution "*)
        like "$(sed -E 's/\[?\bID\b\]?/03-1/' <<<"$2")" ;;
    *": ./ddp exercise reset ID" | *": ./ddp exercise reset ID --yes")
        tested test_exercise.sh 'exercise reset 03-1 --yes'
        ;;
    *": exercises/author.sh save 03-10")
        like "echo '// TODO(03-10): spoiled' >>exercises-work/author-03-10/ddp.c; $2" ;;
    *": exercises/author.sh edit 03-10") like "rm -r exercises-work/author-03-10; $2" ;;     # "later"
    *": exercises/author.sh prove "*) tested CMakeLists.txt 'exercises/author.sh" prove' ;;

    # the series
    *": tools/propagate 03_ddp_fork/ddp.c") tested test_series.sh '/tools/propagate' ;;
    *": tools/readme_diff.sh") tested test_series.sh '/tools/readme_diff.sh' ;;
    *": tools/check_series.sh") tested test_series.sh '/tools/check_series.sh' ;;

    *": ./ddp run" | *": ./ddp plot" | *": ./ddp slurm run" | *": ./ddp slurm up" | *": ./ddp exercise start" | \
        *": tools/scaling_model fit")
        mentioned
        ;;
    *)
        # Documents explain patterns by the commands around them; READMEs say what to type.
        if [ "$3" = command ]; then
            run
        elif [[ $1 == docs/* ]]; then
            mentioned
        else
            no "$pattern"
        fi
        ;;
    esac
}

# --- a copy of the tree ----------------------------------------------------------------------------------------------

tree=$TMP/tree
mkdir -p "$tree/build/cpu" "$TMP/bin"
cd "$tree" || exit 1
cp -r "$SRC"/{ddp,*.md,LICENSE,tools,exercises,docs,tests} "$SRC"/[0-9][0-9]_* .
ln -s "$SRC"/{common,cmake} .
steps=$(echo [0-9][0-9]_*/)

# `train`, as it is said above.
for step in $steps; do
    mkdir "build/cpu/$step"
    cat >"build/cpu/$step/train" <<END
#!/bin/bash
small=(--arch convnet --data synthetic --threads 1 --test-samples 16)
case " \$* " in
*" --max-steps "*) small+=(--train-samples 512) ;;
*) small+=(--train-samples 64 --max-steps 1) ;;
esac
exec "$BUILD/${step}train" "\${small[@]}" "\$@"
END
    chmod +x "build/cpu/$step/train"
    ln -s "$tree/build/cpu/${step}train" "$TMP/bin/${step%/}"
    [ ! -e "$BUILD/$step/launch" ] || ln -s "$BUILD/$step/launch" "build/cpu/$step"
done
printf '#!/bin/sh\nexec "%s" -e 1024 -r 1 "$@"\n' "$BUILD/comm_bench" >build/cpu/comm_bench
chmod +x build/cpu/comm_bench
ln -s "$tree/build/cpu/comm_bench" "$TMP/bin"

# It is built already, as ./ddp sees it; and nothing is installed.
echo cpu >build/backends
echo "CMAKE_HOME_DIRECTORY:INTERNAL=$tree" >build/CMakeCache.txt
touch build/build.ninja
for name in cmake apt-get sudo curl; do
    cat >"$TMP/bin/$name" <<END
#!/bin/sh
case "\$*" in
--version) exec $(type -P $name) --version ;;
"--build build "* | "--preset default") ;;
*) echo "$name \$*: not in this test"; exit 1 ;;
esac
END
    chmod +x "$TMP/bin/$name"
done

# CIFAR-10, all black: files have their sizes.
black_images()
{
    mkdir -p data/cifar-10-batches-bin
    truncate -s 30730000 data/cifar-10-batches-bin/{data_batch_{1..5},test_batch}.bin
}

has_slurm=1
for name in slurmctld slurmd munged srun; do
    PATH=$PATH:/usr/sbin:/sbin type -P $name >/dev/null || has_slurm=
done
has_mpirun=$(type -P mpirun)
has_matplotlib=$("${DDP_PYTHON:-python3}" -c "import matplotlib; print(1)" 2>/dev/null)
has_python=$(type -P python3)
[ -n "$has_slurm" ] || echo "not tried, since it is not here: Slurm"
[ -n "$has_mpirun" ] || echo "not tried, since it is not here: mpirun"
[ -n "$has_matplotlib" ] || echo "not tried, since it is not here: matplotlib"
[ -n "$has_python" ] || echo "not tried, since it is not here: python3"

cluster_is_up() { [ -e build/slurm/cluster ]; }
stop_cluster() { ! cluster_is_up || ./ddp slurm down >/dev/null 2>&1; }
trap stop_cluster EXIT

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export DDP_BUILD=$BUILD/.. NO_COLOR=1
export -n BUILD SRC
TIMEFORMAT='%R s, of a core %U %S'

# --- one command -----------------------------------------------------------------------------------------------------

ran=0 compared=0 not_run=0

no() { not_so "$file:$line: $command: $1"; }

# A line without what differs from run to run and from machine to machine.
shape()
{
    sed -E 's/127\.0\.0\.\[?[0-9]+(-[0-9]+)?\]?/node/g; s/[0-9a-f]{16}/#/g
        s/[0-9]+(\.[0-9]+)?(e[-+][0-9]+)?|\bnan\b|\binf\b/#/g
        s/host [a-z0-9#-]+/host/
        s/^[a-z]+#?, # parameters \| [a-z0-9#-]+ \([^)]*\), /network, data, /
        s/CPU, [a-z0-9_#]+, # threads?/CPU/; s/amp: .*/amp/; s/node\[?#(-#)?\]?/node/g
        s/ +/ /g; s/\[ #/[#/g; s/^ | $//g' | sort -u
}

# Lines that only some machines or networks print.
always() { grep -vE '^ *(\.\.\.|== ties: .*)$'; }

# The lines of the document that are not there, but for what shape() ignores.
lacking() { comm -13 <(shape <"$TMP/output") <(tr '\037' '\n' <<<"$prints" | always | shape); }

# What sbatch says is in the output; what its job does is in a file.
job_ends_well()
{
    local job state deadline=$((SECONDS + 60))
    job=$(sed -n 's/^Submitted batch job //p' "$TMP/output")
    until [[ ${state:-} != @(PENDING|CONFIGURING|RUNNING|COMPLETING|) ]]; do
        [ $SECONDS -lt $deadline ] || break
        sleep 0.1
        state=$(./ddp slurm run scontrol show job "$job" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p')
    done
    [ "$state" = COMPLETED ] || { cat "ddp-$job.log"; echo "job $job: $state"; } >>"$TMP/output"
    [ "$state" = COMPLETED ]
}

run() { like "$command"; }
by_hand() { like "$1 first=\$!; ${1/RANK=0/RANK=1} wait \$first && wait \$!"; }

like()
{
    local words=$1 lacks
    case $words in
    mpirun*) [ -n "$has_mpirun" ] || return ;;
    tools/scaling_model*) [ -n "$has_python" ] || return ;;
    "./ddp plot "*) [ -n "$has_matplotlib" ] || [[ $words == *--text* ]] || return ;;
    *"slurm "* | srun* | *sbatch* | "cat ddp-"*) [ -n "$has_slurm" ] || return ;;
    esac
    case $words in
    "./ddp slurm up "*) rm -f ddp-*.st* ;;          # a new cluster begins with job 1 again
    "./ddp slurm help") ;;
    srun* | *sbatch* | "./ddp slurm "*)
        cluster_is_up || { rm -f ddp-*.st*; ./ddp slurm up 2 >/dev/null 2>&1; }
        [[ $words == ./ddp* ]] || words="./ddp slurm run bash -c '$words'"
        ;;
    esac
    ran=$((ran + 1))
    if ! { time timeout -k 5 60 bash -c "$words" >"$TMP/output" 2>&1 </dev/null; } 2>"$TMP/time"; then
        no "failed"
    elif [[ $words == *sbatch* ]] && ! job_ends_well; then
        no "its job failed"
    elif compared=$((compared + (${#prints} > 0))) lacks=$(lacking) && [ -n "$lacks" ]; then
        no "the document shows below it, and it does not print: $lacks"
    else
        passed=$((passed + 1))
    fi
    echo "$(tail -1 "$TMP/time") $file:$line $command"
}

marked()
{
    not_run=$((not_run + 1))
    if [[ $around =~ $1 ]]; then passed=$((passed + 1)); else no "\"$1\" does not stand beside it"; fi
}
marked_above() { around=$(head -20 "$file") marked "$1"; }

tested()
{
    not_run=$((not_run + 1))
    if grep -vE '^ *#' "tests/$1" | grep -F -- "$2" >/dev/null; then
        passed=$((passed + 1))
    else
        no "no $2 in tests/$1"
    fi
}

counted()
{
    local tests
    not_run=$((not_run + 1))
    tests=$(ctest --test-dir "$DDP_BUILD" -N -R "$1" | sed -n 's/^Total Tests: //p')
    if [ "${tests:-0}" -gt 0 ]; then passed=$((passed + 1)); else no "there are no tests of that name"; fi
}

mentioned() { :; }

# --- all documents ---------------------------------------------------------------------------------------------------

path=$PATH
declare -A seen

document()
{
    local file=$1 step=${1%%/*} line kind command around prints where
    [ -d "build/cpu/$step" ] || step=07_dist_eval
    PATH=$tree/build/cpu/$step:$TMP/bin:$path               # "launch and train are the programs in ..."
    [[ $file != 07* ]] || black_images                      # its text is about CIFAR-10
    [[ $file != docs/* ]] || rm -f ./*.st* ./net*           # each has networks of its own
    while IFS=$'\x1e' read -r line kind command around prints; do
        # Once in each document; what only looks, once.
        where=$file
        [[ ! $command =~ ^\./ddp\ (doctor|diff|help|exercise\ list) ]] || where=
        [ -z "${seen[$where:$command]:-}" ] || continue
        seen[$where:$command]=1
        how "$file" "$command" "$kind"
    done < <(perl tests/docs.pl --commands . |
        awk -F '\t' -v OFS='\x1e' -v of="$file:" 'index($1, of) == 1 { $1 = substr($1, length(of) + 1); print }')
    stop_cluster
    rm -rf data
}

for file in ${DOCUMENTS:-[0-9][0-9]_*/README.md README.md docs/*.md exercises/README.md CONTRIBUTING.md}; do
    document "$file"
done
echo "$ran run, $compared of them compared with what is shown, $not_run not run"
[ -n "${DOCUMENTS:-}" ] ||
    check "there are commands, and some show what they print" test $ran -gt 100 -a $compared -gt 5 -a $not_run -gt 40

# --- what is wrong is noticed ----------------------------------------------------------------------------------------

# noticed COMPLAINT: of a page that holds what is read here. None: nothing is wrong.
noticed()
{
    local before=$failed
    cat >page.md
    seen=()
    document page.md >"$TMP/noticed" 2>&1
    local wrong=$((failed - before))
    failed=$before
    cp "$TMP/noticed" "$TMP/output"
    check "${1:-nothing} is said of: $(cat page.md)" test $wrong = $((${#1} > 0))
    [ -z "$1" ] || check "\"$1\" is said of: $(cat page.md)" grep -qF -- "$1" "$TMP/noticed"
}

right=$(grep -A 12 '^    ./ddp run 01' 01_single_gpu/README.md)
noticed "" <<<$'# A page\n\n'"$right"$'\n'
noticed "it does not print: " <<<$'# A page\n\n'"${right/== test:/== the test:}"$'\n'
noticed "--epochs 1x: failed" <<<$'# A page\n\n'"${right/--epochs 1/--epochs 1x}"$'\n'
noticed "exit 3: failed" <<<'Try `./ddp help && exit 3`.'
noticed '"minutes|\(benchmarks.md\)" does not stand beside it' <<<'Try `./ddp bench amp`.'
noticed "" <<<'Try `./ddp bench amp`, for minutes.'
noticed "without a command to run" <<<'Try `./ddp diff 01 STEP`.'
noticed "there are no tests of that name" <<<'Try `./ddp test -R nonsense`.'
noticed "no ddp exercise watch 03-1 in tests/test_exercise.sh" < <(
    sed -i "s/ddp exercise watch 03-1/ddp exercise watch 3-1/" tests/test_exercise.sh
    echo 'Try `./ddp exercise watch [ID]`.'
)
test_done
