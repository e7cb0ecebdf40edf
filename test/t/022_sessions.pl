# Sessions.
#
# A session that ends with its connection, however that ends; what a crash leaves
# of sessions; ids are never given twice; W7 many connections of one session that
# ask for one lock at the same moment; a loss is reported once; F4 sessions of
# other roles; a session of 20,000 leases is closed and expires without delay for
# others; S6 20,000 leases expire in the same second while 200 others heartbeat.
# DLOCK_LONG=1: 50,000 and 100,000.

use strict;
use warnings;

use Dlock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $in_session = $ENV{DLOCK_LONG} ? 50_000 : 20_000;
my $at_once = $ENV{DLOCK_LONG} ? 100_000 : 20_000;
my $node = new_node('sessions', conf => <<CONF);
max_locks_per_transaction = @{[ $at_once / 50 ]}
dlock.log_lost_leases = off
autovacuum = off
CONF

my $now = 'extract(epoch FROM clock_timestamp())';

# How a lease ended, when that has been recorded.
sub outcome
{
	my ($token) = @_;

	return value($node, "SELECT outcome FROM dlock_history WHERE token = $token");
}

# A client that waits for a lock, asleep when this returns.
sub queue_up
{
	my ($name) = @_;
	my $psql = start_psql($node);
	my $pid = $psql->backend;

	$psql->send("SELECT dlock_acquire('$name', wait => '1 min'), $now");
	$node->poll_query_until('postgres', <<SQL) or die "$pid does not wait";
SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $pid
SQL
	return $psql;
}

# Let all these clients run a statement at the same moment: the answers.
sub at_once
{
	my ($sql, @psql) = @_;
	my $gate = start_psql($node);
	my $n = @psql;

	$gate->ask('SELECT pg_advisory_lock(1)');
	$_->send("SELECT pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1) \\g /dev/null\n$sql") for @psql;
	$node->poll_query_until('postgres',
		"SELECT count(*) = $n FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND NOT granted")
	  or die 'they do not come to the gate';
	$gate->ask('SELECT pg_advisory_unlock(1)');
	my @answers = map { $_->wait_answer } @psql;
	$gate->close;
	return @answers;
}

## Sessions that end with their connection

for my $case (
	[ 'the client leaves', sub { $_[0]->close } ],
	[ 'pg_terminate_backend', sub { value($node, 'SELECT pg_terminate_backend(' . $_[0]->backend . ')'); $_[0]->close } ],
	[ 'the client is killed', sub { $_[0]->kill9 } ],
	[ 'it ends in a guarded transaction', sub { $_[0]->ask("BEGIN; SELECT dlock_guard($_[1])"); $_[0]->close } ])
{
	my ($how, $leave) = @$case;
	my $best = 60;

	for my $try (1 .. 3)
	{
		my $holder = start_psql($node);
		# its TTL means nothing: the connection counts
		my $session = $holder->ask("SELECT dlock_session_open(ttl => '50 ms', on_disconnect => 'release')");
		my $token = $holder->ask("SELECT dlock_acquire('bound $how $try', session => $session)");
		my $other = $holder->ask("SELECT dlock_acquire('bound too $how $try', session => $session)");
		my $next = queue_up("bound $how $try");

		if ($try == 1)
		{
			usleep(200_000);
			is($holder->ask("SELECT dlock_held($token), dlock_session_heartbeat($session)"), 't|{}',
				"$how: until then it lives, whatever its TTL");
			is(value($node, "SELECT dlock_heartbeat($token), state FROM dlock_holders('bound $how $try')"), 't|held',
				"$how: others see it so");
		}
		my $before = value($node, "SELECT $now");
		$leave->($holder, $token);
		my ($new, $granted) = split /\|/, $next->wait_answer;
		$best = $granted - $before if $granted - $before < $best;
		if ($try == 1)
		{
			cmp_ok($new, '>', $token, "$how: the next one is served");
			is(outcome($token), 'disconnected', "$how: recorded");
			is(value($node, "SELECT dlock_heartbeat($token), dlock_heartbeat($other), dlock_held($other), dlock_session_heartbeat($session) IS NULL"),
				'f|f|f|t', "$how: all of the session is dead");
			isnt(value($node, "SELECT dlock_acquire('bound too $how $try')"), '', "$how: and free");
			is(outcome($other), 'disconnected', "$how: recorded too");
		}
		$next->close;
	}
	cmp_ok($best, '<', 0.5, "$how: at once");
	note(sprintf '%s: %.1f ms', $how, 1000 * $best);
}

{
	# Without somebody who wants it, the worker records it.
	my $holder = start_psql($node);
	my $token = $holder->ask("SELECT dlock_acquire('alone', session => dlock_session_open(on_disconnect => 'release'))");
	$holder->close;
	until_true('the worker records it', sub { outcome($token) eq 'disconnected' }, 60);

	# The others outlive their connection, and the transaction that opened them.
	$holder = start_psql($node);
	my $session = $holder->ask("BEGIN; SELECT dlock_session_open(ttl => '1 h'); ROLLBACK");
	$token = $holder->ask("SELECT dlock_acquire('kept', session => $session)");
	$holder->kill9;
	until_true('its backend is gone', sub { !runs($holder->backend) });
	is(value($node, "SELECT dlock_held($token), dlock_session_heartbeat($session), dlock_session_close($session)"),
		't|{}|1', 'a session that is kept outlives its connection');
	is(outcome($token), 'released', 'closed, its leases are released');
	is(value($node, "SELECT dlock_session_close($session) IS NULL, dlock_session_heartbeat($session) IS NULL, dlock_session_close(1) IS NULL"),
		't|t|t', 'it is gone');
	fails($node, "SELECT dlock_acquire('x', session => $session)", 'LK001', 'Open a new session', 'and gets no lease any more');
}

## A crash

{
	my @psql = map { start_psql($node) } 1 .. 2;
	my $kept = $psql[0]->ask("SELECT dlock_session_open(ttl => '1 h', owner => 'the keeper')");
	my $short = $psql[0]->ask("SELECT dlock_session_open(ttl => '2 s')");
	my $empty = $psql[0]->ask("SELECT dlock_session_open(ttl => '1 h')");
	my $bound = $psql[1]->ask("SELECT dlock_session_open(ttl => '1 h', on_disconnect => 'release')");
	my $had = $psql[0]->ask("SELECT dlock_session_open(ttl => '1 h')");

	my $lease = $psql[0]->ask("SELECT dlock_acquire('crash kept', session => $kept)");
	for (1, 2)
	{
		is($psql[0]->ask("SELECT dlock_acquire('crash kept', session => $kept, reentrant => true)"), $lease, 'once more');
	}
	my $second = $psql[0]->ask("SELECT dlock_acquire('crash kept too', session => $kept)");
	my $bound_lease = $psql[1]->ask("SELECT dlock_acquire('crash bound', session => $bound)");
	my $short_lease = $psql[0]->ask("SELECT dlock_acquire('crash short', session => $short)");
	$psql[0]->ask("SELECT dlock_release(dlock_acquire('crash had', session => $had), 'done')");
	$psql[0]->ask('CHECKPOINT');
	is($psql[0]->ask("SELECT dlock_session_heartbeat($short)"), '{}', 'a heartbeat before the crash');

	$node->stop('immediate');
	my $started = clock();
	$node->start;
	$_->close for @psql;

	is(value($node, "SELECT dlock_acquire('crash bound') > $bound_lease"), 't',
		'a crash: what lived with its connection is dead at once');
	is(outcome($bound_lease), 'disconnected', 'a crash: and recorded as such');
	is(value($node, "SELECT dlock_session_heartbeat($bound) IS NULL"), 't', 'a crash: its session is gone');
	is(value($node, "SELECT dlock_session_heartbeat($empty) IS NULL, dlock_session_close($empty) IS NULL, dlock_session_heartbeat($had) IS NULL"),
		't|t|t', 'a crash: so are sessions that held nothing');
	fails($node, "SELECT dlock_acquire('x', session => $empty)", 'LK001', undef, 'a crash: which get nothing more');

	is(value($node, "SELECT dlock_session_heartbeat($kept), dlock_held($lease), dlock_heartbeat($second)"), '{}|t|t',
		'a crash: a session with leases is there, by its id');
	is(value($node, "SELECT token, session, holds, owner, ttl FROM dlock_leases WHERE name = 'crash kept'"),
		"$lease|$kept|3|the keeper|01:00:00", 'a crash: with its leases as they were');
	my $new = value($node, "SELECT dlock_acquire('crash new', session => $kept)");
	is(value($node, "SELECT owner FROM dlock_leases WHERE token = $new"), 'the keeper', 'a crash: and can have more');
	is(value($node, "SELECT dlock_acquire('crash kept', session => $kept, retry => true)"), $lease, 'a crash: and ask again');
	is(value($node, "SELECT dlock_release($lease)"), 't', "a crash: release $_ of 3") for 1 .. 3;
	is(value($node, "SELECT dlock_release($lease), dlock_held($lease)"), 'f|f', 'a crash: and that was it');

	# The short one has one TTL from the start on, and no more.
	my $next = start_psql($node);
	$next->send("SELECT dlock_acquire('crash short', wait => '1 min')");
	isnt($next->wait_answer, '', 'a crash: a session that does not come back ends');
	cmp_ok(clock() - $started, '>=', 2, 'a crash: after one TTL');
	is(outcome($short_lease), 'taken over', 'a crash: as a dead one');
	is(value($node, "SELECT dlock_session_heartbeat($short) IS NULL"), 't', 'a crash: it is gone');
	$next->close;
	is(value($node, "SELECT dlock_session_close($kept)"), 2, 'a crash: closed, with the leases of before and after');
}

# Nothing is committed after an id is given, and nothing flushes it but the call.
{
	my @ids;

	$node->append_conf('postgresql.conf', "wal_writer_delay = 10s\nsynchronous_commit = off");
	$node->restart;
	for my $round (1 .. 4)
	{
		my $psql = start_psql($node);
		push @ids, $psql->ask('BEGIN; SELECT dlock_session_open()');
		push @ids, $psql->ask('SELECT dlock_session_open()') for 1 .. 40;
		push @ids, value($node, "SELECT dlock_acquire('id $round')");
		push @ids, $psql->ask('SELECT dlock_session_open()') for 1 .. 2;
		crash($node);
		$psql->close;
	}
	push @ids, value($node, 'SELECT dlock_session_open()');
	rising('ids rise over crashes, and among tokens', @ids);
}

# An id that is given when the WAL ends exactly at the end of a page.
is(value($node, <<'SQL'), 20, 'an id can be given wherever the WAL ends');
CREATE FUNCTION open_at_page_end() RETURNS int LANGUAGE plpgsql AS $$
DECLARE n int := 0;
BEGIN
	FOR i IN 1 .. 200000 LOOP
		EXIT WHEN n = 20;
		PERFORM pg_logical_emit_message(false, 'x', repeat('x', (random() * 200)::int));
		IF (pg_current_wal_insert_lsn() - '0/0') % current_setting('wal_block_size')::int = 24 THEN
			PERFORM dlock_session_open();
			n := n + 1;
		END IF;
	END LOOP;
	RETURN n;
END $$;
SELECT open_at_page_end();
SQL

## W7

{
	my @psql = map { start_psql($node) } 1 .. 20;
	my $session = value($node, "SELECT dlock_session_open(ttl => '1 h')");
	my $all = @psql;

	for my $round (1 .. 3)
	{
		my $name = "w7 $round";

		my @answers = at_once("SELECT coalesce(dlock_acquire('$name', session => $session), 0)", @psql);
		my @tokens = grep { /^\d+$/ && $_ > 0 } @answers;
		is(scalar(@tokens), 1, 'W7: who just asks is a contender: one token');
		is(scalar(grep { $_ eq '0' } @answers), $all - 1, 'W7: and busy for all the others');
		is(value($node, "SELECT dlock_release($tokens[0])"), 't', 'W7: released');

		# Of a fresh lock, and of one that the session holds already.
		for my $held ('', ' that is held')
		{
			value($node, "SELECT dlock_acquire('$name', session => $session)") if $held;
			@answers = at_once("SELECT dlock_acquire('$name', session => $session, retry => true, wait => '30 s')", @psql);
			is("@answers", join(' ', ($answers[0]) x $all), "W7: retry of a lock$held: the same token for all");
			is(value($node, "SELECT token, holds FROM dlock_leases WHERE name = '$name'"), "$answers[0]|1",
				"W7: retry of a lock$held: one lease, held once");
			is(value($node, "SELECT dlock_release($answers[0]), dlock_release($answers[0])"), 't|f',
				"W7: retry of a lock$held: one release ends it");
		}

		for my $held ('', ' that is held')
		{
			my $holds = $all;

			if ($held)
			{
				value($node, "SELECT dlock_acquire('$name', session => $session)");
				$holds++;
			}
			my $since = clock();
			@answers = at_once("SELECT dlock_acquire('$name', session => $session, reentrant => true, wait => '60 s')", @psql);
			note(sprintf '%d re-entrant acquires of a lock%s: %.2f s', $all, $held, clock() - $since);
			is("@answers", join(' ', ($answers[0]) x $all), "W7: re-entrant acquires of a lock$held: the same token for all");
			is(value($node, "SELECT token, holds FROM dlock_leases WHERE name = '$name'"), "$answers[0]|$holds",
				"W7: re-entrant acquires of a lock$held: each is counted");
			@answers = at_once("SELECT dlock_release($answers[0])", @psql);
			is("@answers", join(' ', ('t') x $all), "W7: re-entrant acquires of a lock$held: as many releases");
			is(value($node, "SELECT holds FROM dlock_leases WHERE name = '$name'"), $held ? 1 : '',
				"W7: re-entrant acquires of a lock$held: what is left");
			value($node, "SELECT dlock_release((SELECT token FROM dlock_holders('$name')))") if $held;
		}
	}

	# The reply is lost: the client dies when the server has committed.
	my $dead = start_psql($node);
	$dead->send("SELECT dlock_acquire('w7 lost', session => $session); SELECT pg_sleep(60)");
	until_true('W7: granted', sub { value($node, "SELECT count(*) FROM dlock_holders('w7 lost') WHERE state = 'held'") == 1 });
	$dead->kill9;
	my $token = value($node, "SELECT token FROM dlock_holders('w7 lost')");
	is(value($node, "SELECT dlock_acquire('w7 lost', session => $session) IS NULL"), 't', 'W7: the lease of the lost reply is there');
	is(value($node, "SELECT dlock_acquire('w7 lost', session => $session, retry => true)"), $token, 'W7: retry finds it');
	value($node, 'SELECT pg_terminate_backend(' . $dead->backend . ')');

	# Another session is another contender, retry or not.
	is(value($node, "SELECT dlock_acquire('w7 lost', session => dlock_session_open(), retry => true) IS NULL"), 't',
		'W7: but not for another session');
	is(value($node, "SELECT dlock_session_close($session)"), 1, 'W7: closed');
	$_->close for @psql;
}

## Losses

{
	my $session = value($node, "SELECT dlock_session_open(ttl => '1 h')");
	my ($a, $b, $c, $d) = split /\|/,
	  value($node, 'SELECT ' . join ', ', map { "dlock_acquire('loss $_', session => $session)" } 'a' .. 'd');
	my $lost = "SELECT dlock_session_heartbeat($session)";

	is(value($node, $lost), '{}', 'nothing is lost yet');
	value($node, "BEGIN; SELECT dlock_revoke($a, 'not really'); ROLLBACK");
	value($node, "SELECT dlock_release($c)");
	is(value($node, $lost), '{}', 'a revocation that is rolled back, and a release, are no losses');
	value($node, "SELECT dlock_revoke($a, 'maintenance')");
	is(value($node, $lost), "{$a}", 'a revoked lease is reported');
	is(value($node, $lost), '{}', 'once');

	value($node, "SELECT dlock_revoke($b, 'maintenance', grace => '1500 ms')");
	is(value($node, "SELECT dlock_heartbeat($b), dlock_held($b)"), 'f|t', 'a lease in its time of grace');
	is(value($node, $lost), "{$b}", 'is reported');
	is(value($node, $lost), '{}', 'once');
	until_true('it ends after that time', sub { outcome($b) eq 'revoked' }, 60);
	is(value($node, $lost), '{}', 'and is not reported again');
	is(value($node, "SELECT dlock_held($d), count(*) FROM dlock_leases WHERE session = $session"), 't|1', 'the others live on');

	# A loss that is not heard of survives the lease, and ends with the session.
	value($node, "SELECT dlock_revoke($d, 'maintenance')");
	value($node, "SELECT dlock_release(dlock_acquire('loss d'))") for 1 .. 5;
	is(value($node, $lost), "{$d}", 'it is reported though others have had the lock since');
	is(value($node, "SELECT dlock_session_close($session)"), 0, 'closed');

	# Many revocations, with and without grace, while many connections heartbeat.
	value($node, 'CREATE UNLOGGED TABLE heard (token bigint)');
	$session = value($node, "SELECT dlock_session_open(ttl => '1 h')");
	value($node, "SELECT count(dlock_acquire('loss ' || n, session => $session)) FROM generate_series(1, 400) n");
	my @psql = map { start_psql($node) } 1 .. 6;
	value($node, "SELECT dlock_acquire('go on', ttl => '1 h')");
	$_->send(<<SQL) for @psql;
DO \$\$ BEGIN
	LOOP
		INSERT INTO heard SELECT unnest(dlock_session_heartbeat($session));
		COMMIT;
		EXIT WHEN NOT EXISTS (SELECT FROM dlock_holders('go on'));
	END LOOP;
END \$\$
SQL
	value($node, <<SQL);
DO \$\$
DECLARE t bigint;
BEGIN
	FOR t IN SELECT token FROM dlock_leases WHERE session = $session AND name <> 'loss 400' LOOP
		PERFORM dlock_revoke(t, 'maintenance', CASE WHEN t % 2 = 0 THEN '20 ms'::interval END);
		COMMIT;
	END LOOP;
END \$\$
SQL
	until_true('they are told of all', sub { value($node, 'SELECT count(DISTINCT token) FROM heard') >= 399 }, 60);
	usleep(100_000);		# whoever is told twice is so by now
	value($node, "SELECT dlock_release((SELECT token FROM dlock_holders('go on')))");
	$_->wait_answer for @psql;
	is(join('', map { $_->errors =~ /ERROR/ ? $_->errors : '' } @psql), '', 'no error');
	$_->close for @psql;
	is(value($node, 'SELECT count(*), count(DISTINCT token) FROM heard'), '399|399', 'of each one once');
	is(value($node, "SELECT dlock_session_close($session)"), 1, 'and one is left');
}

## F4

{
	value($node, 'CREATE ROLE a LOGIN; CREATE ROLE b LOGIN; CREATE ROLE c LOGIN IN ROLE a');
	my ($a, $b, $c) = map { start_psql($node, 'postgres', params => [ '-U', $_ ]) } 'a' .. 'c';
	my $session = $a->ask("SELECT dlock_session_open(ttl => '1 h', owner => 'secret')");
	my $token = $a->ask("SELECT dlock_acquire('f4', session => $session)");

	$b->fails("SELECT dlock_session_heartbeat($session)", '42501', undef, 'F4: a session of another role: no heartbeat');
	unlike($b->errors, qr/secret/, 'F4: which tells nothing');
	$b->fails("SELECT dlock_session_close($session)", '42501', undef, 'F4: no close');
	$b->fails("SELECT dlock_acquire('f4 b', session => $session)", '42501', undef, 'F4: no lease');
	$b->fails("SELECT dlock_acquire('f4', session => $session, retry => true)", '42501', undef, 'F4: no retry');
	$b->fails("SELECT dlock_acquire('f4', session => $session, reentrant => true)", '42501', undef, 'F4: no re-entry');
	$b->fails("SELECT dlock_acquire_all(ARRAY['f4 b'], session => $session)", '42501', undef, 'F4: no several leases');
	is($a->ask("SELECT dlock_session_heartbeat($session), dlock_held($token)"), '{}|t', 'F4: nothing has happened to it');
	is($b->ask("SELECT dlock_acquire('f4 b') > 0"), 't', 'F4: nor was the lock taken');

	# Membership counts; the lease is the session's role's.
	is($c->ask("SELECT dlock_session_heartbeat($session)"), '{}', 'F4: a member may heartbeat');
	my $more = $c->ask("SELECT dlock_acquire('f4 c', session => $session)");
	is(value($node, "SELECT role, owner FROM dlock_leases WHERE token = $more"), 'a|secret', 'F4: a member may use it, for its role');
	is($c->ask("SELECT dlock_session_close($session)"), 2, 'F4: and close it');
	is($b->ask("SELECT dlock_session_heartbeat($session) IS NULL, dlock_session_close($session) IS NULL"), 't|t',
		'F4: what is gone is gone for everybody');
	$_->close for $a, $b, $c;
}

## A session of many leases

value($node, <<'SQL');
CREATE UNLOGGED TABLE took (phase text, ms float8);
-- Take and release other locks, and note how long that takes, until told to stop.
CREATE PROCEDURE others(phase text, me int) LANGUAGE plpgsql AS $$
DECLARE a timestamptz; n int := 0;
BEGIN
	LOOP
		a := clock_timestamp();
		PERFORM dlock_release(dlock_acquire('other ' || me || ' ' || n % 10));
		COMMIT;
		INSERT INTO took VALUES (phase, extract(epoch FROM clock_timestamp() - a) * 1000);
		COMMIT;
		PERFORM pg_sleep(0.002);
		n := n + 1;
		EXIT WHEN n > 200 AND NOT EXISTS (SELECT FROM dlock_holders('go on'));
	END LOOP;
END $$;
CREATE PROCEDURE fill(s bigint, kind text, total int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 0 .. total / 1000 - 1 LOOP
		PERFORM dlock_acquire(kind || ' ' || n, session => s)
		FROM generate_series(i * 1000 + 1, i * 1000 + 1000) n;
		PERFORM dlock_session_heartbeat(s);
		COMMIT;
	END LOOP;
END $$;
SQL

for my $kind ('closed', 'expired')
{
	my $session = value($node, "SELECT dlock_session_open(ttl => " . ($kind eq 'closed' ? "'1 h')" : "'5 s')"));
	my @psql = map { start_psql($node) } 1 .. 2;

	value($node, "CALL fill($session, 'many $kind', $in_session)");
	is(value($node, "SELECT count(*) FROM dlock_leases WHERE session = $session AND state = 'held'"), $in_session,
		"$kind: a session of $in_session leases");
	is(value($node, "SELECT dlock_session_heartbeat($session)"), '{}', "$kind: which lives by one heartbeat");

	value($node, "SELECT dlock_acquire('go on', ttl => '1 h')");
	$psql[$_]->send("CALL others('$kind', $_)") for 0 .. $#psql;
	my $since = clock();
	if ($kind eq 'closed')
	{
		is(value($node, "SELECT dlock_session_close($session)"), $in_session, "$kind: all end with it");
		note(sprintf '%s: the call took %.2f s', $kind, clock() - $since);
		is(value($node, "SELECT count(*) FROM dlock_leases WHERE session = $session AND state = 'held'"), 0,
			"$kind: they are dead at once");
		isnt(value($node, "SELECT dlock_acquire('many $kind $in_session', ttl => '1 h')"), '', "$kind: and free at once");
	}
	else
	{
		until_true("$kind: it dies", sub { value($node, "SELECT dlock_session_heartbeat(NULL) IS NULL AND NOT EXISTS (SELECT FROM dlock_holders('many $kind 1') WHERE state = 'held')") eq 't' });
		$since = clock();
		isnt(value($node, "SELECT dlock_acquire('many $kind $in_session', ttl => '1 h')"), '', "$kind: they are free at once");
	}
	my $count = "SELECT count(*) FROM dlock.history WHERE name LIKE 'many $kind %'";
	until_true("$kind: all ends are recorded", sub { value($node, $count) >= $in_session }, 120);
	note(sprintf '%s: recorded after %.1f s', $kind, clock() - $since);
	value($node, "SELECT dlock_release((SELECT token FROM dlock_holders('go on')))");
	$_->wait_answer for @psql;
	is(join('', map { $_->errors =~ /ERROR/ ? $_->errors : '' } @psql), '', "$kind: nobody else met an error");
	$_->close for @psql;

	is(value($node, <<SQL), "$in_session|$in_session", "$kind: each once");
SELECT count(*), count(DISTINCT token) FROM dlock_history WHERE name LIKE 'many $kind %'
SQL
	# in the race for its lease, the worker or the acquire may have been first
	my $outcomes = $kind eq 'closed' ? "'released'" : "'expired', 'taken over'";
	is(value($node, <<SQL), 0, "$kind: as what it was");
SELECT count(*) FROM dlock_history WHERE name LIKE 'many $kind %' AND outcome NOT IN ($outcomes)
SQL
	my ($n, $median, $most) = split /\|/, value($node, <<SQL);
SELECT count(*), percentile_cont(0.5) WITHIN GROUP (ORDER BY ms), max(ms) FROM took WHERE phase = '$kind'
SQL
	note(sprintf '%s: %d acquires of others meanwhile took %.2f ms in the median, %.1f ms at most', $kind, $n, $median, $most);
	cmp_ok($most, '<', 1500, "$kind: no other lock was delayed by it");
	value($node, "SELECT dlock_release((SELECT token FROM dlock_holders('many $kind $in_session')))");
}

## S6

{
	my @psql = map { start_psql($node) } 1 .. 4;
	my $ready = 0;

	# Four connections, with 50 leases each, and a heartbeat for each twice a second.
	$_->ask(<<'SQL') for @psql;
CREATE TEMP TABLE mine AS SELECT dlock_acquire('beating ' || pg_backend_pid() || ' ' || n, ttl => '5 s') AS token FROM generate_series(1, 50) n
SQL
	value($node, "SELECT dlock_acquire('go on', ttl => '1 h')");
	$_->send(<<'SQL') for @psql;
DO $$ BEGIN
	LOOP
		IF EXISTS (SELECT FROM mine WHERE NOT dlock_heartbeat(token)) THEN
			RAISE EXCEPTION 'a lease is lost';
		END IF;
		COMMIT;
		EXIT WHEN NOT EXISTS (SELECT FROM dlock_holders('go on'));
		PERFORM pg_sleep(0.5);
	END LOOP;
END $$
SQL
	# One transaction: they have one deadline.
	is(value($node, "SELECT count(dlock_acquire('same second ' || n, ttl => '2 s')) FROM generate_series(1, $at_once) n"),
		$at_once, "S6: $at_once leases");
	my $since = clock() + 2;
	my $count = "SELECT count(*) FROM dlock.history WHERE name LIKE 'same second %'";
	my $done = until_true('S6: all of them are recorded', sub { value($node, $count) >= $at_once }, $ENV{DLOCK_LONG} ? 300 : 60);
	note(sprintf 'S6: recorded %.1f s after their deadline', clock() - $since);
	value($node, "SELECT dlock_release((SELECT token FROM dlock_holders('go on')))");
	$_->wait_answer for @psql;
	is(join('', map { $_->errors =~ /ERROR/ ? $_->errors : '' } @psql), '', 'S6: no heartbeat was refused');
	is(value($node, "SELECT count(*), count(*) FILTER (WHERE heartbeats > 1 AND state = 'held') FROM dlock_leases WHERE name LIKE 'beating %'"),
		'200|200', 'S6: the others are held on');
	is(value($node, <<SQL), "$at_once|$at_once|expired", 'S6: each once');
SELECT count(*), count(DISTINCT token), string_agg(DISTINCT outcome, ',') FROM dlock_history WHERE name LIKE 'same second %'
SQL
	is(value($node, "SELECT count(*) FROM dlock_leases WHERE name LIKE 'same second %'"), 0, 'S6: none is left');
	$_->close for @psql;
}

is(value($node, 'SELECT * FROM dlock_verify()'), '', 'dlock_verify() finds nothing');

$node->stop;
done_testing();
