# launches.pl FILE - the file with its kernel launches as calls that a C++ compiler knows (simt.h), on the same lines.
undef $/;
my $text = <>;
$text =~ s/\b([A-Za-z_]\w*)((?:<[\w, ]+>)?)<<<(.*?)>>>\(/simt_launch("$1", $1$2, $3)(/gs;
print "#line 1 \"$ARGV\"\n$text";
