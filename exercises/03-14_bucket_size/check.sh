# shellcheck shell=bash disable=SC2034,SC2154
# First, each size must have been measured: the number of messages must be right, and the time possible (the check does
# not show the right numbers). Then finds the best bucket size: computes for each size the time from the start of
# backward to the end of the last message. The bytes of each layer come from a run. Each layer and each message takes
# 10 ms; the network carries 60 MB/s.
# fails with: 0.001 was measured
answer() { sed -n "s/^$1[a-z0-9_.]* *= *\([^ #]*\).*/\1/p" "$copy/answers.txt" | tr '[:upper:]' '[:lower:]'; }
is() { echo "your answer: $(answer "$1")"; [ "$(answer "$1")" = "$2" ]; }
build --with check.c --wrap ddp_new --wrap slow_ready
export RECORD=1
learner one 2 --arch resnet18 -b 2 --max-steps 1 --slow-network 60

# step_time MIB: prints "445 8 35": total ms, messages, ms after backward
step_time()
{
    awk -v bucket="$(awk "BEGIN { print $1 * 1048576 }")" '
        function send() { sent = (sent > now ? sent : now) + 10 + bytes / 60e3; n++; bytes = 0 }
        { now += 10; bytes += $1; if (bytes >= bucket) send() }
        END { if (bytes > 0) send(); printf "%.0f %d %.0f\n", sent, n, sent - now }' ready.0
}
declare -A ms messages after
for size in 0.001 2 16 64; do
    read -r "ms[$size]" "messages[$size]" "after[$size]" < <(step_time $size)
done
best=$(for size in 0.001 2 16 64; do echo "${ms[$size]} $size"; done | sort -n | head -1)

# measured SIZE: claims that answers.txt has the numbers of a run with this size.
measured()
{
    local size=$1 numbers
    read -ra numbers < <(sed -n "s/^measured_$size *=//p" "$copy/answers.txt" | sed 's/#.*//' | grep -oE '[0-9.]+' |
        paste -sd' ')
    why="Run the program with --bucket-mb $size, as the task says, and copy the line that begins with \"fastest step\"."
    [ "${#numbers[@]}" = 2 ] || wrong "$size was measured" <<<"your answer has no two numbers: ms, and messages"
    [ "${numbers[1]}" = "${messages[$size]}" ] ||
        wrong "$size was measured" <<<"your answer: ${numbers[1]} messages; the program prints another number"
    why="Backward sleeps 10 ms at each layer and each message takes 10 ms and the time of its bytes, on any computer."
    awk -v a="${numbers[0]}" -v least="${ms[$size]}" 'BEGIN { exit !(a + 1 >= least) }' ||
        wrong "$size was measured" <<<"your answer: ${numbers[0]} ms; no run can be that fast"
    why="Measure again while the computer does nothing else."
    awk -v a="${numbers[0]}" -v least="${ms[$size]}" 'BEGIN { exit !(a < 3 * least) }' ||
        wrong "$size was measured" <<<"your answer: ${numbers[0]} ms; that is several times what it should be"
    passed "$size was measured: ${numbers[0]} ms, ${numbers[1]} messages"
}
for size in 0.001 2 16 64; do measured $size; done

mine=$(answer 1)
why="Measure all four sizes, and compare the fastest steps. The times shown here are computed and exclude the forward
pass, so yours are somewhat longer."
case $mine in
0.001 | 2 | 16 | 64)
    [ "$mine" = "${best#* }" ] || wrong "1. the best bucket size" < <(
        echo "with --bucket-mb $mine a step takes ${ms[$mine]} ms; the best of the four takes ${best% *} ms")
    ;;
*) wrong "1. the best bucket size" <<<"your answer: $mine" ;;
esac
passed "1. the best bucket size"
why="With 0.001 there are ${messages[0.001]} messages, with 2 only ${messages[2]}. All sizes send the same bytes."
holds "2. why 0.001 is slower" is 2 a
why="With 16 there are ${messages[16]} messages. The first has most of the bytes, and leaves when backward is almost
over. So the step ends ${after[16]} ms after backward; with 2, it ends ${after[2]} ms after backward."
holds "3. why 16 is slower" is 3 b
