# shellcheck shell=bash disable=SC2034,SC2154
# On random letters no network may be better than chance. On real text the losses must be the finished step's.
# fails with: letters that were drawn at random cannot be predicted
# fails with: no network can be so much better than chance
build
awk 'BEGIN { srand(3); for (i = 0; i < 20000; i++) printf "%c", 97 + int(4 * rand()) }' >random.txt
gpt=(-a gpt --layers 1 --heads 2 --width 16 --block 8 --train-samples 0 --test-samples 0 -b 32 --lr 0.02
    --print-freq 1)

learner random 1 "${gpt[@]}" --data text:random.txt --epochs 5
loss=$(value random.0.jsonl epoch test_loss)
why="A quarter of the guesses is right by chance. To do better, the network must have seen what it is to predict."
awk -v loss="$loss" 'BEGIN { exit !(loss > 1.38 && loss < 1.4) }' ||
    wrong "letters that were drawn at random cannot be predicted" < <(
        expected "a test loss of ln 4 = 1.386 per letter" "$loss"
        awk -v loss="$loss" 'BEGIN { if (loss < 0.3) print "no network can be so much better than chance" }')
passed "letters that were drawn at random cannot be predicted"

cat "$root"/docs/*.md | head -c 20000 >pages.txt
learner pages 1 "${gpt[@]}" --data text:pages.txt
finished wanted 1 "${gpt[@]}" --data text:pages.txt
values pages.0.jsonl step loss >pages.losses
values wanted.0.jsonl step loss >wanted.losses
why="Token t must read itself and all tokens before it. Backward needs the same limits."
beside "a text is learned as the finished step learns it" 1e-4 step "finished" wanted.losses "yours" pages.losses
