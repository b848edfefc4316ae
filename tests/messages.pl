# messages.pl ROOT - the texts with which programs, tools and scripts below ROOT complain, found in their sources, and
# the messages of ROOT/docs/troubleshooting.md: says which text has no message, which message is no text any more, and
# what it cannot judge; the exit status is 1 then. messages.pl --list ROOT prints the texts.
#
# In the document a message is what stands in backticks in the first column of a table whose first heading is
# "message", with examples or words in capitals where a text has variable parts. It belongs to a text if
#
#   "rank %d: fork: %s"     all of it fits, from its beginning, or from behind a ": ", to its end:
#                           rank 1: fork: ERROR
#   "is gone: %s"           (of a part of a text) it fits somewhere in it, between two words
use strict;
use warnings;

my $list = @ARGV && $ARGV[0] eq '--list' ? shift : '';
my $root = shift // die "messages.pl [--list] ROOT\n";
chdir $root or die "$root: $!\n";

# --- who complains --------------------------------------------------------------------------------------------------

# Functions of C whose argument number N is a text. Who writes another one adds it.
my %whole = (FAIL => 2, CHECK => 3, WARN => 2, WRONG => 2, error_set => 3, fail_at => 5, warn_at => 4, args_reject => 3,
    reject => 3);
# ... or a part of one, of which a text is made elsewhere.
my %part = (reject_value => 4, complain => 2, refuse => 3, deadline_set => 3, 'fails in tcp_store.c' => 5,
    'failed in replace_file.c' => 2);
# ... or what is no complaint: a message may be one, but needs not.
my %told = (log_say => 2, log_event => 3);
# Files that put a text together from words that they choose or return: a message may have these, but needs not.
my %chooses = map { $_ => 1 } qw(agree.c tcp_store.c watch.c);

# Texts without a word of their own: what they pass on is the system's or a library's, or stands elsewhere in a text.
my %passes_on = map { $_ => 1 } (
    'args.c --%s: %s', 'args.c %s: %s\n', 'check.h %s', 'checkpoint.c %.200s: %.300s',
    'device_cuda.c %.*s: %s (%s)', 'launch.c %s', 'machine.c %s: %s', 'tcp_store.c %s',
    'tcp_store_server.c %s', 'comm_nccl.c %.*s (%s): %s%s%s', 'rendezvous_file.c %s: %s', 'ops_cuda.c %.*s: %s: %s',
    'ops_cuda.c %.*s: %s', 'rank_output.c %.300s: %s', 'rendezvous.c %s', 'agree.c %s', 'safetensors.c %.200s: %.300s',
    'replace_file.c %.200s: %s: %s', "plot.sh \x01: \x01", 'trace.c %s: %s: %s', 'watch.c %s %s%s',
    'agree.c %s: %s', 'secret.c %.300s: %s',
);

# --- reading --------------------------------------------------------------------------------------------------------

my (@texts, @problems, %seen);

sub slurp
{
    open my $in, '<', shift or return '';
    local $/;
    return <$in> // '';
}

# In a text \x01 stands for some characters, \x02 for a number. more: words that are put into it, for instance.
sub add
{
    my ($kind, $where, $text, $shown, $more) = @_;
    $text =~ s/^\s+|\s+$//g;
    my $words = $text;
    $words =~ tr/\x01\x02/ /;
    if ($words !~ /[A-Za-z]{3}/) {
        my $key = "@{[$where =~ m{([^/]*):\d+$}]} $shown";
        push @problems, "$where: \"$shown\" has no word of its own: say in tests/messages.pl where its words come from"
            if $kind eq 'whole' && $shown =~ /%(?:\.(?:\d+|\*))?s|\x01/ && !$passes_on{$key};
        $passes_on{$key}++ if $passes_on{$key};
        return;
    }
    my $known = $seen{"$kind $text"};
    if (!$known) {
        $known = $seen{"$kind $text"} = { kind => $kind, where => $where, text => $text, more => '' };
        push @texts, $known;
    }
    $known->{more} .= ' ' . ($more // '');
}

sub readable { my ($t) = @_; $t =~ s/\x01/.../g; $t =~ s/\x02/N/g; return $t }

# --- C --------------------------------------------------------------------------------------------------------------

my $string = qr/"(?:\\.|[^"\\])*"/s;
my $char = qr/'(?:\\.|[^'\\])*'/;
my $conversion = qr/%[-+ #0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j|t)?([diouxXeEfFgGcsp])/;

# The arguments of a call, from behind its parenthesis on.
sub arguments
{
    my ($text, $from) = @_;
    my ($depth, @found) = (0, '');
    pos($text) = $from;
    while ($text =~ /\G($string|$char|[^"'()\[\]{},]+|.)/gs) {
        my $token = $1;
        if ($token eq ',' && $depth == 0) { push @found, ''; next }
        $depth++ if $token =~ /^[(\[{]$/;
        last if $token =~ /^[)\]}]$/ && $depth-- == 0;
        $found[-1] .= $token;
    }
    return @found;
}

# The strings in an argument, those that touch as one.
sub strings
{
    my ($argument) = @_;
    $argument =~ s/\bPRI([dux])\d*\b/"ll$1"/g;
    1 while $argument =~ s/($string)\s*($string)/substr($1, 0, -1) . substr($2, 1)/e;
    return map { substr $_, 1, -1 } $argument =~ /($string)/g;
}

sub c_text
{
    my ($text) = @_;
    $text =~ s/\\n|\\r|\\t/ /g;
    $text =~ s/\\(["\\])/$1/g;
    $text =~ s/%%/\x03/g;
    $text =~ s/$conversion/index('csp', $1) < 0 ? "\x02" : "\x01"/ge;
    $text =~ s/\x03/%/g;
    return $text;
}

sub read_c
{
    my ($path) = @_;
    my $code = slurp($path);
    my ($file) = $path =~ m{([^/]*)$};
    # Comments go, but no line does.
    $code =~ s{($string|$char)|//[^\n]*|/\*(.*?)\*/}{defined $1 ? $1 : "\n" x (($2 // '') =~ tr/\n//)}gse;
    while ($code =~ /\bformat\(printf/g) {      # a function that takes a format is known, or asked for
        my $at = pos $code;
        my ($before, $after) = (substr($code, 0, $at), substr($code, $at));
        my ($name) = $before =~ /\b(\w+)\([^()]*\)\s*__attribute__\(\(format\(printf$/
            ? $1 : $after =~ /^[^;{]*?\)\)\)\s*[\w *]*?\b(\w+)\(/;
        push @problems, "$path: $name() takes a format: say in tests/messages.pl whether it complains"
            if defined $name && !$whole{$name} && !$part{$name} && !$told{$name};
    }
    while ($code =~ /^#\s*define\s+(\w+)\(((?:[^\\\n]|\\.)*)/mgs) {
        my ($name, $body) = ($1, $2);
        push @problems, "$path: $name() complains: say so in tests/messages.pl"
            if $body =~ /\b(?:fail_at|warn_at|FAIL|WARN|error_set)\(/ && !$whole{$name} && $name ne 'FAIL_ERROR';
    }
    add('word', $path, c_text($_), $_) for grep { /[a-z] +[a-z%]/ } $chooses{$file} ? strings($code) : ();
    while ($code =~ /\b([A-Za-z_]\w*)\(/g) {
        my ($name, $at) = ($1, pos $code);
        my $line = 1 + (substr($code, 0, $at) =~ tr/\n//);
        my $where = "$path:$line";
        my $number = $whole{$name} // $part{$name} // $part{"$name in $file"} // $told{$name};
        $number = 2 if $name eq 'fprintf' && substr($code, $at, 7) eq 'stderr,';
        next if !$number;
        my $kind = $whole{$name} || $name eq 'fprintf' ? 'whole' : $told{$name} ? 'told' : 'part';
        my @arguments = arguments($code, $at);
        next if @arguments < $number || "@arguments" =~ /\bchar \*|__VA_ARGS__/;
        for my $text (strings($arguments[$number - 1])) {
            next if $name eq 'snprintf' && $text !~ /[A-Za-z]+ +[A-Za-z]+/;
            add($kind, $where, c_text($text), $text, join(' ', map { strings($_) } @arguments));
        }
        # Two words and more that are put into it.
        next if $kind ne 'whole';
        for my $more (@arguments[$number .. $#arguments]) {
            add('part', $where, c_text($_), $_) for grep { /[A-Za-z]+ +[A-Za-z]+/ } strings($more);
        }
    }
}

# --- the shell, Python, CMake ---------------------------------------------------------------------------------------

# A word in double quotes, from behind the first one on, and where it ends; what the shell puts into it is \x01.
sub shell_word
{
    my ($text, $from) = @_;
    my $word = '';
    pos($text) = $from;
    while ($text =~ /\G(\\.|\$\(|\$\{|\$[A-Za-z_]\w*|\$.|"|[^\\\$"]+)/gs) {
        my $token = $1;
        last if $token eq '"';
        if ($token eq '$(' || $token eq '${') {
            my ($depth, $open, $close) = (1, $token eq '$(' ? ('(', ')') : ('{', '}'));
            while ($depth > 0 && $text =~ /\G('[^']*'|\\.|.)/gs) {
                my $inner = $1;
                (undef, pos $text) = shell_word($text, pos $text) if $inner eq '"';
                $depth++ if $inner eq $open;
                $depth-- if $inner eq $close;
            }
            $token = "\x01";
        }
        $token = "\x01" if $token =~ /^\$/;
        $token = substr $token, 1 if $token =~ /^\\["\\\$`]/;
        $word .= $token;
    }
    return ($word, pos $text);
}

sub read_shell
{
    my ($path) = @_;
    my $code = slurp($path);
    $code =~ s/^[ \t]*#.*$//mg;
    while ($code =~ /\b(die|die_usage|wrong|say|echo)[ \t]+(?:\\\n\s*)?(["'])/g) {
        my ($name, $quote, $at) = ($1, $2, pos $code);
        my ($text) = $quote eq '"' ? shell_word($code, $at) : (substr($code, $at) =~ /^([^']*)'/);
        my $kind = $name eq 'say' ? 'told' : 'whole';
        next if $name eq 'echo' && $text !~ /^slurm: /;
        add($kind, $path . ':' . (1 + (substr($code, 0, $at) =~ tr/\n//)), $text, $text);
    }
}

# refuse(LINE, WHY)
sub read_awk
{
    my ($path) = @_;
    my $code = slurp($path);
    while ($code =~ /\brefuse\(/g) {
        my $at = pos $code;
        my (undef, $why) = arguments($code, $at);
        next if ($why // '') !~ /"/;
        $why =~ s/($string)|[^"]+/defined $1 ? substr($1, 1, -1) : "\x01"/ge;
        $why =~ s/^\x01?/line \x02: /;
        add('whole', $path . ':' . (1 + (substr($code, 0, $at) =~ tr/\n//)), $why, $why);
    }
}

sub read_python
{
    my ($path) = @_;
    my $code = slurp($path);
    while ($code =~ /\b(?:sys\.exit|SystemExit|parser\.error|ArgumentTypeError|ValueError)\(f?"((?:\\.|[^"\\])*)"/g) {
        my ($text, $at) = ($1, pos $code);
        $text =~ s/\{[^{}]*\}/\x01/g;
        $text =~ s/\\n.*//s;
        add('whole', $path . ':' . (1 + (substr($code, 0, $at) =~ tr/\n//)), $text, $text);
    }
}

sub read_cmake
{
    my ($path) = @_;
    my $code = slurp($path);
    while ($code =~ /\bmessage\((?:FATAL_ERROR|SEND_ERROR|WARNING)\s+"([^"]*)"/g) {
        my ($text, $at) = ($1, pos $code);
        $text =~ s/\$\{[^}]*\}/\x01/g;
        add('whole', $path . ':' . (1 + (substr($code, 0, $at) =~ tr/\n//)), $text, $text);
    }
}

for my $path (glob('common/*.[ch] common/*/*.{c,h,cc,cu,cuh} common/*/*/*.{c,h,cc} [0-9][0-9]_*/*.[ch] tools/*.[ch]')) {
    read_c($path) if !$seen{slurp($path)}++;
}
for my $path ('ddp', glob('tools/* tools/*/* [0-9][0-9]_*/*.sbatch')) {
    next if !-f $path || $path =~ /\.[ch]$/;
    if ($path =~ /\.awk$/) { read_awk($path) }
    elsif ($path =~ /\.py$/ || slurp($path) =~ /^#!.*python/) { read_python($path) }
    else { read_shell($path) }
}
read_cmake($_) for 'CMakeLists.txt', glob('cmake/*.cmake [0-9][0-9]_*/CMakeLists.txt tests/CMakeLists.txt');

if ($list) {
    printf "%s: %s%s\n", $_->{where}, $_->{kind} eq 'whole' ? '' : "($_->{kind}) ", readable($_->{text}) for @texts;
    exit;
}

# --- the document ---------------------------------------------------------------------------------------------------

my $page = 'docs/troubleshooting.md';
my (@messages, $here);
my $line = 0;
for (split /\n/, slurp($page)) {
    $line++;
    if (!/^\|/) { $here = 0; next }
    my ($first) = /^\|((?:\\.|[^\\|])*)\|/ or next;
    if ($first =~ /^\s*message\s*$/) { $here = 1; next }
    next if !$here;
    while ($first =~ /`([^`]+)`/g) {
        push @messages, { text => $1 =~ s/\\\|/|/gr, line => $line, fits => 0 };
    }
}

sub pattern
{
    my ($t) = @_;
    my %any = ("\x01" => '.*?', "\x02" => '[-\w.]+');
    my $re = join '', map { $any{$_} // quotemeta } split /([\x01\x02])/, $t->{text};
    return qr/(?:^|: )$re$/ if $t->{kind} !~ /^(?:part|word)$/;
    return ($t->{text} =~ /^[A-Za-z]/ ? qr/(?<![A-Za-z])$re/ : qr/$re/) . '(?![A-Za-z])';
}

for my $t (@texts) {
    my $pattern = pattern($t);
    my @fit = grep { $_->{text} =~ $pattern } @messages;
    push @problems, "$t->{where}: no message of $page is \"@{[readable($t->{text})]}\""
        if !@fit && $t->{kind} !~ /^(?:told|word)$/;
    for my $message (@fit) {
        $message->{fits}++;
        $message->{words}{$_}++ for "$t->{text} $t->{more}" =~ /[A-Za-z]+/g;
    }
}
for my $m (@messages) {
    my @words = $m->{text} =~ /(?<![A-Za-z])([a-z]{3,})(?![A-Za-z])/g;
    my ($strange) = grep { !$m->{words}{$_} && !$m->{words}{s/s$//r} } @words;
    if (!$m->{fits}) {
        push @problems, "$page:$m->{line}: nobody says \"$m->{text}\" any more";
    } elsif ($strange) {
        push @problems, "$page:$m->{line}: \"$m->{text}\": nobody says '$strange' (what differs stands in capitals)";
    }
}
push @problems, "tests/messages.pl: '$_' is in no source any more"
    for grep { $passes_on{$_} == 1 } sort keys %passes_on;
push @problems, "$page: no messages" if !@messages;
print "$_\n" for @problems;
printf "%d texts, %d messages\n", scalar(grep { $_->{kind} !~ /^(?:told|word)$/ } @texts), scalar @messages;
exit(@problems > 0);
