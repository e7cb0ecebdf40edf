# The queue.
#
# Q0 a waiter whose client is killed is not granted the lock; Q1 hundreds of
# waiters, released one by one: each release wakes one, in the order of their
# tickets, in linear time (300 of them, 1,000 with DLOCK_LONG=1); Q3 a wait that
# runs out; Q4 wait and ttl; S1 the holder is killed: the next in line has the
# lock right after the TTL; S3 whoever is first in line and leaves, in whatever
# way, lets the next one in at once; a waiter that does not claim its turn loses
# it, and not its place; a ring of waits; a stop of the server.  All without the
# worker.

use strict;
use warnings;

# With a small stack, 150 waits show what it takes 1,000 to show on a usual one.
BEGIN
{
	exec 'sh', '-c', 'ulimit -s 1024; SMALL_STACK=1 exec "$@"', 'sh', $^X, (map { "-I$_" } @INC), $0
	  unless $ENV{SMALL_STACK};
}

use Dlock;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $many = $ENV{DLOCK_LONG} ? 1000 : 300;
my $node = new_node('queue', conf => 'max_connections = ' . ($many + 100));
my $worker = pause_worker($node);
my $admin = start_psql($node);

# Wait until so many wait for a lock: in the queue, and asleep.
sub until_waiting
{
	my ($name, $n) = @_;

	$node->poll_query_until('postgres', <<SQL) or die "not $n waiters for $name";
SELECT count(*) = $n FROM dlock_waiters JOIN pg_stat_activity USING (pid)
WHERE name = '$name' AND wait_event IS NOT NULL AND wait_event <> 'ClientRead'
SQL
	return;
}

# A client that waits for a lock, at the end of the line when this returns.
#
#	first	what it runs before
#	args	more arguments of dlock_acquire()
sub queue_up
{
	my ($name, %opt) = @_;
	my $psql = start_psql($node);
	my $before = value($node, "SELECT count(*) FROM dlock_waiters WHERE name = '$name'");

	$psql->ask($opt{first}) if $opt{first};
	$psql->send("SELECT dlock_acquire('$name', wait => '10 min', ttl => '1 h'" . ($opt{args} // '') . ')');
	until_waiting($name, $before + 1);
	return $psql;
}

# Wait for the token that a client waits for: that, and how long it took.
sub served
{
	my ($psql, $limit) = @_;
	my $since = clock();

	until ($psql->answered)
	{
		return ('not served', clock() - $since) if clock() - $since > ($limit || 60);
		usleep(1_000);
	}
	my $token = $psql->wait_answer;
	return ($token eq '' ? 'busy' : $token, clock() - $since);
}

sub hold
{
	my ($name, $args) = @_;

	return $admin->ask("SELECT dlock_acquire('$name', ttl => '1 h'" . ($args // '') . ')');
}

# How a waiter's backend sleeps.
{
	my $token = hold('asleep');
	my $psql = queue_up('asleep');
	my $pid = $psql->backend;
	my $event = value($node, "SHOW server_version_num") >= 170000 ? 'DlockWait' : 'Extension';

	is(value($node, "SELECT wait_event_type, wait_event FROM pg_stat_activity WHERE pid = $pid"),
		"Extension|$event", 'a waiter has a wait event');
	is(value($node, "SELECT count(*) FROM pg_locks WHERE pid = $pid AND locktype = 'advisory'"), 0,
		'and holds no tag');
	is(value($node, <<SQL), 't|1|t|t|t', 'dlock_waiters has it');
SELECT owner LIKE '%$pid', position, waiting_since < clock_timestamp(),
	gives_up_at BETWEEN waiting_since + '599 s' AND waiting_since + '601 s', blocked_by = ARRAY[${\$admin->backend}]
FROM dlock_waiters WHERE pid = $pid
SQL
	# Whoever guards the lease is not stopped by one that waits for it.
	is($admin->ask("BEGIN; SELECT dlock_guard($token); COMMIT"), $token, 'the holder can guard');
	$admin->ask("SELECT dlock_release($token)");
	my ($next) = served($psql);
	cmp_ok($next, '>', $token, 'served when it is released');
	is($psql->ask("SELECT dlock_release($next)"), 't', 'released');
	is(value($node, "SELECT count(*) FROM dlock_history WHERE name = 'asleep' AND waited > '0 s'"), 1,
		'history knows who has waited');
	$psql->close;

	# It is woken, and does not find out when it looks by itself.
	my $best = 60;
	for my $try (1 .. 3)
	{
		$token = hold("woken $try");
		$psql = queue_up("woken $try");
		$admin->ask("SELECT dlock_release($token)");
		my (undef, $took) = served($psql);
		$best = $took if $took < $best;
		$psql->close;
	}
	cmp_ok($best, '<', 0.4, 'served at once');
	note(sprintf 'a release wakes the next in %.1f ms', 1000 * $best);
}

# A wait costs no memory, however often it looks for deadlocks.
{
	my $token = hold('memory');
	my $session = $admin->ask('SELECT dlock_session_open(ttl => \'1 h\')');
	my $psql = queue_up('memory', first => "SET deadlock_timeout = '5 ms'", args => ", session => $session");
	my @size;

	for (1 .. 2)
	{
		usleep(1_500_000);
		push @size, slurp_file('/proc/' . $psql->backend . '/status') =~ /^VmData:\s*(\d+)/m;
	}
	cmp_ok($size[1] - $size[0], '<', 2000, 'a waiter does not grow');
	note("a waiter that looks for deadlocks 200 times a second grew from $size[0] kB to $size[1] kB");
	$admin->ask("SELECT dlock_release($token)");
	served($psql);
	$psql->close;
	$admin->ask("SELECT dlock_session_close($session)");
}

## Q3, Q4

{
	my $psql = start_psql($node);
	my $rival = start_psql($node);

	for my $case (
		[ 'a lease', '' ],
		[ 'an uncommitted grant', 'BEGIN' ],
		[ 'an uncommitted release', 'BEGIN; SELECT dlock_release((SELECT token FROM dlock_holders(\'q3\')))' ],
		[ 'a lease under a guard', 'BEGIN; SELECT dlock_guard((SELECT token FROM dlock_holders(\'q3\')))' ])
	{
		my ($what, $sql) = @$case;

		$rival->ask('BEGIN') if $what =~ /grant/;
		$rival->ask("SELECT dlock_acquire('q3')");
		$rival->ask($sql) if $what !~ /grant/ && $sql;

		my $before = clock();
		is($psql->try("SELECT coalesce(dlock_acquire('q3', wait => '400 ms'), 0)"), 0, "Q3, $what: NULL");
		is($psql->errors =~ /ERROR|WARNING/ ? $psql->errors : '', '', "Q3, $what: and no error");
		my $took = clock() - $before;
		cmp_ok($took, '>=', 0.4, "Q3, $what: not too early");
		cmp_ok($took, '<', 20, "Q3, $what: nor too late");
		is(value($node, 'SELECT count(*) FROM dlock_waiters'), 0, "Q3, $what: nobody waits any more");
		is($psql->ask(<<SQL), 0, "Q3, $what: and no lock is left");
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'
SQL
		$rival->ask('COMMIT') if $sql;
		$rival->ask("SELECT dlock_release((SELECT token FROM dlock_holders('q3')))")
		  if $what !~ /release/;
		is($psql->ask("SELECT dlock_release(dlock_acquire('q3'))"), 't', "Q3, $what: free after it");
	}

	# lock_timeout is shorter than wait, whatever the waiter waits for.
	for my $case ([ 'a lease', '' ], [ 'an uncommitted grant', 'BEGIN' ])
	{
		my ($what, $begin) = @$case;
		my $best = 60;

		$rival->ask("$begin; SELECT dlock_acquire('q3')");
		for my $try (1 .. 3)
		{
			my $before = clock();
			$psql->fails("SET lock_timeout = '200 ms'; SELECT dlock_acquire('q3', wait => '20 s')",
				'55P03', undef, "lock_timeout ends a wait for $what");
			my $took = clock() - $before;
			cmp_ok($took, '>=', 0.2, "lock_timeout, $what: not too early");
			$best = $took if $took < $best;
		}
		cmp_ok($best, '<', 1, "lock_timeout, $what: when it is time");
		$psql->ask('RESET lock_timeout');
		$rival->ask('ROLLBACK') if $begin;
		$rival->ask("SELECT dlock_release((SELECT token FROM dlock_holders('q3')))") unless $begin;
	}

	# A wait for longer than the ttl that is asked for.
	my $token = hold('q4');
	$psql->ask("SET statement_timeout = '1 min'");
	$psql->send("SELECT dlock_acquire('q4', wait => '30 s', ttl => '700 ms')");
	until_waiting('q4', 1);
	usleep(1_000_000);
	is($psql->answered ? 'answered' : '', '', 'Q4: it waits for longer than its ttl');
	$admin->ask("SELECT dlock_release($token)");
	my ($got) = served($psql);
	cmp_ok($got, '>', $token, 'Q4: and is served');
	is(value($node, "SELECT ttl, waited > '1 s' FROM dlock.lease WHERE name = 'q4' AND token = $got"),
		'00:00:00.7|t', 'Q4: with that ttl');
	$psql->close;
	$rival->close;
}

## S1

for my $how ('client killed', 'backend terminated', 'client gone in a guarded transaction')
{
	my $late = 9;

	# The best of some tries shows that the next in line need not wait for
	# anything but the deadline; each one shows that it is not early.
	for my $try (1 .. 5)
	{
		my $holder = start_psql($node);
		my $next = start_psql($node);
		my $name = "s1 $how $try";
		my $now = 'extract(epoch FROM clock_timestamp())';
		my $token = $holder->ask("SELECT dlock_acquire('$name', ttl => '800 ms')");

		$next->send("SELECT dlock_acquire('$name', wait => '1 min', ttl => '1 h'), $now");
		# A heartbeat came between these two times, and from it the TTL counts.
		my ($before, $renewed, $after) = split /\|/,
		  $holder->ask("SELECT $now, dlock_heartbeat($token), $now");
		is($renewed, 't', "S1, $how: renewed") if $renewed ne 't';
		$holder->ask("BEGIN; SELECT dlock_guard($token)") if $how =~ /guarded/;
		if ($how =~ /terminated/)
		{
			value($node, 'SELECT pg_terminate_backend(' . $holder->backend . ')');
		}
		else
		{
			$holder->kill9;
		}
		my ($new, $granted) = split /\|/, $next->wait_answer;

		$holder->close;
		cmp_ok($new || 0, '>', $token, "S1, $how: served")
		  if ($new || 0) <= $token || $try == 1;
		cmp_ok($granted - $before, '>=', 0.8, "S1, $how: not early")
		  if $granted - $before < 0.8 || $try == 1;
		$late = $granted - $after - 0.8 if $granted - $after - 0.8 < $late;
		is(value($node, "SELECT outcome FROM dlock_history WHERE token = $token"), 'taken over',
			"S1, $how: recorded") if $try == 1;
		$next->close;
	}
	note(sprintf 'S1, %s: %.1f ms late', $how, 1000 * $late);
	cmp_ok($late, '<', 0.25, "S1, $how: served right after the TTL");
}

## S3, Q0

# One that waits first in line leaves in this way: what the client is told.
my @ways = (
	[ 'pg_cancel_backend', sub { value($node, 'SELECT pg_cancel_backend(' . $_[0]->backend . ')') }, '57014' ],
	[ 'pg_terminate_backend', sub { value($node, 'SELECT pg_terminate_backend(' . $_[0]->backend . ')') }, '57P01' ],
	[ 'statement_timeout', sub { }, '57014', "SET statement_timeout = '1500 ms'" ],
	[ 'lock_timeout', sub { }, '55P03', "SET lock_timeout = '1500 ms'" ],
	[ 'the client is killed', sub { $_[0]->kill9 }, undef ]);

for my $way (@ways)
{
	my ($how, $leave, $sqlstate, $first) = @$way;
	my $best = 60;

	# A reader holds the lock, a writer is first in line, a reader second: when
	# the writer leaves, nothing is in the way of the second reader.
	for my $try (1 .. 3)
	{
		my $token = hold("s3 $how", ", share => 'read'");
		my $one = queue_up("s3 $how", first => $first);
		my $two = queue_up("s3 $how", args => ", share => 'read'");

		is($admin->ask("SELECT dlock_acquire('s3 $how', share => 'read') IS NULL"), 't',
			"S3, $how: another reader does not pass the writer") if $try == 1;
		$leave->($one);
		if ($sqlstate)
		{
			# of a backend that is terminated, psql reads the error when it
			# has noticed that the connection is gone
			eval { $one->wait_answer };
			my $err = $one->errors . $one->{err};
			ok($err =~ /(?:ERROR|FATAL):  $sqlstate:/, "S3, $how: it is told")
			  || diag($err) if $try == 1;
		}
		my ($next, $took) = served($two);
		cmp_ok($next, '>', $token, "S3, $how: the next one is served") if $try == 1 || $next !~ /^\d+$/;
		$best = $took if $took < $best;
		is(value($node, "SELECT count(*) FROM dlock_waiters WHERE name = 's3 $how'"), 0,
			"S3, $how: nobody waits any more") if $try == 1;
		$admin->ask("SELECT dlock_release($token), dlock_release($next)");
		$one->close;
		$two->close;
	}

	# A lost client is noticed when its backend next looks, which it does
	# every second; the rest is immediate.
	cmp_ok($best, '<', $sqlstate ? 0.5 : 10, "S3, $how: " . ($sqlstate ? 'at once' : 'soon'));
	note(sprintf 'S3, %s: %.1f ms', $how, 1000 * $best);
	is(value($node, "SELECT count(*) FROM dlock_history WHERE name = 's3 $how'"), 6,
		"S3, $how: the one that left was never granted anything");
}

# The release comes at the same moment.  Whoever left, somebody is served, and
# not by having looked again after a second.
for my $way (@ways[ 0, 1, 4 ])
{
	my ($how, $leave) = @$way;
	my ($rounds, $slow, $one_got) = (15, 0, 0);

	for my $round (1 .. $rounds)
	{
		my $name = "s3 race $how $round";
		my $token = hold($name);
		my $one = queue_up($name);
		my $two = queue_up($name);

		if ($round % 2)
		{
			$admin->send("SELECT dlock_release($token)");
			$leave->($one);
		}
		else
		{
			$leave->($one);
			$admin->send("SELECT dlock_release($token)");
		}
		$admin->wait_answer;

		my $since = clock();
		my $first_has = "SELECT token FROM dlock_holders('$name') WHERE owner LIKE '%" . $one->backend . "'";
		until ($two->answered || clock() - $since > 30)
		{
			# Perhaps it left too late: it is the holder, and its lease goes on.
			my $got = value($node, $first_has);
			next if $got eq '';
			$one_got++;
			value($node, "SELECT dlock_release($got)");
		}
		my ($next) = served($two, 1);
		my $took = clock() - $since;
		fail("S3, $how at the release: round $round served") if $next !~ /^\d+$/;
		$slow++ if $took > 0.7;
		$_->close for $one, $two;
		value($node, "SELECT dlock_release((SELECT token FROM dlock_holders('$name')))");
	}
	cmp_ok($slow, '<=', 4, "S3, $how at the release: the next one is served at once");
	note("S3, $how at the release: $slow of $rounds rounds were slow, $one_got times it left too late");
}

# Q0: killed, and the lock is released before its backend can have noticed.
for my $what ('a lease', 'an uncommitted grant')
{
	for my $round (1 .. 5)
	{
		my $name = "q0 $what $round";
		my $holder = start_psql($node);
		my $token = $holder->ask(($what =~ /grant/ ? 'BEGIN; ' : '') . "SELECT dlock_acquire('$name', ttl => '1 h')");
		my $one = queue_up($name);
		my $two = queue_up($name);

		$one->kill9;
		$holder->ask($what =~ /grant/ ? 'ROLLBACK' : "SELECT dlock_release($token)");
		my ($next) = served($two);
		cmp_ok($next, '>', $token, "Q0, $what: the next one is served") if $next !~ /^\d+$/ || $round == 1;
		my $dead = value($node, <<SQL);
SELECT count(*) FROM (SELECT owner FROM dlock_history WHERE name = '$name'
	UNION ALL SELECT owner FROM dlock_leases WHERE name = '$name') x
WHERE owner LIKE '%${\$one->backend}'
SQL
		is($dead, 0, "Q0, $what: the dead one is granted nothing") if $dead ne '0' || $round == 1;
		until_true("Q0, $what: its backend goes", sub { !runs($one->backend) }, 30) if $round == 1;
		$two->close;
		$holder->close;
	}
}

## A turn that is not claimed

{
	my $token = hold('turn');
	my $one = queue_up('turn');

	kill 'STOP', $one->backend;
	my $released = clock();
	$admin->ask("SELECT dlock_release($token)");
	my $busy = $admin->ask("SELECT dlock_acquire('turn') IS NULL");
	# on a slow machine there may be nothing to be seen
	is($busy, 't', 'while it is the turn of one, nobody passes it') if clock() - $released < 0.9;

	my ($two, $three) = map { start_psql($node) } 1, 2;
	for my $psql ($two, $three)
	{
		$psql->send("SELECT dlock_acquire('turn', wait => '10 min', ttl => '1 h')");
		my $pid = $psql->backend;
		$node->poll_query_until('postgres', <<SQL) or die;
SELECT EXISTS (SELECT FROM dlock_waiters WHERE pid = $pid)
	OR EXISTS (SELECT FROM dlock_leases WHERE pid = $pid AND name = 'turn')
SQL
	}
	my ($second) = served($two, 30);
	my $took = clock() - $released;
	kill 'CONT', $one->backend;
	cmp_ok($second, '>', $token, 'a turn that is not claimed passes to the next');
	cmp_ok($took, '<', 15, 'within seconds');
	note(sprintf 'a turn passed after %.1f s', $took);

	# It kept its place: it comes before the third.
	is(value($node, "SELECT string_agg(pid::text, ' ' ORDER BY position) FROM dlock_waiters WHERE name = 'turn'"),
		$one->backend . ' ' . $three->backend, 'who was passed keeps his place');
	usleep(100_000);		# it runs again, and has looked
	$two->ask("SELECT dlock_release($second)");
	my ($first) = served($one, 30);
	cmp_ok($first, '>', $second, 'and claims his turn later');
	is($three->answered ? 'answered' : '', '', 'before the one behind him');
	$one->ask("SELECT dlock_release($first)");
	my ($third) = served($three, 30);
	cmp_ok($third, '>', $first, 'who comes then');
	$_->close for $one, $two, $three;
}

## Q1

# Some clients of pgbench, each of which goes through a script once.
sub start_pgbench
{
	my ($name, $clients, $script, @args) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir_short() . "/$name";
	my $out = '';

	append_to_file($file, $script);
	return {
		out => \$out,
		run => IPC::Run::start(
			[ 'pgbench', '-n', '-c', $clients, '-j', 2, '-t', 1, '-f', $file, @args, $node->connstr('postgres') ],
			'>', '/dev/null', '2>', \$out) };
}

# Of processes: how often they went to sleep, and how long they have run, in s.
sub sleeps_and_cpu
{
	my ($sleeps, $cpu) = (0, 0);

	for my $pid (@_)
	{
		$sleeps += $1 if slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s*(\d+)/m;
		$cpu += (split ' ', slurp_file("/proc/$pid/schedstat"))[0] / 1e9;
	}
	return ($sleeps, $cpu);
}

{
	my $token = hold('q1');

	# All end up at a gate, so that their backends can be looked at.
	$admin->ask('SELECT pg_advisory_lock(1)');
	my @bench = map { start_pgbench("q1 $_", $many / 2, <<SQL) } 1, 2;
SELECT dlock_acquire('q1', wait => '10 min') AS token \\gset
SELECT dlock_release(:token);
SELECT pg_advisory_lock_shared(1);
SQL
	my $asleep = <<SQL;
SELECT count(*) = $many FROM pg_stat_activity
WHERE state = 'active' AND wait_event_type = 'Extension' AND query LIKE '%q1%'
SQL
	$node->poll_query_until('postgres', $asleep) or die 'they do not wait';
	my @line = split / /, value($node,
		"SELECT string_agg(pid::text, ' ' ORDER BY position) FROM dlock_waiters WHERE name = 'q1'");
	is(scalar(@line), $many, "Q1: $many wait");

	# Waiting is cheap.
	my $since = clock();
	my ($sleeps, $cpu) = sleeps_and_cpu(@line);
	usleep(4_000_000);
	my ($sleeps2, $cpu2) = sleeps_and_cpu(@line);
	my $took = clock() - $since;
	note(sprintf 'Q1: %d idle waiters look %.1f times a second each and take %.0f %% of a core',
		$many, ($sleeps2 - $sleeps) / $many / $took, 100 * ($cpu2 - $cpu) / $took);
	cmp_ok(($cpu2 - $cpu) / $took, '<', $many / 4000, 'Q1: waiting takes little of the machine');

	$since = clock();
	($sleeps) = sleeps_and_cpu(@line);
	$admin->ask("SELECT dlock_release($token)");
	$node->poll_query_until('postgres', <<SQL) or die 'they do not all come through';
SELECT count(*) = $many FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND NOT granted
SQL
	$took = clock() - $since;
	($sleeps2) = sleeps_and_cpu(@line);
	$admin->ask('SELECT pg_advisory_unlock(1)');
	IPC::Run::finish($_->{run}) for @bench;
	is(join('', map { ${ $_->{out} } } @bench) =~ s/^pgbench: warning.*\n//mgr, '', 'Q1: no error');

	# Some sleeps are those of the commits, the answers and the gate, and each
	# one looks up every second; a herd would be awake $many / 2 times.
	my $each = ($sleeps2 - $sleeps) / $many;
	note(sprintf 'Q1: %d handed on in %.2f s, each slept %.1f times', $many, $took, $each);
	cmp_ok($each, '<', 25 + 2 * $took, 'Q1: each release wakes one');

	is(value($node, <<SQL), "@line", 'Q1: the order of grants is that of the line');
SELECT string_agg(substring(owner FROM '\\d+\$'), ' ' ORDER BY token)
FROM dlock_history WHERE name = 'q1' AND token > $token
SQL
	my ($first, $second) = split /\|/, value($node, <<SQL);
SELECT extract(epoch FROM at[$many / 2] - at[1]), extract(epoch FROM at[$many] - at[$many / 2])
FROM (SELECT array_agg(acquired_at ORDER BY token) AS at FROM dlock_history WHERE name = 'q1' AND token > $token) x
SQL
	note("Q1: the first half took $first s, the second $second s");
	cmp_ok($first, '<', 2 * $second + 2, 'Q1: with many in line, a release takes as long as with few');
	is(value($node, "SELECT count(*) FROM dlock_waiters"), 0, 'Q1: nobody waits any more');
}

## A ring of waits

# Each session holds a lock and waits for the next one's.  One of them has to give
# up, and then all the others are served.
value($node, <<'SQL');
CREATE TABLE ring (i int, token bigint, detail text);
CREATE PROCEDURE ring(i int, n int) LANGUAGE plpgsql AS $$
DECLARE
	s bigint := dlock_session_open(ttl => '1 h'); t bigint; why text;
BEGIN
	t := dlock_acquire('ring ' || i, session => s);
	COMMIT;
	PERFORM pg_advisory_lock_shared(1);
	COMMIT;
	BEGIN
		t := dlock_acquire('ring ' || (i + 1) % n, session => s, wait => '5 min');
	EXCEPTION WHEN deadlock_detected THEN
		GET STACKED DIAGNOSTICS why = PG_EXCEPTION_DETAIL;
		t := NULL;
	END;
	INSERT INTO ring VALUES (i, t, why);
	PERFORM dlock_session_close(s);
END $$;
SQL

{
	my $n = $ENV{DLOCK_LONG} ? 400 : 150;

	$admin->ask('SELECT pg_advisory_lock(1)');
	my @bench = map { start_pgbench("ring $_", $n / 2, "CALL ring(:base + :client_id, $n);",
			'-D', 'base=' . ($_ * $n / 2)) } 0, 1;
	$node->poll_query_until('postgres', <<SQL) or die 'they do not come to the gate';
SELECT count(*) = $n FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND NOT granted
SQL
	my $since = clock();
	$admin->ask('SELECT pg_advisory_unlock(1)');
	IPC::Run::finish($_->{run}) for @bench;
	note(sprintf 'a ring of %d waits took %.1f s', $n, clock() - $since);
	is(join('', map { ${ $_->{out} } } @bench), '', 'a ring of waits: no error');
	is(value($node, "SELECT count(*), count(token) FROM ring"), "$n|" . ($n - 1), "in a ring of $n, one gives up");
	my $detail = value($node, 'SELECT detail FROM ring WHERE token IS NULL LIMIT 1');
	is(scalar(() = $detail =~ /^Process \d+ waits for lock "ring \d+"; blocked by process \d+\.$/mg), $n,
		'and is told of all of it');
}

## A stop of the server

{
	my $token = hold('stop');
	my @bench = map { start_pgbench("stop $_", 20, $_ == 1 ?
		"SELECT dlock_acquire('stop', wait => '10 min');" : "CALL dlock_await('stop', wait => '10 min');") } 1, 2;

	until_waiting('stop', 40);
	continue_worker($worker);
	my $before = clock();
	$node->stop('fast');
	my $took = clock() - $before;
	IPC::Run::finish($_->{run}) for @bench;
	cmp_ok($took, '<', 20, 'the server stops though 40 wait');
	note(sprintf 'stopped in %.2f s', $took);
	ok(${ $_->{out} } =~ /terminating connection due to administrator command/, 'they are told') for @bench;
	$admin->close;

	$node->start;
	is(value($node, 'SELECT count(*) FROM dlock_waiters'), 0, 'nobody waits after it');
	is(value($node, "SELECT token, state FROM dlock_holders('stop')"), "$token|held", 'the lease is held on');
	is(value($node, "SELECT count(*) FROM dlock_history WHERE name = 'stop'"), 0, 'no one else was granted it');
}

is(value($node, 'SELECT * FROM dlock_verify()'), '', 'dlock_verify() finds nothing');

$node->stop;
done_testing();
