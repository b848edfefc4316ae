# docs.pl ROOT BUILD - checks the documents below ROOT: each link to a file or heading leads somewhere, web addresses
# are well formed, the commands, options, files, exercises and functions that the documents name exist, and the program
# that a command starts has the command's options. BUILD contains 01_single_gpu/train; `--help all` of the programs
# there lists their options. Prints what is wrong, then how much was checked; the exit status is 1 if anything is wrong.
#
# docs.pl --commands ROOT - lists commands for test_readme_runs.sh: see list_commands.
#
# Code is `spans`, and the lines of indented or fenced blocks. In such a line, what follows two blanks or " # " is an
# explanation. Not checked: generated lists, diffs, and spans that are followed by "is refused".
use strict;
use warnings;

die "docs.pl ROOT BUILD, or docs.pl --commands ROOT\n" if @ARGV != 2;
my $list = $ARGV[0] eq '--commands';
my ($root, $build) = $list ? ($ARGV[1], '') : @ARGV;
chdir $root or die "$root: $!\n";

my ($links, $options, $names, @problems) = (0, 0, 0);
my $where;
sub wrong { push @problems, "$where: @_" }

sub slurp
{
    open my $in, '<', shift or return;
    local $/;
    return <$in> // '';
}

# --- code -----------------------------------------------------------------------------------------------------------

my %known = map { ("--$_" => 1) } qw(
    account bind bind-to container-env container-image container-mounts container-workdir cpus-per-task dependency
    distribution exclude exclusive export gpu-bind gpus gpus-per-node gpus-per-task gres gres-flags hint install
    job-name jobid kill-on-bad-exit local_rank map-by me mem monitor-interval mpi no-python nodelist nodes ntasks
    ntasks-per-node nv open-mode oversubscribe partition pty rdzv-backend rdzv-endpoint rdzv-id redirects relative
    requeue shm-size signal switches tee time);

# The options of each program: of "03_ddp_fork/train", and of "train", which may be any step's.
my %options_of;

sub learn_options
{
    for my $path (glob("$build/0*/train $build/*/launch $build/comm_bench $build/say")) {
        my $name = $path =~ s{^\Q$build\E/}{}r;
        my @names = ($name, $name =~ s{.*/}{}r);
        $options_of{$_}{'--help'} = 1 for @names;
        for (`'$path' --help all`) {
            my ($no, $option) = /^ +(?:-\w, )? *--(\[no-\])?([\w-]+)/ or next;
            for my $spelling ("--$option", $no ? "--no-$option" : ()) {
                $known{$spelling} = 1;
                $options_of{$_}{$spelling} = 1 for @names;
            }
        }
    }
    for (map { slurp($_) } glob('exercises/*/change.patch')) {         # options that only a learner's program has
        $known{"--$1"} = 1 while /^\+ +\{ "([\w-]+)", /mg;
    }
    for (slurp('docs/pytorch.md') =~ /^\| (`--.*?) \|/mg) {              # options that other programs have
        $known{$1} = 1 while /`(--[\w-]+)`/g;
    }
    for (map { slurp($_) } grep { -f } 'ddp', glob('tools/* tools/*/* tests/faults.sh exercises/*.sh')) {
        $known{$1} = 1 while /(?<![\w-])(--[a-z][\w-]*)/g;
    }
}

# True if the word contains a placeholder, such as STEP or <file>.
sub stands_for
{
    my $word = shift;
    return $word =~ /\.\.\.|[*<>\[\]{}]/ || $word =~ s/README|LICENSE//r =~ /(?<![a-z])[A-Z]{2,}(?![a-z])/;
}

# If a command starts a program of ours, the program must have each of the command's options. "train" and "launch" on a
# step's page are that step's. An exercise may have a program with other options.
sub check_options
{
    my ($code) = @_;
    return if $where =~ m{^exercises/};
    my ($page) = $where =~ m{^(\d\d_\w+)/};
    my ($program, $step) = ('', '');
    for my $word (split ' ', $code) {
        if ($word =~ m{(?:^|/)(0\d[_-]\w+/(?:train|launch)|comm_bench|say)$}) {
            $program = $1;
        } elsif ($word =~ /^(?:train|launch)$/) {
            $program = $page && $options_of{"$page/$word"} ? "$page/$word" : $word;
        } elsif ($word =~ m{\./ddp$|^(?:&&|\|\|?|&)$|;$}) {
            ($program, $step) = ('', '');
        } elsif ($code =~ m{\./ddp run } && $word =~ /^(0\d)(?:_\w+)?$/) {
            ($step) = map { s{/train\.c$}{}r } glob("$1_*/train.c");
        } elsif ($word eq '--' && $step) {
            $program = "$step/train";
        } elsif ($word =~ /^(--[a-z][\w-]*)(?:=|$)/ && $options_of{$program} && !$options_of{$program}{$1}) {
            wrong("$program has no option $1") if $known{$1};
        }
    }
}

my %ddp_commands = map { $_ => 1 } `./ddp help` =~ /^  ([a-z]+)/mg;

sub check_code
{
    my ($code) = @_;
    for my $option ($code =~ /(?<![\w-])(--[a-z](?:-?\w)*)(?![\w-])/g) {
        $options++;
        wrong("no program has an option $option") if !$known{$option};
    }
    check_options($code);
    for my $command ($code =~ m{(?<![\w/])\./ddp ([a-z]+)(?![\w.])}g) {
        wrong("./ddp has no command $command") if !$ddp_commands{$command};
    }
    for my $file ($code =~ m{(?<![\w./:\$-])(?:\./)?((?:[0-9]{2}_\w+|common|docs|tests|tools|cmake|exercises|build/cpu)/[^\s,;:'"()|&]+)}g) {
        next if stands_for($file);
        $names++;
        my $path = $file =~ s{^build/cpu/}{$build/}r =~ s{[./]+$}{}r;
        wrong("there is no $file") if !-e $path;
    }
}

# --- links ----------------------------------------------------------------------------------------------------------

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

sub resolved
{
    my ($document, $path) = @_;
    my $file = ($document =~ s{[^/]*$}{}r) . $path;
    1 while $file =~ s{(?:^|(?<=/))(?!\.\./)[^/]+/\.\./}{};
    return $file;
}

# [165 lines](03_ddp_fork/ddp.c): the size of a file, or of a folder's sources, may be off by 3 %.
sub check_size
{
    my ($size, $path) = @_;
    my $lines = () = join('', map { slurp($_) } -d $path ? glob("$path/{,*/,*/*/}*.{c,h,cc,cu,cuh,sbatch}") : $path) =~ /\n/g;
    wrong("$path has $lines lines, not $size") if abs($lines - $size =~ s/,//r) > 0.03 * $lines;
}

sub check_link
{
    my ($document, $to, $text) = @_;
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
    check_size($1, $file) if $text =~ /^([\d,]+) (?:lines|行)$/;
    return if !defined $anchor;
    wrong("the link $to: there is no such heading") if $file !~ /\.md$/ || !anchors_of($file)->{$anchor};
}

# --- documents ------------------------------------------------------------------------------------------------------

# The names that a document lists after a .c file must be its functions; after a header, they must occur in it.
sub check_definitions
{
    my ($file, $list) = @_;
    my $code = (slurp($file) // '') =~ s{//[^\n]*}{}gr;
    for my $name ($list =~ /`(\w+)`/g) {
        $names++;
        my $is = $file =~ /\.h$/ ? qr/\b$name\b/ : qr/^\w[^\n;=]*\b$name\([^;]*?\)\s*\n?\{/m;
        wrong("no $name in $file") if $code !~ $is;
    }
}

sub blank { return $_[0] =~ s/[^\n]//gr }

sub text_of_document
{
    return slurp(shift) =~ s/(<!-- (\w+): generated.*?<!-- \2 end -->|^```diff\n.*?^```$)/blank($1)/gmser;
}

# Calls $take with each block's text and the number of its first line, and blanks the block.
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

sub unexplained { return $_[0] =~ s/(?<=\S)(?: {2,}| +# ).*//r }

sub spanned { return $_[0] =~ s/\s*\n\s*/ /gr =~ s/\\\|/|/gr }

sub check_document
{
    my ($document) = @_;
    my $text = text_of_document($document);
    my $line_of = sub { 1 + (substr($text, 0, shift) =~ tr/\n//) };

    while ($text =~ /weight hash: [0-9a-f]{16}/g) {
        $where = "$document:" . $line_of->($-[0]);
        wrong("a hash depends on the processor: show that those of two runs are equal");
    }
    take_blocks(\$text, sub {
        my ($code, $line) = @_;
        for (split /\n/, $code) {
            $where = "$document:" . $line++;
            check_code(unexplained(s/^\s+//r));
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
        check_code(spanned($code));
    }
    $text =~ s/`([^`]*)`/'`' . blank($1) . '`'/ge;
    while ($text =~ /(?:\[([^\[\]]*))?\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)/g) {
        $where = "$document:" . $line_of->($-[0]);
        check_link($document, $2, $1 // '');
    }
    while ($text =~ m{(?<![\w/.-])(0\d-\d+)(?![\w-])}g) {
        $where = "$document:" . $line_of->($-[0]);
        $names++;
        my @there = glob "exercises/$1_*/";
        wrong("there is no exercise $1") if !@there;
    }
}

# --- commands to run ------------------------------------------------------------------------------------------------

# True for a command to type, false if a program is only named. In a block, ./ddp or a path without arguments is a
# command; in a span, only a step's program such as build/cpu/01_single_gpu/train is.
sub is_command
{
    my ($code, $in_block) = @_;
    my ($first, $rest) = $code =~ /^(?:[A-Z_]+=\S* +)*(\S+)(?: +(.+))?$/s or return 0;
    return $in_block || defined $rest if $first eq './ddp';
    return $in_block || defined $rest || $first =~ m{^build/\w+/\d\d_\w+/\w+$}
        if $first =~ m{^(?:build|tools|tests|exercises)/.*\w$};
    return 0 if !defined $rest;
    # a launcher needs a program to start
    return $rest =~ /(?:^|[ \/])(?:train|comm_bench|hostname|bash|getent|ls|[\w.\/]+\.sbatch)(?= |$)/
        if $first =~ /^(?:launch|mpirun|torchrun|srun|sbatch)$/;
    return $rest =~ /^-/ if $first =~ /^(?:train|launch|comm_bench|\d\d_\w+)$/;
    return 1 if $first =~ /^(?:cmake|ctest|taskset|scancel|docker|pip3?)$/;
    return $in_block && $first =~ /^(?:git|kill|tail|gdb|mv|touch|patch|python3?|perl|cd|cc|sed)$/;
}

sub is_pattern
{
    return shift =~ m{
        \.\.\. | \[ | (?<![-\w\$])(?:
        FILE|NAME|ID|ID_NAME|STEP|N|K|R|PATH|JOB|PID|COMMAND|OPTIONS|BACKEND|THIS_REPOSITORY|RUN
        )(?!\w) }x;
}

# Prints a line for each command of a document, in order: FILE:LINE; "command", or "pattern" if it has a placeholder;
# the command; and the output that the block shows below it, with "\x1f" between its lines. Tabs separate these. Where a
# document says "`...` is `COMMAND`", `... --more` is COMMAND --more.
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

my @documents = (glob('*.md'), glob('docs/*.md docs/*/*.md [0-9][0-9]_*/*.md exercises/*.md exercises/*/*.md'));
if ($list) {
    list_commands($_) for grep { !m{^exercises/.*/} } @documents;
    exit;
}
learn_options();
check_document($_) for @documents;
print "$_\n" for @problems;
printf "%d documents, %d links, %d options, %d names\n", scalar @documents, $links, $options, $names;
exit(@problems > 0);
