# The worker.
#
# S2 launcher and reapers are killed or meet errors: they come back, the log
# stays short, nobody is blocked; what a crash left is adopted and ended in all
# databases without any call; DROP DATABASE, CREATE DATABASE ... TEMPLATE, DROP
# and CREATE EXTENSION in a running server; a fast stop; hostile settings of
# databases and roles; retention (S4: names that are used once); max_leases.
# Promises 2 and 7.

use strict;
use warnings;

use Dlock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_node('worker', conf => <<CONF);
dlock.worker_naptime = 1s
dlock.max_leases = 30000
autovacuum = off
CONF

my @databases = qw(postgres one two);

for my $db (qw(one two))
{
	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql($db, 'CREATE EXTENSION dlock');
}

# The table and not the view: a call from here would do the worker's work.
sub recorded
{
	my ($db, $name, $outcome) = @_;

	return value($node, "SELECT count(*) FROM dlock.history WHERE name = '$name' AND outcome = '$outcome'", $db);
}

sub ends
{
	my ($what, $db, $name, $limit) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return until_true("$what: the worker ends it in $db", sub { recorded($db, $name, 'expired') > 0 }, $limit || 60);
}

## What a crash left, in all databases

for my $db (@databases)
{
	value($node, "SELECT dlock_acquire('left', ttl => '1 s')", $db);
}
crash($node);
ends('after a crash', $_, 'left') for @databases;
is(value($node, "SELECT count(*) FROM dlock_databases WHERE adopted AND database IN ('postgres', 'one', 'two')"),
	3, 'all databases are adopted');

# Names that are not used again do not keep anybody busy: the next deadline
# is met from sleep.
value($node, "SELECT dlock_acquire('sleeper', ttl => '300 ms')", 'one');
ends('after a nap', 'one', 'sleeper');

## S2: killed

for my $how ('terminated', 'killed')
{
	my $pid = worker_pid($node);

	if ($how eq 'terminated')
	{
		is(value($node, "SELECT pg_terminate_backend($pid)"), 't', "launcher $how");
	}
	else
	{
		value($node, "SELECT dlock_acquire('held $how', ttl => '2 s')", 'two');
		ok(kill('KILL', $pid), "launcher $how");
	}
	until_true("launcher $how: another one comes", sub {
		my ($rc, $out) = $node->psql('postgres',
			"SELECT pid FROM pg_stat_activity WHERE backend_type = 'dlock launcher' AND pid <> $pid");
		defined $rc && $rc == 0 && $out =~ /^\d+$/ });
	value($node, "SELECT dlock_acquire('launcher $how', ttl => '100 ms')", 'one');
	ends("launcher $how", 'one', "launcher $how");
	ends("launcher $how", 'two', "held $how") if $how eq 'killed';
}

# A reaper is caught at work: it waits for a catalog.
for my $how ('terminated', 'killed')
{
	my $locker = start_psql($node, 'one');
	my $reaper;

	value($node, "SELECT dlock_acquire('reaper $how', ttl => '100 ms')", 'one');
	$locker->ask('BEGIN; LOCK TABLE pg_extension');
	until_true("reaper $how: it waits", sub {
		$reaper = value($node, <<SQL) });
SELECT pid FROM pg_stat_activity
WHERE backend_type = 'dlock reaper' AND datname = 'one' AND wait_event_type = 'Lock'
SQL
	# Meanwhile the other databases are served.
	value($node, "SELECT dlock_acquire('meanwhile $how', ttl => '100 ms')", 'two');
	ends("a reaper waits in one", 'two', "meanwhile $how");

	if ($how eq 'terminated')
	{
		is(value($node, "SELECT pg_terminate_backend($reaper)"), 't', "reaper $how");
	}
	else
	{
		ok(kill('KILL', $reaper), "reaper $how");
	}
	until_true("reaper $how: it is gone", sub { !runs($reaper) });
	$locker->close;
	until_true("reaper $how: the server is there", sub {
		my ($rc, $out) = $node->psql('postgres', 'SELECT 1');
		defined $rc && $rc == 0 });
	ends("reaper $how", 'one', "reaper $how");
}

## S2: errors

{
	my $offset = -s $node->logfile;
	my $before = clock();

	# An index of somebody's own refuses what the worker has to record.
	value($node, "SELECT dlock_release(dlock_acquire('error'))", 'two');
	$node->safe_psql('two', 'CREATE UNIQUE INDEX refuses ON dlock.history (name) WHERE name ~ \'^error\'');
	value($node, "SELECT dlock_acquire('error', ttl => '100 ms')", 'two');
	until_true('an error: dlock_databases tells it', sub {
		value($node, "SELECT worker_last_error ~ 'refuses' AND worker_last_error_at > now() - interval '1 min' FROM dlock_databases WHERE database = 'two'") eq 't' });
	# It keeps failing; the others are served.
	for my $i (1 .. 5)
	{
		value($node, "SELECT dlock_acquire('error elsewhere $i', ttl => '100 ms')", 'one');
		ends('an error in two', 'one', "error elsewhere $i", 30);
		usleep(500_000);
	}
	is(value($node, "SELECT worker_last_error IS NULL FROM dlock_databases WHERE database = 'one'"), 't',
		'an error: not told of others');

	my @lines = log_lines($node, $offset, qr/ERROR|FATAL|WARNING/);
	cmp_ok(scalar(@lines), '<', 3, sprintf('an error: the log is short (%d lines in %.1f s)', scalar(@lines), clock() - $before));
	ok(@lines > 0, 'an error: but it is there');

	$node->safe_psql('two', 'DROP INDEX dlock.refuses');
	ends('an error that is over', 'two', 'error');
	until_true('an error that is over: dlock_databases tells when it last ran', sub {
		value($node, "SELECT worker_last_run >= worker_last_error_at FROM dlock_databases WHERE database = 'two'") eq 't' });
}

# Nobody else's index must break anything.
for my $index ('(lower(name), ended_at)', "(name) WHERE outcome = 'taken over'", 'USING hash (token)')
{
	$node->safe_psql('two', "CREATE INDEX own ON dlock.history $index");
	my ($rc, $out, $err) = $node->psql('two', "SELECT dlock_release(dlock_acquire('own index'), 'done')");
	is($out, 't', "an index on history $index: it works") || diag($err);
	$node->poll_query_until('two', 'SELECT true') or die 'the server does not come back';
	is(value($node, "SET enable_seqscan = off; SELECT count(*) FROM dlock.history WHERE outcome = 'taken over'", 'two'),
		value($node, "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off; SELECT count(*) FROM dlock.history WHERE outcome = 'taken over'", 'two'),
		"an index on history $index: and tells the truth");
	$node->safe_psql('two', 'DROP INDEX dlock.own');
}

# A table that is away for a while.  Calls fail, and no lease is lost for it.
{
	my $token = value($node, "SELECT dlock_acquire('kept', ttl => '1 h')", 'two');

	value($node, "SELECT dlock_acquire('missed', ttl => '100 ms')", 'two');
	$node->safe_psql('two', 'ALTER TABLE dlock.history RENAME TO gone');
	fails($node, "SELECT dlock_acquire('kept')", '55000', undef, 'a missing table: an error, not busy', 'two');
	value($node, "SELECT dlock_acquire('beside', ttl => '100 ms')", 'one');
	ends('a missing table', 'one', 'beside', 30);
	sleep_until(clock() + 1.5);		# the longest sleep of the launcher is over
	$node->safe_psql('two', 'ALTER TABLE dlock.gone RENAME TO history');
	is(value($node, "SELECT dlock_heartbeat($token), dlock_acquire('kept') IS NULL", 'two'), 't|t',
		'a table that is back: the lease is still held');
	ends('a table that is back', 'two', 'missed');
}

# The worker waits for no lock of ours, since others would wait behind it.
{
	my $locker = start_psql($node, 'one');

	value($node, "SELECT dlock_acquire('behind', ttl => '300 ms')", 'one');
	$locker->ask('BEGIN; LOCK TABLE dlock.lease, dlock.history IN SHARE MODE');
	my $waits = 0;
	my $end = clock() + 1.5;
	while (clock() < $end)
	{
		$waits += value($node, "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity USING (pid) WHERE backend_type = 'dlock reaper' AND NOT granted");
		usleep(10_000);
	}
	is($waits, 0, 'the worker does not queue for a table');
	is(recorded('one', 'behind', 'expired'), 0, 'which it could not write');
	$locker->ask('COMMIT');
	ends('a table that was locked', 'one', 'behind');
	$locker->close;
}

## DROP DATABASE, with leases that live, and that end right now

for my $i (1 .. 4)
{
	$node->safe_psql('postgres', 'CREATE DATABASE dropped');
	$node->safe_psql('dropped', 'CREATE EXTENSION dlock');
	value($node, "SELECT count(dlock_acquire('live ' || n)) FROM generate_series(1, 100) n", 'dropped');
	value($node, "SELECT count(dlock_acquire('short ' || n, ttl => n * interval '10 ms' + '10 ms')) FROM generate_series(1, 60) n",
		'dropped');
	usleep(50_000 * $i);
	my ($rc, $out, $err) = $node->psql('postgres', 'DROP DATABASE dropped');
	is($rc, 0, "DROP DATABASE with leases, try $i") || diag($err);
}
until_true('a dropped database is forgotten', sub {
	value($node, "SELECT count(*) FROM dlock_databases WHERE database IS NULL OR database = 'dropped'") == 0 });
value($node, "SELECT dlock_acquire('after drop', ttl => '100 ms')", 'one');
ends('after DROP DATABASE', 'one', 'after drop');

## CREATE DATABASE ... TEMPLATE

{
	my $token = value($node, "SELECT dlock_acquire('copied', ttl => '1 s')", 'two');
	my $long = value($node, "SELECT dlock_acquire('copied long', ttl => '1 h')", 'two');

	for my $try (1 .. 3)
	{
		value($node, "SELECT count(dlock_acquire('busy ' || n, ttl => '20 ms')) FROM generate_series(1, 20) n", 'two');
		my ($rc, $out, $err) = $node->psql('postgres', "CREATE DATABASE copy_$try TEMPLATE two");
		is($rc, 0, "CREATE DATABASE TEMPLATE, try $try") || diag($err);
	}
	my $highest = value($node, "SELECT dlock_acquire('after copy')", 'two');
	# Nobody has called dlock in the copy yet; its lease has a grace there.
	is(value($node, "SELECT dlock_held($long), dlock_acquire('copied long') IS NULL", 'copy_1'), 't|t',
		'a copy has the leases');
	cmp_ok(value($node, "SELECT dlock_acquire('in the copy')", 'copy_1'), '>', $highest,
		'its tokens are higher than those of the original');
	ends('CREATE DATABASE TEMPLATE', $_, 'copied') for qw(two copy_1);
	is(value($node, "SELECT dlock_release($long)", 'copy_1'), 't', 'what is released in the copy');
	is(value($node, "SELECT dlock_held($long)", 'two'), 't', 'stays in the original');
	$node->safe_psql('postgres', "DROP DATABASE copy_$_") for 1 .. 3;
}

## DROP and CREATE EXTENSION

{
	my @tokens;

	for my $i (1 .. 4)
	{
		my $token = value($node, "SELECT dlock_acquire('same name', ttl => '1 hour')", 'two');
		value($node, "SELECT dlock_acquire('same short name', ttl => '100 ms')", 'two');
		push @tokens, $token;
		# In turn in schema dlock, which then is not the extension's own.
		$node->safe_psql('two', 'DROP EXTENSION dlock; DROP SCHEMA IF EXISTS dlock');
		$node->safe_psql('two', $i % 2 ? 'CREATE SCHEMA dlock; CREATE EXTENSION dlock SCHEMA dlock' : 'CREATE EXTENSION dlock');
		$node->safe_psql('two', 'ALTER DATABASE two SET search_path = public, dlock');
		is(value($node, "SELECT count(*) FROM dlock_leases", 'two'), 0, "DROP EXTENSION $i: no lease is left");
		is(value($node, "SELECT dlock_heartbeat($token), dlock_held($token), dlock_release($token)", 'two'),
			'f|f|f', "DROP EXTENSION $i: the old one is lost");
	}
	push @tokens, value($node, "SELECT dlock_acquire('same name')", 'two');
	rising('DROP EXTENSION: tokens rise', @tokens);
	value($node, "SELECT dlock_acquire('after create', ttl => '100 ms')", 'two');
	ends('DROP EXTENSION', 'two', 'after create');

	# The drop may be rolled back.
	my $token = value($node, "SELECT dlock_acquire('kept', ttl => '1 hour')", 'two');
	$node->safe_psql('two', 'BEGIN; DROP EXTENSION dlock; ROLLBACK');
	is(value($node, "SELECT dlock_heartbeat($token)", 'two'), 't', 'DROP EXTENSION, rolled back: nothing is lost');
}

# It is created in a transaction that takes a while; the worker must not take
# what it cannot see for gone.
{
	my $maker;

	$node->safe_psql('postgres', 'CREATE DATABASE made');
	$maker = start_psql($node, 'made');
	my $token = $maker->ask("BEGIN; CREATE EXTENSION dlock; SELECT dlock_acquire('made', ttl => '1 h')");
	sleep_until(clock() + 2.5);		# more than the longest sleep of the launcher
	$maker->ask('COMMIT');
	is(value($node, "SELECT dlock_heartbeat($token), dlock_acquire('made') IS NULL", 'made'), 't|t',
		'CREATE EXTENSION, committed late: the lease is held');
	is(value($node, "SELECT held FROM dlock_databases WHERE database = 'made'"), 1,
		'CREATE EXTENSION, committed late: the database is known');
	value($node, "SELECT dlock_acquire('made short', ttl => '100 ms')", 'made');
	ends('CREATE EXTENSION, committed late', 'made', 'made short');
	$maker->close;
}

## Hostile settings of a database and of the role of the worker

{
	my $boss = value($node, 'SELECT rolname FROM pg_authid WHERE oid = 10');
	my %hostile = (
		default_transaction_read_only => "'on'",
		default_transaction_isolation => "'serializable'",
		default_transaction_deferrable => "'on'",
		statement_timeout => "'1ms'",
		lock_timeout => "'1ms'",
		idle_in_transaction_session_timeout => "'1ms'",
		($node->pg_version >= 17 ? (transaction_timeout => "'1ms'") : ()),
		search_path => 'hostile, pg_catalog',
		synchronous_commit => "'on'",
		row_security => "'off'",
		session_replication_role => "'replica'",
		log_statement => "'all'");

	$node->safe_psql('postgres', "CREATE DATABASE hostile");
	$node->safe_psql('hostile', <<SQL);
CREATE EXTENSION dlock;
CREATE SCHEMA hostile;
CREATE FUNCTION hostile.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz';
CREATE FUNCTION hostile.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz';
CREATE TABLE hostile.lease (n int);
CREATE TABLE hostile.history (n int);
SQL
	for my $where ("DATABASE hostile", "ROLE \"$boss\" IN DATABASE hostile")
	{
		my $friendly = "-c " . join(' -c ', map { "$_=" . ($_ =~ /timeout/ ? '0' : $_ eq 'default_transaction_isolation' ? 'read\\ committed' : 'off') }
			grep { /timeout|^default_transaction/ } keys %hostile) . ' -c search_path=public';

		$node->safe_psql('postgres', "ALTER $where SET $_ = $hostile{$_}") for keys %hostile;
		{
			local $ENV{PGOPTIONS} = $friendly;
			value($node, "SELECT dlock_acquire('$where', ttl => '300 ms')", 'hostile');
			ends("ALTER $where", 'hostile', $where);
		}
		# And what a crash left there.
		{
			local $ENV{PGOPTIONS} = $friendly;
			value($node, "SELECT dlock_acquire('left, $where', ttl => '1 s')", 'hostile');
			crash($node);
			ends("a crash, ALTER $where", 'hostile', "left, $where");
		}
		$node->safe_psql('postgres', "ALTER $where RESET ALL");
	}
	is(value($node, "SELECT worker_last_error IS NULL FROM dlock_databases WHERE database = 'hostile'"), 't',
		'no error of the worker');
}

## A database that takes no connections, and one without dlock

{
	$node->safe_psql('postgres', 'CREATE DATABASE closed');
	$node->safe_psql('closed', 'CREATE EXTENSION dlock');
	value($node, "SELECT dlock_acquire('closed', ttl => '200 ms')", 'closed');
	my $offset = -s $node->logfile;
	$node->safe_psql('postgres', 'ALTER DATABASE closed ALLOW_CONNECTIONS false');
	value($node, "SELECT dlock_acquire('beside closed', ttl => '300 ms')", 'one');
	ends('a closed database', 'one', 'beside closed');
	usleep(2_000_000);
	cmp_ok(scalar(log_lines($node, $offset, qr/ERROR|FATAL|WARNING/)), '<', 15, 'a closed database does not fill the log');
	$node->safe_psql('postgres', 'ALTER DATABASE closed ALLOW_CONNECTIONS true');
	ends('opened again', 'closed', 'closed');
}

## Retention, changed by SIGHUP

{
	value($node, "SELECT dlock_release(dlock_acquire('retained ' || n), 'done') FROM generate_series(1, 500) n", 'one');
	my $kept = value($node, 'SELECT count(*) FROM dlock.history', 'one');
	cmp_ok($kept, '>=', 500, 'history is there');
	# Whatever somebody else has made of it.
	$node->safe_psql('one', <<SQL);
CREATE INDEX own_brin ON dlock.history USING brin (ended_at);
CREATE INDEX own_part ON dlock.history (ended_at) WHERE outcome = 'revoked';
CREATE INDEX own_hash ON dlock.history USING hash (ended_at);
SQL

	$node->append_conf('postgresql.conf', 'dlock.history_retention = 1s');
	$node->reload;
	until_true('history goes after its retention',
		sub { value($node, 'SELECT count(*) FROM dlock.history', 'one') == 0 }, 60);
	$node->safe_psql('one', 'DROP INDEX IF EXISTS dlock.own_brin, dlock.own_part, dlock.own_hash');
	$node->append_conf('postgresql.conf', 'dlock.history_retention = -1');
	$node->reload;
}

## S4: names that are used once

{
	my $names = 20000;
	my $highest = value($node, "SELECT dlock_acquire('before', ttl => '1 h')", 'one');

	$node->safe_psql('one', <<SQL);
CREATE PROCEDURE once(n int) LANGUAGE plpgsql AS \$\$
DECLARE t bigint;
BEGIN
	FOR i IN 1 .. n LOOP
		t := dlock_acquire('once ' || i, ttl => '1 min');
		COMMIT;
		IF NOT dlock_release(t) THEN RAISE 'lost'; END IF;
		COMMIT;
	END LOOP;
END \$\$;
SQL
	$node->safe_psql('one', "SET synchronous_commit = off; CALL once($names)");
	my $rows = value($node, "SELECT count(*) FROM dlock.lease WHERE name LIKE 'once %'", 'one');
	my $size = value($node, "SELECT pg_relation_size('dlock.lease')", 'one');
	cmp_ok($rows, '>', $names * 0.99, 'S4: each name has left a row');
	my $last = value($node, "SELECT max(token) FROM dlock.lease", 'one');

	$node->append_conf('postgresql.conf', 'dlock.idle_lock_retention = 1s');
	$node->reload;
	until_true('S4: idle rows go', sub {
		value($node, "SELECT count(*) FROM dlock.lease WHERE name LIKE 'once %'", 'one') == 0 }, 90);
	$node->safe_psql('one', 'VACUUM dlock.lease');
	cmp_ok(value($node, "SELECT pg_relation_size('dlock.lease')", 'one'), '<', $size / 4, 'S4: the table shrinks');
	is(value($node, "SELECT dlock_held($highest)", 'one'), 't', 'S4: a held lease stays');
	my $again = value($node, "SELECT dlock_acquire('once 1')", 'one');
	cmp_ok($again, '>', $last, 'S4: tokens keep rising');
	is(value($node, "SELECT dlock_release($again)", 'one'), 't', 'S4: and a name can be used again');
	# Memory too: the map takes as many again.
	$node->safe_psql('one', "SET synchronous_commit = off; CALL once($names)");
	ok(1, 'S4: and memory takes as many names again');
	$node->append_conf('postgresql.conf', 'dlock.idle_lock_retention = 1d');
	$node->reload;
}

## Fast stop, while the worker works

{
	my $busy = sub {
		for my $db (@databases)
		{
			value($node, "SELECT count(dlock_acquire('stop ' || n, ttl => '10 ms' + n * interval '5 ms')) FROM generate_series(1, 400) n", $db);
		}
	};

	for my $try (1 .. 3)
	{
		$busy->();
		my $before = clock();
		$node->stop('fast');
		my $took = clock() - $before;
		cmp_ok($took, '<', 5, sprintf('stop -m fast in time (%.2f s)', $took));
		$node->start;
	}
	# What it left is ended after all.
	until_true("the rest is ended in $_", sub {
		my $db = $_;
		value($node, "SELECT count(*) FROM dlock.lease WHERE name LIKE 'stop %' AND ended_at IS NULL", $db) == 0 })
	  for @databases;
}

## max_leases

{
	$node->stop;
	$node->append_conf('postgresql.conf', 'dlock.max_leases = 1000');
	$node->start;
	# How many fit depends on what is held already.
	value($node, <<SQL);
CREATE TABLE many (token bigint);
CREATE PROCEDURE fill() LANGUAGE plpgsql AS \$\$
BEGIN
	FOR i IN 1 .. 2000 LOOP
		INSERT INTO many SELECT dlock_acquire('many ' || i, ttl => '1 h');
		COMMIT;
	END LOOP;
END \$\$;
SQL
	fails($node, 'CALL fill()', '53200', 'dlock.max_leases', 'max_leases: more are refused, with the setting to raise');
	my $n = value($node, 'SELECT count(*) FROM many');
	cmp_ok($n, '>', 500, 'max_leases: until then they were granted');
	cmp_ok($n, '<=', 1000, 'max_leases: not beyond');
	is(value($node, 'SELECT bool_and(dlock_heartbeat(token)) FROM many'), 't', 'max_leases: those that are held stay');
	fails($node, "SELECT dlock_acquire('one more')", '53200', 'dlock.max_leases', 'max_leases: still full');
	is(value($node, 'SELECT count(*) FROM (SELECT dlock_release(token) AS gone FROM many LIMIT 100) x WHERE gone'), 100,
		'max_leases: some are released');
	until_true('max_leases: then there is room', sub {
		my ($rc, $out) = $node->psql('postgres', "SELECT dlock_acquire('one more')");
		$rc == 0 && $out =~ /^\d+$/ }, 60);
}

## dlock_databases

is(value($node, <<SQL), 't', 'dlock_databases tells when the worker ran');
SELECT bool_and(worker_last_run BETWEEN now() - interval '5 min' AND clock_timestamp())
FROM dlock_databases WHERE database IN ('postgres', 'one', 'two')
SQL
cmp_ok(value($node, "SELECT held FROM dlock_databases WHERE database = 'postgres'"), '>', 400,
	'dlock_databases counts the leases');

is(value($node, 'SELECT * FROM dlock_verify()', $_), '', "dlock_verify finds nothing in $_") for @databases;

$node->stop;
done_testing();
