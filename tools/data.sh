#!/usr/bin/env bash
# data.sh - ./ddp data NAME [--from FILE] [--as-folder DIR [--scale N]]: puts a data set under data/, from a site,
# or from FILE: an archive, a folder or, for shakespeare, the text. With --as-folder it also writes the images as
# picture files. DDP_DATA_URL: a folder's URL that replaces the site's; any mirror will do: all files have checksums.
#
# A data set appears under data/ only when all its files are complete and have the right checksums: the work is done in
# a temporary directory, and a rename ends it. Partial downloads stay in data/, for the next call to continue. Each file
# of an archive is read into a file of our own, so links or ".." in an archive have no effect.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
. "$root/tools/shell.sh"

names='cifar10, cifar100, mnist, fashion-mnist, shakespeare'

# Every file of every set as the programs read it: SHA-256, bytes, directory under data/, name.
files='
cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5  30730000 cifar-10-batches-bin data_batch_1.bin
a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed  30730000 cifar-10-batches-bin data_batch_2.bin
bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67  30730000 cifar-10-batches-bin data_batch_3.bin
014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48  30730000 cifar-10-batches-bin data_batch_4.bin
755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add  30730000 cifar-10-batches-bin data_batch_5.bin
8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b  30730000 cifar-10-batches-bin test_batch.bin
f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29 153700000 cifar-100-binary train.bin
d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a  30740000 cifar-100-binary test.bin
ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db  47040016 mnist train-images-idx3-ubyte
65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5     60008 mnist train-labels-idx1-ubyte
0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7   7840016 mnist t10k-images-idx3-ubyte
ff7bcfd416de33731a308c3f266cd351222c34898ecbeaf847f06e48f7ec33f2     10008 mnist t10k-labels-idx1-ubyte
c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888  47040016 fashion-mnist train-images-idx3-ubyte
bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9     60008 fashion-mnist train-labels-idx1-ubyte
5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b   7840016 fashion-mnist t10k-images-idx3-ubyte
0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34     10008 fashion-mnist t10k-labels-idx1-ubyte
86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed   1115394 shakespeare input.txt
'
archive_limit=600000000     # bytes: more than any of the sets has

# Sets `folder`, and `url`: an archive, a text, or, with a slash at its end, the directory of the gzipped files.
find_set()
{
    case $1 in
    cifar10) folder=cifar-10-batches-bin url=https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz ;;
    cifar100) folder=cifar-100-binary url=https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz ;;
    mnist) folder=mnist url=https://ossci-datasets.s3.amazonaws.com/mnist/ ;;
    fashion-mnist) folder=fashion-mnist
        url=http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/ ;;
    shakespeare) folder=shakespeare
        url=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt ;;
    *) die_usage "data: there is no data set '$1'" "there are $names" ;;
    esac
    [ -z "${DDP_DATA_URL:-}" ] || case $url in
    */) url=${DDP_DATA_URL%/}/ ;;
    *) url=${DDP_DATA_URL%/}/${url##*/} ;;
    esac
}

each_file() { awk -v folder="$folder" '$3 == folder { print $1, $2, $4 }' <<<"$files"; }

is_complete()
{
    local sum bytes name
    while read -r sum bytes name; do
        [ -f "$1/$name" ] && [ "$(stat -Lc %s "$1/$name")" = "$bytes" ] || return 1
    done < <(each_file)
    (cd "$1" && each_file | awk '{ print $1 "  " $3 }' | sha256sum --check --status)
}

# Unpacks at most $2 + 1 bytes of a gzip or xz file to stdout. The file's first bytes identify the format.
unpack()
{
    local file=$1 limit=$2 packer
    case $(head -c 6 "$file" | od -An -tx1 | tr -d ' \n') in
    1f8b*) packer=gzip ;;
    fd377a585a00) packer=xz ;;
    *) die "$file is compressed by neither gzip nor xz" "give a .tar.gz or .tar.xz, or a folder with $(wanted)" ;;
    esac
    have $packer || die "$packer is not installed" "apt install ${packer/xz/xz-utils}"
    # A byte beyond the limit shows that the file is too large. head then ends, and SIGPIPE ends the packer (141).
    local status=(0 0)
    $packer -dc "$file" 2>"$tmp/log" | head -c $((limit + 1)) || status=("${PIPESTATUS[@]}")
    [ "${status[1]}" = 0 ] || die "$data: writing failed, perhaps the disk is full; nothing was changed"
    [ "${status[0]}" = 0 ] || [ "${status[0]}" = 141 ] ||
        die "$file: $(sed -n '/./ { s/^.*: //p; q }' "$tmp/log"); nothing was changed" \
            "the file is damaged or incomplete: fetch it again"
}

# check_file SUM BYTES NAME FROM: checks $tmp/new/NAME, which came from FROM.
check_file()
{
    local sum=$1 bytes=$2 name=$3 from=$4 has
    has=$(stat -c %s "$tmp/new/$name")
    [ "$has" -ge "$bytes" ] || die "$from: $name has $has bytes instead of $bytes; nothing was changed"
    [ "$has" = "$bytes" ] || die "$from: $name has more than $bytes bytes; nothing was changed"
    [ "$(sha256sum <"$tmp/new/$name")" = "$sum  -" ] ||
        die "$from: $name differs from the published file (SHA-256); nothing was changed"
}

wanted() { each_file | awk '{ printf "%s%s", n++ ? ", " : "", $3 }'; }

# take_from_archive FILE: takes the set's files out of an archive or a folder. If the set is a text, FILE is that text.
take_from_archive()
{
    local file=$1 sum bytes name member
    if [[ $url == *.txt ]]; then
        read -r sum bytes name < <(each_file)
        head -c $((bytes + 1)) "$file" >"$tmp/new/$name"
        check_file "$sum" "$bytes" "$name" "$file"
        return
    fi
    if [ -d "$file" ]; then
        (cd "$file" && find -L . -maxdepth 4 -type f) >"$tmp/list" || true
    else
        unpack "$file" $archive_limit >"$tmp/archive.tar"
        [ "$(stat -c %s "$tmp/archive.tar")" -le $archive_limit ] ||
            die "$file: more than $archive_limit bytes in it, so it is not an archive of $set; nothing was changed"
        tar -tf "$tmp/archive.tar" >"$tmp/list" 2>"$tmp/log" ||
            die "$file: not a complete tar archive: $(head -1 "$tmp/log"); nothing was changed" \
                "give a .tar.gz or .tar.xz, or a folder with $(wanted)"
    fi
    while read -r sum bytes name; do
        member=$(grep -E "(^|/)${name//./\\.}(\.gz)?$" "$tmp/list" || true)
        [ -n "$member" ] || die "$file: it contains no $name; nothing was changed" "$set consists of $(wanted)"
        [ "$(wc -l <<<"$member")" = 1 ] || die "$file: it contains more than one $name; nothing was changed"
        [ ! -d "$file" ] || [ -r "$file/$member" ] || die "$file: you may not read ${member#./}; nothing was changed"
        if [ -d "$file" ]; then cat "$file/$member"; else tar -xOf "$tmp/archive.tar" --no-wildcards -- "$member"; fi \
            2>"$tmp/log" | head -c $((2 * bytes + 1)) >"$tmp/member" || true
        if [[ $member == *.gz ]]; then
            unpack "$tmp/member" "$bytes" >"$tmp/new/$name"
        else
            mv "$tmp/member" "$tmp/new/$name"
        fi
        check_file "$sum" "$bytes" "$name" "$file"
    done < <(each_file)
}

# fetch URL FILE: downloads, and continues a partial file, also that of an interrupted command. If a connection breaks,
# tries again. Gives up after five attempts in a row without a new byte.
fetch()
{
    have curl || die "curl is not installed" "apt install curl ca-certificates"
    local quiet=--silent tries status size before part=$data/.part-$set-${1##*/}
    [ -t 2 ] && quiet=--progress-bar
    size=$(curl --fail --silent --head --location --connect-timeout 20 "$1" | awk 'tolower($1) == "content-length:" {
        n = $2 } END { if (n > 0) printf ", %.1f MB", n / 1e6 }') || true
    say "from ${1%"${1##*/}"}$size"
    exec 9>>"$part"
    flock -n 9 2>/dev/null || [ $? != 1 ] || die "another ./ddp data $set is downloading $1" "wait until it has ended"
    for ((tries = 5; tries > 0; tries--)); do
        before=$(stat -c %s "$part" 2>/dev/null || echo 0) status=0
        run curl --fail --location --show-error --connect-timeout 20 --speed-time 60 --continue-at - $quiet \
            --output "$part" "$1" || status=$?
        case $status in
        0) mv "$part" "$2"; return ;;
        33 | 36) : >"$part" ;;                          # the site cannot continue a file
        7 | 18 | 28 | 35 | 52 | 55 | 56 | 92) ;;        # a connection that cannot be made, or that broke
        *) break ;;
        esac
        [ "$(stat -c %s "$part" 2>/dev/null || echo 0)" -le "$before" ] || tries=6
        sleep 2
    done
    [ -s "$part" ] || rm -f "$part"
    die "$1: the download failed" \
        "download it elsewhere, then ./ddp data $set --from FILE; or set DDP_DATA_URL to the URL of a mirror's folder"
}

take_from_site()
{
    local sum bytes name
    if [[ $url != */ ]]; then
        fetch "$url" "$tmp/archive"
        take_from_archive "$tmp/archive"
        return
    fi
    while read -r sum bytes name; do
        fetch "$url$name.gz" "$tmp/$name.gz"
        unpack "$tmp/$name.gz" "$bytes" >"$tmp/new/$name"
        check_file "$sum" "$bytes" "$name" "$url"
    done < <(each_file)
}

# finish DIRECTORY: ends the script. With --as-folder, it first writes the set in DIRECTORY as pictures.
finish()
{
    [ -n "$as_folder" ] || exit 0
    exec "$root/build/cpu/as_folder" --data "$set:$1" --as-folder "$as_folder" --scale "$scale"
}

set='' from='' as_folder='' scale=0
while [ $# -gt 0 ]; do
    case $1 in
    --from | --as-folder | --scale)
        [ -n "${2:-}" ] || die_usage "data: $1 needs a value"
        case $1 in --from) from=$2 ;; --as-folder) as_folder=$2 ;; *) scale=$2 ;; esac
        shift ;;
    -*) die_usage "data: unknown option $1" ;;
    *) [ -z "$set" ] || die_usage "data: give only one data set: $set or $1"; set=$1 ;;
    esac
    shift
done
[ -n "$set" ] || die_usage "data: which data set?" "there are $names"
find_set "$set"
[ -z "$as_folder" ] || [ "$set" != shakespeare ] || die_usage "data: shakespeare is a text: it has no images"
[ -z "$as_folder" ] || [ -x "$root/build/cpu/as_folder" ] ||
    die "--as-folder needs build/cpu/as_folder" "./ddp setup builds it"
{ [[ $scale =~ ^[0-9]{1,4}$ ]] && [ "$scale" -le 4096 ]; } ||
    die_usage "data: --scale is a number up to 4096, not '$scale'"
[ "$scale" = 0 ] || [ -n "$as_folder" ] || die_usage "data: --scale has no effect without --as-folder"
data=$root/data

if is_complete "$data/$folder"; then
    say "$set is already installed: $data/$folder"
    finish "$data/$folder"
fi
if [ "$set" = fashion-mnist ] && [ -z "$from" ] && [ -d /usr/share/datasets/fashion-mnist ]; then
    say "$set is already installed: /usr/share/datasets/fashion-mnist"
    finish /usr/share/datasets/fashion-mnist
fi
[ -z "$from" ] || [ -f "$from" ] || { [ -d "$from" ] && [[ $url != *.txt ]]; } || die "$from: no such file"
[ -z "$from" ] || [ -r "$from" ] || die "$from: no permission to read it"

clean() { rm -rf "$tmp"; rmdir "$data" 2>/dev/null || true; }
trap 'exit 130' INT
trap 'exit 143' TERM HUP
mkdir -p "$data" || die "$data: cannot create this folder" "can you write to $root?"
tmp=$(mktemp -d "$data/.$set.XXXXXX") || die "$data: cannot write to this directory"
trap clean EXIT
mkdir "$tmp/new"

if [ -n "$from" ]; then
    take_from_archive "$from"
else
    take_from_site
fi

trap '' INT TERM HUP        # an interrupt must not separate these two renames
if [ -e "$data/$folder" ] || [ -L "$data/$folder" ]; then
    say "replaced $data/$folder, which was incomplete or damaged"
    mv -T "$data/$folder" "$tmp/old"
fi
mv -T "$tmp/new" "$data/$folder"
say "$set: $data/$folder, $(each_file | wc -l) files, checksums correct"
clean
trap - EXIT
finish "$data/$folder"
