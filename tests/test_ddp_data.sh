#!/usr/bin/env bash
# ctest: TIMEOUT 300
# ./ddp data: from any archive, either the complete, correct data set is installed or data/ does not change.
. "$SRC/tests/test.sh"

package=/usr/share/datasets/fashion-mnist
tree="$TMP/a tree"
mkdir "$tree" "$TMP/bin"
cp -r "$SRC/ddp" "$SRC/tools" "$tree"
# shellcheck disable=SC2317  # it is called, by expect
ddp() { PATH="$TMP/bin:$PATH" "$tree/ddp" "$@"; }

refused()
{
    expect 1 "$1" ddp data "${@:2}"
    check "nothing is left after: ${*:2}" test ! -e "$tree/data"
}

mkdir set
head -c 20000 /dev/zero >set/data_batch_1.bin
tar -czf short.tar.gz set
refused "data_batch_1.bin has 20000 bytes instead of 30730000" cifar10 --from short.tar.gz
head -c 30730000 /dev/zero >set/data_batch_1.bin
tar -cJf zeros.tar.xz set
refused "data_batch_1.bin differs from the published file" cifar10 --from zeros.tar.xz

# An interrupted command.
printf '#!/bin/sh\nsleep 30\n' >bin/xz
chmod +x bin/xz
expect 124 "" timeout -s INT 1 env PATH="$TMP/bin:$PATH" "$tree/ddp" data cifar10 --from zeros.tar.xz
check "nothing is left after an interrupt" test ! -e "$tree/data"
rm bin/xz

if [ -d $package ]; then
    mkdir -p good/deep
    cp $package/*.gz good/deep
    ln -s /etc good/deep/escape
    echo evil >evil
    (cd good && tar -czf ../good.tar.gz -P . ../evil "$TMP/evil")
    rm evil
    expect 0 "checksums correct" ddp data fashion-mnist --from good.tar.gz
    check "its files, and nothing else" test "$(find "$tree/data" -mindepth 1 | wc -l)" = 5
    check "no link was made" test -z "$(find "$tree/data" -type l)"
    check "no file outside" test ! -e "$TMP/evil"

    truncate -s 5 "$tree/data/fashion-mnist/t10k-labels-idx1-ubyte"
    expect 0 "which was incomplete or damaged" ddp data fashion-mnist --from good.tar.gz

    # MNIST's files have the names and sizes of Fashion-MNIST's, but different checksums.
    expect 1 "train-images-idx3-ubyte differs from the published file" ddp data mnist --from good.tar.gz
    check "nothing of it is left" test "$(ls -A "$tree/data")" = fashion-mnist
else
    echo "not tried: $package is not installed (apt install dataset-fashion-mnist)"
fi

test_done
