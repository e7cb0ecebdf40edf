# Guards against what happens to processes.
#
# L1 the holder is stopped (SIGSTOP) for longer than its TTL in the middle of a
# guarded transaction, and continued: nobody was granted the lock before that
# transaction ended, and then it is lost; outside of a guard others go on, and
# the holder is told.  Promises 3 and 4 by kill -9 of the server between grant
# and use, again and again: DLOCK_LONG=1 does it 200 times.

use strict;
use warnings;

use Dlock;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

# What is not flushed by its own commit is lost by a kill.
my $node = new_node('guard', conf => <<CONF);
wal_writer_delay = 10s
wal_writer_flush_after = 1GB
bgwriter_delay = 10s
bgwriter_lru_maxpages = 0
autovacuum = off
checkpoint_timeout = 1h
CONF

value($node, <<'SQL');
CREATE TABLE fence (name text PRIMARY KEY, n int DEFAULT 0, token bigint DEFAULT 0);
INSERT INTO fence VALUES ('L1'), ('crash');
CREATE TABLE done (token bigint, at timestamptz);
CREATE TABLE protected (token bigint);
SELECT dlock_protect('protected', 'L1');
SQL

## L1

my $ttl = 1;

# The holder, in a guarded transaction that has written already.
sub holder
{
	my $psql = start_psql($node);
	my $token = $psql->ask("SELECT dlock_acquire('L1', ttl => '$ttl s', wait => '1 min')");

	$psql->ask("BEGIN; SELECT dlock_heartbeat($token), dlock_guard($token) = $token");
	$psql->ask("UPDATE fence SET n = n + 1, token = $token WHERE name = 'L1'; INSERT INTO protected VALUES ($token)");
	return ($psql, $token);
}

# Ask for the lock all the time, for longer than the TTL: how often it was busy,
# and how often not.
sub others
{
	my ($busy, $granted) = (0, 0);
	my $end = clock() + 3 * $ttl;

	while (clock() < $end)
	{
		my $token = value($node, "SELECT dlock_acquire('L1')");

		$token eq '' ? $busy++ : $granted++;
		value($node, "SELECT dlock_release($token)") if $token ne '';
		usleep(20_000);
	}
	return ($busy, $granted);
}

# It is lost, however it tries.
sub lost
{
	my ($psql, $token, $what) = @_;

	is($psql->ask("SELECT dlock_heartbeat($token), dlock_held($token), dlock_release($token)"), 'f|f|f',
		"L1, $what: then its heartbeat is false");
	$psql->ask('BEGIN');
	$psql->fails("SELECT dlock_guard($token)", 'LK001', '.*acquire', "L1, $what: and its guard raises LK001");
	$psql->ask('ROLLBACK; BEGIN');
	$psql->fails("INSERT INTO protected VALUES ($token)", 'LK002', '.*dlock_guard',
		"L1, $what: and a protected table refuses it");
	$psql->ask('ROLLBACK');
	return;
}

for my $what ('client stopped', 'server process stopped', 'stopped in a statement')
{
	my ($psql, $token) = holder();
	my $waiter = start_psql($node);
	my $n = value($node, "SELECT n FROM fence WHERE name = 'L1'");
	my $end = "INSERT INTO done VALUES ($token, clock_timestamp()); COMMIT; SELECT 'committed'";

	if ($what eq 'client stopped')
	{
		$psql->{run}->signal('STOP');
	}
	else
	{
		if ($what eq 'stopped in a statement')
		{
			$psql->send("SELECT pg_sleep(0.5) \\g /dev/null\n$end");
			$node->poll_query_until('postgres',
				"SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = " . $psql->backend)
			  or die 'it does not sleep';
		}
		kill 'STOP', $psql->backend;
	}
	my $stopped = clock();
	$waiter->send("SELECT dlock_acquire('L1', ttl => '1 min', wait => '5 min')");

	my ($busy, $granted) = others();
	is($granted, 0, "L1, $what: nobody was granted the lock meanwhile");
	cmp_ok($busy, '>', 3, "L1, $what: though many asked");
	ok(!$waiter->answered, "L1, $what: nor was who waited");
	is(value($node, <<SQL), 'expired|t|f|t', "L1, $what: it is dead, and shown who keeps it");
SELECT state, guard_pids = ARRAY[@{[$psql->backend]}], dlock_held($token),
	(SELECT blocked_by @> ARRAY[@{[$psql->backend]}] FROM dlock_waiters WHERE name = 'L1')
FROM dlock_leases WHERE token = $token
SQL
	is(value($node, "SELECT count(*) FROM dlock_history WHERE token = $token"), 0, "L1, $what: and not over");
	cmp_ok(clock() - $stopped, '>', 2 * $ttl, "L1, $what: that was longer than the TTL");

	if ($what eq 'client stopped')
	{
		$psql->{run}->signal('CONT');
		is($psql->ask($end), 'committed', "L1, $what: continued, it ends its work");
	}
	else
	{
		kill 'CONT', $psql->backend;
		$psql->send($end) if $what ne 'stopped in a statement';
		is($psql->wait_answer, 'committed', "L1, $what: continued, it ends its work");
	}

	my $next = $waiter->wait_answer;
	cmp_ok($next || 0, '>', $token, "L1, $what: now the next one is granted the lock");
	is($waiter->ask("SELECT n, token FROM fence WHERE name = 'L1'"), ($n + 1) . "|$token",
		"L1, $what: and sees that work");
	is(value($node, <<SQL), 't', "L1, $what: it was granted after the last statement of that transaction");
SELECT l.acquired_at > d.at FROM dlock_holders('L1') l, done d WHERE l.token = $next AND d.token = $token
SQL
	lost($psql, $token, $what);
	is($waiter->ask("SELECT dlock_release($next)"), 't', "L1, $what: the next one holds it all the time");
	$_->close for $psql, $waiter;
}

# Outside of a guard, in a transaction and out of one.
for my $what ('no transaction', 'no guard')
{
	my $psql = start_psql($node);
	my $waiter = start_psql($node);
	my $token = $psql->ask("SELECT dlock_acquire('L1', ttl => '$ttl s', wait => '1 min')");

	$psql->ask("BEGIN; SELECT count(*) FROM fence") if $what eq 'no guard';
	my $before = clock();
	is($psql->ask("SELECT dlock_heartbeat($token)"), 't', "L1, $what: it holds the lock");
	$psql->{run}->signal('STOP');
	my $next = $waiter->ask("SELECT dlock_acquire('L1', ttl => '1 min', wait => '5 min')");
	cmp_ok(clock() - $before, '>=', $ttl, "L1, $what: others go on, when its time is up");
	cmp_ok($next || 0, '>', $token, "L1, $what: with a higher token");
	$psql->{run}->signal('CONT');
	is($psql->ask("SELECT dlock_heartbeat($token), dlock_held($token)"), 'f|f', "L1, $what: its next heartbeat is false");
	$psql->fails("SELECT dlock_guard($token)", 'LK001', '.*acquire', "L1, $what: its guard raises LK001");
	$psql->ask('ROLLBACK') if $what eq 'no guard';
	lost($psql, $token, $what);
	is($waiter->ask("SELECT dlock_release($next)"), 't', "L1, $what: the next one is not disturbed");
	$_->close for $psql, $waiter;
}

## Promises 3 and 4 by kill -9

# Clients that take the same lock one after the other, and do guarded work; each
# says what it was answered.  The commit of a grant is as careless as can be,
# that of the work is not.  Some are too slow for their lease.
value($node, <<'SQL');
CREATE TABLE work (token bigint PRIMARY KEY, before bigint, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE control (k int);
CREATE FUNCTION attempt(t bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	last bigint;
BEGIN
	PERFORM dlock_guard(t);
	UPDATE fence f SET n = f.n + 1, token = t FROM fence o WHERE f.name = 'crash' AND o.name = 'crash' RETURNING o.token INTO last;
	PERFORM pg_sleep(random() * 0.02);
	INSERT INTO work VALUES (t, last);
	RETURN 'worked';
EXCEPTION WHEN SQLSTATE 'LK001' THEN
	RETURN 'lost';
END $$;
SQL

my $script = PostgreSQL::Test::Utils::tempdir() . '/client.sql';
append_to_file($script, <<'SQL' x 200);
SELECT CASE WHEN random() < 0.5 THEN '20 ms' ELSE '1 hour' END AS ttl \gset
SET synchronous_commit = off;
SELECT dlock_acquire('crash', ttl => :'ttl', wait => '10 min') AS token \gset got_
\echo granted :got_token
RESET synchronous_commit;
SELECT pg_sleep(random() * 0.03) \g /dev/null
SELECT attempt(:got_token) AS attempt \gset
\echo :attempt :got_token
SELECT dlock_release(:got_token, 'done') AS released \gset
\echo released :got_token :released
SQL

my $rounds = $ENV{DLOCK_LONG} ? 200 : 20;
my $began = clock();
my %seen = map { $_ => 0 } qw(granted worked lost released unused in_use);
my ($highest, $lost_controls, $n) = (0, 0, 0);
my @failed;

# Note that something is wrong, without a line for each thing that is not.
sub expect
{
	my ($round, $good, $what) = @_;

	push @failed, "round $round: $what" unless $good;
	return;
}

for my $round (1 .. $rounds)
{
	my (@clients, %granted, %worked, %released);

	for my $i (1 .. 4)
	{
		my $client = { out => '', err => '' };

		$client->{run} = IPC::Run::start(
			[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-f', $script ],
			'<', \undef, '>', \$client->{out}, '2>', \$client->{err});
		push @clients, $client;
	}
	my $enough = 2 + int(rand(12));
	my $end = clock() + 60;
	while (grep({ () = $_->{out} =~ /^granted/gm } @clients) < 1
		|| (() = join('', map { $_->{out} } @clients) =~ /^granted/gm) < $enough)
	{
		die 'the clients do not come forward: ' . join('', map { $_->{err} } @clients) if clock() > $end;
		$_->{run}->pumpable && $_->{run}->pump_nb for @clients;
		usleep(1_000);
	}
	usleep(int(rand(20_000)));

	# In every other round they are quiet in the end, so that nobody else flushes
	# the last grant of all.
	if ($round % 2)
	{
		$_->{run}->signal('STOP') for @clients;
		$node->poll_query_until('postgres', <<SQL) or die 'they stay busy';
SELECT count(*) = 0 FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND state <> 'idle' AND wait_event_type IS DISTINCT FROM 'Extension'
SQL
	}
	my $last = value($node, <<SQL);
SET synchronous_commit = off; SELECT dlock_acquire('last $round', ttl => '1 hour'); INSERT INTO control VALUES ($round)
SQL
	kill_server($node);
	$_->{run}->signal('CONT') for @clients;
	for my $client (@clients)
	{
		eval { $client->{run}->finish };
		expect($round, $client->{err} !~ /ERROR/, "an error: $client->{err}");
		$granted{$1} = 1 while $client->{out} =~ /^granted (\d+)$/gm;
		$worked{$1} = 1 while $client->{out} =~ /^worked (\d+)$/gm;
		$released{$1} = $2 while $client->{out} =~ /^released (\d+) ([tf])$/gm;
		$seen{lost}++ while $client->{out} =~ /^lost /gm;
	}
	$node->start;

	# Before any time can have passed: what there is of each token.
	my ($held, $over, $state);
	{
		my $psql = start_psql($node);
		my $answer = $psql->ask(<<SQL);
SELECT 'held ' || coalesce(string_agg(token::text, ' '), '') FROM dlock.lease WHERE ended_at IS NULL AND name = 'crash';
SELECT 'over ' || coalesce(string_agg(token || '=' || outcome, ' '), '') FROM dlock.history WHERE name = 'crash';
SELECT 'work ' || coalesce(string_agg(token::text, ' '), '') FROM work;
SELECT 'control ' || count(*) FROM control WHERE k = $round;
SELECT 'state ' || coalesce(string_agg(state, ' '), '') FROM dlock_leases WHERE name = 'crash' AND state IN ('held', 'pending');
SELECT 'verify ' || count(*) FROM dlock_verify()
SQL
		my %held = map { $_ => 1 } split ' ', ($answer =~ /^held (.*)$/m)[0];
		my %over = map { split /=/, $_, 2 } split ' ', ($answer =~ /^over ([^\n]*)$/m)[0] =~ s/taken over/taken_over/gr;
		my %work = map { $_ => 1 } split ' ', ($answer =~ /^work (.*)$/m)[0];

		$lost_controls++ if $answer =~ /^control 0$/m;
		expect($round, $answer =~ /^verify 0$/m, "dlock_verify: $answer");
		expect($round, $psql->try("SELECT dlock_heartbeat($last), dlock_guard($last) = $last") eq 't|t', "promise 3: the last grant $last");
		expect($round, $psql->ask("SELECT dlock_acquire('last $round') IS NULL") eq 't', "promise 1: the last grant $last");
		$highest = $last if $last > $highest;
		expect($round, keys %held <= 1, "held by many: " . join(' ', keys %held));
		for my $token (keys %granted)
		{
			expect($round, $held{$token} || $over{$token}, "promise 3: grant $token is lost");
			$highest = $token if $token > $highest;
			$seen{granted}++;
		}
		for my $token (keys %worked)
		{
			expect($round, $work{$token}, "the work of $token is lost");
			$seen{worked}++;
		}
		for my $token (keys %released)
		{
			# One that had expired may be back, when that was not recorded yet.
			next unless $released{$token} eq 't';
			expect($round, !$held{$token}, "promise 5: $token is revived");
			expect($round, ($over{$token} // '') eq 'released', "$token was released: " . ($over{$token} // 'none'));
			$seen{released}++;
		}
		for my $token (keys %held)
		{
			$work{$token} ? $seen{in_use}++ : $seen{unused}++;
			# What is held can be used: it has its grace, and nobody else gets it.
			next unless $psql->ask("SELECT ttl > '1 min' FROM dlock.lease WHERE token = $token") eq 't';
			expect($round, $psql->ask("SELECT dlock_acquire('crash') IS NULL") eq 't', "promise 1: $token is held");
			expect($round, $psql->ask("SELECT dlock_heartbeat($token)") eq 't', "promise 3: heartbeat of $token");
			expect($round, $psql->ask("SELECT attempt($token)") eq 'worked', "promise 3: guard of $token")
			  unless $work{$token};
			expect($round, $psql->ask("SELECT dlock_release($token, 'after the crash')") eq 't', "release of $token");
		}
		my $next = $psql->ask("SELECT dlock_acquire('crash', wait => '1 min')");
		expect($round, $next > $highest, "promise 2: $next after $highest");
		$highest = $next;
		$psql->ask("SELECT dlock_release($next)");
		$psql->close;
	}
}

is(scalar(@failed), 0, "kill -9 between grant and use, $rounds times") || diag(join "\n", @failed);
is(value($node, 'SELECT count(*) FROM work WHERE before >= token'), 0,
	'promise 4: no guarded work came after that of a later holder');
is(value($node, "SELECT n = (SELECT count(*) FROM work) FROM fence WHERE name = 'crash'"), 't',
	'all of each guarded transaction is there, or nothing');
is(value($node, <<SQL), 0, 'promise 4: none was done after the next grant');
SELECT count(*) FROM work w WHERE EXISTS (
	SELECT FROM dlock_history h WHERE h.name = 'crash' AND h.token > w.token AND h.acquired_at < w.at)
SQL
is(value($node, 'SELECT count(*) FROM (SELECT FROM dlock.history GROUP BY token HAVING count(*) > 1) h'), 0,
	'promise 10: no lease ended twice');
cmp_ok($lost_controls, '>=', $rounds / 3, "the kills came early enough: $lost_controls asynchronous commits were lost");
cmp_ok($seen{$_}, '>', 0, "there were some that were $_: $seen{$_}") for qw(granted worked lost released);
cmp_ok($seen{unused} + $seen{in_use}, '>', $rounds / 10, "held over the crash: $seen{unused} before their use, $seen{in_use} after it");
note(sprintf('%d kills took %.0f s', $rounds, clock() - $began));

ok(!log_lines($node, 0, qr/PANIC|TRAP|terminated by signal (?!9)/), 'nothing crashed by itself');
$node->stop;
done_testing();
