# shellcheck shell=bash disable=SC2034,SC2154
# Checks only answers.txt. In the run "today" (run.txt, trace.txt), rank 1's loader slept 17.5 ms in each "make rows".
# Both runs took place on one machine, with three launchers; in run.txt, the host and the folder are renamed.
# fails with: 1. the slow rank
answer() { sed -n "s/^$1[a-z_]* *= *\([^#]*\).*/\1/p" "$copy/answers.txt" | tr '[:upper:]' '[:lower:]' | tr -d ' \t"'; }
# is N WHAT PATTERN: the learner's answer N matches PATTERN. If not, this answer and $why are shown.
is()
{
    if [[ $(answer "$1") =~ ^($3)$ ]]; then passed "$1. $2"; else wrong "$1. $2" <<<"your answer: $(answer "$1")"; fi
}

why="Waiting ranks also have long spans: a span is long because the rank works, or because it waits for others. In each
step one rank begins its all_reduce last, more than 50 ms after the others. Which one?"
is 1 "the slow rank" "(rank)?1"
why="What does the main thread of rank 1 do before each forward, and what does its other thread do at that time? A span
that begins with \"wait\" is never the cause."
is 2 "the span in which it is slow" "make[_-]?rows"
why="A waiting rank has its gradients ready, but its all_reduce cannot end yet. More than one rank waits."
is 3 "the ranks that wait" "(ranks?)?(0(,|and|,and)?(rank)?2|2(,|and|,and)?(rank)?0)"
why="Look at the main thread of ranks 0 and 2: its long span begins when backward ends, and ends when rank 1 arrives."
is 4 "where they wait" "c([:).].*)?|waitforgradients"
why="When rank 1 arrives, all ranks are there, and its all_reduce takes 4 or 5 ms. On the other ranks the same bytes
take more than 60 ms, so the network is not the cause. The other explanations agree with the long \"make rows\",
in which a loader reads and decodes its pictures."
is 5 "the explanation that these files rule out" "c([:).].*)?"
why="Without the wait for data, rank 1 still needs its forward, backward and all_reduce: add up these spans. Or
divide the 96 images of a step by yesterday's samples_per_s, but not by that of its slow first steps. A span of \"make
rows\" is not the time of a step: loaders work beside the main thread, and make several spans for a batch."
is 6 "the time of a step without the slow rows" "(~|about|ca\.?)?(([89]|1[0-6])([.,][0-9]+)?|17([.,][0-4][0-9]*)?)(ms)?"
