#!/usr/bin/env bash
# ctest: TIMEOUT 240 PROCESSORS all
# A test that cannot fail proves nothing: each of these mistakes, made in a copy of the step, must turn a
# comparison red that is green without it.
. "$SRC/tests/test.sh"
. "$SRC/tests/ranks.sh"
cd "$TMP" || exit 1
check "one process" one

# build [FILE FROM TO]: ./train from a copy of the step, with a text that stands once in it replaced.
build()
{
    rm -rf train step
    cp -r "$SRC/03_ddp_fork" step
    if [ $# -gt 0 ]; then
        put_in "step/$1" "$2" "$3" || return 1
    fi
    cc -std=c11 -O1 -D_GNU_SOURCE -I"$SRC/common" step/*.c -o train \
        "$(find "$BUILD/.." -maxdepth 1 -name libddp_cpu.a)" -fopenmp -ldnnl -lgloo -lz -lsodium -lm -lstdc++
}

# mistake WHAT FILE FROM TO [TEXT]: one rank says TEXT, or the numbers are not one process's.
mistake()
{
    check "$1: builds" build "$2" "$3" "$4"
    check "$1: is noticed" not same_as_one ./train 2 --timeout 5
    cp checked noticed
    check "$1: is noticed for the right reason" grep -q "${5:-, of one process }" noticed
    sed "s/^/    $1: /" noticed | tail -1
}

check "the step as it is: builds" build
check "the step as it is: same as one process" same_as_one ./train 2

mistake "no averaging" ddp.c "comm_all_reduce(comm, stream, grads, count, COMM_F32, COMM_SUM);" "" "the ranks have come apart"
mistake "sum, not mean" ddp.c "1.0f / (float)comm_size(comm)" "1.0f"
mistake "no set_epoch" train.c "sampler_set_epoch(&job->config.sampler, job->state.epoch);" ""
mistake "no broadcast" ddp.c "comm_broadcast(ddp->comm, stream, m->params, m->param_count, COMM_F32, 0);" "" "the ranks have come apart"
mistake "no last bucket" ddp.c "if (last || (ddp->end" "if ((ddp->end" "the ranks have come apart"
mistake "the same samples on all ranks" sampler.c "(int64_t)i * sampler->size + sampler->rank" "i"
mistake "another order on each rank" sampler.c "sampler->seed + sampler->epoch" "sampler->seed + sampler->rank"
mistake "shares that are not strided" sampler.c "(int64_t)i * sampler->size + sampler->rank" "(int64_t)sampler->rank * share + i"
test_done
