# What the parts of the torture share: the clock, the logs, the dice, and the
# locks that are fought for.
#
# A log is a file of JSON lines, one writer each.  Times are those of
# CLOCK_MONOTONIC, in seconds: all processes are on one machine, so that times
# of different logs can be compared.

package Torture;

use strict;
use warnings;

use Exporter 'import';
use JSON::PP ();
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

our @EXPORT = qw(
  clock nap open_log say_log read_log
  chance pick between span weighted
  @NAMES %DEFINED is_strict interval
);

# The locks.  What a lock is used for is mixed, but each is mostly for one
# thing: a to d are mutexes, s is shared, p has permits.
our @NAMES = qw(a b c d s p defined delayed);

# What the conductor defines before the start.
our %DEFINED = (
	defined => { capacity => 3 },
	delayed => { takeover_delay => '100 ms' });

my $json = JSON::PP->new->canonical->allow_nonref;

sub clock
{
	return clock_gettime(CLOCK_MONOTONIC);
}

# Sleep for that many seconds, whatever signals come.
sub nap
{
	my ($seconds) = @_;
	my $end = clock() + $seconds;

	while ((my $rest = $end - clock()) > 0)
	{
		Time::HiRes::sleep($rest);
	}
	return;
}

# Logs ---------------------------------------------------------------------

sub open_log
{
	my ($file) = @_;

	open my $log, '>', $file or die "$file: $!";
	return $log;
}

# One line, by one write: a writer that is killed leaves whole lines.
sub say_log
{
	my ($log, %line) = @_;

	$line{t} = sprintf('%.6f', $line{t} // clock()) + 0;
	syswrite($log, $json->encode(\%line) . "\n") or die "log: $!";
	return;
}

sub read_log
{
	my ($file) = @_;

	open my $log, '<', $file or die "$file: $!";
	my @lines = map { $json->decode($_) } grep { /\n\z/ } <$log>;
	close $log;
	return @lines;
}

# Dice ---------------------------------------------------------------------
#
# All of Perl's one generator, which each process seeds for itself.

sub chance
{
	return rand() < $_[0];
}

sub pick
{
	return $_[ rand @_ ];
}

sub between
{
	my ($from, $to) = @_;

	return $from + rand($to - $from);
}

# A span of time: short ones are as likely as long ones.  Whole milliseconds.
sub span
{
	my ($from, $to) = @_;

	return int(1000 * $from * ($to / $from)**rand()) / 1000;
}

# One of a list of things and their weights.
sub weighted
{
	my @choices = @_;
	my $sum = 0;

	for (my $i = 1; $i < @choices; $i += 2)
	{
		$sum += $choices[$i];
	}
	my $dice = rand($sum);
	while (@choices > 2)
	{
		my ($choice, $weight) = splice @choices, 0, 2;

		return $choice if ($dice -= $weight) < 0;
	}
	return $choices[0];
}

# Locks --------------------------------------------------------------------

# Does a lease that was asked for like this exclude every other one?
sub is_strict
{
	my ($name, $share, $capacity) = @_;

	return !defined $share && !($DEFINED{$name} && $DEFINED{$name}{capacity}) &&
	  ($capacity // 1) == 1;
}

# Seconds, as SQL.
sub interval
{
	return defined $_[0] ? "'" . 1000 * $_[0] . " ms'" : 'NULL';
}

1;
