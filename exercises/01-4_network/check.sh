# shellcheck shell=bash disable=SC2034,SC2154
# Checks the number of parameters, the names and shapes in a checkpoint, and the first losses, which were recorded with
# the solution.
# fails with: --arch tinyvgg is known
build
net=(--arch tinyvgg --train-samples 96 -b 16 --lr 0.1)
try_learner net 1 "${net[@]}" --save net.st
why="arch_names in nets.c lists the names."
[ "$status" != 2 ] || wrong "--arch tinyvgg is known" < <(last_lines net 2)
passed "--arch tinyvgg is known"
why="net_build calls one function for each name."
[ "$status" = 0 ] || wrong "a tinyvgg trains" < <(last_lines net)
passed "a tinyvgg trains"
why="A convolution has in x out x kernel x kernel weights and out biases: conv1 has 3 x 32 x 9 + 32. The last layer
has 64 x 10 + 10."
equal "a tinyvgg has 66218 parameters" 66218 "$(sed -n 's/^tinyvgg, \([0-9]*\) parameters.*/\1/p' net.out)"

cat >expected <<'END'
conv1.bias [32]
conv1.weight [32,3,3,3]
conv2.bias [32]
conv2.weight [32,32,3,3]
conv3.bias [64]
conv3.weight [64,32,3,3]
conv4.bias [64]
conv4.weight [64,64,3,3]
fc.bias [10]
fc.weight [10,64]
END
head -c 20000 net.st | tr -d '\0' | grep -aoE '"[a-z0-9.]+": *\{"dtype": *"F32", *"shape": *\[[0-9,]*\]' |
    sed -E 's/^"([^"]*)".*(\[.*\])$/\1 \2/' | grep -v '^ddp\.' | sort >found
why="The names and shapes are PyTorch's, so that its load_state_dict accepts the file."
beside "the checkpoint has these tensors" same "" "expected                  " expected found found

printf '%s\n' 2.28214 2.31244 2.30371 2.30195 2.29575 2.28253 >expected
values net.0.jsonl step loss epoch=1 >found
why="Padding, ReLU and pooling have no parameters: compare each layer with the task. A layer that reads the wrong
value also shows only here."
beside "the first losses are those of this network" 2e-4 step expected expected found found
