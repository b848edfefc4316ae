#!/usr/bin/env bash
# Runs every command line in README.md, the steps' READMEs, exercises/README.md, docs/ and CONTRIBUTING.md as it is
# written. Exceptions are in how(), below: commands that need a GPU, a second host, root, other tools, the network or
# minutes, or that a different test runs.
#
# The commands run in order, in one copy of the tree that uses the existing build. So a command can read the files of
# the commands above it. Each line that a document shows below a command must be in its output, apart from numbers and
# the names of this machine (see shape).
#
# To be quick, `train` is a script that adds options, which override a recipe's but not those of the command line: a
# small network, synthetic images (README.md with -a gpt), one thread, 64 training samples and one step. If the command
# line has --max-steps, there are 512 samples. comm_bench sends short messages.
#
# ctest: TIMEOUT 900 LABELS slow
# shellcheck disable=SC2016  # code in single quotes
. "$SRC/tests/test.sh"
type -P perl >/dev/null || { echo "skipped: there is no perl"; exit 77; }
for name in RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT DDP_TOKEN DDP_LISTEN DDP_SLURM_DIR \
    DDP_EXERCISES_WORK OMP_NUM_THREADS "${!SLURM_@}"; do
    unset "$name"
done

# how FILE COMMAND KIND: runs a command with `like`, with changes if necessary (as for "..." or ID), or calls `not_run`,
# or does neither. KIND is "command" or "pattern": see otherwise.
how()
{
    case "$1: $2" in
    # tests, builds, the network, the series: other tests run most of these
    *": ./ddp test"* | *": tests/faults.sh "* | *": pip install cmake" | *": ctest "* | *": ./ddp setup" | \
        *": ./ddp clean" | *": cmake "* | *": ./ddp data cifar10"* | *" --data pets "* | *" --data DIR"* | \
        *shakespeare* | *": ./ddp data mnist" | \
        *": tools/propagate "* | *": tools/readme_diff.sh" | \
        *": tools/check_series.sh" | *": exercises/author.sh prove "*) not_run ;;
    *": git clone "*) not_run ;;
    *": sed '/Rule 1/d' "*) like "$2; test \$? = 1" ;;
    *": ./ddp bench --help") like "$2" ;;
    *"./ddp bench"*) not_run ;;

    # GPUs, several hosts, root, other tools
    *": ./ddp bundle"* | *"./ddp doctor --gpu"* | *": gpu-bundle/tools/"* | *": tar xf "* | \
        *"--backend cuda-gloo" | *" --master-addr node1 "* | *"mpirun -H node1:2,node2:2 "* | *": torchrun "* | \
        *": kill -KILL "* | *": taskset "* | *": module load "* | *": apptainer "* | *" apptainer exec "* | \
        *": docker "* | *" -n 16 "* | \
        *": ~/ddp-tools/bin/pip install "* | *": python3 -m venv ~/ddp-tools") not_run ;;
    *": RANK=1 WORLD_SIZE=2 "*) set -- "$1" "${2/RANK=1/RANK=0} &" ;;&
    *": RANK="[01]" WORLD_SIZE=2 "*) by_hand "${2/=4711/=$((10000 + $$ % 20000))}" ;;

    # clusters: test_slurm.sh
    *": ./ddp slurm help") like "$2" ;;
    *": ./ddp slurm "* | *": srun "* | *": sbatch "* | *": scancel "* | *": tail -F ddp-"* | *": mpirun train" | \
        *" --data /lustre/"* | *": ./ddp data fashion-mnist" | "06_slurm/README.md: ./ddp plot run.json") not_run ;;

    # exercises; test_exercise.sh does the others
    *": ./ddp exercise start") ;;
    *": ./ddp exercise answer"* | *" --nnodes 2 "*) not_run ;;
    *": ./ddp exercise check"* | *" ./ddp exercise run"* | *": ./ddp exercise reset"*)
        not_run ;;
    *": ./ddp exercise "*) like "$(sed -E 's/\[?\bID\b\]?/03-1/; s/\[STEP\]/03/; s/\[PLAN\]/half/' <<<"$2")" ;;
    *": exercises/author.sh save 03-20")
        like "echo '// TODO(03-20): spoiled' >>exercises-work/author-03-20/ddp.c; $2" ;;
    *": exercises/author.sh edit 03-20") like "rm -r exercises-work/author-03-20; $2" ;;

    # the run's numbers decide which lines ./ddp why prints
    *": ./ddp why run.json"*) prints='' && like "$2" ;;

    *": ./ddp run" | *": ./ddp run --watch" | *": ./ddp why" | *": ./ddp plot" | \
        *": ./ddp say" | *": tools/scaling_model.py fit") ;;     # only named on the page, not to be typed
    *) otherwise "$@" ;;
    esac
}

# For lines that how() does not know. A "command" is run. A "pattern", which has a placeholder such as DIR, cannot be
# run, and only docs/ may have one.
otherwise()
{
    if [ "$3" = command ]; then
        like "$2"
    elif [[ $1 != docs/* ]]; then
        no "(a pattern without a command to run)"
    fi
}

tree=$TMP/tree
mkdir -p "$tree/build/cpu" "$TMP/bin"
cd "$tree" || exit 1
cp -r "$SRC"/{ddp,*.md,LICENSE,tools,exercises,docs,tests} "$SRC"/[0-9][0-9]_* .
ln -s "$SRC"/{common,cmake,recipes} .
steps="$(echo [0-9][0-9]_*/) 05-6/"

for step in $steps; do
    mkdir "build/cpu/$step"
    cat >"build/cpu/$step/train" <<END
#!/bin/bash
recipes=() words=()
for word; do
    case \$word in
    @*) recipes+=("\$word") ;;
    *) words+=("\$word") ;;
    esac
done
small=(--arch convnet --data synthetic --threads 1 --test-samples 16)
case " \$* " in
*" -a gpt "*) small=(--data "text:$tree/README.md" --block 16 --layers 1 --heads 1 --width 16 --threads 1
    --test-samples 16) ;;
esac
case " \$* " in
*" --max-steps "*) small+=(--train-samples 512) ;;
*) small+=(--train-samples 64 --max-steps 1) ;;
esac
exec "$BUILD/${step}train" "\${recipes[@]}" "\${small[@]}" "\${words[@]}"
END
    chmod +x "build/cpu/$step/train"
    ln -s "$tree/build/cpu/${step}train" "$TMP/bin/${step%/}"
    [ ! -e "$BUILD/$step/launch" ] || ln -s "$BUILD/$step/launch" "build/cpu/$step"
done
sed 's|train" "|train_naive" "|' build/cpu/03_ddp_fork/train >build/cpu/03_ddp_fork/train_naive
chmod +x build/cpu/03_ddp_fork/train_naive
printf '#!/bin/sh\nexec "%s" -e 1024 -r 1 "$@"\n' "$BUILD/comm_bench" >build/cpu/comm_bench
chmod +x build/cpu/comm_bench
ln -s "$tree/build/cpu/comm_bench" "$TMP/bin"
ln -s "$BUILD/say" build/cpu

# ./ddp must find everything built, and must not be able to install anything.
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

has_mpirun=$(type -P mpirun)
has_python3=$(type -P python3)
has_matplotlib=$("${DDP_PYTHON:-python3}" -c "import matplotlib; print(1)" 2>/dev/null)
for name in has_mpirun has_python3 has_matplotlib; do
    [ -n "${!name}" ] || echo "not tried, because it is not installed: ${name#has_}"
done

export DDP_BUILD=$BUILD/.. NO_COLOR=1
export -n BUILD SRC
TIMEFORMAT='%R s, of a core %U %S'

ran=0 compared=0 not_run=0

no() { not_so "$file:$line: $command: $1"; }

# Removes from lines what differs from run to run and from machine to machine.
shape()
{
    sed -E 's/^( *weight hash: )([0-9a-f]{16}|\.\.\.)$/\1#/
        s/127\.0\.0\.\[?[0-9]+(-[0-9]+)?\]?/node/g; s/[0-9a-f]{16}/#/g
        s/[0-9]+(\.[0-9]+)?(e[-+][0-9]+)?|\bnan\b|\binf\b/#/g
        s/host [a-z0-9#-]+/host/
        s/^[a-z]+#?, # parameters \| [a-z0-9#-]+ \([^)]*\), /network, data, /
        s/CPU, [a-z0-9_#]+, # threads?/CPU/; s/amp: .*/amp/; s/node\[?#(-#)?\]?/node/g
        s/ +/ /g; s/\[ #/[#/g; s/^ | $//g'
}

# The lines of output that a document shows, without the lines "...".
always() { grep -vE '^ *\.\.\.$'; }

# The lines that the document shows and the output lacks. A document may break a line.
lacking()
{
    awk 'NR == FNR { printed[$0]; next }
        { line[++count] = $0 }
        END {
            for (i = 1; i <= count; i++) {
                text = line[i]
                for (k = i; !(text in printed) && k < count; )
                    text = text " " line[++k]
                if (text in printed)
                    i = k
                else
                    print line[i]
            }
        }' <(shape <"$TMP/output") <(tr '\037' '\n' <<<"$prints" | always | shape)
}

by_hand() { like "$1 first=\$!; ${1/RANK=0/RANK=1} wait \$first && wait \$!"; }

like()
{
    local words=$1 lacks
    case $words in
    mpirun*) [ -n "$has_mpirun" ] || return ;;
    tools/scaling_model.py*" -o "*) [ -n "$has_matplotlib" ] || return ;;
    tools/scaling_model.py* | python3*) [ -n "$has_python3" ] || return ;;
    "./ddp plot "*) [ -n "$has_matplotlib" ] || [[ $words == *--text* || $words == *.json ]] || return ;;
    esac
    ran=$((ran + 1))
    if ! { time timeout -k 5 240 bash -c "$words" >"$TMP/output" 2>&1 </dev/null; } 2>"$TMP/time"; then
        no "failed"
    elif compared=$((compared + (${#prints} > 0))) lacks=$(lacking) && [ -n "$lacks" ]; then
        no "the document shows below it, and it does not print: $lacks"
    else
        passed=$((passed + 1))
    fi
    echo "$(tail -1 "$TMP/time") $file:$line $command"
}

not_run() { not_run=$((not_run + 1)); }

path=$PATH
declare -A seen

document()
{
    local file=$1 step=${1%%/*} line kind command prints where
    [ -d "build/cpu/$step" ] || step=07_dist_eval
    PATH=$tree/build/cpu/$step:$TMP/bin:$path               # "launch and train are the programs in ..."
    [[ $file != docs/* ]] || rm -f ./*.st* ./net*           # each document trains its own networks
    while IFS=$'\x1e' read -r line kind command prints; do
        # A command runs once per document. ./ddp doctor, diff, help and exercise list run once for all documents.
        where=$file
        [[ ! $command =~ ^\./ddp\ (doctor|diff|help|exercise\ list) ]] || where=
        [ -z "${seen[$where:$command]:-}" ] || continue
        seen[$where:$command]=1
        how "$file" "$command" "$kind"
    done < <(perl tests/docs.pl --commands . |
        awk -F '\t' -v OFS='\x1e' -v of="$file:" 'index($1, of) == 1 { $1 = substr($1, length(of) + 1); print }')
    rm -rf data
}

for file in ${DOCUMENTS:-[0-9][0-9]_*/README.md README.md docs/*.md docs/*/*.md exercises/README.md CONTRIBUTING.md}; do
    document "$file"
done
echo "$ran run, $compared of them compared with what is shown, $not_run not run"
[ -n "${DOCUMENTS:-}" ] ||
    check "there are commands, and some show what they print" test $ran -gt 100 -a $compared -gt 5 -a $not_run -gt 40

test_done
