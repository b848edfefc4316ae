# shellcheck shell=bash disable=SC2034,SC2154
# A spy (check.c) prints the norm of each step's gradient, and a token's weight times the rank's number of labels. The
# norm must be the same for one, two and three ranks with the same samples. In one process the product must be 1.
# fails with: 2 ranks have the gradients of one process
export SPY=1
build --with check.c --wrap loss_cross_entropy --wrap sgd_update
# Long answers and short ones, so that ranks have different numbers of labels. With the second text, a rank's batch
# sometimes has no label; with the third, in most steps no rank's batch has one.
letters=abcdefghijklmnopqrstuvwxyzabcdefgh
awk -v l=$letters 'BEGIN { for (i = 1; i < 400; i++) printf "%d?%s\n", i, substr(l, 1, i * i % 31) }' >qa.txt
awk 'BEGIN { for (i = 1; i < 120; i++) printf "%0" 40 + i * i % 60 "d?%c\n", i, 97 + i % 26 }' >few.txt
awk 'BEGIN { for (i = 1; i < 60; i++) printf "%0" 700 + i * i % 60 "d?%c\n", i, 97 + i % 26 }' >none.txt
small=(-a gpt --width 16 --layers 1 --heads 2 --block 32 --test-samples 4 --max-steps 6 --optim sgd --lr 0.1
    --bucket-mb 0.01)

# norms NAME N: prints the norm of each step. All N ranks print it; one line in N is kept.
norms() { sed -n 's/^spy: norm //p' "$1.out" | awk -v n="$2" 'NR % n == 0'; }
no_labels="In some steps no rank has a token with a label. What does your program divide by then?"
for text in qa few none; do
    [ $text != none ] || why=$no_labels
    learner $text.1 1 "${small[@]}" --data "text:$text.txt" -b 6
    sed -n 's/^spy: token //p' $text.1.out >found
    sed 's/.*/1/' found >expected
    why="The mean of one process is over its tokens with a label: each weighs 1 / (number of these tokens)."
    beside "one process has the mean over its labelled tokens ($text)" 1e-3 step "weight x tokens" expected yours found
    norms $text.1 1 >one
    for n in 2 3; do
        try_learner $text.$n $n --timeout 4 "${small[@]}" --data "text:$text.txt" -b $((6 / n))
        [ $text != none ] || why=$no_labels
        [ "$status" = 0 ] || wrong "$n ranks train to the end ($text)" < <(last_lines $text.$n)
        norms $text.$n $n >found
        why="The numbers are norms of the gradient. A mean of the ranks' means gives a token a large weight on a rank
that has few tokens with a label."
        beside "$n ranks have the gradients of one process ($text)" 1e-4 step "one process" one "$n ranks" found
    done
done
