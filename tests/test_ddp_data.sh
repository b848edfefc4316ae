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

expect 2 "there is no data set 'cifar'" ddp data cifar

echo hello >text
refused "neither gzip nor xz" cifar10 --from text
mkdir set
head -c 20000 /dev/zero >set/data_batch_1.bin
tar -czf short.tar.gz set
refused "data_batch_1.bin has 20000 bytes instead of 30730000" cifar10 --from short.tar.gz
head -c 30730000 /dev/zero >set/data_batch_1.bin
tar -cJf zeros.tar.xz set
refused "data_batch_1.bin differs from the published file" cifar10 --from zeros.tar.xz
head -c 2000 zeros.tar.xz >cut.tar.xz

printf '#!/bin/sh\nsleep 30\n' >bin/xz
chmod +x bin/xz
expect 124 "" timeout -s INT 1 env PATH="$TMP/bin:$PATH" "$tree/ddp" data cifar10 --from zeros.tar.xz
check "nothing is left after an interrupt" test ! -e "$tree/data"
rm bin/xz
expect 1 "writing failed, perhaps the disk is full" bash -c \
    "ulimit -f 5000; '$tree/ddp' data cifar10 --from zeros.tar.xz"
check "nothing is left after a full disk" test ! -e "$tree/data"

printf '#!/bin/sh\necho "curl: (6) Could not resolve host" >&2; exit 6\n' >bin/curl
chmod +x bin/curl
refused "the download failed" cifar10
# A download that breaks off three times in the middle of the file, and continues each time.
cat >bin/curl <<'END'
#!/bin/bash
echo "$*" >>"$CALLS"
[[ $* != *--head* ]] || { printf 'HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n'; exit; }
while [ "$1" != --output ]; do shift; done
has=$(stat -c %s "$2" 2>/dev/null || echo 0)
tail -c +$((has + 1)) "$FROM" | head -c 600 >>"$2"
[ "$(stat -c %s "$2")" = 2000 ] || exit 18
END
printf '#!/bin/sh\n' >bin/sleep
chmod +x bin/sleep
export CALLS=$TMP/calls FROM=$TMP/cut.tar.xz
refused "fetch it again" cifar100
check "four parts" test "$(grep -c -- '--continue-at - ' calls)" = 4
if [ -d $package ]; then
    mkdir -p good/deep
    cp $package/*.gz good/deep
    ln -s /etc good/deep/escape
    echo evil >evil
    (cd good && tar -czf ../good.tar.gz -P . ../evil "$TMP/evil")
    rm evil
    expect 0 "checksums correct" ddp data fashion-mnist --from good.tar.gz
    check "the set is there" test -s "$tree/data/fashion-mnist/train-images-idx3-ubyte"
    check "and nothing else" test "$(find "$tree/data" -mindepth 1 | wc -l)" = 5
    check "no link was made" test -z "$(find "$tree/data" -type l)"
    check "no file outside" test ! -e "$TMP/evil"

    truncate -s 5 "$tree/data/fashion-mnist/t10k-labels-idx1-ubyte"
    expect 1 "fetch it again" ddp data fashion-mnist --from cut.tar.xz
    check "the old files are unchanged" test "$(stat -c %s "$tree/data/fashion-mnist/t10k-labels-idx1-ubyte")" = 5
    expect 0 "which was incomplete or damaged" ddp data fashion-mnist --from good.tar.gz

    # MNIST's files have the names and sizes of Fashion-MNIST's, but different checksums.
    expect 1 "train-images-idx3-ubyte differs from the published file" ddp data mnist --from good.tar.gz
    check "nothing of it is left" test "$(ls -A "$tree/data")" = fashion-mnist
    rm -r "$tree/data"
else
    echo "not tried: $package is not installed (apt install dataset-fashion-mnist)"
fi

test_done
