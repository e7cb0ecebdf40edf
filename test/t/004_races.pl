# Races.
#
# W3 a heartbeat that races with expiry: it renewed and the lease lives, or it
# was false and the lease is gone, never both; W5 50 contenders for the first
# lease of a fresh name: one token, 49 NULLs, no error, no wait.  Promise 1 (one
# holder), 2 (tokens rise), 4 (no guarded commit after the next grant), 6 (never
# early) and 10 (one row of history each) under many clients.

use strict;
use warnings;

use Dlock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('races', conf => "dlock.worker_naptime = '1s'");

## W5

{
	my @psql = map { start_psql($node) } 1 .. 50;
	my $gate = start_psql($node);

	for my $round (1 .. 6)
	{
		my $open = $round % 2 == 0;	# keep the transactions open
		my $what = $open ? "round $round, in open transactions" : "round $round";

		# All wait at a gate that opens for all.
		$gate->ask('SELECT pg_advisory_lock(1)');
		$_->send(($open ? 'BEGIN; ' : '') . <<SQL) for @psql;
SELECT pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1) \\g /dev/null
SELECT coalesce(dlock_acquire('fresh $round'), 0)
SQL
		$node->poll_query_until('postgres',
			"SELECT count(*) = 50 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
		  or die 'they do not come to the gate';
		$gate->ask('SELECT pg_advisory_unlock(1)');

		# The answers must all come while the winner's transaction is open.
		my @answers = map { $_->wait_answer } @psql;
		my @errors = grep { $_->errors =~ /ERROR|WARNING/ } @psql;
		my @tokens = grep { /^\d+$/ && $_ > 0 } @answers;

		is(scalar(@tokens), 1, "W5, $what: one token");
		is(scalar(grep { $_ eq '0' } @answers), 49, "W5, $what: 49 times busy");
		is(scalar(@errors), 0, "W5, $what: no error") || diag(map { $_->errors } @errors);
		if ($open)
		{
			is(value($node, "SELECT state FROM dlock_leases WHERE name = 'fresh $round'"), 'pending',
				"W5, $what: while the grant was pending");
			$_->ask('COMMIT') for @psql;
		}
		is(value($node, "SELECT token, state FROM dlock_leases WHERE name = 'fresh $round'"),
			"$tokens[0]|held", "W5, $what: which is held");
		is(value($node, "SELECT count(*) FROM dlock.lease WHERE name = 'fresh $round'"), 1,
			"W5, $what: one row");
	}
	$_->close for @psql, $gate;
}

## W3

# Each client takes short leases, sleeps until about their deadline, and
# heartbeats, while others want the same locks, and the worker ends what it finds.
value($node, <<'SQL');
CREATE UNLOGGED TABLE tried (token bigint, name text, what text, before timestamptz, after timestamptz, answer boolean);
CREATE PROCEDURE race(seconds int, names int, ttl interval) LANGUAGE plpgsql AS $$
DECLARE
	lock text; t bigint; a timestamptz; b timestamptz; ok boolean; held boolean;
	until timestamptz := clock_timestamp() + seconds * interval '1 s';
BEGIN
	WHILE clock_timestamp() < until LOOP
		lock := 'race ' || (random() * (names - 1))::int;
		a := clock_timestamp();
		t := dlock_acquire(lock, ttl => ttl);
		b := clock_timestamp();		-- the TTL counts from the commit that follows
		COMMIT;
		IF t IS NULL THEN
			PERFORM pg_sleep(0.001);
			CONTINUE;
		END IF;
		INSERT INTO tried VALUES (t, lock, 'acquire', b, clock_timestamp(), true);
		COMMIT;
		LOOP
			PERFORM pg_sleep(greatest(0, extract(epoch FROM b + ttl - clock_timestamp()) + (random() - 0.7) * 0.004));
			a := clock_timestamp();
			ok := dlock_heartbeat(t);
			b := clock_timestamp();
			held := dlock_held(t);
			INSERT INTO tried VALUES (t, lock, 'heartbeat', a, b, ok),
				(t, lock, 'held', a, clock_timestamp(), held);
			COMMIT;
			b := a;
			EXIT WHEN NOT ok;
		END LOOP;
		-- Lost: nothing may bring it back.
		PERFORM pg_sleep(random() * 0.003);
		a := clock_timestamp();
		ok := dlock_heartbeat(t) OR dlock_held(t) OR dlock_release(t) OR dlock_set_ttl(t, '1 s');
		INSERT INTO tried VALUES (t, lock, 'late', a, clock_timestamp(), ok);
		COMMIT;
	END LOOP;
END $$;
SQL

{
	my $ttl = '12 ms';
	my @psql = map { start_psql($node) } 1 .. 8;

	$_->send("CALL race(5, 6, '$ttl')") for @psql;
	for my $psql (@psql)
	{
		$psql->wait_answer;
		is($psql->errors, '', 'W3: no error') if $psql->errors =~ /ERROR/ || $psql == $psql[0];
		$psql->close;
	}

	my $psql = start_psql($node);
	$psql->ask(<<SQL);
CREATE INDEX ON tried (name, token); CREATE INDEX ON tried (token); ANALYZE tried;
SET dlock_test.ttl = '$ttl'
SQL
	is($psql->ask(<<SQL), 't|t|t', 'W3: the race was a race: some renewed, some lost, some taken over')
SELECT (SELECT count(*) > 50 FROM tried WHERE what = 'heartbeat' AND answer),
	(SELECT count(*) > 50 FROM tried WHERE what = 'heartbeat' AND NOT answer),
	(SELECT count(*) > 10 FROM dlock_history WHERE name LIKE 'race %' AND outcome = 'taken over')
SQL
	  || diag($psql->ask("SELECT what, answer, count(*) FROM tried GROUP BY 1, 2 UNION ALL SELECT outcome, NULL, count(*) FROM dlock_history GROUP BY 1"));

	is($psql->ask("SELECT count(*) FROM tried WHERE what = 'late' AND answer"), 0,
		'W3: what is lost stays lost');
	is($psql->ask(<<SQL), 0, 'W3: false, and held: never both');
SELECT count(*) FROM tried h JOIN tried x USING (token, before)
WHERE h.what = 'heartbeat' AND x.what = 'held' AND NOT h.answer AND x.answer
SQL
	is($psql->ask(<<SQL), 0, 'W3: true, and gone before its time: never both');
SELECT count(*) FROM tried h JOIN tried x USING (token, before)
WHERE h.what = 'heartbeat' AND x.what = 'held' AND h.answer AND NOT x.answer
	AND x.after < h.before + current_setting('dlock_test.ttl')::interval
SQL
	is($psql->ask(<<SQL), 0, 'W3: a renewed lease is not taken before its new deadline');
SELECT count(*) FROM tried h JOIN tried n ON n.name = h.name AND n.token > h.token
WHERE h.what IN ('acquire', 'heartbeat') AND h.answer AND n.what = 'acquire'
	AND n.before < h.before + current_setting('dlock_test.ttl')::interval
SQL
	is($psql->ask(<<SQL), 0, 'W3: false is not said before the deadline');
SELECT count(*) FROM tried h
WHERE h.what = 'heartbeat' AND NOT h.answer AND h.after < current_setting('dlock_test.ttl')::interval
	+ (SELECT max(p.before) FROM tried p WHERE p.token = h.token AND p.answer
		AND p.what IN ('acquire', 'heartbeat') AND p.before < h.before)
SQL
	until_true('W3: each lease ends', sub {
		$psql->ask("SELECT count(*) FROM dlock_leases WHERE name LIKE 'race %'") == 0 }, 60);
	is($psql->ask(<<SQL), 0, 'W3: and leaves one row of history, which counted its heartbeats');
SELECT count(*) FROM (SELECT token, count(*) FILTER (WHERE what = 'heartbeat' AND answer) AS beats
		FROM tried GROUP BY token) t
	LEFT JOIN (SELECT token, count(*) AS n, min(heartbeats) AS beats FROM dlock_history GROUP BY token) h USING (token)
WHERE h.n IS DISTINCT FROM 1 OR h.beats <> t.beats
SQL
	$psql->close;
}

## A takeover races with the worker that records the same end

$node->pgbench(
	'--no-vacuum --client=8 --jobs=2 --time=5', 0,
	[ qr/actually processed/, qr/number of failed transactions: 0 / ], [qr/^$/],
	'takeover against the worker: no error', { '004_races_worker' => <<'SQL' });
\set n random(1, 400)
SELECT dlock_acquire('worker ' || :n, ttl => '10 ms');
SQL
is(value($node, <<SQL), 't|t', 'takeover against the worker: each won some');
SELECT count(*) FILTER (WHERE outcome = 'expired') > 20, count(*) FILTER (WHERE outcome = 'taken over') > 20
FROM dlock_history WHERE name LIKE 'worker %'
SQL
is(value($node, "SELECT count(*) - count(DISTINCT token) FROM dlock_history WHERE name LIKE 'worker %'"), 0,
	'takeover against the worker: one row of history each');

## Promises 1, 2, 4 and 10 under many clients

value($node, <<'SQL');
CREATE UNLOGGED TABLE tenure (token bigint, name text, since timestamptz);
CREATE UNLOGGED TABLE ended (token bigint, until timestamptz, released boolean);
CREATE TABLE fence (name text PRIMARY KEY, token bigint, broken int DEFAULT 0, writes int DEFAULT 0);
INSERT INTO fence SELECT 'lock ' || n, 0 FROM generate_series(1, 4) n;
SQL

# Some holders release, some with a result, some forget, some are too slow.
my $script = <<'SQL';
\set n random(1, 4)
\set how random(1, 6)
\set pause random(0, 25000)
SELECT coalesce(dlock_acquire('lock ' || :n, ttl => '20 ms', min_hold => CASE WHEN :how = 6 THEN '30 ms'::interval END), 0) AS token \gset
\if :token > 0
	INSERT INTO tenure VALUES (:token, 'lock ' || :n, clock_timestamp());
	SELECT dlock_heartbeat(:token);
	\if :how < 4
		BEGIN;
		SELECT dlock_held(:token) AS held \gset
		\if :held
			SELECT attempt(:token, 'lock ' || :n);
		\endif
		COMMIT;
	\endif
	\sleep :pause us
	\if :how < 6
		INSERT INTO ended SELECT :token, now, dlock_release(:token, CASE WHEN :how > 2 THEN 'done' END) FROM clock_timestamp() now;
	\endif
\endif
SQL

# A guarded write, as a fenced resource would see it; some holders are paused for
# longer than the TTL between the guard and the write.  A lease that was lost
# before is no failure of the test.
value($node, <<'SQL');
CREATE FUNCTION attempt(t bigint, lock text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	PERFORM dlock_guard(t);
	IF random() < 0.3 THEN
		PERFORM pg_sleep(0.04 * random());
	END IF;
	UPDATE fence SET token = t, writes = writes + 1, broken = broken + (token > t)::int WHERE name = lock;
	RETURN true;
EXCEPTION WHEN SQLSTATE 'LK001' THEN
	RETURN false;
END $$;
SQL

$node->pgbench(
	'--no-vacuum --client=16 --jobs=2 --time=8', 0,
	[ qr/actually processed/, qr/number of failed transactions: 0 / ], [qr/^$/],
	'16 clients, 4 locks: no error', { '004_races_promises' => $script });

{
	my $psql = start_psql($node);

	$psql->ask('CREATE INDEX ON tenure (token); CREATE INDEX ON ended (token); ANALYZE tenure, ended');
	is($psql->ask(<<SQL), 't|t|t|t', 'there were enough of each');
SELECT (SELECT count(*) > 100 FROM tenure), (SELECT count(*) > 50 FROM ended WHERE released),
	(SELECT count(*) > 5 FROM ended WHERE NOT released), (SELECT sum(writes) > 50 FROM fence)
SQL
	is($psql->ask(<<SQL), 0, 'promise 1: nobody got the lock while another released it as its own');
SELECT count(*) FROM tenure a JOIN ended e ON e.token = a.token AND e.released
	JOIN tenure b ON b.name = a.name AND b.token > a.token
WHERE b.since < e.until
SQL
	is($psql->ask(<<SQL), 0, 'promise 1: by history no two leases of a lock overlap');
SELECT count(*) FROM (SELECT acquired_at, lag(ended_at) OVER (PARTITION BY name ORDER BY token) AS last_ended_at
	FROM dlock_history WHERE name LIKE 'lock %') x
WHERE acquired_at < last_ended_at
SQL
	is($psql->ask(<<SQL), 0, 'promise 2: a later lease has the higher token');
SELECT count(*) FROM (SELECT acquired_at, lag(acquired_at) OVER (PARTITION BY name ORDER BY token) AS last_acquired_at
	FROM dlock_history WHERE name LIKE 'lock %') x
WHERE acquired_at < last_acquired_at
SQL
	is($psql->ask('SELECT count(*) - count(DISTINCT token) FROM tenure'), 0, 'promise 2: no token twice');
	is($psql->ask('SELECT sum(broken) FROM fence'), 0,
		'promise 4: no guarded write came after one of the next holder');
	until_true('each lease ends', sub {
		$psql->ask("SELECT count(*) FROM dlock_leases WHERE name LIKE 'lock %'") == 0 }, 60);
	is($psql->ask(<<SQL), 0, 'promise 10: one row of history for each, and released is what was answered');
SELECT count(*) FROM tenure t LEFT JOIN ended e USING (token)
	LEFT JOIN (SELECT token, count(*) AS n, min(outcome) AS outcome FROM dlock_history GROUP BY token) h USING (token)
WHERE h.n IS DISTINCT FROM 1 OR (h.outcome = 'released') <> coalesce(e.released, false)
SQL
	is($psql->ask(<<SQL), 0, 'promise 10: and no row for a lease that never was');
SELECT count(*) FROM dlock_history h WHERE name LIKE 'lock %' AND NOT EXISTS (SELECT FROM tenure t WHERE t.token = h.token)
SQL
	is($psql->ask(<<SQL), 't', 'the counters agree');
SELECT granted = (SELECT count(*) FROM dlock_history) + (SELECT count(*) FROM dlock_leases WHERE state IN ('held', 'expired'))
FROM dlock_stats
SQL
	$psql->close;
}

is(value($node, 'SELECT * FROM dlock_verify()'), '', 'dlock_verify finds nothing');

$node->stop;
done_testing();
