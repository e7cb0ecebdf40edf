# CALL dlock_await(): waits between transactions.
#
# Q6 a long wait holds back neither CREATE INDEX CONCURRENTLY nor vacuum; where
# it may be called, and the error where not; whose client is killed is granted
# nothing; what is lost to a timeout; isolation levels.

use strict;
use warnings;

use Dlock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_node('await', conf => 'autovacuum = off');
my $admin = start_psql($node);

value($node, 'CREATE TABLE t (i int)');

# A client that waits by a statement; asleep when this returns.
sub queue_up
{
	my ($sql, $first) = @_;
	my $psql = start_psql($node);
	my $pid = $psql->backend;

	$psql->ask($first) if $first;
	$psql->send($sql);
	$node->poll_query_until('postgres', <<SQL) or die "$pid does not wait: " . $psql->wait_answer . $psql->errors;
SELECT count(*) = 1 FROM dlock_waiters JOIN pg_stat_activity USING (pid)
WHERE pid = $pid AND wait_event_type IN ('Extension', 'Lock')
SQL
	return $psql;
}

sub await
{
	my ($name, $args) = @_;

	return "CALL dlock_await('$name', wait => '2 min', ttl => '1 h'" . ($args // '') . ')';
}

sub hold
{
	my ($name) = @_;

	return $admin->ask("SELECT dlock_acquire('$name', ttl => '1 h')");
}

# An answer within reason, and whether it was without an error.
sub answer
{
	my ($psql, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $answer = $psql->wait_answer;

	is($psql->errors =~ /ERROR|WARNING/ ? $psql->errors : '', '', "$what: no error");
	return $answer;
}

## What it gives

is(value($node, "CALL dlock_await('free')"), value($node, "SELECT token FROM dlock_holders('free')"),
	'a free lock: granted, and committed');
is(value($node, "CALL dlock_await('free')"), '', 'a lock that is held, without a wait: NULL');
{
	my $before = clock();
	is(value($node, "CALL dlock_await('free', wait => '300 ms')"), '', 'a wait that runs out: NULL');
	cmp_ok(clock() - $before, '>=', 0.3, 'not too early');
}
is(value($node, 'SELECT count(*) FROM dlock_waiters'), 0, 'nobody waits any more');

## Q6

# While somebody waits in this way, does nothing stand in the way of others?
sub holds_nothing_back
{
	my ($what, $psql, $vacuum) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $pid = $psql->backend;

	is(value($node, "SELECT backend_xmin IS NULL, backend_xid IS NULL FROM pg_stat_activity WHERE pid = $pid"), 't|t',
		"Q6, $what: no snapshot, no transaction id");
	is(value($node, "SELECT count(*) FROM pg_locks WHERE pid = $pid AND locktype = 'relation' AND relation = 't'::regclass"), 0,
		"Q6, $what: no lock on what it read before");

	my ($rc, $out, $err) = $node->psql('postgres', <<SQL);
SET statement_timeout = '60 s';
CREATE INDEX CONCURRENTLY i ON t (i);
SQL
	is("$rc$err", 0, "Q6, $what: CREATE INDEX CONCURRENTLY");
	value($node, 'DROP INDEX IF EXISTS i');

	# Rows that die during the wait can be removed during the wait.
	value($node, 'INSERT INTO t SELECT generate_series(1, 1000)');
	value($node, 'DELETE FROM t');
	($rc, $out, $err) = $node->psql('postgres', 'VACUUM (VERBOSE) t');
	like($err, qr/ 0 are dead but not yet removable/, "Q6, $what: vacuum") if $vacuum;
	is($psql->answered ? 'answered' : '', '', "Q6, $what: meanwhile it waits");
	return;
}

for my $case (
	[ 'at the top', await('q6') ],
	[ 'in a DO block', "DO \$\$ DECLARE t bigint; BEGIN PERFORM count(*) FROM t; " . await('q6', ', token => t') . "; RAISE NOTICE 'got %', t; END \$\$" ],
	[ 'in a procedure', 'CALL waits()' ],
	[ 'in a loop over a query', "DO \$\$ DECLARE t bigint; n int; BEGIN FOR n IN SELECT g FROM generate_series(1, 3) g LEFT JOIN t ON i = g LOOP " . await('q6', ', token => t') . "; RAISE NOTICE 'got %', t; PERFORM dlock_release(t); COMMIT; END LOOP; END \$\$" ],
	[ 'in serializable transactions', await('q6'), "SET default_transaction_isolation = serializable" ],
	[ 'in repeatable read transactions', await('q6'), "SET default_transaction_isolation = 'repeatable read'" ],
	[ 'with a session', await('q6', ", session => :session"), "SELECT dlock_session_open(ttl => '1 h') AS session \\gset" ])
{
	my ($what, $sql, $first) = @$case;

	value($node, <<SQL) if $what =~ /procedure/;
CREATE PROCEDURE waits(INOUT token bigint DEFAULT NULL) LANGUAGE plpgsql AS \$\$
BEGIN
	PERFORM count(*) FROM t;
	${\ await('q6', ', token => token')};
END \$\$
SQL
	my $token = hold('q6');
	my $psql = queue_up($sql, $first);
	holds_nothing_back($what, $psql, 1);

	# The lock changes hands under it: no snapshot of its is too old for that.
	value($node, "SELECT dlock_release($token)");
	my $answer = $psql->wait_answer;
	unlike($psql->errors, qr/ERROR|WARNING/, "Q6, $what: no error");
	my @tokens = ("$answer " . $psql->errors) =~ /(\d{10,})/g;
	my $next = $tokens[-1] // 0;
	cmp_ok($next, '>', $token, "Q6, $what: granted");
	is($psql->ask("SELECT dlock_held($next)"), $what =~ /loop/ ? 'f' : 't',
		"Q6, $what: and " . ($what =~ /loop/ ? 'released' : 'committed'));
	is($psql->ask("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'"), 0,
		"Q6, $what: no tag is left");
	$psql->ask("SELECT dlock_release($next)");
	is(value($node, "SELECT waited > '0 s', owner FROM dlock_history WHERE token > $token ORDER BY token LIMIT 1"),
		't|023_await.pl [local] ' . $psql->backend, "Q6, $what: history knows who has waited");
	$psql->close;
}

# The rival's grant is not committed: this wait is for its transaction, which
# itself holds back vacuum.
{
	my $rival = start_psql($node);

	$rival->ask("BEGIN; SELECT dlock_acquire('q6')");
	my $psql = queue_up(await('q6'));
	holds_nothing_back('for a transaction', $psql, 0);
	$rival->ask('ROLLBACK');
	cmp_ok(answer($psql, 'Q6, for a transaction'), '>', 0, 'Q6, for a transaction: granted when that has ended');
	$_->close for $psql, $rival;
	value($node, "SELECT dlock_release((SELECT token FROM dlock_holders('q6')))");
}

## Where not

my $here = '25001';
my $hint = 'Use dlock_acquire\(\)';

value($node, <<'SQL');
CREATE FUNCTION in_function() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE t bigint; BEGIN CALL dlock_await('where', token => t); RETURN t; END $$;
CREATE PROCEDURE with_setting() LANGUAGE plpgsql SET work_mem = '1MB' AS $$
DECLARE t bigint; BEGIN CALL dlock_await('where', token => t); END $$;
CREATE PROCEDURE with_handler(INOUT t bigint DEFAULT NULL) LANGUAGE plpgsql AS $$
BEGIN
	BEGIN
		CALL dlock_await('where', wait => '1 min', token => t);
	EXCEPTION WHEN division_by_zero THEN
		t := 0;
	END;
END $$;
SQL
for my $held ('', ' that is held')
{
	my $token = hold('where') if $held;

	for my $case (
		[ 'a transaction block', "BEGIN; CALL dlock_await('where')" ],
		[ 'a savepoint', "BEGIN; SAVEPOINT s; CALL dlock_await('where')" ],
		[ 'a function', 'SELECT in_function()' ],
		[ 'a DO block in a transaction block', "BEGIN; DO \$\$ DECLARE t bigint; BEGIN CALL dlock_await('where', token => t); END \$\$" ],
		[ 'a procedure with settings', 'CALL with_setting()' ],
		[ 'a block with an exception handler', 'CALL with_handler()' ],
		[ 'several statements at once', "SELECT 1\\; CALL dlock_await('where')" ])
	{
		my ($what, $sql) = @$case;
		my $psql = start_psql($node);

		$psql->fails($sql, $here, $hint, "not in $what, for a lock$held");
		$psql->close;
	}
	is(value($node, "SELECT token FROM dlock_holders('where')"), $token // '', "nothing was granted, of a lock$held");
	value($node, "SELECT dlock_release($token)") if $held;
}
{
	my $psql = start_psql($node);

	$psql->fails("SET default_transaction_read_only = on; CALL dlock_await('where')", '25006', undef, 'nor in read-only transactions');
	$psql->close;
}

## Waits that end otherwise

{
	my $token = hold('gone');
	my $one = queue_up(await('gone'));
	my $two = queue_up(await('gone'));

	# Killed, and the lock is released before its backend can have noticed.
	$one->kill9;
	value($node, "SELECT dlock_release($token)");
	my $next = answer($two, 'a killed client');
	cmp_ok($next, '>', $token, 'a killed client: the next one is served');
	until_true('a killed client: its backend goes', sub { !runs($one->backend) }, 60);
	is(value($node, <<SQL), 0, 'a killed client: it is granted nothing');
SELECT count(*) FROM (SELECT owner FROM dlock_history WHERE name = 'gone'
	UNION ALL SELECT owner FROM dlock_leases WHERE name = 'gone') x
WHERE owner LIKE '%${\$one->backend}'
SQL
	$two->close;
	value($node, "SELECT dlock_release($next)");
}

for my $case (
	[ 'pg_cancel_backend', '57014', undef, sub { value($node, 'SELECT pg_cancel_backend(' . $_[0]->backend . ')') } ],
	[ 'statement_timeout', '57014', "SET statement_timeout = '1200 ms'", sub { } ],
	[ 'lock_timeout', '55P03', "SET lock_timeout = '1200 ms'", sub { } ])
{
	my ($how, $sqlstate, $first, $end) = @$case;
	my $token = hold("end $how");
	my $psql = queue_up(await("end $how"), $first);

	$end->($psql);
	$psql->wait_answer;
	ok($psql->errors =~ /ERROR:  $sqlstate:/, "$how ends it") || diag($psql->errors);
	is(value($node, 'SELECT count(*) FROM dlock_waiters'), 0, "$how: nobody waits any more");
	value($node, "SELECT dlock_release($token)");
	is($psql->ask("RESET statement_timeout; RESET lock_timeout; SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'"),
		0, "$how: no tag is left");
	my $next = $psql->ask(await("end $how"));
	cmp_ok($next, '>', $token, "$how: and the connection can go on");
	is($psql->ask("BEGIN; SELECT dlock_guard($next); COMMIT"), $next, "$how: with transactions");
	$psql->close;
}

{
	# Its session ends while it waits.
	my $session = value($node, "SELECT dlock_session_open(ttl => '1 h')");
	my $token = hold('orphan');
	my $psql = queue_up(await('orphan', ", session => $session"));

	value($node, "SELECT dlock_session_close($session)");
	value($node, "SELECT dlock_release($token)");
	$psql->wait_answer;
	ok($psql->errors =~ /ERROR:  LK001:/, 'a session that ended meanwhile is granted nothing') || diag($psql->errors);
	is(value($node, "SELECT count(*) FROM dlock_holders('orphan')"), 0, 'nothing is held');

	# It waits for itself.
	$session = $psql->ask("SELECT dlock_session_open(ttl => '1 h')");
	$psql->ask("SELECT dlock_acquire('orphan', session => $session)");
	$psql->fails(await('orphan', ", session => $session"), '40P01', undef, 'who waits for himself is told at once');
	is($psql->ask(await('orphan', ", session => $session, retry => true")), value($node, "SELECT token FROM dlock_holders('orphan')"),
		'retry works here too');
	$psql->close;
}

# Nothing that the server has to warn about: snapshots, references, transactions.
is(join("\n", log_lines($node, 0, qr/WARNING|PANIC|TRAP|leak/)), '', 'the log has no warning');
is(value($node, 'SELECT count(*) FROM dlock_waiters'), 0, 'nobody waits');

is(value($node, 'SELECT * FROM dlock_verify()'), '', 'dlock_verify() finds nothing');

$admin->close;
$node->stop;
done_testing();
