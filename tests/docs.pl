# docs.pl ROOT BUILD - the documents below ROOT: do their links lead somewhere, and do the programs, options, exercises,
# files and functions exist that they name? BUILD: where 01_single_gpu/train is; --help lists the options. Names what is
# wrong, and last how much was looked at; the exit status is 1 if anything is wrong.
#
# docs.pl --commands ROOT - the commands of these documents, for test_readme_runs.sh: see list_commands.
#
# Looked at: `COMMAND`, and the lines of indented or fenced blocks. After two blanks, or " # ", such a line explains
# itself. Words in capitals, and "...", stand for something else. What is generated (a README's diff) is left out, and
# what "is refused".
use strict;
use warnings;

die "docs.pl ROOT BUILD, or docs.pl --commands ROOT\n" if @ARGV != 2;
my $list = $ARGV[0] eq '--commands';
my ($root, $build) = $list ? ($ARGV[1], '') : @ARGV;
chdir $root or die "$root: $!\n";

my ($links, $commands, $options, $names, @problems) = (0, 0, 0, 0);
my $where;
sub wrong { push @problems, "$where: @_" }

sub slurp
{
    open my $in, '<', shift or return;
    local $/;
    return <$in> // '';
}

# --- what there is --------------------------------------------------------------------------------------------------

my @steps = map { s{/$}{}r } glob '[0-9][0-9]_*/';

sub step_named
{
    my $name = shift =~ s{/$}{}r;
    $name = "0$name" if $name =~ /^\d$/;
    my ($step) = grep { $_ eq $name || /^\Q${name}\E_/ } @steps;
    return $step;
}

# Each option of a program of the build, and each of a script.
my %known;
sub learn_options
{
    for (map { `'$_' --help` } glob("$build/*/train $build/*/launch $build/comm_bench")) {
        while (/^ +(?:-(\w), )? *--(\[no-\])?([\w-]+)/mg) {
            $known{"-$1"} = 1 if defined $1;
            $known{"--no-$3"} = 1 if defined $2;
            $known{"--$3"} = 1;
        }
    }
    for (map { slurp($_) } grep { -f } 'ddp', glob('tools/* tools/*/* tests/faults.sh exercises/*.sh')) {
        $known{$1} = 1 while /(?<![\w-])(--?[a-z][\w-]*)/g;
    }
}

my %text_of;
sub text_of { my $file = shift; return $text_of{$file} //= slurp($file) // '' }

# STEP, test_NAME.c, FILE.svg, ...
sub stands_for
{
    my $word = shift;
    return $word =~ /\.\.\.|\*|[<>]/ || $word =~ s/README|LICENSE//r =~ /(?<![a-z])[A-Z]{2,}(?![a-z])/;
}

# --- commands -------------------------------------------------------------------------------------------------------

# Goes a program of the build by this name?
sub is_program
{
    my $word = shift;
    return $word =~ /^(?:train|launch|comm_bench)$/ || grep { $_ eq $word } @steps;
}

my %ddp_commands = map { $_ => 1 } `./ddp help` =~ /^  ([a-z]+)/mg;

# A command of ours. Those that start it, such as srun, are not looked at.
sub check_command
{
    my ($first, @words) = @_;
    $first =~ s{^\./(?=tools|tests|exercises)}{};
    return if !defined $first || $first !~ m{^(?:\./ddp$|build/|tools/|tests/|exercises/)} && !is_program($first)
        || stands_for($first);
    $commands++;
    wrong("there is no $first") if $first =~ m{^(tools|tests|exercises)/} && !-e $first;
    wrong("there is no program $first")
        if $first =~ m{^build/(?:cpu|cuda|cuda-gloo)/(\w+/\w+|comm_bench)$} && !-x "$build/$1";
    if ($first eq './ddp' && @words && $words[0] =~ /^[a-z]/ && !stands_for($words[0])) {
        wrong("./ddp has no command $words[0]") if !$ddp_commands{$words[0]};
        my @named = $words[0] eq 'run' ? @words[1 .. 1] : $words[0] eq 'diff' ? @words[1 .. 2] : ();
        step_named($_) or wrong("there is no step $_") for grep { defined && /^\d/ } @named;
    }
    for my $word (map { s{=.*}{}r } grep { /^--?[a-z]/ } @words) {
        $options++;
        wrong("no program has an option $word") if !$known{$word};
    }
}

sub check_line
{
    my ($line) = @_;
    $line =~ s/\$\(|[()`"']/ /g;
    for (split /\s*(?:&&|\|\||[|;&])(?=\s|$)\s*/, $line) {
        my @words = split ' ';
        shift @words while @words && ($words[0] =~ /^(?:\$|env|nice|time|nohup)$/ || $words[0] =~ /^[A-Z_]+=/);
        check_command(@words) if @words;
    }
}

# --- links ----------------------------------------------------------------------------------------------------------

# The anchors of a document's headings, as GitHub makes them.
my %anchors;
sub anchors_of
{
    my $file = shift;
    return $anchors{$file} if $anchors{$file};
    my (%found, $fenced);
    for (split /\n/, slurp($file) // '') {
        $fenced = !$fenced if /^```/;
        next if $fenced || !/^#+ +(.*?) *#*$/;
        my $anchor = lc($1 =~ s/!?\[([^\]]*)\]\([^)]*\)/$1/gr);
        $anchor =~ s/[^\w\- ]//g;
        $anchor =~ tr/ /-/;
        my $before = $found{$anchor}++;
        $found{"$anchor-$before"} = 1 if $before;
    }
    return $anchors{$file} = \%found;
}

# A path in a document, from the root.
sub resolved
{
    my ($document, $path) = @_;
    my $file = ($document =~ s{[^/]*$}{}r) . $path;
    1 while $file =~ s{(?:^|(?<=/))(?!\.\./)[^/]+/\.\./}{};
    return $file;
}

sub check_link
{
    my ($document, $to) = @_;
    $links++;
    if ($to =~ /^[a-z][a-z+.-]*:/i) {
        wrong("the link $to is no address")
            if $to !~ m{^https?://[a-z0-9-]+(?:\.[a-z0-9-]+)+(?::\d+)?(?:/[^\s<>"]*)?$}i || $to =~ /[.,;]$/;
        return;
    }
    my ($path, $anchor) = $to =~ /^([^#]*)(?:#(.*))?$/;
    return wrong("the link $to is a path of one machine") if $path =~ m{^/};
    my $file = $path eq '' ? $document : resolved($document, $path);
    return wrong("the link $to leads out of the repository") if $file =~ m{^\.\./};
    return wrong("the link $to leads nowhere") if !-e $file;
    return if !defined $anchor;
    wrong("the link $to: there is no such heading") if $file !~ /\.md$/ || !anchors_of($file)->{$anchor};
}

# --- documents ------------------------------------------------------------------------------------------------------

# Names of functions, types or constants, in a list after the name of their file.
sub check_definitions
{
    my ($file, $list) = @_;
    my $code = text_of($file) =~ s{//[^\n]*}{}gr;
    for my $name ($list =~ /`(\w+)`/g) {
        $names++;
        my $is = $file =~ /\.h$/ ? qr/\b$name\b/ : qr/^\w[^\n;=]*\b$name\([^;]*?\)\s*\n?\{/m;
        wrong("no $name in $file") if $code !~ $is;
    }
}

sub blank { return $_[0] =~ s/[^\n]//gr }

# Without what is generated.
sub text_of_document
{
    return slurp(shift) =~ s/(<!-- (\w+): generated.*?<!-- \2 end -->)/blank($1)/gser;
}

# Calls $take with each block's text and the number of its first line, and blanks it.
sub take_blocks
{
    my ($text, $take) = @_;
    my $block = sub {
        my ($code, $at) = @_;
        $take->($code, 1 + (substr($$text, 0, $at) =~ tr/\n//));
        return blank($code);
    };
    $$text =~ s/^(```.*?^```)/$block->($1, $-[0])/gmse;
    $$text =~ s/(?<=\n\n)((?: {4}[^\n]*\n)(?: {4}[^\n]*\n|\n(?= {4}))*)/$block->($1, $-[0])/gse;
}

# A block's line without what explains it.
sub unexplained { return $_[0] =~ s/(?<=\S)(?: {2,}| +# ).*//r }

# The code in a `span`.
sub spanned { return $_[0] =~ s/\s*\n\s*/ /gr =~ s/\\\|/|/gr }

sub check_document
{
    my ($document) = @_;
    my $text = text_of_document($document);
    my $line_of = sub { 1 + (substr($text, 0, shift) =~ tr/\n//) };

    take_blocks(\$text, sub {
        my ($code, $line) = @_;
        my $joined = '';
        for (split /\n/, $code) {
            s/^\s+//;
            if (s/\s*\\$//) { $joined .= "$_ "; next }
            $where = "$document:$line";
            check_line(unexplained($joined . $_));
            $joined = '';
        } continue {
            $line++;
        }
    });

    while ($text =~ /(?:\[[^\]\[]*\]\(([^)\s]+\.[ch])\)|`([\w\/]+\.[ch])`): ((?:`\w+`(?:, (?:and )?| and )?\s*)+)/g) {
        $where = "$document:" . $line_of->($-[0]);
        check_definitions(defined $1 ? resolved($document, $1) : $2, $3);
    }
    while ($text =~ /`([^`]+)`( is refused)?/g) {
        my ($code, $refused) = ($1, $2);
        next if $refused;
        $where = "$document:" . $line_of->($-[0]);
        $code = spanned($code);
        check_line($code);
        if ($code =~ m{^(?:\d\d_\w+|common|docs|tests|tools|cmake|exercises)/[\w./-]+$} && !stands_for($code)) {
            $names++;
            wrong("there is no $code") if !-e $code;
        }
    }
    $text =~ s/`([^`]*)`/'`' . blank($1) . '`'/ge;
    while ($text =~ /\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)/g) {
        $where = "$document:" . $line_of->($-[0]);
        check_link($document, $1);
    }
    while ($text =~ m{(?<![\w/.-])(0\d-\d+)(?![\w-])}g) {
        $where = "$document:" . $line_of->($-[0]);
        $names++;
        my @there = glob "exercises/$1_*/";
        wrong("there is no exercise $1") if !@there;
    }
}

# --- commands to run ------------------------------------------------------------------------------------------------

# Is that a command to type, and not just the name of a program? In a block one word may be one.
sub is_command
{
    my ($code, $in_block) = @_;
    my ($first, $rest) = $code =~ /^(?:[A-Z_]+=\S* +)*(\S+)(?: +(.+))?$/s or return 0;
    return $in_block || defined $rest if $first eq './ddp';
    return $in_block || defined $rest || $first =~ m{^build/\w+/\d\d_\w+/\w+$}
        if $first =~ m{^(?:build|tools|tests|exercises)/.*\w$};
    return 0 if !defined $rest;
    # what starts others says what
    return $rest =~ /(?:^|[ \/])(?:train|comm_bench|hostname|bash|getent|ls|[\w.\/]+\.sbatch)(?= |$)/
        if $first =~ /^(?:launch|mpirun|torchrun|srun|sbatch)$/;
    return $rest =~ /^-/ if is_program($first);
    return 1 if $first =~ /^(?:cmake|ctest|taskset|scancel|docker|pip3?)$/;
    return $in_block && $first =~ /^(?:git|kill|tail|gdb|mv|touch|patch|python3?|perl|cd)$/;
}

# A pattern: something in it stands for something else.
sub is_pattern
{
    return shift =~ m{
        \.\.\. | \[ | (?<![-\w\$])(?:
        FILE|NAME|ID|ID_NAME|STEP|N|K|R|PATH|JOB|PID|COMMAND|OPTIONS|BACKEND|THIS_REPOSITORY|RUN
        )(?!\w) }x;
}

# Prints for each command of a document, in their order and with tabs between them: FILE:LINE; "command", or "pattern"
# if something in it stands for something else; the command; what it prints, if that follows in the same block, with
# "\x1f" between the lines. Where a document says "`...` is `COMMAND`", `... --more` is COMMAND --more.
sub list_commands
{
    my ($document) = @_;
    my $text = text_of_document($document);
    my @found;          # [line, command, what it prints]
    my ($dots) = $text =~ /`\.\.\.` is `([^`]+)`/;

    take_blocks(\$text, sub {
        my ($code, $line) = @_;
        my ($joined, $begin, $after, $of) = ('', 0, '', undef);
        for (map { s/^ {4}//r } split /\n/, $code) {
            $begin = $line if $joined eq '';
            if ($joined eq '' && /^(?:\s*$|```)/) {
                $after = 1;
            } elsif (/^(.*\S)\s*\\$/) {
                $joined .= "$1 ";
            } else {
                my $command = unexplained($joined . $_ =~ s/^\s+//r);
                if (is_command($command, 1)) {
                    push @found, $of = [$begin, $command, []];
                } elsif ($of && ($after || @{ $of->[2] })) {
                    push @{ $of->[2] }, $_;
                }
                ($joined, $after) = ('', '');
            }
        } continue {
            $line++;
        }
    });
    while ($text =~ /`([^`]+)`( is refused)?/g) {
        my ($code, $refused, $line) = (spanned($1), $2, 1 + (substr($text, 0, $-[0]) =~ tr/\n//));
        $code =~ s/^\.\.\. /$dots / if defined $dots;
        push @found, [$line, $code, []] if !$refused && is_command($code, '');
    }
    for (sort { $a->[0] <=> $b->[0] } @found) {
        my ($line, $command, $prints) = @$_;
        my $kind = is_pattern($command) ? 'pattern' : 'command';
        print join("\t", "$document:$line", $kind, $command, join("\x1f", @$prints)), "\n";
    }
}

my @documents = (glob('*.md'), glob('docs/*.md [0-9][0-9]_*/*.md exercises/*.md exercises/*/*.md'));
if ($list) {
    list_commands($_) for grep { !m{^exercises/.*/} } @documents;
    exit;
}
learn_options();
check_document($_) for @documents;
print "$_\n" for @problems;
printf "%d documents, %d links, %d commands, %d options, %d names\n", scalar @documents, $links, $commands, $options,
    $names;
exit(@problems > 0);
