#!/usr/bin/perl
# usage: arena_bound.pl PLAN...
# Recomputes from the live intervals of a dumped plan ("value first last offset bytes name", one a line) what
# the engine claims about it: no two pieces share a byte at one time, the arena is as large as the highest
# piece, the bound is the largest sum of live bytes (each rounded up to 64), and the arena is within 2 % of it.
use strict;
use warnings;

my $failed = 0;
for my $path (@ARGV) {
    open my $in, '<', $path or die "$path: $!\n";
    my (@piece, $claimed_arena, $claimed_bound);
    while (<$in>) {
        ($claimed_arena, $claimed_bound) = ($1, $2) if /^# arena (\d+) bound (\d+)/;
        next if /^#/;
        /^(\d+) (-?\d+) (-?\d+) (\d+) (\d+) / or die "$path:$.: not a piece: $_";
        push @piece, { id => $1, first => $2, last => $3, from => $4, to => $4 + 64 * int(($5 + 63) / 64) };
    }
    die "$path: no arena line\n" unless defined $claimed_arena;
    die "$path: no pieces\n" unless @piece;
    my ($arena, $bound) = (0, 0);
    my @active;
    for my $p (sort { $a->{first} <=> $b->{first} } @piece) {
        @active = grep { $_->{last} >= $p->{first} } @active;
        for my $q (@active) {
            next if $p->{from} >= $q->{to} || $q->{from} >= $p->{to};
            print "$path: pieces $p->{id} and $q->{id} share memory\n";
            $failed = 1;
        }
        push @active, $p;
        $arena = $p->{to} if $p->{to} > $arena;
        # live bytes rise only where a piece begins
        my $live = 0;
        $live += $_->{to} - $_->{from} for @active;
        $bound = $live if $live > $bound;
    }
    my $over = $bound ? $arena / $bound - 1 : 0;
    printf "%s: %d pieces, arena %d, bound %d (%.2f %% above)\n", $path, scalar @piece, $arena, $bound, 100 * $over;
    for ([ $arena == $claimed_arena, "the plan claims an arena of $claimed_arena" ],
         [ $bound == $claimed_bound, "the plan claims a bound of $claimed_bound" ],
         [ $over <= 0.02, "the arena is more than 2 % above its bound" ]) {
        next if $_->[0];
        print "$path: $_->[1]\n";
        $failed = 1;
    }
}
exit $failed;
