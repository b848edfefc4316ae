# shellcheck shell=bash disable=SC2034,SC2154
# Two ranks under mpirun. Spies (check.c) record how many numbers MPI_Allreduce adds up, in which thread, and whether
# comm_all_reduce is still called. The weights must be those of the finished step.
# fails with: MPI adds up all gradients
command -v mpirun >/dev/null || wrong "mpirun is installed (Open MPI: ./ddp setup)" </dev/null
build --with check.c --wrap MPI_Allreduce --wrap comm_all_reduce --wrap ddp_set_hook
same=(--train-samples 48 -b 4 --bucket-mb 0.1)
sum() { awk -v what="$2" '$1 == what { sum += $2 } END { print sum + 0 }' mpi."$1"; }
count() { cat mpi.? | awk -v what="$1" -v c="$2" '$1 == what && $c == '"$3"' { n++ } END { print n + 0 }'; }

finished right 2 "${same[@]}"
try yours mpirun --bind-to none -np 2 "$train" "${tiny[@]}" "${hang_limit[@]}" --metrics yours.%r.jsonl "${same[@]}"
{ [ -f mpi.0 ] && [ -f mpi.1 ]; } || wrong "mpirun starts two ranks" < <(last_lines yours)
if [ "$status" = 124 ]; then
    why="Both ranks must call MPI_Allreduce the same number of times, with equal counts."
    wrong "two ranks take a step" < <(last_lines yours)
fi
if grep -q "An error occurred in MPI" yours.out; then
    why="For a sum in place, MPI_Allreduce gets only one pointer to the gradients."
    wrong "MPI accepts the calls" < <(grep -F '***' yours.out | cut -d ' ' -f 2- | head -4)
fi
for rank in 0 1; do
    echo "rank $rank: $(sum $rank hook) gradients" >>expected
    echo "rank $rank: $(sum $rank mpi) gradients" >>found
done
why="mpi_sum is given buckets of gradients. Each has to be added up in place, on all ranks."
beside "MPI adds up all gradients" same "" "given to the hook      " expected "in MPI_Allreduce" found
why="The hook replaces comm_all_reduce."
equal "no gradients travel through comm_all_reduce" "0 calls" "$(count other 3 0) calls"
why="A call from the hook itself blocks backward until the other rank arrives; on a GPU it would even run before the
gradients are ready. stream_enqueue hands the call to the stream's thread."
equal "the stream's thread calls MPI_Allreduce" "0 calls from the main thread" \
    "$(count mpi 3 1) calls from the main thread"
why="The main thread initialised MPI, and another thread calls it. Which level of MPI_Init_thread allows that?"
equal "MPI was initialised for calls from this thread" "0 calls that are not allowed" \
    "$(count mpi 4 0) calls that are not allowed"
why=
[ "$status" = 0 ] || wrong "two ranks train to the end" < <(last_lines yours 25)
why="All gradients are exchanged. Is the operation a sum?"
equal "the weights are bit-identical to the finished step's" "$(value right.0.jsonl end weight_hash)" \
    "$(value yours.0.jsonl end weight_hash)"
