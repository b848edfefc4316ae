#!/usr/bin/env bash
# ctest: PROCESSORS 2 TIMEOUT 240
# 07: all ranks evaluate, and the result is the same, to the last byte, for any number of them; it is what one
# process of 06 says; and what is written beside it is counted anew here.
# shellcheck disable=SC2317  # check calls functions
. "$SRC/tests/test.sh"
. "$SRC/tests/eval.sh"
cd "$TMP" || exit 1
network

# --- counted anew -----------------------------------------------------------------------------------------

# Each image once, in order; from the label and the prediction of each the confusion matrix. Prints how many are right.
recount()
{
    awk -F, -v n="$2" '
        function wrong(what) { print FILENAME " " FNR ": " what; bad = 1 }
        FNR == 1 {
            images = FILENAME ~ /predictions/
            if ($0 != (images ? "index,label,prediction,margin" : "label,0,1,2,3,4,5,6,7,8,9")) wrong($0)
            next
        }
        images {
            if (NF != 4 || $1 != FNR - 2 || $4 < 0) wrong($0)
            all++
            count[$2, $3]++
            right += $2 == $3
            next
        }
        {
            if (NF != 11 || $1 != FNR - 2) wrong($0)
            for (i = 0; i < 10; i++)
                if ($(i + 2) != count[$1, i] + 0) wrong($(i + 2) " seen as " i ", not " count[$1, i] + 0)
        }
        END { if (all != n || FNR != 11) wrong(all " images"); print right + 0; exit bad }' \
        "$1.predictions" "$1.confusion"
}
# How many images a percentage of an event means.
correct()
{
    awk -v percent="$(field "$1" eval "$2")" -v n="$(field "$1" eval n)" 'BEGIN { printf "%.0f\n", percent * n / 100 }'
}
counts_agree()
{
    is "$(recount "$1" "$2")" "$(correct "$1.0.jsonl" top1)" && is "$(field "$1.0.jsonl" eval n)" "$2"
}
# Lines and events of each class agree with the matrix, and their correct5 add up to the test's.
per_class()
{
    sed -n 's/.*"event":"class","class":\(.*\),"n":\(.*\),"correct1":\(.*\),"correct5":\(.*\)}/\1 \2 \3 \4/p' \
        "$1.0.jsonl" >"$1.classes"
    awk -F, 'NR > 1 { n = 0; for (i = 2; i <= 11; i++) n += $i; print $1, n, $($1 + 2) }' "$1.confusion" |
        diff - <(cut -d ' ' -f 1-3 "$1.classes") || return 1
    awk '$2 == 0 { printf "   == %-11s no image\n", $1; next }
         { n = 100 / $2
           printf "   == %-11s top1: %7.3f%% | top5: %7.3f%% | %d images\n", $1, n * $3, n * $4, $2 }' \
        "$1.classes" | diff - <(grep -E '^   == [0-9]+ ' "$1.out") || return 1
    is "$(awk '{ n += $4 } $4 < $3 || $4 > $2 { n = -1e9 } END { print n }' "$1.classes")" \
        "$(correct "$1.0.jsonl" top5)"
}
# ties NAME MARGIN: the line says how many margins are smaller, and there is none where none is. (They are rounded
# in the file.)
ties()
{
    awk -F, -v tie="$2" -v said="$(sed -n 's/^   == ties: \([0-9]*\),.*/\1/p' "$1.out")" '
        NR > 1 { least += $4 < 0.995 * tie; most += $4 < 1.005 * tie }
        END { print least, said, most; exit !(least <= said + 0 && said + 0 <= most) || (said != "" && said == 0) }' \
        "$1.predictions"
}

# The same counts as of one process of 06, which evaluates all of it; the loss but for its rounding.
alone()
{
    "$older/train" "${convnet[@]}" -e --init net.st --train-samples 10 --test-samples "$2" -b "$3" \
        --metrics "$1.jsonl" --amp off "${@:4}" >"$1.out" 2>&1 || { cat "$1.out"; return 1; }
}
alike() # alike METRICS METRICS EVENT
{
    is "$(field "$1" "$3" top1)" "$(field "$2" "$3" top1)" && is "$(field "$1" "$3" top5)" "$(field "$2" "$3" top5)" &&
        paste <(field "$1" "$3" test_loss) <(field "$2" "$3" test_loss) |
        awk '{ d = $1 - $2; print; if (!(d <= 1e-6 && d >= -1e-6)) bad = 1 } END { exit bad || NR == 0 }'
}

# --- any number of ranks ----------------------------------------------------------------------------------

# any WHAT RANKS SIZE ROWS [OPTIONS]
any()
{
    local what=$1 n
    rm -f one.* many.* alone.*
    check "$what: one rank" shown evaluate one 1 "${@:3}"
    check "$what: counted anew" shown counts_agree one "$3"
    check "$what: class by class" shown per_class one
    check "$what: ties" shown ties one "$(if grep -q "amp: off" one.out; then echo 1e-5; else echo 1e-2; fi)"
    check "$what: 06" shown alone alone "${@:3}"
    check "$what: as 06" shown alike one.0.jsonl alone.jsonl eval
    for n in $2; do
        check "$what: $n ranks" shown evaluate many "$n" "${@:3}"
        check "$what: $n ranks as one" shown same many one
    done
}
any "1 image" "2 3 4 7" 1 64
any "5 images, batches of 2" "2 3 4 7" 5 2
any "5 images, batches of 1" "3" 5 1
any "9,999 images, batches of 64" "2 3 4 7" 9999 64
any "10,000 images, batches of 4,096" "2 4" 10000 4096
check "it sees something, but not everything" \
    awk -v top1="$(field one.0.jsonl eval top1)" 'BEGIN { exit !(30 < top1 && top1 < 90) }'
any "10,000 images, batches of 100" "3" 10000 100
any "bf16" "2 3" 700 48 --amp bf16
any "2 threads each" "2" 500 64 --threads 2
resnet=(--arch resnet18 --image-size 32 --init resnet.st)
expect 0 "weight hash" "$older/train" --arch resnet18 --data synthetic --train-samples 16 --test-samples 8 -b 16 \
    --threads 1 --max-steps 1 --save resnet.st
any "resnet18" "3" 42 8 "${resnet[@]}" --amp off
any "resnet18, bf16" "2" 42 8 "${resnet[@]}" --amp bf16
rm resnet.st resnet.st.best

# --- which image is whose ----------------------------------------------------------------------------------

# 37 random images in MNIST's format, whose labels are known here.
label() { echo $((($1 * $1 * $1 + $1 / 7) % 10)); }
mkdir digits
for set in train t10k; do
    { printf '\0\0\10\3\0\0\0\45\0\0\0\34\0\0\0\34'; head -c $((37 * 784)) /dev/urandom; } \
        >digits/$set-images-idx3-ubyte
    { printf '\0\0\10\1\0\0\0\45'; for i in {0..36}; do printf '%b' "\\x0$(label "$i")"; done; } \
        >digits/$set-labels-idx1-ubyte
done
for i in {0..36}; do echo "$i,$(label "$i")"; done >labels
expect 0 "== test: " ranks 3 "$train" --arch lenet --data digits -b 4 --threads 1 --epochs 1 --predictions whose
check "labels are those of the file" shown diff <(sed 1d whose | cut -d , -f 1,2) labels

# --- a mean of means ----------------------------------------------------------------------------------------

# What each of these 7 images counts, from 06's results of the first 1, 2, ... of them: loss, top1, top5. The last two
# are 0 or 100, so rounding makes them exact; the loss, which 06 prints with 9 digits, has lost less than 1e-6.
for n in 1 2 3 4 5 6 7; do
    alone "alone.$n" $n 2
    echo "$(field alone.$n.jsonl eval test_loss) $(field alone.$n.jsonl eval top1) $(field alone.$n.jsonl eval top5)"
done | awk '
    { for (i = 1; i <= 3; i++) { all = $i * NR; printf (i > 1 ? "%.0f " : "%.9g "), all - last[i]; last[i] = all }
      print "" }' >each
# means RANKS ROWS: of each rank's batches of rows, of which some come twice so that all ranks have as many.
means()
{
    awk -v size="$1" -v rows="$2" '
        { for (i = 1; i <= 3; i++) value[NR - 1, i] = $i }
        END {
            share = int((NR + size - 1) / size)
            for (i = 1; i <= 3; i++) {
                of_ranks = 0
                for (rank = 0; rank < size; rank++) {
                    of_batches = batches = 0
                    for (first = 0; first < share; first += rows) {
                        sum = count = 0
                        for (k = first; k < share && k < first + rows; k++) {
                            sum += value[(k * size + rank) % NR, i]
                            count++
                        }
                        of_batches += sum / count
                        batches++
                    }
                    of_ranks += of_batches / batches
                }
                printf "%.9g\n", of_ranks / size
            }
            print share * size
        }' each
}
# near MOST: the two numbers of each of 4 lines differ by no more.
near()
{
    awk -v most="$1" '{ print; d = $1 - $2; if (!(d <= most && d >= -most)) bad = 1 } END { exit bad || NR != 4 }'
}
# naive RANKS ROWS: the event and the line say these means, but for half a unit of the last digit, and the 1e-6 above.
naive()
{
    evaluate naive "$1" 7 "$2" --show-naive || return 1
    for member in test_loss top1 top5 n; do
        field naive.0.jsonl naive "$member"
    done | paste - <(means "$1" "$2") | near 5.1e-5 || return 1
    sed -nE 's/.*naive: loss: (.+\....) \| top1: (.{2,3}\....)% \| top5: (.{2,3}\....)% \| (.*) im.*/\1 \2 \3 \4/p' \
        naive.out | xargs -n 1 | paste - <(means "$1" "$2") | near 5.01e-4
}
not_exact() { not is "$(field naive.0.jsonl naive top1)" "$(field naive.0.jsonl eval top1)"; }
check "naive: 3 ranks, batches of 2" shown naive 3 2
check "it is another" shown not_exact
check "naive: 2 ranks, batches of 3" shown naive 2 3
check "it is another" shown not_exact
check "naive: 4 ranks" shown naive 4 7
check "naive: 9 ranks" shown naive 9 7
check "where all is even, it is the same" shown naive 1 7
same_top1() { is "$(field naive.0.jsonl naive top1)" "$(field naive.0.jsonl eval top1)"; }
check "where all is even, it is the same" shown same_top1

# --- after an epoch of training -------------------------------------------------------------------------------

# The weights of all ranks are equal, the running statistics are not: those of rank 0 are tested, and saved.
epochs=(--train-samples 96 --test-samples 101 -b 16 --epochs 2 --lr 0.005 "${convnet[@]}")
before_and_now()
{
    rm -f six.* seven.*
    ranks "$1" "$older/train" "${epochs[@]}" "${@:2}" --metrics six.%r.jsonl --save six.st >six.out 2>&1 &&
        ranks "$1" "$train" "${epochs[@]}" "${@:2}" --metrics seven.%r.jsonl --save seven.st >seven.out 2>&1 &&
        alike seven.0.jsonl six.0.jsonl epoch && cmp six.st seven.st
}
for n in 1 2 3; do
    check "$n ranks: an epoch ends as in 06" shown before_and_now $n
done
check "2 batches: the third rank, which has none, counts none in the second test either" shown before_and_now 3 \
    --test-samples 17
check "bf16: an epoch ends as in 06" shown before_and_now 2 --amp bf16
check "the ranks know alike" shown is "$(grep '"event":"epoch"' seven.0.jsonl | sed 's/"seconds.*//')" \
    "$(grep '"event":"epoch"' seven.1.jsonl | sed 's/"seconds.*//')"

# --- mistakes -------------------------------------------------------------------------------------------------

convnet+=(--timeout 10)
five()
{
    evaluate one 1 5 2 && evaluate many 2 5 2 && counts_agree one 5 && counts_agree many 5 && same many one &&
        alone alone 5 2 && alike many.0.jsonl alone.jsonl eval
}
epochs_of_two() { before_and_now 2; }
mistake "shares that overlap" five eval.c "int first = (i * size + rank) * rows" "int first = i * rows"
mistake "a share is left out" five eval.c "count / rows + (count % rows > 0)" "count / rows"
mistake "padding is counted" five eval_result.c "    if (v->label < 0)" \
    "    Verdict row = *v; row.label = row.label < 0 ? 0 : row.label; v = &row; if (false)"
mistake "a mean of percentages" five eval.c "    *mine = r->stats;" \
    "Stats *s = &r->stats; double even = eval->test->count / (double)comm_size(eval->comm), most = s->count / even;
    s->loss_sum /= most; s->correct1 = (int64_t)(s->correct1 / most + 0.5);
    s->correct5 = (int64_t)(s->correct5 / most + 0.5); s->count = (int64_t)(even + 0.5); *mine = r->stats;"
mistake "the last test is not forgotten" epochs_of_two eval.c "    result_clear(&eval->result);" ""
broadcast="comm_broadcast(eval->comm, device_stream(model->device), model->buffers,"
mistake "statistics of their own" epochs_of_two eval.c "$broadcast" "if (false) $broadcast"
test_done
