#!/usr/bin/env bash
# No training step in f32 or bf16 runs oneDNN's slow reference code. The same holds on a processor that has only some of
# this one's instructions. oneDNN itself reports which code each call ran.
. "$SRC/tests/test.sh"
seq 1 400 >numbers.txt
mkdir -p data/mnist
perl -e 'for (["train", 4], ["t10k", 4]) {
        my ($part, $n) = @$_;
        open F, ">data/mnist/$part-images-idx3-ubyte"; print F pack("N4", 0x803, $n, 28, 28), "x" x ($n * 784);
        open F, ">data/mnist/$part-labels-idx1-ubyte"; print F pack("N2", 0x801, $n), "\0" x $n;
    }'

steps()     # ISA TYPE...: with the instructions up to ISA
{
    local arch data amp
    while read -r arch data; do
        for amp in "${@:2}"; do
            echo "network: $arch, $data, $amp"
            DNNL_MAX_CPU_ISA=$1 DNNL_VERBOSE=1 "$BUILD/05_ddp_amp/train" -a "$arch" --data "$data" -b 2 \
                --train-samples 4 --test-samples 2 --max-steps 1 --threads 1 -j 0 --amp $amp || return 1
        done
    done <<<"lenet mnist
convnet mnist
resnet18 synthetic
resnet50 mnist
gpt text:numbers.txt"
}

fast()      # FILE: prints calls of reference code; fails if there are any, or suspiciously few calls
{
    awk '/^network/ { network = $0 } /,exec,cpu,/ { calls++ }
        /,exec,cpu,[^,]*,ref/ { print network ": " $0; bad = 1 }
        END { print calls " calls"; exit bad || calls < 300 }' "$1"
}

last=
for isa in AVX2 AVX512_CORE ALL; do
    now=$(DNNL_MAX_CPU_ISA=$isa DNNL_VERBOSE=1 "$BUILD/05_ddp_amp/train" -a lenet --data mnist --max-steps 1 -b 2 |
        grep -o 'info,cpu,isa:.*')
    [ "$now" != "$last" ] || continue       # the same instructions as with the previous limit
    last=$now
    types=(off)
    [ $isa != ALL ] || types+=(bf16)        # else it is emulated, in f32
    check "steps up to $isa" steps $isa "${types[@]}"
    mv checked steps.out
    check "no reference code up to $isa: $now" fast steps.out
    cat checked
done
test_done
