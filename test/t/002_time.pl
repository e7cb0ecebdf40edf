# Time.
#
# T1 a transaction that is open for longer than the TTL, before and after it
# acquires; T2 time zones and DST; T3 the server's wall clock is set by an hour
# while leases are held; T4 50 ms, 999 ms and 1.5 s are honoured, never early;
# T5 a heartbeat after the deadline is false, and it stays lost.  Promise 6
# (never early, never much later), promise 2 with a clock that was set back.

use strict;
use warnings;

use Dlock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);
use WallClock;

my $node = new_node('time');

## T1: time is read when the lease begins, at commit

{
	my $psql = start_psql($node);

	$psql->ask('BEGIN; SELECT pg_sleep(2.2)');
	my $token = $psql->ask("SELECT dlock_acquire('long transaction', ttl => '2 s')");
	ok($token, 'acquired late in a long transaction');
	is(value($node, "SELECT state FROM dlock_leases WHERE token = $token"), 'pending',
		'not committed, it is pending');
	# now() is when the transaction began.
	is($psql->ask("SELECT acquired_at > now() + interval '2 s' FROM dlock_holders('long transaction')"), 't',
		'acquired when it was acquired');
	$psql->ask('SELECT pg_sleep(2.2)');
	is($psql->ask("SELECT dlock_heartbeat($token), dlock_held($token)"), 't|t',
		'not committed, it does not age');
	is(value($node, "SELECT dlock_acquire('long transaction') IS NULL"), 't', 'and is busy to others');
	$psql->ask('COMMIT');
	my $remaining = $psql->ask("SELECT extract(epoch FROM dlock_remaining($token))");
	cmp_ok($remaining || 0, '>', 1, 'whole at commit');
	cmp_ok($remaining || 0, '<=', 2, 'and not more than whole');
	is($psql->ask("SELECT dlock_heartbeat($token)"), 't', 'its heartbeat is true');
	$psql->close;
}

## T2: time zones

{
	my $early = start_psql($node);
	my $late = start_psql($node);

	$early->ask("SET timezone = 'Pacific/Kiritimati'");
	$late->ask("SET timezone = 'Pacific/Pago_Pago'");
	my $token = $early->ask("SELECT dlock_acquire('zone', ttl => '1 min')");
	is($late->ask("SELECT dlock_acquire('zone') IS NULL"), 't', 'a day behind it is busy');
	is($late->ask("SELECT dlock_heartbeat($token), dlock_remaining($token) BETWEEN '50 s' AND '1 min'"),
		't|t', 'and beats as everywhere');
	for my $psql ($early, $late)
	{
		is($psql->ask("SELECT acquired_at BETWEEN clock_timestamp() - interval '50 s' AND clock_timestamp() FROM dlock_holders('zone')"),
			't', 'acquired at one moment');
	}
	# A day is 24 hours, also where one of 25 may come.
	$early->ask("SET timezone = 'Europe/Berlin'");
	$token = $early->ask("SELECT dlock_acquire('day', ttl => '1 day')");
	is($early->ask("SELECT dlock_remaining($token) BETWEEN '23:59:00' AND '24:00:00'"), 't',
		'a TTL of a day is one of 24 hours');
	is($early->ask("SELECT dlock_release($token)"), 't', 'released');
	$early->close;
	$late->close;
}

## T4: never early, never much later, without the worker

# Grants one short lease after another.  A round's clock is read before the
# commit of the grant, from which the TTL counts, and after the next grant.
value($node, <<'SQL');
CREATE TABLE round (ttl interval, took interval);
CREATE PROCEDURE rounds(lock text, each interval, n int, beat boolean) LANGUAGE plpgsql AS $$
DECLARE
	t bigint; next bigint; since timestamptz; seen timestamptz;
BEGIN
	t := dlock_acquire(lock, ttl => each);
	since := clock_timestamp();
	COMMIT;
	FOR i IN 1 .. n LOOP
		IF beat THEN
			-- A heartbeat shortly before the end: the TTL counts from it.
			PERFORM pg_sleep(0.6 * extract(epoch FROM each));
			since := clock_timestamp();
			IF NOT dlock_heartbeat(t) THEN since := NULL; END IF;
		END IF;
		LOOP
			next := dlock_acquire(lock, ttl => each);
			seen := clock_timestamp();
			EXIT WHEN next IS NOT NULL;
			PERFORM pg_sleep(0.0005);
		END LOOP;
		IF next <= t THEN RAISE 'token % after %', next, t; END IF;
		IF since IS NOT NULL THEN
			INSERT INTO round VALUES (each, seen - since);
		END IF;
		t := next;
		since := clock_timestamp();
		COMMIT;
	END LOOP;
	PERFORM dlock_release(t);
END $$;
SQL

my $worker = pause_worker($node);

for my $case ([ '50 ms', 12 ], [ '999 ms', 2 ], [ '1.5 s', 2 ])
{
	my ($ttl, $n) = @$case;
	my $psql = start_psql($node);

	for my $beat (qw(false true))
	{
		my $what = $beat eq 'true' ? 'after a heartbeat' : 'after the grant';

		$psql->ask("TRUNCATE round; CALL rounds('ttl $ttl', '$ttl', $n, $beat)");
		is($psql->ask('SELECT count(*) > 0 FROM round'), 't', "$ttl: taken over $what");
		is($psql->ask('SELECT coalesce(min(took) >= min(ttl), false) FROM round'), 't',
			"$ttl: never early $what")
		  || diag($psql->ask('SELECT * FROM round'));
		# The best of some rounds: this machine may be busy, but a TTL that
		# were rounded to seconds would be late in each.
		is($psql->ask("SELECT coalesce(min(took) < min(ttl) + interval '250 ms', false) FROM round"), 't',
			"$ttl: not rounded up $what")
		  || diag($psql->ask('SELECT * FROM round'));
	}
	is($psql->ask("SELECT count(*) FROM dlock_history WHERE name = 'ttl $ttl' AND outcome = 'taken over' AND ended_at - acquired_at < '$ttl'"),
		0, "$ttl: nor by history");
	$psql->close;
}

# What remains is not rounded either.
{
	my $psql = start_psql($node);
	my $token = $psql->ask("SELECT dlock_acquire('remaining', ttl => '999 ms')");
	my $fine = 0;
	my $last = '00:00:01';

	for my $i (1 .. 20)
	{
		my $left = $psql->ask("SELECT dlock_remaining($token)") || last;
		cmp_ok($left, 'le', '00:00:00.999', 'at most the TTL remains') if $i == 1;
		ok(0, "what remains must fall: $left after $last") if $left gt $last;
		$last = $left;
		$fine++ if $left =~ /\.\d{3}\d*[1-9]$/;
	}
	ok($fine, 'what remains is told finer than in milliseconds');
	$psql->close;
}

## T5: after the deadline it is lost for good, though nobody took it

for my $with ('without the worker', 'with the worker')
{
	my $token = value($node, "SELECT dlock_acquire('late $with', ttl => '50 ms')");

	if ($with eq 'with the worker')
	{
		continue_worker($worker);
		until_true("$with: recorded", sub {
			value($node, "SELECT outcome FROM dlock.history WHERE token = $token") eq 'expired' });
	}
	else
	{
		usleep(60_000);
		is(value($node, "SELECT count(*) FROM dlock.history WHERE token = $token"), 0,
			"$with: not recorded yet");
	}
	is(value($node, <<SQL), 'f|f|f|t|f|f', "$with: lost");
SELECT dlock_heartbeat($token), dlock_heartbeat($token), dlock_held($token),
	dlock_remaining($token) IS NULL, dlock_set_ttl($token, '1 hour'), dlock_heartbeat($token)
SQL
	is(value($node, "SELECT dlock_heartbeat_all(ARRAY[$token])"), "{$token}", "$with: lost among many");
	fails($node, "SELECT dlock_guard($token)", 'LK001', undef, "$with: no guard");
	is(value($node, "SELECT dlock_release($token)"), 'f', "$with: not to be released");
	until_true("$with: one row of history", sub {
		value($node, "SELECT count(*), min(outcome) FROM dlock_history WHERE token = $token") eq '1|expired' })
	  if $with eq 'with the worker';
	is(value($node, "SELECT dlock_acquire('late $with') > $token"), 't', "$with: free for the next");
	is(value($node, "SELECT count(*) FROM dlock_history WHERE token = $token"), 1,
		"$with: recorded once");
}

$node->stop;

## T3: the wall clock is set

{
	my $clock = WallClock->new(PostgreSQL::Test::Utils::tempdir());
	my $start = sub {
		local %ENV = (%ENV, $clock->env);
		$_[0]->start;
	};
	my $hours = sub {
		return value($_[0], "SELECT round((extract(epoch FROM clock_timestamp()) - " . time() . ') / 3600)');
	};
	my $fake = new_node('wallclock', start => 0, conf => 'autovacuum = off');

	$start->($fake);
	$fake->safe_psql('postgres', 'CREATE EXTENSION dlock');

	my $highest = 0;
	for my $hour (1, -1)
	{
		my $before = clock();
		my $long = value($fake, "SELECT dlock_acquire('long $hour', ttl => '10 min')");
		my $short = value($fake, "SELECT dlock_acquire('short $hour', ttl => '3 s')");
		my $rest = value($fake, "SELECT dlock_acquire('rest $hour', min_hold => '10 min')");
		is(value($fake, "SELECT dlock_release($rest)"), 't', "$hour h: one lock rests");

		$clock->set($hour * 3600);
		is($hours->($fake), $hour, "$hour h: the server's clock is set");

		is(value($fake, "SELECT dlock_acquire('long $hour') IS NULL, dlock_remaining($long) BETWEEN '8 min' AND '10 min', dlock_heartbeat($long)"),
			't|t|t', "$hour h: a lease stays");
		is(value($fake, "SELECT dlock_acquire('rest $hour') IS NULL"), 't', "$hour h: a rest stays");
		my $held = value($fake, "SELECT dlock_held($short)");
		is($held, 't', "$hour h: a short one stays too") if clock() - $before < 3;
		until_true("$hour h: the short one ends by itself", sub {
			value($fake, "SELECT outcome FROM dlock.history WHERE token = $short") eq 'expired' }, 60);
		cmp_ok(clock() - $before, '>=', 3, "$hour h: but not early");
		is(value($fake, "SELECT dlock_held($long)"), 't', "$hour h: the worker ended no other");
		my $token = value($fake, "SELECT dlock_acquire('short $hour')");
		rising("$hour h: tokens rise", $highest, $long, $short, $rest, $token);
		$highest = $token;

		# The clock is set while the server is down: the lease has its grace.
		$fake->stop('fast');
		$clock->set(2 * $hour * 3600);
		$start->($fake);
		is($hours->($fake), 2 * $hour, "$hour h: the clock is set during a restart");
		is(value($fake, "SELECT dlock_remaining($long) <= '10 min', dlock_heartbeat($long)"), 't|t',
			"$hour h: a lease stays over it");
		$token = value($fake, "SELECT dlock_acquire('restart $hour')");
		cmp_ok($token, '>', $highest, "$hour h: tokens rise over it");
		$highest = $token;
		$clock->set(0);
	}

	# A clock that is years behind must not lower a token.
	$fake->stop('fast');
	$clock->set(-315360000);
	$start->($fake);
	cmp_ok(value($fake, "SELECT dlock_acquire('years')"), '>', $highest,
		'a clock that is ten years behind lowers no token');
	$clock->set(0);
	$fake->stop('immediate');
}

done_testing();
