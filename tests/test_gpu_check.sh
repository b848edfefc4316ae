#!/usr/bin/env bash
# ctest: PROCESSORS 2 TIMEOUT 400
# If no verdict on a GPU is stored, ./ddp run compares the GPU's numbers with the CPU's before it trains there. Here the
# stand-in for CUDA simulates a GPU that works, computes wrong numbers, hangs, crashes or has no memory.
# shellcheck disable=SC2016  # a $ in single quotes is for a pretended command
. "$SRC/tests/test.sh"
build=${BUILD%/*}
[ -x "$build/fake/gpu_check" ] || { echo "skipped: no cuda backend in this build"; exit 77; }
unset CUDA_VISIBLE_DEVICES
export DDP_GPU_LIMIT=300

tree=$TMP/tree
mkdir -p "$tree/build" "$TMP/bin" "$tree"/build/{cpu,cuda,cuda-gloo}
cp -r "$SRC"/{ddp,tools,cmake,CMakePresets.json} "$tree"
cd "$tree" || exit 1
mkdir 01_single_gpu 02_data_parallel
ln -s "$BUILD"/0[12]_* build/cpu
ln -s "$build"/fake/0[12]_* build/cuda
ln -s "$build/fake/01_single_gpu" build/cuda-gloo
cp "$BUILD/gpu_check" build/cpu
# What a working GPU computes is always the same, so only the first check computes.
cat >build/cuda/gpu_check <<END
#!/bin/sh
[ -z "\$FAKE_FAILURE" ] && [ "\$3" = 0 ] || exec "$build/fake/gpu_check" "\$@"
[ -e "$TMP/computed" ] || "$build/fake/gpu_check" "\$@" >"$TMP/computed" || exit
cat "$TMP/computed"
END
chmod +x build/cuda/gpu_check
echo cpu cuda cuda-gloo >build/backends
echo "CMAKE_HOME_DIRECTORY:INTERNAL=$tree" >build/CMakeCache.txt
touch build/build.ninja
pretend() { printf '#!/bin/sh\n%s\n' "$2" >"$TMP/bin/$1"; chmod +x "$TMP/bin/$1"; }
pretend cmake 'case "$1" in --version) echo "cmake version 3.30.0" ;; esac'
pretend sudo 'exit 1'
pretend ldd "exec $(type -P ldd) '$build/fake/gpu_check'"
pretend apt-get 'exit 1'
smi='case "$1" in -L) echo "GPU 0: Stand-in (UUID: GPU-1)" ;; *) echo "GPU-1, Stand-in, DRIVER" ;; esac'
pretend nvidia-smi "${smi/DRIVER/1.0}"
ddp() { PATH="$TMP/bin:$PATH" ./ddp "$@"; }
tiny=(-- -a lenet --data synthetic --train-samples 16 --test-samples 8 -b 8 --epochs 1 --threads 1)
ran_on() { grep -q "^\$.* build/$1/0[12]_[a-z_]*/train" "$TMP/output" && grep -q "weight hash" "$TMP/output"; }

ddp doctor >"$TMP/output" 2>&1          # its exit status depends on what is installed
check "no verdict yet" grep -q "not done yet: ./ddp doctor --gpu" "$TMP/output"
expect 0 "GPU check ok: the losses and gradients of LeNet, ResNet-18 and a GPT match the CPU's: f32 to" \
    ddp run 01 "${tiny[@]}"
check "the run is on the GPU" ran_on cuda
check "both programs are built" grep -q 'target 01_single_gpu_cuda gpu_check_cuda gpu_check_cpu' "$TMP/output"
expect 0 "weight hash" ddp run 01 "${tiny[@]}"
check "the second run does not check again" not grep -q "GPU check" "$TMP/output"
check "it is also on the GPU" ran_on cuda
expect 0 "weight hash" ddp run 01 --backend cuda-gloo "${tiny[@]}"
check "cuda-gloo computes with the same code" not grep -q "GPU check" "$TMP/output"
ddp doctor >"$TMP/output" 2>&1
check "the doctor shows the verdict" grep -qE "^(✓|ok)  GPU check +the losses" "$TMP/output"

pretend nvidia-smi "${smi/DRIVER/2.0}"
expect 0 "GPU check ok" ddp run 01 "${tiny[@]}"

# fails WHY FAILURE: with a new driver, and a GPU that fails in the way FAILURE, a run prints WHY and trains on the CPU.
# The next run prints the same WHY without a new check, which would hang.
new=10
fails()
{
    new=$((new + 1))
    pretend nvidia-smi "${smi/DRIVER/$new}"
    expect 0 "$1" env FAKE_FAILURE="$2" PATH="$TMP/bin:$PATH" ./ddp run 01 "${tiny[@]}"
    check "$2: the run is on the CPU" ran_on cpu
    check "$2: the hint" grep -q "hint: .*./ddp doctor --gpu" "$TMP/output"
    FAKE_FAILURE=hang expect 0 "$1" ddp run 01 --backend cuda "${tiny[@]}"
    check "$2: the verdict is kept" ran_on cpu
}
fails "GPU check failed: wrong numbers: GPU 0, f32, first step: " numbers
fails "GPU check failed: the check crashed (SIGSEGV)" crash
expect 1 "no answer within 2 s" env FAKE_FAILURE=hang DDP_GPU_LIMIT=2 PATH="$TMP/bin:$PATH" ./ddp doctor --gpu
# After a check without an answer in time, or without memory, the next run checks again: the GPU may have been busy.
pretend nvidia-smi "${smi/DRIVER/20}"
expect 0 "GPU check failed: no answer within 2 s" env FAKE_FAILURE=hang DDP_GPU_LIMIT=2 PATH="$TMP/bin:$PATH" \
    ./ddp run 01 "${tiny[@]}"
check "after the time limit the run is on the CPU" ran_on cpu
expect 0 "GPU check failed: no memory: device_cuda.c:" env FAKE_FAILURE=memory PATH="$TMP/bin:$PATH" \
    ./ddp run 01 "${tiny[@]}"
check "without memory the run is on the CPU" ran_on cpu
expect 0 "GPU check ok" ddp run 01 "${tiny[@]}"

# A run needs only its own GPUs. nvidia-smi lists two here, and CUDA has one.
two='printf "GPU %d: Stand-in (UUID: GPU-1)\n" 0 1'
pretend nvidia-smi "case \"\$1\" in -L) $two ;; *) echo 'GPU-1, Stand-in, 21' ;; esac"
expect 0 "GPU check ok" ddp run 01 "${tiny[@]}"
expect 0 "there is no GPU 1" ddp run 02 "${tiny[@]}"
check "a run with both is on the CPU" ran_on cpu
ddp doctor >"$TMP/output" 2>&1
check "the doctor shows the failure" grep -q "GPU check  *failed: .*there is no GPU 1" "$TMP/output"
expect 0 "weight hash" ddp run 02 -n 1 "${tiny[@]}"
check "02 with one is on the GPU" ran_on cuda

rm build/cpu/gpu_check
echo cuda >build/backends
pretend nvidia-smi "${smi/DRIVER/30}"
expect 0 "GPU check unchecked: the CPU backend, with which the GPU is compared, is not built" ddp run 01 "${tiny[@]}"
check "the run is on the GPU nevertheless" ran_on cuda
test_done
