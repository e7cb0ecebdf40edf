# Handing on.
#
# 4 clients hand one lock around, 2,000 times (10,000 with DLOCK_LONG=1), with
# patience for 60 s: nobody hears NULL or an error, tokens rise strictly, no two
# leases overlap, and a stall is the machine's.  Then the same in all the ways
# in which a lock can pass from one to the next: in transaction blocks, in those
# that are rolled back, by savepoints, from sessions, between transactions; and
# by expiry alone.

use strict;
use warnings;

use Dlock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $clients = 4;
my $rounds = $ENV{DLOCK_LONG} ? 2500 : 500;
my $node = new_node('handoff');

value($node, <<'SQL');
-- What clients are told: the token, or 0 for busy.
CREATE UNLOGGED TABLE told (name text, token bigint, released boolean);
-- Who is in there now, by the clients' word; never two.
CREATE UNLOGGED TABLE inside (name text PRIMARY KEY, token bigint);
SQL

# Each client hands the lock on so many times.
sub hand_around
{
	my ($name, $times, %scripts) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $since = clock();

	$node->pgbench(
		"--no-vacuum --client=$clients --jobs=2 --transactions=$times -D name=$name",
		0, [ qr/number of transactions actually processed: @{[ $clients * $times ]}/ ],
		[qr/^$/], "$name: no error", \%scripts);
	return clock() - $since;
}

# What must be true of a lock that was handed around.
sub check
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(value($node, "SELECT count(*) FROM told WHERE name = '$name' AND token = 0"), 0, "$name: nobody heard NULL");
	is(value($node, "SELECT count(*) FROM told WHERE name = '$name' AND NOT released"), 0, "$name: nobody lost it");
	is(value($node, <<SQL), 't', "$name: one row of history for each that was told");
SELECT (SELECT array_agg(token ORDER BY token) FROM told WHERE name = '$name') =
	(SELECT array_agg(token ORDER BY token) FROM dlock_history WHERE name = '$name' AND outcome = 'released')
SQL
	is(value($node, <<SQL), 0, "$name: tokens rise strictly");
SELECT count(*) FROM (SELECT token, lag(token) OVER (ORDER BY acquired_at, ended_at) AS last
	FROM dlock_history WHERE name = '$name') x
WHERE token <= last
SQL
	is(value($node, <<SQL), 0, "$name: no two leases overlap");
SELECT count(*) FROM (SELECT acquired_at, ended_at, lag(ended_at) OVER (ORDER BY token) AS last_ended_at
	FROM dlock_history WHERE name = '$name') x
WHERE acquired_at < last_ended_at OR ended_at < acquired_at
SQL
	is(value($node, "SELECT count(*) FROM dlock_waiters"), 0, "$name: nobody waits any more");

	# From the end of one to the grant of the next, while somebody waited.
	my ($most, $median, $waited, $slow) = split /\|/, value($node, <<SQL);
SELECT max(stall), percentile_cont(0.5) WITHIN GROUP (ORDER BY stall), count(*), count(*) FILTER (WHERE stall > 700)
FROM (SELECT extract(epoch FROM acquired_at - lag(ended_at) OVER (ORDER BY token)) * 1000 AS stall, waited
	FROM dlock_history WHERE name = '$name') x
WHERE waited IS NOT NULL AND stall IS NOT NULL
SQL
	note(sprintf '%s: %d of the grants had been waited for; the longest stall was %.1f ms, the median %.2f ms',
		$name, $waited, $most, $median);
	cmp_ok($waited, '>', 100, "$name: it was a queue");
	return $slow;
}

## One lock, one way

my $took = hand_around('baton', $rounds, '021_handoff_plain' => <<'SQL');
SELECT coalesce(dlock_acquire(':name', wait => '60 s', ttl => '5 min'), 0) AS token \gset
INSERT INTO inside VALUES (':name', :token);
DELETE FROM inside WHERE name = ':name' AND token = :token;
SELECT dlock_release(:token) AS released \gset
INSERT INTO told VALUES (':name', :token, ':released');
SQL
note(sprintf '%d times in %.1f s', $clients * $rounds, $took);

# Whoever is not woken looks again after a second: that must not be how it goes on.
cmp_ok(check('baton'), '<=', 2, 'baton: all were woken');

# With nobody idle in between, each client has its turn: the line is fair.
is(value($node, <<SQL), $clients, 'baton: each client had its share');
SELECT count(*) FROM (SELECT owner FROM dlock_history WHERE name = 'baton'
	GROUP BY owner HAVING count(*) = $rounds) x
SQL

## In all ways

my %ways = (
	'021_handoff_result@2' => <<'SQL',
SELECT coalesce(dlock_acquire(':name', wait => '60 s', ttl => '5 min'), 0) AS token \gset
SELECT dlock_release(:token, 'done') AS released \gset
SQL
	# until the commit, the next ones wait for the transaction
	'021_handoff_block@2' => <<'SQL',
BEGIN;
SELECT coalesce(dlock_acquire(':name', wait => '60 s', ttl => '5 min'), 0) AS token \gset
INSERT INTO inside VALUES (':name', :token);
COMMIT;
BEGIN;
DELETE FROM inside WHERE name = ':name' AND token = :token;
SELECT dlock_release(:token) AS released \gset
SELECT 1;
COMMIT;
SQL
	# never was
	'021_handoff_rolled_back@1' => <<'SQL',
BEGIN;
SELECT coalesce(dlock_acquire(':name', wait => '60 s', ttl => '5 min'), 0) AS token \gset
ROLLBACK;
SELECT coalesce(dlock_acquire(':name', wait => '60 s', ttl => '5 min'), 0) AS token \gset
SELECT dlock_release(:token) AS released \gset
SQL
	# a release that is taken back, a grant that is taken back
	'021_handoff_savepoint@1' => <<'SQL',
BEGIN;
SAVEPOINT s;
SELECT dlock_acquire(':name', wait => '60 s', ttl => '5 min');
ROLLBACK TO s;
SELECT coalesce(dlock_acquire(':name', wait => '60 s', ttl => '5 min'), 0) AS token \gset
COMMIT;
BEGIN;
SELECT dlock_release(:token);
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT dlock_release(:token);
ROLLBACK TO s;
SELECT dlock_release(:token) AS released \gset
COMMIT;
SQL
	'021_handoff_await@2' => <<'SQL',
CALL dlock_await(':name', wait => '60 s', ttl => '5 min') \gset
SELECT dlock_release(:token) AS released \gset
SQL
	'021_handoff_session@1' => <<'SQL',
SELECT dlock_session_open(ttl => '5 min') AS session \gset
SELECT coalesce(dlock_acquire(':name', wait => '60 s', session => :session), 0) AS token \gset
SELECT dlock_session_heartbeat(:session);
SELECT dlock_session_close(:session) = 1 AS released \gset
SQL
	'021_handoff_all@1' => <<'SQL',
SELECT (dlock_acquire_all(ARRAY['other', ':name'], wait => '60 s', ttl => '5 min'))[2] AS token \gset
SELECT dlock_guard(:token);
SELECT dlock_release(:token) AS released \gset
SELECT dlock_release((SELECT token FROM dlock_holders('other')));
SQL
);
$_ .= "INSERT INTO told VALUES (':name', :token, ':released');\n" for values %ways;

$took = hand_around('mixed', $rounds / 2, %ways);
note(sprintf '%d times in %.1f s', $clients * $rounds / 2, $took);

cmp_ok(check('mixed'), '<=', 2, 'mixed: all were woken');

## By expiry

# Nobody releases anything: each lease has to run out, to the millisecond, for the
# next to come, while the worker is at work as well.
my $ttl = 25;
$took = hand_around('left', 50, '021_handoff_left' => <<SQL);
SELECT coalesce(dlock_acquire(':name', wait => '60 s', ttl => '$ttl ms'), 0) AS token \\gset
INSERT INTO told VALUES (':name', :token, NULL);
SQL
is(value($node, "SELECT count(*) FROM told WHERE name = 'left' AND token = 0"), 0, 'left: nobody heard NULL');
until_true('left: each lease ends', sub {
	value($node, "SELECT count(*) FROM dlock_leases WHERE name = 'left'") == 0 }, 60);
is(value($node, <<SQL), 't', 'left: one row of history for each that was told');
SELECT (SELECT array_agg(token ORDER BY token) FROM told WHERE name = 'left') =
	(SELECT array_agg(token ORDER BY token) FROM dlock_history WHERE name = 'left' AND outcome IN ('taken over', 'expired'))
SQL
{
	# The deadline counts from the commit, which is later than acquired_at.
	my ($early, $median, $most) = split /\|/, value($node, <<SQL);
SELECT count(*) FILTER (WHERE late < 0), percentile_cont(0.5) WITHIN GROUP (ORDER BY late), max(late)
FROM (SELECT extract(epoch FROM acquired_at - lag(acquired_at) OVER (ORDER BY token)) * 1000 - $ttl AS late
	FROM dlock_history WHERE name = 'left') x
SQL
	is($early, 0, 'left: no lease was taken before its time');
	cmp_ok($median, '<', 100, 'left: and most right after it');
	note(sprintf 'left: %d in %.1f s; late by %.1f ms in the median, %.1f ms at most', $clients * 50, $took, $median, $most);
}

is(value($node, 'SELECT count(*) FROM inside'), 0, 'nobody is inside');
is(value($node, "SELECT count(*) FROM dlock_history WHERE outcome <> 'released' AND name <> 'left'"), 0, 'no other lease was lost');
is(value($node, 'SELECT count(*) FROM dlock_leases'), 0, 'nothing is held');
is(value($node, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), 0, 'no tag is left');

is(value($node, 'SELECT * FROM dlock_verify()'), '', 'dlock_verify() finds nothing');

$node->stop;
done_testing();
