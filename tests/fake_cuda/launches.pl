# launches.pl FILE - prints the file with kernel launches turned into C++ calls (simt.h), with the same line numbers.
undef $/;
my $text = <>;
$text =~ s/\b([A-Za-z_]\w*)((?:<[\w, ]+>)?)<<<(.*?)>>>\(/simt_launch("$1", $1$2, $3)(/gs;
print "#line 1 \"$ARGV\"\n$text";
