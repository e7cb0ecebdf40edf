# Takeover, and the wrong holder.
#
# S1 the holder is killed: the next acquire takes over right after the TTL, with
# the worker stopped; W1 a late release of an expired lease, W2 a release that is
# sent again, W4 a heartbeat of a released token: nothing of the next holder's is
# touched; L1 a holder is stopped within and outside a guard; L2 a heartbeat that failed on the way, L3 one whose reply was lost.
# Promises 4, 5, 6, 7, 10 and 11.

use strict;
use warnings;

use Dlock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_node('takeover');
my $worker = pause_worker($node);

# Ask for a lock until it is granted: the token, and when.
sub take
{
	my ($psql, $name, $ttl) = @_;
	my ($token, $asked);

	for my $i (1 .. 10_000)
	{
		$asked = clock();
		$token = $psql->ask("SELECT dlock_acquire('$name', ttl => '$ttl', owner => 'same')");
		return ($token, $asked, clock()) if $token ne '';
		usleep(1_000);
	}
	die "$name is never granted";
}

## S1

for my $how ('client killed', 'backend terminated', 'client gone in a transaction')
{
	my $late = 9;
	my $next = start_psql($node);

	# The best of some tries shows that the next one need not wait for
	# anything but the deadline; each one shows that it is not early.
	for my $try (1 .. 5)
	{
		my $holder = start_psql($node);
		my $before = clock();
		my ($token) = take($holder, "$how $try", '300 ms');
		my $after = clock();

		if ($how eq 'backend terminated')
		{
			value($node, 'SELECT pg_terminate_backend(' . $holder->backend . ')');
		}
		else
		{
			$holder->ask('BEGIN; SELECT 1') if $how eq 'client gone in a transaction';
			$holder->kill9;
		}
		my ($new, $asked, $granted) = take($next, "$how $try", '1 min');
		$holder->close;

		cmp_ok($granted - $before, '>=', 0.3, "$how: not early") if $granted - $before < 0.3 || $try == 1;
		cmp_ok($new, '>', $token, "$how: a higher token") if $new <= $token || $try == 1;
		$late = $granted - $after - 0.3 if $granted - $after - 0.3 < $late;
		is($next->ask(<<SQL), 'taken over|same|f|f|t', "$how: recorded, the old one is lost") if $try == 1;
SELECT outcome, owner, dlock_heartbeat($token), dlock_held($token), dlock_held($new)
FROM dlock_history WHERE token = $token
SQL
	}
	cmp_ok($late, '<', 0.25, "$how: taken over right after the TTL");
	$next->close;
}

# kill -9 of a backend restarts the server: the lease has its grace, then goes.
# This test stops the launcher again, so that only the acquire can take over.
{
	my $holder = start_psql($node);
	my ($token) = take($holder, 'backend killed', '2 s');

	continue_worker($worker);
	my $before = clock();
	kill 'KILL', $holder->backend;
	until_true('the server is back', sub {
		my ($rc, $out) = $node->psql('postgres', 'SELECT 1');
		defined $rc && $rc == 0 });
	$holder->close;
	$worker = pause_worker($node);

	my $next = start_psql($node);
	my ($new, $asked, $granted) = take($next, 'backend killed', '1 min');
	cmp_ok($granted - $before, '>=', 2, 'backend killed: one TTL of grace');
	is(value($node, "SELECT outcome FROM dlock_history WHERE token = $token"), 'taken over',
		'backend killed: taken over without the worker');
	$next->close;
}

## The view tells the truth without the worker (promise 7)

{
	my $token = value($node, "SELECT dlock_acquire('stale', ttl => '50 ms', owner => 'gone')");

	usleep(60_000);
	is(value($node, "SELECT state, owner FROM dlock_leases WHERE token = $token"), 'expired|gone',
		'dlock_leases says expired');
	is(value($node, "SELECT state FROM dlock_holders('stale') WHERE token = $token"), 'expired',
		'dlock_holders too');

	# A takeover that is rolled back never was: the lease stays what it was,
	# and is recorded once, by the takeover that commits.
	my $psql = start_psql($node);
	my $rolled = $psql->ask("BEGIN; SELECT dlock_acquire('stale')");
	cmp_ok($rolled, '>', $token, 'taken over in a transaction');
	is(value($node, "SELECT dlock_acquire('stale') IS NULL"), 't', 'which others see as held');
	is(value($node, "SELECT count(*) FROM dlock_history WHERE token = $token"), 0,
		'and as not recorded');
	$psql->ask('ROLLBACK');
	is(value($node, "SELECT count(*) FROM dlock_history WHERE name = 'stale'"), 0,
		'rolled back, nothing is recorded');
	is(value($node, "SELECT dlock_heartbeat($token), dlock_heartbeat($rolled)"), 'f|f',
		'and nobody holds it');
	is(value($node, "SELECT string_agg(state, ',') FROM dlock_leases WHERE name = 'stale'"), 'expired',
		'it is expired again');
	$psql->ask("BEGIN; SAVEPOINT s; SELECT dlock_acquire('stale'); ROLLBACK TO s; COMMIT");
	is(value($node, "SELECT count(*) FROM dlock_history WHERE name = 'stale'"), 0,
		'rolled back to a savepoint, the same');
	my $new = $psql->ask("SELECT dlock_acquire('stale')");
	cmp_ok($new, '>', $rolled, 'committed, it is taken over');
	is(value($node, "SELECT token, outcome FROM dlock_history WHERE name = 'stale'"),
		"$token|taken over", 'and recorded once');
	$psql->close;
}

## W1, W2, W4

{
	my $a = start_psql($node);
	my $b = start_psql($node);

	for my $role ('the same role', 'the same role and connection')
	{
		$b->close, $b = $a if $role eq 'the same role and connection';
		my ($old) = take($a, "w1 $role", '50 ms');
		my ($new) = take($b, "w1 $role", '1 min');

		is($a->ask("SELECT dlock_release($old), dlock_release($old, 'done'), dlock_heartbeat($old), dlock_set_ttl($old, '1 min')"),
			'f|f|f|f', "W1, $role: the late one can do nothing");
		is($a->ask("SELECT dlock_heartbeat_all(ARRAY[$old, $new])"), "{$old}", "W1, $role: one of two is lost");
		$a->fails("SELECT dlock_guard($old)", 'LK001', undef, "W1, $role: no guard");
		is($a->ask("SELECT dlock_revoke($old, 'late')"), 'f', "W1, $role: not even to be revoked");
		is(value($node, <<SQL), "$new|held|1|00:01:00|t", "W1, $role: the holder's lease is untouched");
SELECT token, state, heartbeats, ttl, dlock_held(token) FROM dlock_leases WHERE name = 'w1 $role'
SQL
		is(value($node, "SELECT token, outcome, result IS NULL FROM dlock_history WHERE name = 'w1 $role'"),
			"$old|taken over|t", "W1, $role: history says what happened");

		my ($first) = take($a, "w2 $role", '1 min');
		is($a->ask("SELECT dlock_release($first, 'done')"), 't', "W2, $role: released");
		is($a->ask("SELECT dlock_release($first, 'done')"), 'f', "W2, $role: a second release is late");
		my ($second) = take($b, "w2 $role", '1 min');
		is($a->ask("SELECT dlock_release($first, 'done')"), 'f', "W2, $role: also when another holds it");
		is(value($node, "SELECT token, state FROM dlock_leases WHERE name = 'w2 $role'"), "$second|held",
			"W2, $role: who is untouched");
		is(value($node, "SELECT token, outcome, result FROM dlock_history WHERE name = 'w2 $role'"),
			"$first|released|done", "W2, $role: one end");

		my ($token) = take($a, "w4 $role", '1 min');
		is($b->ask("SELECT dlock_release($token)"), 't', "W4, $role: released");
		is($a->ask("SELECT dlock_heartbeat($token), dlock_heartbeat_all(ARRAY[$token])"), "f|{$token}",
			"W4, $role: its heartbeat is false");
		is(value($node, "SELECT count(*) FROM dlock_leases WHERE name = 'w4 $role'"), 0,
			"W4, $role: no row comes back");
		is(value($node, "SELECT count(*) FROM dlock_holders('w4 $role')"), 0, "W4, $role: nor a holder");
		is(value($node, "SELECT count(*) FROM dlock_history WHERE name = 'w4 $role'"), 1,
			"W4, $role: and one row of history");
		is(value($node, "SELECT dlock_acquire('w4 $role') > $token"), 't', "W4, $role: free");
	}
	$a->close;
}

# A token that never was.
is(value($node, <<SQL), 'f|f|t|f', 'an unknown token is a lost one');
SELECT dlock_heartbeat(4711), dlock_held(4711), dlock_remaining(4711) IS NULL, dlock_release(4711)
SQL
is(value($node, <<SQL), 'f|f|t|f', 'so is NULL');
SELECT dlock_heartbeat(NULL), dlock_held(NULL), dlock_remaining(NULL) IS NULL, dlock_release(NULL)
SQL

## L2, L3

{
	my $holder = start_psql($node);
	my $before = clock();
	my ($token) = take($holder, 'l2', '3 s');

	# Killed in the transaction that was to heartbeat: nothing arrived.
	$holder->ask('BEGIN');
	$holder->kill9;
	is(value($node, "SELECT state, heartbeats FROM dlock_leases WHERE token = $token"), 'held|0',
		'L2: a heartbeat that did not arrive ends nothing');
	sleep_until($before + 1.5);
	is(value($node, "SELECT dlock_heartbeat($token)"), 't', 'L2: the next one renews');
	sleep_until($before + 3.3);
	is(value($node, "SELECT dlock_held($token)"), 't', 'L2: past the first deadline');

	# Killed after the server heard it, before the answer was read.
	$holder = start_psql($node);
	$before = clock();
	$holder->send("BEGIN; SELECT dlock_heartbeat($token), pg_sleep(60)");
	until_true('L3: heard', sub {
		value($node, "SELECT heartbeats FROM dlock_leases WHERE token = $token") == 2 });
	$holder->kill9;
	value($node, 'SELECT pg_terminate_backend(' . $holder->backend . ')');
	is(value($node, "SELECT dlock_remaining($token) > '1 s', dlock_heartbeat($token)"), 't|t',
		'L3: it counts, the token is the same, the next one works');
	is(value($node, "SELECT heartbeats, state FROM dlock_leases WHERE token = $token"), '3|held',
		'L3: counted');

	# Heartbeats need no commit and no right to write.
	$holder = start_psql($node);
	$before = clock();
	is($holder->ask("BEGIN; SELECT dlock_heartbeat($token); ROLLBACK"), 't', 'a heartbeat');
	is($holder->ask("BEGIN READ ONLY; SELECT dlock_heartbeat($token), dlock_held($token); COMMIT"), 't|t',
		'a heartbeat in a read-only transaction');
	is(value($node, "SELECT heartbeats FROM dlock_leases WHERE token = $token"), 5, 'both count');
	$holder->close;
}

## L1: a holder is stopped for longer than its TTL, and goes on

{
	my $holder = start_psql($node);
	my $other = start_psql($node);
	my ($token) = take($holder, 'l1', '300 ms');

	$holder->ask("CREATE TABLE work (by text); BEGIN; SELECT dlock_guard($token)");
	kill 'STOP', $holder->backend;
	sleep_until(clock() + 0.4);
	is($other->ask("SELECT dlock_acquire('l1') IS NULL"), 't', 'L1: a guarded lease is not granted to another');
	is($other->ask("SELECT state, guard_pids FROM dlock_leases WHERE token = $token"), 'expired|{' . $holder->backend . '}',
		'L1: the view says who guards it');
	kill 'CONT', $holder->backend;
	is($holder->ask("SELECT dlock_heartbeat($token)"), 'f', 'L1: it is lost all the same');
	$holder->ask("INSERT INTO work VALUES ('holder'); COMMIT");
	my $next = $other->ask("SELECT dlock_acquire('l1', ttl => '300 ms')");
	cmp_ok($next || 0, '>', $token, 'L1: granted when the guarded transaction has ended');
	$holder->fails("SELECT dlock_guard($token)", 'LK001', undef, 'L1: the old holder gets no guard any more');

	# Outside a guard.
	kill 'STOP', $other->backend;
	sleep_until(clock() + 0.4);
	like($holder->ask("SELECT dlock_acquire('l1', ttl => '1 min')"), qr/^\d+$/, 'L1: a stopped holder without a guard is overtaken');
	kill 'CONT', $other->backend;
	is($other->ask("SELECT dlock_heartbeat($next)"), 'f', 'L1: its heartbeat is false');
	$other->fails("BEGIN; SELECT dlock_guard($next); INSERT INTO work VALUES ('late'); COMMIT", 'LK001', undef,
		'L1: and its guard raises');
	$other->try('ROLLBACK');
	is($other->ask('SELECT string_agg(by, $$,$$) FROM work'), 'holder', 'L1: what it did late is not there');
	$holder->close;
	$other->close;
}

continue_worker($worker);

# Each lease that ended did so once, whoever ended it.
until_true('the worker ends what was left', sub {
	value($node, "SELECT count(*) FROM dlock_leases WHERE state = 'expired'") == 0 });
is(value($node, 'SELECT count(*) FROM (SELECT token FROM dlock_history GROUP BY token HAVING count(*) > 1) x'),
	0, 'one row of history each');

is(value($node, 'SELECT * FROM dlock_verify()'), '', 'dlock_verify finds nothing');

$node->stop;
done_testing();
