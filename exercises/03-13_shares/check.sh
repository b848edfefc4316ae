# shellcheck shell=bash disable=SC2016,SC2034,SC2154
# With 2, 3 and 4 ranks: checks which parameters each rank updates, how much memory their momentum takes, and that the
# weights are bit-identical to step 03's. Each new value must be sent once. With resnet18, not all parameters
# have a gradient.
# fails with: 2 ranks: each parameter is updated by one rank
build --with check.c --wrap device_alloc --wrap zero_new --wrap zero_step --wrap sgd_update \
    --wrap comm_all_reduce --wrap comm_broadcast --wrap comm_all_gather --wrap comm_barrier
same=(--arch convnet --train-samples 48 -b 4)     # 3 does not divide the number of parameters

# updates N: prints the recorded updates of N ranks: "rank 0: parameters 0 to 17320"
updates()
{
    local rank
    for ((rank = 0; rank < $1; rank++)); do
        awk -v rank=$rank '$1 == "update" { print "rank " rank ": parameters " $2 " to " $2 + $3 }' shares."$1".$rank
    done
}
# covered N PARAMETERS: fails if a parameter is updated by no rank or by several.
covered()
{
    updates "$1" | awk '{ print $4, $6 }' | sort -n | awk -v all="$2" '
        $2 > $1 { bad = bad || $1 != end + 0; end = $2 }
        END { exit bad || end != all }'
}

for n in 2 3 4; do
    finished right$n $n "${same[@]}"
    try_learner yours$n $n "${same[@]}" --timeout 4
    if [ "$status" != 0 ] && all_wait yours$n; then
        why="All ranks must make the same calls in the same order. comm_broadcast needs the same root on every rank."
        wrong "$n ranks take a step" < <(last_lines yours$n)
    fi
    for ((rank = 0; rank < n; rank++)); do
        [ -s shares.$n.$rank ] || wrong "$n ranks train" < <(last_lines yours$n)
    done

    parameters=$(awk '$1 == "all" { print $3 }' shares.$n.0)
    why="There are $parameters parameters. 3 does not divide this number."
    holds "$n ranks: each parameter is updated by one rank" eval "updates $n; covered $n $parameters"
    cat shares.$n.? | awk '$1 == "update" && $3 > 0 && $2 != $4 {
        print "parameters from " $2 ", gradients from " $4 }' >offsets
    why="sgd_update takes pointers to the first parameter, gradient and momentum."
    equal "$n ranks: parameters and gradients begin at the same offset" "" "$(cat offsets)"
    cat shares.$n.? | awk -v most=$((parameters / n + parameters / 50)) '$1 == "update" && $3 > most {
        print $3 " parameters" }' >large
    why="A share of 1/$n has about $((parameters / n)) parameters."
    equal "$n ranks: no share is larger than the others" "" "$(cat large)"

    for ((rank = 0; rank < n; rank++)); do
        awk -v rank=$rank '$1 == "update" && $3 > 0 { print "rank " rank ": " 4 * $3 " bytes" }' shares.$n.$rank \
            >>needs$n
        awk -v rank=$rank '$1 == "update" && $3 > 0 {
            found = $5
            if (found > 4 * $3 && found < 4.2 * $3 + 1024) found = 4 * $3
            found = found " bytes"
            if ($6 < $5) found = found ", used from byte " $5 - $6
            print "rank " rank ": " found }' shares.$n.$rank >>has$n
    done
    why="Allocate the momentum of a share with device_alloc. It begins at offset 0 of that memory."
    beside "$n ranks: each has memory for the momentum of its share" same "" "expected            " needs$n found has$n
    why="zero.c allocates more than the momentum of a share."
    holds "$n ranks: zero.c allocates no other large memory" awk -v n=$n -v all="$parameters" '
        $1 == "all" {
            printf "%d parameters: about %d bytes of momentum for each rank\n", all, 4 * all / n
            printf "allocated in zero_new and in the first zero_step: %d bytes\n", $2
            exit !($2 < 4.2 * all / n + 1024) }' shares.$n.0

    awk -v most=$((parameters + parameters / 20)) '$1 == "sends" && $2 > most {
        print $2 " of " most " values" }' shares.$n.0 >much
    why="Each rank has 1/$n of the new values. If it sends these to the others, each value travels once. An all-reduce
adds zeros, and sends each value twice; so does collecting on one rank and sending from there."
    [ ! -s much ] || wrong "$n ranks: each new value is sent once" < <(
        expected "$parameters values in all calls of zero_step" "$(cut -d' ' -f1 much) values")
    why="A collective call waits for the ranks that it needs. A barrier makes the host wait as well."
    [ "$(awk '$1 == "sends" { print $3 }' shares.$n.0)" = 0 ] || wrong "$n ranks: zero_step has no barrier" < <(
        expected "no barrier" "$(awk '$1 == "sends" { print $3 }' shares.$n.0) barriers in the first zero_step")
    why="Rank R updates only its own share. After every update, each rank must send its whole share to all others."
    [ "$status" = 0 ] || wrong "$n ranks: all have equal weights" < <(last_lines yours$n)
    equal "$n ranks: the weights are bit-identical to step 03's" "$(value right$n.0.jsonl end weight_hash)" \
        "$(value yours$n.0.jsonl end weight_hash)"
done

# At 32x32 pixels, the last 62 % of resnet18's parameters have no gradient.
learner wide 2 --arch resnet18 --train-samples 4 --test-samples 2 -b 1 --max-steps 1
for rank in 0 1; do
    awk -v rank=$rank '$1 == "update" { print "rank " rank ": " $8 " of " $3 " parameters" }' shares.2.$rank >>needed
    awk -v rank=$rank '$1 == "update" { print "rank " rank ": " $7 " of " $3 " parameters" }' shares.2.$rank >>gradients
done
why="Of some networks, the last parameters have no gradient (model.h). sgd_update's second count says how many of *this*
share have one, so gradients_in must know where the share begins. Too large a count reads beyond the gradients."
beside "resnet18: sgd_update gets the number of parameters that have a gradient" same "" \
    "expected                             " needed found gradients
