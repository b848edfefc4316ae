# translation.pl ENGLISH CHINESE - compares a page with its translation. Each block (a heading, a paragraph, an item of
# a list, a row of a table, code) must have the same kind, numbers, links and `code`. A paragraph or an item must have
# the same number of sentences. Prints what differs; the exit status is 1 if anything does. What is between
# <!-- only here --> and <!-- only here end --> is not compared.
use strict;
use warnings;
use utf8;
use open qw(:std :encoding(UTF-8));

# The blocks of a page: [number of the first line, kind, text].
sub blocks_of
{
    my ($path) = @_;
    my @blocks;
    my $kind = '';
    my ($fenced, $only, $number) = (0, 0, 0);
    open my $in, '<', $path or die "$path: $!\n";
    while (my $line = <$in>) {
        chomp $line;
        $number++;
        $only = 1 if $line eq '<!-- only here -->';
        my $skip = $only || $line =~ /^<!-- quote/ || $line =~ /English.*简体中文/;
        $only = 0 if $line eq '<!-- only here end -->';
        next if $skip;
        my $code = $fenced || $line =~ /^ {4}\S/ || $line =~ /^```/;
        $fenced = !$fenced if $line =~ /^```/;
        if ($line eq '' && !$fenced) {
            $kind = '' if $kind ne 'code';
            next;
        }
        my $is = $code ? 'code' : $line =~ /^(#+) / ? "heading $1" : $line =~ /^\|/ ? 'row' : $line =~ /^- / ? 'item'
            : $line =~ /^!\[/ ? 'picture' : '';
        $line =~ s/(?<=\S)(?: {2,}| +# ).*// if $code && !$fenced;      # without a command's explanation
        if ($is eq '' && $kind =~ /^(?:item|paragraph)$/ || $is eq 'code' && $kind eq 'code') {
            $blocks[-1][2] .= "\n$line";
        } else {
            $kind = $is eq '' ? 'paragraph' : $is;
            push @blocks, [$number, $kind, $line];
        }
    }
    return @blocks;
}

# What must be the same, as [name, value].
sub traits_of
{
    my ($kind, $text) = @_;
    return ['code', $text] if $kind eq 'code';
    my $count = () = $text =~ /\|/g;
    my @links = $text =~ /\]\(([^)]*)\)/g;
    $text =~ s/\]\([^)]*\)/]/g;
    my @code = $text =~ /`([^`]*)`/g;
    $text =~ s/`[^`]*`/`/g;
    my @numbers = map { s/,//r } $text =~ /(\d[\d,]*(?:\.\d+)?)/g;
    my $sentences = () = $text =~ /[.!?:](?=[*)"”]*(?:\s|$))|[。！？：]/g;
    return (['cells', $count], ['links', "@links"], ['code', "@code"], ['numbers', join ' ', sort @numbers],
        ['sentences', $kind eq 'paragraph' || $kind eq 'item' ? $sentences : '']);
}

my ($english, $chinese) = @ARGV;
my @ours = blocks_of($english);
my @theirs = blocks_of($chinese);
my $wrong = 0;
for my $i (0 .. ($#ours > $#theirs ? $#ours : $#theirs)) {
    my ($a, $b) = ($ours[$i] // [0, 'nothing', ''], $theirs[$i] // [0, 'nothing', '']);
    if ($a->[1] ne $b->[1]) {
        print "$english:$a->[0] has a $a->[1], but $chinese:$b->[0] a $b->[1]\n";
        exit 1;                     # from here on everything would differ
    }
    my @b = traits_of(@$b[1, 2]);
    for my $trait (traits_of(@$a[1, 2])) {
        my $other = shift @b;
        next if $trait->[1] eq $other->[1];
        print "$english:$a->[0] and $chinese:$b->[0]: $trait->[0]: $trait->[1] | $other->[1]\n";
        $wrong = 1;
    }
}
exit $wrong;
