# shellcheck shell=bash disable=SC2034,SC2154
# A disk that needs 60 ms for each file, and a checkpoint after every step: no snapshot may change while it is written.
# fails with: no snapshot changes while it is written
build --with check.c --wrap snapshot_write --wrap snapshot_take
learner slow 1 --train-samples 64 --save net.st --save-every 1
sed -n 's/.*spy: snapshot of //p' slow.out >found
sed 's/ changes while it is written/ stays as it is/' found >expected
why="Each line is a file. If a snapshot changes while it is written, its checkpoint mixes two steps."
beside "no snapshot changes while it is written" same file expected expected found found
equal "there is a file for each of the 8 steps, one for the best result, one after the evaluation" 10 "$(wc -l <found)"

# The order of snapshots taken (t) and files written (w): two are taken before the first is written.
sed -n 's/.*spy: taken$/t/p; s/.*spy: snapshot of .*/w/p' slow.out | tr -d '\n' >order
why="There is room for two snapshots, so training may be one file ahead of the disk. The order was $(cat order), where t
means that a snapshot was taken, and w that a file was written."
holds "training does not wait for the disk more than it has to" grep -q '^tt' order
