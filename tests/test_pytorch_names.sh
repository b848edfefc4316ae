#!/usr/bin/env bash
# docs/pytorch.md: in its second column `FILE`: `NAME`, `NAME` are definitions in that file (or what a header
# declares), and each --option is one. Then, in a copy, that a name that is none is noticed.
# shellcheck disable=SC2016  # backticks in single quotes
. "$SRC/tests/test.sh"
type -P perl >/dev/null || { echo "skipped: there is no perl"; exit 77; }

# wrong_names ROOT DOCUMENT: prints what is not there; and last, how many names were looked at.
wrong_names()
{
    (cd "$1" && cat 0*/*.c common/*/*.c ddp) >"$TMP/options"
    perl - "$1" "$2" "$TMP/options" <<'END'
use strict;
use warnings;
my ($root, $document, $options) = @ARGV;
my ($count, %code) = 0;
sub slurp
{
    open my $in, '<', shift or return;
    local $/;
    my $text = <$in>;
    $text =~ s{//[^\n]*}{}g;
    return $text;
}
my $all_options = slurp($options);
sub look
{
    my ($file, $name, $line) = @_;
    $code{$file} //= slurp("$root/$file") // '';
    my $is = $file =~ /\.h$/ ? qr/\b$name\b/ : qr/^\w[^\n;=]*\b$name\([^;]*?\)\s*\n?\{/m;
    $count++;
    print "line $line: no $name in $file\n" if $code{$file} !~ $is;
}
open my $in, '<', $document or die "$document: $!\n";
while (<$in>) {
    my @cells = split /(?<!\\)\|/;
    next if @cells < 3;
    my ($here, $line) = ($cells[2], $.);
    while ($here =~ /`([\w.\/]+\.[ch])`: ((?:`\w+`(?:, )?)+)/g) {
        my ($file, $names) = ($1, $2);
        look($file, $_, $line) for $names =~ /`(\w+)`/g;
    }
    print "line $line: `$1` says nothing of what is in it\n" while $here =~ /`([\w.\/]+\.[ch])`(?!: `)/g;
    while ($here =~ /`--([\w-]+)[^`]*`/g) {
        my $option = $1;
        $count++;
        print "line $line: no option --$option\n" if $all_options !~ /\{ "\Q$option\E", /;
    }
}
print "$count names\n";
END
}

cp "$SRC/docs/pytorch.md" "$TMP/page"
wrong_names "$SRC" "$TMP/page" >"$TMP/output"
tail -1 "$TMP/output"
check "no wrong names" test "$(wc -l <"$TMP/output")" = 1
check "there are many" test "$(tail -1 "$TMP/output" | tr -dc 0-9)" -gt 130
[ $failed = 0 ] || test_done            # the rest would only repeat it

# noticed FROM TO COMPLAINT
noticed()
{
    FROM=$1 TO=$2 perl -pe 's/\Q$ENV{FROM}\E/$ENV{TO}/' "$SRC/docs/pytorch.md" >"$TMP/page"
    wrong_names "$SRC" "$TMP/page" >"$TMP/output"
    check "\"$3\" in the output" grep -q -- "^line [0-9]*: $3\$" "$TMP/output"
    check "only that: $3" test "$(wc -l <"$TMP/output")" = 2
}

noticed '`sampler_set_epoch`' '`sampler_set_epochs`' "no sampler_set_epochs in 03_ddp_fork/sampler.c"
noticed '`common/comm.h`: `comm_all_reduce`' '`common/gone.h`: `comm_all_reduce`' "no comm_all_reduce in common/gone.h"
noticed '`common/comm/comm.c`: `compare_calls`' '`common/comm/comm.c`: `memcmp`' "no memcmp in common/comm/comm.c"
noticed '`--bucket-mb`: 25' '`--bucket-cap`: 25' "no option --bucket-cap"
noticed '`common/comm/comm.c`: `compare_calls`' '`common/comm/comm.c`' '`common/comm/comm.c` says nothing of what is in it'
test_done
