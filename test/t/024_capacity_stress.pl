# Readers, writers and permits under many clients.
#
# P0 100 clients try for 100 permits at the same moment, in open transactions: 100
# tokens, and no false busy; also when 100 dead leases are in the way, of permits
# or of readers.  A capacity that changes while somebody waits.  Then many random
# clients, who release, forget, roll back, come too late, lose patience and are
# killed: never a conflicting pair, never one more than the capacity (P1), by what
# the clients see under their guards and by history.

use strict;
use warnings;

use Dlock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $seconds = $ENV{DLOCK_LONG} ? 60 : 9;
my $node = new_node('capacity', conf => <<CONF);
max_connections = 150
dlock.log_lost_leases = off
dlock.worker_naptime = 1s
CONF

sub sound
{
	my ($what) = @_;

	is(value($node, 'SELECT * FROM dlock_verify()'), '', "$what: dlock_verify() finds nothing");
}

## P0

{
	my @psql = map { start_psql($node) } 1 .. 100;
	my $gate = start_psql($node);
	my $worker = pause_worker($node);

	for my $round (
		'fresh', 'free', 'dead', 'held by one session',
		'defined', 'dead, for 30')
	{
		my $args = $round eq 'defined' ? '' : ', capacity => 100';
		my $begin = $round =~ /free|30/ ? '' : 'BEGIN; ';

		# Leases that nobody has ended, in as many slots.
		if ($round =~ /dead/)
		{
			is(value($node, "SELECT count(dlock_acquire('p0', capacity => 100, ttl => '10 ms')) FROM generate_series(1, 100)"), 100, 'P0: 100 leases');
			usleep(20_000);
			is(value($node, "SELECT count(*) FROM dlock_holders('p0') WHERE state = 'expired'"), 100, 'P0: that are dead');
		}
		value($node, "SELECT dlock_define('p0', capacity => 100)") if $round eq 'defined';
		my $session = value($node, "SELECT dlock_session_open(ttl => '1 h')");
		$args .= ", session => $session" if $round =~ /session/;
		# More dead leases than that have to be ended first, and they are in the way
		# until that is committed.
		$args = ", capacity => 30, wait => '3 s'" if $round =~ /30/;

		$gate->ask('SELECT pg_advisory_lock(1)');
		$_->send($begin . <<SQL) for @psql;
SELECT pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1) \\g /dev/null
SELECT coalesce(dlock_acquire('p0', ttl => '1 h'$args), 0)
SQL
		$node->poll_query_until('postgres',
			"SELECT count(*) = 100 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND NOT granted")
		  or die 'they do not come to the gate';
		$gate->ask('SELECT pg_advisory_unlock(1)');
		my @answers = map { $_->wait_answer } @psql;
		is(join('', map { $_->errors =~ /ERROR|WARNING/ ? $_->errors : '' } @psql), '', "P0, $round: no error");

		my %tokens = map { $_ => 1 } grep { /^[1-9]\d*$/ } @answers;
		is(scalar(keys %tokens), $round =~ /30/ ? 30 : 100, "P0, $round: a token for everybody who fits");
		is(scalar(grep { $_ eq '0' } @answers), $round =~ /30/ ? 70 : 0, "P0, $round: busy for the rest alone");
		is(value($node, "SELECT coalesce(dlock_acquire('p0', capacity => 100), 0)"), 0, "P0, $round: and for who comes now")
		  if $round !~ /30/;
		if ($begin)
		{
			is(value($node, "SELECT string_agg(DISTINCT state, ',') FROM dlock_holders('p0') WHERE state <> 'expired'"), 'pending',
				"P0, $round: while none had committed");
			$_->ask('COMMIT') for @psql;
		}
		is(value($node, "SELECT count(*) FROM dlock_leases WHERE name = 'p0' AND state = 'held'"), scalar(keys %tokens),
			"P0, $round: all are held");
		is(value($node, "SELECT count(*), max(slot) FROM dlock.lease WHERE name = 'p0'"), '100|99', "P0, $round: in 100 slots");
		sound("P0, $round");
		is(value($node, "SELECT count(*) FROM dlock_leases WHERE name = 'p0' AND dlock_release(token)"), scalar(keys %tokens),
			"P0, $round: all are released");
		value($node, "SELECT dlock_undefine('p0')") if $round eq 'defined';
	}
	# Many dead readers, whom all have to end before they can write; the TTL is so
	# short that each of them comes to it.
	for my $round (1 .. 3)
	{
		my $readers = value($node, "SELECT count(dlock_acquire('dead readers', share => 'read', ttl => '10 ms')) FROM generate_series(1, 100)");
		is($readers, 100, 'dead readers: 100');
		usleep(20_000);
		$gate->ask('SELECT pg_advisory_lock(1)');
		$_->send(<<'SQL') for @psql;
SELECT pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1) \g /dev/null
SELECT dlock_acquire('dead readers', ttl => '10 ms', wait => '20 s') IS NOT NULL
SQL
		$node->poll_query_until('postgres',
			"SELECT count(*) = 100 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND NOT granted")
		  or die 'they do not come to the gate';
		my $since = clock();
		$gate->ask('SELECT pg_advisory_unlock(1)');
		is(join('', map { $_->wait_answer } @psql), 't' x 100, 'dead readers: 100 writers come to it');
		my $took = clock() - $since;
		cmp_ok($took, '<', 15, 'dead readers: one after the other');
		note(sprintf 'dead readers: %.1f s', $took);
		is(value($node, <<SQL), '0|0', 'dead readers: each recorded once, and no writer beside another');
SELECT count(*) FILTER (WHERE n > 1), (SELECT count(*) FROM (SELECT acquired_at, lag(acquired_at) OVER (ORDER BY token) AS last
		FROM dlock_history WHERE name = 'dead readers' AND share IS NULL) y WHERE acquired_at < last + '10 ms')
FROM (SELECT token, count(*) AS n FROM dlock_history WHERE name = 'dead readers' GROUP BY token) x
SQL
	}
	$_->close for @psql, $gate;
	continue_worker($worker);
	until_true('P0: what was dead is recorded', sub { value($node, "SELECT count(*) FROM dlock_leases WHERE name = 'p0'") == 0 }, 60);
	is(value($node, 'SELECT count(*) FROM (SELECT token FROM dlock_history GROUP BY token HAVING count(*) > 1) x'), 0,
		'P0: each once');
}

## A capacity that changes while somebody waits

{
	my @holders;
	my $waiter = start_psql($node);

	value($node, "SELECT dlock_define('changes', capacity => 4)");
	push @holders, value($node, "SELECT dlock_acquire('changes', ttl => '1 h')") for 1 .. 4;
	$waiter->send("SELECT dlock_acquire('changes', ttl => '1 h', wait => '2 min')");
	$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_waiters WHERE name = 'changes'") or die;

	# Lowered: leases run out, and none comes until there are fewer than that.
	value($node, "SELECT dlock_define('changes', capacity => 2)");
	is(value($node, "SELECT count(*) FROM dlock_leases WHERE name = 'changes' AND state = 'held'"), 4, 'lowered: nobody loses a lease');
	for my $n (1, 2)
	{
		value($node, 'SELECT dlock_release(' . shift(@holders) . ')');
		usleep(1_300_000);		# it has been woken, and has looked by itself
		is($waiter->answered ? 'answered' : '', '', "lowered: still busy after $n releases");
		is(value($node, "SELECT dlock_acquire('changes') IS NULL"), 't', "lowered: for others too");
	}
	value($node, 'SELECT dlock_release(' . shift(@holders) . ')');
	push @holders, $waiter->wait_answer;
	isnt($holders[-1], '', 'lowered: the next one comes when one is left');

	# Raised: there is room at once.
	$waiter->send("SELECT dlock_acquire('changes', ttl => '1 h', wait => '2 min')");
	$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM dlock_waiters WHERE name = 'changes'") or die;
	my $since = clock();
	value($node, "SELECT dlock_define('changes', capacity => 3)");
	push @holders, $waiter->wait_answer;
	isnt($holders[-1], '', 'raised: there is room for the one that waits');
	cmp_ok(clock() - $since, '<', 15, 'raised: within seconds');
	is(value($node, 'SELECT count(*) FROM unnest(ARRAY[' . join(', ', @holders) . ']) t WHERE dlock_release(t)'), 3, 'released');
	$waiter->close;
}

## Many random clients

value($node, <<'SQL');
SELECT dlock_define('defined', capacity => 2);

-- Who is in there, by the clients' word.  Some forget to leave.
CREATE UNLOGGED TABLE inside (name text, token bigint PRIMARY KEY, share text, capacity int);
CREATE INDEX ON inside (name);
-- A breach, with all that were in there.
CREATE TABLE breach (name text, token bigint, seen text);
CREATE UNLOGGED TABLE did (what text, n int DEFAULT 1);

-- Acquire, with little patience at times: a token, or 0.
CREATE FUNCTION try(name text, ttl int, wait int, share text, capacity int, patience int) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	PERFORM set_config('lock_timeout', patience::text, true);
	RETURN coalesce(dlock_acquire(name, ttl => ttl * interval '1 ms', wait => wait * interval '1 ms', why => ttl::text,
		share => share, capacity => capacity), 0);
EXCEPTION WHEN lock_not_available THEN
	INSERT INTO did VALUES ('lost patience');
	RETURN 0;
END $$;

-- Go in, under a guard: is anybody there who should not be?
--
-- A row that this statement's snapshot shows, of a lease that is alive after it,
-- was alive at the moment of the snapshot; and our own is ours to the end of this
-- transaction.  All of these must go together.
CREATE FUNCTION enter(lock text, t bigint, my_share text, my_capacity int) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE others record;
BEGIN
	PERFORM dlock_guard(t);
	INSERT INTO inside VALUES (lock, t, my_share, my_capacity) ON CONFLICT DO NOTHING;
	SELECT count(*) AS n, min(capacity) AS capacity, bool_or(share IS NOT NULL) AS shared,
			bool_and(share IS NOT DISTINCT FROM my_share) AS same_share, string_agg(i::text, ' ') AS list
		INTO others FROM inside i WHERE name = lock AND token <> t AND dlock_held(token);
	IF others.n > 0 AND (
		CASE WHEN others.shared OR my_share IS NOT NULL THEN NOT others.same_share OR my_share IS NULL
		ELSE others.n >= least(others.capacity, my_capacity) END)
	THEN
		INSERT INTO breach VALUES (lock, t, others.list);
	END IF;
	IF others.n > 0 THEN
		INSERT INTO did VALUES ('met others');
	END IF;
	RETURN true;
EXCEPTION WHEN SQLSTATE 'LK001' THEN
	INSERT INTO did VALUES ('came too late');
	RETURN false;
END $$;
SQL

my $body = <<'SQL';
\set ttl random(15, 60)
\set wait random(0, 2) * random(0, 400)
\set patience random(0, 3) / 3 * random(1, 100)
\set how random(1, 20)
\set pause random(0, 8000)
\if :how = 1
	BEGIN;
	SELECT try(:name, :ttl, :wait, :share, :capacity, :patience);
	ROLLBACK;
\endif
\if :how = 2
	BEGIN;
\endif
SELECT try(:name, :ttl, :wait, :share, :capacity, :patience) AS token \gset
\if :how = 2
	\sleep :pause us
	COMMIT;
\endif
\if :token > 0
	SELECT enter(:name, :token, :share, :capacity);
	\if :how = 3
		\set pause 70000
	\endif
	\sleep :pause us
	\if :how < 5
		SELECT dlock_heartbeat(:token);
		SELECT enter(:name, :token, :share, :capacity);
	\endif
	\if :how = 5
		BEGIN;
		SELECT dlock_release(:token);
		\sleep :pause us
		ROLLBACK;
	\endif
	\if :how = 6
		BEGIN;
		SELECT enter(:name, :token, :share, :capacity);
		\sleep 20 ms
		COMMIT;
	\endif
	\if :how > 8
		DELETE FROM inside WHERE token = :token;
		SELECT dlock_release(:token);
	\endif
	\if :how = 8
		SELECT dlock_release(:token, 'done');
	\endif
\endif
SQL

# Readers of two kinds and writers, permits of one capacity, permits of many (at
# times a mutex), and of a defined one.
my %mix;
for my $n (1, 2)
{
	for my $share ('NULL', "'read'", "'read'", "'list'")
	{
		$mix{"024_rw_${n}_" . scalar(keys %mix)} = [ "'rw $n'", $share, 'NULL' ];
	}
	$mix{"024_permits_${n}_$_"} = [ "'permits $n'", 'NULL', 3 ] for 1 .. 2;
	$mix{"024_mixed_${n}_$_"} = [ "'mixed $n'", 'NULL', $_ ] for 1, 3, 4;
	$mix{"024_defined_$n"} = [ "'defined'", 'NULL', 2 ];
}
my %files = map {
	my ($name, $share, $capacity) = @{ $mix{$_} };
	my $script = $body;

	$script =~ s/:name\b/$name/g;
	$script =~ s/:share\b/$share/g;
	$script =~ s/:capacity\b/$capacity/g;
	($_ => $script)
} keys %mix;

# Some more, who are killed while they wait or hold.
my $until = clock() + $seconds;
my $killer = fork() // die;
if ($killer == 0)
{
	# no cleanup of the parent's in here
	my @victims;

	while (clock() < $until)
	{
		my $pid = fork() // last;
		if ($pid == 0)
		{
			exec 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', <<'SQL', '-o', '/dev/null';
DO $$ BEGIN
	FOR i IN 1 .. 1000 LOOP
		PERFORM dlock_acquire((ARRAY['rw 1', 'permits 1', 'mixed 1'])[1 + (random() * 2)::int], why => '25', ttl => '25 ms', wait => '500 ms');
		COMMIT;
	END LOOP;
END $$
SQL
		}
		usleep(150_000 + rand(150_000));
		kill 'KILL', $pid;
		waitpid $pid, 0;
	}
	require POSIX;
	POSIX::_exit(0);
}

$node->pgbench("--no-vacuum --client=32 --jobs=2 --time=$seconds", 0,
	[ qr/actually processed/, qr/number of failed transactions: 0 / ], [qr/^$/],
	'many random clients: no error', \%files);
waitpid $killer, 0;

# What they did, and that it was worth while.
note(value($node, "SELECT string_agg(what || ' ' || n, ', ') FROM (SELECT what, count(*) AS n FROM did GROUP BY 1) x"));
note(value($node, "SELECT string_agg(outcome || ' ' || n, ', ') FROM (SELECT outcome, count(*) AS n FROM dlock_history GROUP BY 1) x"));
for my $what ('lost patience', 'met others', 'came too late')
{
	cmp_ok(value($node, "SELECT count(*) FROM did WHERE what = '$what'"), '>', 10, "some $what");
}
is(value($node, 'SELECT * FROM breach LIMIT 3'), '', 'nobody has met anybody that he should not');

until_true('each lease ends', sub { value($node, 'SELECT count(*) FROM dlock_leases') == 0 }, 60);
is(value($node, 'SELECT count(*) FROM dlock_waiters'), 0, 'nobody waits');
is(value($node, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), 0, 'no tag is left');
is(value($node, 'SELECT count(*) FROM (SELECT token FROM dlock_history GROUP BY token HAVING count(*) > 1) x'), 0,
	'promise 10: one row of history each');
is(value($node, <<SQL), 't', 'and the counters agree');
SELECT granted = (SELECT count(*) FROM dlock_history) FROM dlock_stats
SQL
sound('after all that');

# By history: a lease that was released held the lock from acquired_at to ended_at
# at the least, and one that ran out for its TTL, which "why" has in ms.
value($node, <<'SQL');
CREATE TABLE tenure AS SELECT name, token, share, acquired_at AS since,
		CASE WHEN outcome = 'released' THEN ended_at ELSE acquired_at + why::int * interval '1 ms' END AS until
	FROM dlock_history WHERE why ~ '^\d+$';
CREATE TABLE at AS SELECT name, at,
		sum(n) FILTER (WHERE share IS NULL) OVER w AS writers,
		sum(n) FILTER (WHERE share = 'read') OVER w AS readers,
		sum(n) FILTER (WHERE share = 'list') OVER w AS listers
	FROM (SELECT name, share, since AS at, 1 AS n, token FROM tenure
		UNION ALL SELECT name, share, until, -1, token FROM tenure) x
	WINDOW w AS (PARTITION BY name ORDER BY at, n);
SQL
for my $n (1, 2)
{
	is(value($node, "SELECT count(*) FROM at WHERE name = 'rw $n' AND (writers > 1 OR (writers > 0)::int + (readers > 0)::int + (listers > 0)::int > 1)"),
		0, "rw $n: never a conflicting pair");
	cmp_ok(value($node, "SELECT count(*) FROM at WHERE name = 'rw $n' AND (readers > 2 OR listers > 2)"), '>', 0, "rw $n: but readers together");
	is(value($node, "SELECT max(writers) FROM at WHERE name = 'permits $n'"), 3, "permits $n: 3 at times, and never 4");
	cmp_ok(value($node, "SELECT max(writers) FROM at WHERE name = 'mixed $n'"), '<=', 4, "mixed $n: never 5");
}
is(value($node, "SELECT max(writers) FROM at WHERE name = 'defined'"), 2, 'defined: 2 at times, and never 3');

# Nobody starves: of each kind many were served.
is(value($node, <<SQL), '', 'nobody starves');
SELECT name, share, count(*) FROM tenure GROUP BY 1, 2 HAVING count(*) < 20
SQL
is(value($node, "SELECT count(*) FROM (SELECT DISTINCT name, share FROM tenure) x"), 11, 'all kinds were there');

$node->stop;
done_testing();
