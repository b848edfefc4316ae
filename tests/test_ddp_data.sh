#!/usr/bin/env bash
# ctest: TIMEOUT 300
# ./ddp data: from any archive, either the complete, correct data set is installed or data/ does not change. If
# $DDP_CIFAR10 names the real CIFAR-10 (a .tar.gz, a .tar.xz or a folder), CIFAR-10 is also installed.
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

expect 2 "which data set?" ddp data
expect 2 "there is no data set 'cifar'" ddp data cifar
expect 2 "unknown option --form" ddp data cifar10 --form x
refused "nothing: no such file" cifar10 --from nothing
expect 2 "--from needs a file or a folder" ddp data cifar10 --from ''
expect 2 "--from needs a file or a folder" ddp data cifar10 --from
expect 2 "shakespeare is a text: it has no images" ddp data shakespeare --as-folder pictures

echo hello >text
refused "neither gzip nor xz" cifar10 --from text
check "what is needed" grep -q "a folder with data_batch_1.bin, data_batch_2.bin" "$TMP/output"
printf '\x1f\x8b' >-cut.gz
refused "-cut.gz: unexpected end of file" cifar10 --from -cut.gz
gzip -c text >text.gz
refused "text.gz: not a complete tar archive" cifar10 --from text.gz
mkdir set
head -c 20000 /dev/zero >set/data_batch_1.bin
tar -czf short.tar.gz set
refused "data_batch_1.bin has 20000 bytes instead of 30730000" cifar10 --from short.tar.gz
head -c 30730000 /dev/zero >set/data_batch_1.bin
tar -cJf zeros.tar.xz set
refused "data_batch_1.bin differs from the published file" cifar10 --from zeros.tar.xz
refused "it contains no train.bin" cifar100 --from zeros.tar.xz
head -c 2000 zeros.tar.xz >cut.tar.xz
head -c 30730001 /dev/zero >set/data_batch_1.bin
tar -czf long.tar.gz set
refused "more than 30730000 bytes" cifar10 --from long.tar.gz
head -c 700000000 /dev/zero | gzip -1 >bomb.tar.gz
refused "not an archive of cifar10" cifar10 --from bomb.tar.gz

rm -r set
mkdir set other
ln -s /etc/passwd set/data_batch_1.bin
tar -czf link.tar.gz set
refused "data_batch_1.bin has 0 bytes" cifar10 --from link.tar.gz
rm set/data_batch_1.bin
touch set/data_batch_1.bin other/data_batch_1.bin
tar -czf twice.tar.gz set other
refused "more than one data_batch_1.bin" cifar10 --from twice.tar.gz

type -P python3 >/dev/null && {
    for ((i = 0; i < 300; i++)); do printf '%b' "\\x$(printf %x $((i % 10)))row $i."; done | head -c 2100 >records
    python3 "$SRC/tests/cifar_pickle.py" 300 labels <records >data_batch_1
    check "records" cmp <("$tree/tools/cifar.py" <data_batch_1) records
    python3 "$SRC/tests/cifar_pickle.py" 300 coarse_labels fine_labels <records >train
    check "records with two labels" cmp <("$tree/tools/cifar.py" <train) records
    mkdir python
    cp data_batch_1 python
    refused "data_batch_1.bin has 2100 bytes instead of 30730000" cifar10 --from python
    tar -czf python.tar.gz python
    refused "data_batch_1.bin has 2100 bytes instead of 30730000" cifar10 --from python.tar.gz
    printf 'cos\nsystem\n(S"touch ran"\ntR.' >python/data_batch_1
    refused "it names os.system" cifar10 --from python
    check "nothing ran" test ! -e ran
    echo none >python/data_batch_1
    refused "not a batch of CIFAR" cifar10 --from python
}

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
check "the hint" grep -qF 'ddp data cifar10 --from FILE' "$TMP/output"
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
check "site and size" grep -qF "from https://www.cs.toronto.edu/~kriz/, 0.0 MB" "$TMP/output"
check "four parts" test "$(grep -c -- '--continue-at - ' calls)" = 4
expect 1 "fetch it again" env PATH="$TMP/bin:$PATH" DDP_DATA_URL=http://mirror/sets/ "$tree/ddp" data cifar10
check "the mirror" grep -q " http://mirror/sets/cifar-10-binary.tar.gz$" calls
printf '#!/bin/sh\nexit 18\n' >bin/curl
refused "the download failed" cifar100

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

refused "text: input.txt has 6 bytes instead of 1115394" shakespeare --from text
text=$SRC/../shared/data/tinyshakespeare.txt
if [ -f "$text" ]; then
    tr ab ba <"$text" >other.txt
    refused "input.txt differs from the published file" shakespeare --from other.txt
    expect 0 "1 files, checksums correct" ddp data shakespeare --from "$text"
    check "it is the text" cmp "$text" "$tree/data/shakespeare/input.txt"
    rm -r "$tree/data"
    # shellcheck disable=SC2016  # what the pretended curl expands
    printf '#!/bin/sh\nwhile [ "$1" != --output ]; do shift; done\ncp "%s" "$2"\n' "$(readlink -f "$text")" >bin/curl
    expect 0 "1 files, checksums correct" ddp data shakespeare
    check "it is the same text" cmp "$text" "$tree/data/shakespeare/input.txt"
else
    echo "not tried: Shakespeare ($text is not there)"
fi

if [ -n "${DDP_CIFAR10:-}" ]; then
    expect 0 "6 files, checksums correct" ddp data cifar10 --from "$DDP_CIFAR10"
    check "all files are complete" test "$(cat "$tree"/data/cifar-10-batches-bin/*.bin | wc -c)" = 184380000
    expect 0 "already installed" ddp data cifar10
else
    echo "not tried: the real CIFAR-10 (DDP_CIFAR10 is not set)"
fi

test_done
