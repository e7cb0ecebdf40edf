# A minute of the torture: many clients, whose servers, connections, clock and
# selves are hit at random, and a checker of what they were told.  All promises
# but 7, 8 and 12, which have tests of their own.  See test/torture/run.
#
# TORTURE_SECONDS and TORTURE_SEED change it.

use strict;
use warnings;

use FindBin;
use Test::More;

plan skip_all => 'DBD::Pg is not installed' unless eval { require DBD::Pg };
plan skip_all => 'PostgreSQL does not run as root' if $> == 0;

my $torture = "$FindBin::Bin/../torture/run";
my $seconds = $ENV{TORTURE_SECONDS} || 60;
my $seed = $ENV{TORTURE_SEED} // 42;
my @output = split /^/, `$^X "$torture" SECONDS=$seconds SEED=$seed 2>&1`;
my $status = $?;

note($_) for @output;
is($status, 0, 'no promise is broken') || diag(@output);
ok((grep { /^  checked: .*acknowledged increments \d/ } @output), 'and something was checked');

done_testing();
