# Where things are full, and what a dump carries.
#
# 10,000 acquires in one statement meet the end of the server's lock table, other
# calls that of dlock.max_leases and of shared memory: 53200, with what to raise,
# nothing is left behind, and all goes on.  Protected tables and definitions
# survive pg_dump and pg_restore.

use strict;
use warnings;

use Dlock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();

# Nothing of what failed is left: no lease, no tag, no history, no entry.
sub clean
{
	my ($node, $held, $what) = @_;

	is(value($node, <<SQL), "$held|$held|0|0", "$what: nothing is left behind");
SELECT (SELECT count(*) FROM dlock_leases), (SELECT held FROM dlock_databases WHERE database = 'postgres'),
	(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'), (SELECT count(*) FROM dlock_verify())
SQL
	return;
}

## The lock table

{
	# Some hundred locks; and no more entries of the map than a few failures would
	# leave in it.
	my $max = 2000;
	my $node = new_node('locks', conf => <<CONF);
max_connections = 20
max_locks_per_transaction = 10
dlock.max_leases = $max
CONF
	my $hint = '.*max_locks_per_transaction';
	my $kept = value($node, "SELECT dlock_acquire('kept', ttl => '1 h')");
	my $names = "ARRAY(SELECT 'all ' || n FROM generate_series(1, 10000) n)";

	for my $round (1 .. 3)
	{
		fails($node, "SELECT count(dlock_acquire('many ' || n)) FROM generate_series(1, 10000) n", '53200', $hint,
			"10,000 acquires in one statement, round $round");
		clean($node, 1, "10,000 acquires, round $round");
		fails($node, "SELECT cardinality(dlock_acquire_all($names))", '53200', $hint, "10,000 names at once, round $round");
		clean($node, 1, "10,000 names, round $round");
	}
	is(value($node, "SELECT count(*) FROM dlock_history WHERE name <> 'kept'"), 0, 'no history of what never was');
	is(value($node, "SELECT count(*) FROM dlock.lease WHERE ended_at IS NULL"), 1, 'no row that is held');
	is(value($node, "SELECT dlock_heartbeat($kept), dlock_acquire('kept') IS NULL"), 't|t', 'what was held is');

	# In a block: the savepoint takes it all back, and the rest of it works.
	{
		my $psql = start_psql($node);

		my $first = $psql->ask("BEGIN; SELECT dlock_acquire('first', ttl => '1 h')");
		$psql->ask('SAVEPOINT a');
		$psql->fails("SELECT count(dlock_acquire('many ' || n)) FROM generate_series(1, 10000) n", '53200', $hint,
			'in a savepoint');
		is($psql->ask("ROLLBACK TO a; SELECT count(dlock_acquire('many ' || n, ttl => '1 h')) FROM generate_series(1, 50) n"), 50,
			'less of it then works');
		$psql->ask('COMMIT');
		is($psql->ask("SELECT dlock_held($first), count(*) FROM dlock_leases WHERE name LIKE 'many%' AND state = 'held' GROUP BY 1"),
			't|50', 'and is committed');

		# Guards and ends take a place each.
		$psql->ask("SELECT dlock_acquire('guarded ' || n, ttl => '1 h') FROM generate_series(" . ($_ * 100 + 1) . ', ' . ($_ * 100 + 100) . ') n')
		  for 0 .. 14;
		$psql->fails("SELECT count(dlock_guard(token)) FROM dlock_leases", '53200', $hint, 'a guard of each of 1,500 leases');
		$psql->fails("SELECT count(dlock_release(token)) FROM dlock_leases", '53200', $hint, 'a release of each');
		is($psql->ask("SELECT count(*), count(*) FILTER (WHERE guard_pids IS NULL AND state = 'held') FROM dlock_leases"), '1552|1552',
			'leave them as they were');

		# Who has the table full stops others from taking locks, and from nothing else.
		# (A new connection takes some too, so this one is there already.)
		my $other = start_psql($node);
		$other->ask("SELECT dlock_release(dlock_acquire('another')), dlock_held($first), dlock_heartbeat($first), dlock_guard($first)");
		$other->ask('SELECT count(*) FROM dlock_waiters');
		$psql->ask('BEGIN');
		$psql->ask("DO \$\$ DECLARE t bigint; BEGIN FOR t IN SELECT token FROM dlock_leases LOOP PERFORM dlock_guard(t); END LOOP; EXCEPTION WHEN out_of_memory THEN NULL; END \$\$");
		$psql->ask("DO \$\$ BEGIN FOR n IN 1..10000 LOOP BEGIN PERFORM pg_advisory_xact_lock(n); EXCEPTION WHEN out_of_memory THEN EXIT; END; END LOOP; END \$\$");
		$other->fails("SELECT dlock_acquire('another')", '53200', $hint, 'a full lock table: an acquire of another session');
		$other->fails("SELECT dlock_acquire('another', wait => '1 min')", '53200', $hint, 'a full lock table: one that would wait');
		$other->fails("SELECT dlock_guard($first)", '53200', $hint, 'a full lock table: a guard');
		$other->fails("SELECT dlock_release($first)", '53200', $hint, 'a full lock table: a release');
		is($other->ask("SELECT dlock_heartbeat($first), dlock_held($first), dlock_acquire('first') IS NULL"), 't|t|t',
			'a full lock table: heartbeats and refusals need none');
		is($other->ask('SELECT count(*) FROM dlock_waiters'), 0, 'a full lock table: nobody is left in the queue');
		$psql->ask('ROLLBACK');
		is($psql->ask("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), 0, 'free again: no lock is left');
		for my $pattern ('guarded', 'many', 'first')
		{
			1 while $psql->ask("SELECT count(dlock_release(token)) FROM (SELECT token FROM dlock_leases WHERE name LIKE '$pattern%' LIMIT 100) x") > 0;
		}
		$_->close for $psql, $other;
	}
	clean($node, 1, 'free again');

	# The map has room for as many as ever: nothing stayed there.
	{
		my $psql = start_psql($node);

		$psql->ask("SELECT count(dlock_acquire('room $_ ' || n, ttl => '1 h')) FROM generate_series(1, 100) n") for 1 .. ($max - 100) / 100;
		is($psql->ask("SELECT count(*) FROM dlock_leases"), $max - 99, "room for $max leases, as there was before");
		$psql->close;
	}
	ok(!log_lines($node, 0, qr/PANIC|TRAP|terminated by signal|WARNING/), 'the server goes on');
	$node->stop;
}

## dlock.max_leases

{
	my $max = 100;
	my $node = new_node('leases', conf => "dlock.max_leases = $max\ndlock.worker_naptime = 1h");
	my $hint = '.*dlock\.max_leases';
	my $psql = start_psql($node);
	my $worker = pause_worker($node);		# it is not needed

	my @tokens = map { $psql->ask("SELECT dlock_acquire('lease $_', ttl => '1 h')") } 1 .. $max;
	for my $call ("dlock_acquire('one more')", "dlock_acquire('one more', wait => '1 min')", "dlock_acquire_all(ARRAY['one', 'more'])",
		'dlock_session_open()', "dlock_session_open(on_disconnect => 'release')",
		"count(dlock_acquire('more ' || n)) FROM generate_series(1, 200) n")
	{
		$psql->fails("SELECT $call", '53200', $hint, "the map is full: $call");
	}
	is($psql->ask("SELECT dlock_acquire('lease 1') IS NULL"), 't', 'the map is full: busy is busy');
	is($psql->ask("SELECT count(*) FILTER (WHERE dlock_heartbeat(token)) FROM dlock_leases"), $max, 'the map is full: heartbeats go on');
	is($psql->ask("SELECT dlock_guard($tokens[0]) = $tokens[0], dlock_set_ttl($tokens[0], '2 h')"), 't|t', 'the map is full: guards too');
	clean($node, $max, 'the map is full');

	is($psql->ask("SELECT dlock_release($tokens[0])"), 't', 'one is released');
	my $token = $psql->ask("SELECT dlock_acquire('one more', ttl => '1 h')");
	ok($token, 'and there is room for one');
	$psql->fails("SELECT dlock_acquire('yet another')", '53200', $hint, 'and no more');

	# One that is taken over makes no room before it has ended; then it does.
	is($psql->ask("SELECT dlock_release($token)"), 't', 'released');
	$token = $psql->ask("SELECT dlock_acquire('short', ttl => '10 ms')");
	until_true('it is dead', sub { $psql->ask("SELECT dlock_held($token)") eq 'f' });
	my $rc = $psql->try("SELECT dlock_acquire('short', ttl => '1 h')");
	ok($rc =~ /^\d+$/ || $psql->errors =~ /ERROR:  53200/, 'a takeover has room, or says that there is none');

	# 30 times in vain, each with something before that has to be taken back.
	for my $try (1 .. 30)
	{
		$psql->try("BEGIN; SELECT dlock_release($tokens[1]); SELECT dlock_acquire('a $try'); SELECT dlock_acquire('b $try'); SELECT dlock_acquire('c $try')");
		$psql->ask('ROLLBACK');
	}
	is($psql->ask("SELECT dlock_heartbeat($tokens[1])"), 't', 'a failure after a release takes the release back');
	1 while $psql->ask("SELECT count(dlock_release(token)) FROM dlock_leases WHERE state = 'held'") > 0;
	my $n = 0;
	$n++ while $n < 2 * $max && $psql->try("SELECT dlock_acquire('again $n', ttl => '1 h')") =~ /^\d+$/;
	cmp_ok($n, '>=', $max - 1, "room for $n leases again");
	cmp_ok($n, '<=', $max, 'and for no more');

	# A start with less room than there are leases: these go on, and no others come
	# before enough of them have ended.
	$psql->close;
	continue_worker($worker);
	$node->append_conf('postgresql.conf', 'dlock.max_leases = 1000');
	$node->restart;
	$psql = start_psql($node);
	$psql->ask("SELECT count(dlock_acquire('beyond ' || g, ttl => '1 h')) FROM generate_series(1, 100) g");
	$n = $psql->ask("SELECT count(*) FROM dlock_leases WHERE state = 'held'");
	cmp_ok($n, '>', $max, "$n leases where there was room for 1,000");
	$psql->close;
	$node->append_conf('postgresql.conf', "dlock.max_leases = $max");
	$node->restart;
	$psql = start_psql($node);
	is($psql->ask("SELECT count(*) FILTER (WHERE dlock_heartbeat(token)) FROM dlock_leases"), $n, "all of them go on where there is room for $max");
	$psql->fails("SELECT dlock_acquire('yet another')", '53200', $hint, 'and no more come');
	is($psql->ask("SELECT count(*) FILTER (WHERE dlock_release(token)) FROM (SELECT token FROM dlock_leases LIMIT $n - 50) x"), $n - 50, 'most end');
	until_true('and there is room', sub { $psql->try("SELECT dlock_acquire('yet another')") =~ /^\d+$/ });
	ok(!log_lines($node, 0, qr/PANIC|TRAP|terminated by signal/), 'the server goes on');
	$psql->close;
	$node->stop;
}

## Shared memory

# The area of the map is in files that may not be larger than 3 MB, so that it
# ends after some of them.  A session is an entry of more than 1 kB, and no row.
{
	my $node = new_node('memory', start => 0, conf => "dynamic_shared_memory_type = mmap\nautovacuum = off\ndlock.max_leases = 4500",
		init => { extra => ['--wal-segsize=1'] });
	my $owner = "repeat('x', 1000)";

	system('bash', '-c', 'ulimit -f 3072; exec "$@" >/dev/null', 'bash',
		'pg_ctl', '-w', '-D', $node->data_dir, '-l', $node->logfile, '-o', '--cluster-name=memory', 'start') == 0
	  or die 'the server does not start';
	$node->_update_pid(1);
	value($node, 'CREATE EXTENSION dlock');

	my $psql = start_psql($node);
	my $kept = $psql->ask("SELECT dlock_acquire('kept', ttl => '1 h')");
	my $keep = $psql->ask("SELECT dlock_session_open('kept', ttl => '1 h')");
	my $leased = $psql->ask("SELECT dlock_acquire('leased', session => $keep)");
	$psql->ask('CREATE TEMP TABLE opened (session bigint)');

	my @rooms;
	for my $round (1 .. 3)
	{
		my $sqlstate = $psql->ask(<<SQL);
DO \$\$
BEGIN
	FOR n IN 1..40000 LOOP
		INSERT INTO opened VALUES (dlock_session_open($owner, ttl => '1 h'));
	END LOOP;
EXCEPTION WHEN OTHERS THEN
	PERFORM set_config('test.state', SQLSTATE, false), set_config('test.message', SQLERRM, false);
END
\$\$;
SELECT current_setting('test.state', true)
SQL
		# What was opened is open, though the rows are gone.
		is($sqlstate, '53200', "memory, round $round: a clean error")
		  || diag($psql->ask("SELECT current_setting('test.message', true)"));
		# The sweeper may have made some room meanwhile, from what ended before.
		$psql->fails("SELECT count(dlock_session_open($owner, ttl => '1 h')) FROM generate_series(1, 40000)", '53200', undef,
			"memory, round $round: again");
		# Often: what fails costs no place.
		$psql->ask(<<SQL);
DO \$\$
BEGIN
	FOR n IN 1..1000 LOOP
		BEGIN
			PERFORM dlock_session_open($owner, ttl => '1 h');
		EXCEPTION WHEN out_of_memory THEN
			NULL;
		END;
	END LOOP;
END
\$\$
SQL
		is($psql->ask(<<SQL), 't|t|{}|t|t', "memory, round $round: what is there works");
SELECT dlock_heartbeat($kept), dlock_guard($kept) = $kept, dlock_session_heartbeat($keep), dlock_held($leased), dlock_acquire('kept') IS NULL
SQL
		is($psql->ask("SELECT dlock_release($leased)"), 't', "memory, round $round: and ends");
		$leased = $psql->ask("SELECT dlock_acquire('leased', session => $keep)");
		ok($leased, "memory, round $round: and something small may fit");
		is($psql->ask('SELECT count(*) FROM dlock_verify()'), 0, "memory, round $round: all is sound");

		# A restart of the session's connection changes nothing; the end of the sessions does.
		$psql->close;
		$psql = start_psql($node);
		$psql->ask("CREATE TEMP TABLE opened (session bigint)");
		my $high = $psql->ask("SELECT last_value FROM dlock.token_seq");
		push @rooms, $psql->ask("SELECT count(*) FROM generate_series($keep + 1, $high) s WHERE dlock_session_close(s) IS NOT NULL");
		cmp_ok($rooms[-1], '>', 1000, "memory, round $round: there was room for $rooms[-1] sessions");
	}
	cmp_ok($rooms[2], '>', 0.8 * $rooms[0], 'memory: what is freed is used again');
	# Small ones meet dlock.max_leases first, which what failed has not used up.
	$psql->ask(<<SQL);
DO \$\$
DECLARE
	n int := 0;
BEGIN
	LOOP
		PERFORM dlock_session_open('x', ttl => '1 h');
		n := n + 1;
	END LOOP;
EXCEPTION WHEN out_of_memory THEN
	PERFORM set_config('test.n', n::text, false), set_config('test.message', SQLERRM, false);
END
\$\$
SQL
	is($psql->ask("SELECT current_setting('test.n')::int > 4400, current_setting('test.message')"), 't|too many leases are held',
		'memory: nor do failures use up dlock.max_leases');
	is($psql->ask("SELECT dlock_release($kept), dlock_session_close($keep)"), 't|1', 'memory: and all can end');
	ok(!log_lines($node, 0, qr/PANIC|TRAP|terminated by signal|server process .* was terminated/), 'memory: the server goes on');
	$psql->close;
	$node->stop;
}

## Dump and restore

{
	my $node = new_node('dump');
	my $odd = q(it's "a" \x41 $1);
	my $quoted = $odd =~ s/'/''/gr;

	value($node, 'CREATE DATABASE source');
	value($node, <<SQL, 'source');
CREATE EXTENSION dlock;
CREATE TABLE plain (k int PRIMARY KEY);
CREATE TABLE child () INHERITS (plain);
CREATE TABLE "Odd ""Table""" (k int);
CREATE TABLE root (k int) PARTITION BY RANGE (k);
CREATE TABLE part PARTITION OF root FOR VALUES FROM (0) TO (10);
CREATE TABLE sub PARTITION OF root FOR VALUES FROM (10) TO (20) PARTITION BY LIST (k);
CREATE TABLE subpart PARTITION OF sub DEFAULT;
INSERT INTO plain VALUES (1);
INSERT INTO child VALUES (2);
INSERT INTO "Odd ""Table""" VALUES (3);
INSERT INTO root VALUES (4), (10);
SELECT dlock_protect('plain', 'plain'), dlock_protect('"Odd ""Table"""', '$quoted'), dlock_protect('root', 'root');
CREATE TABLE later PARTITION OF root FOR VALUES FROM (20) TO (30);
CREATE TABLE attached (k int);
INSERT INTO attached VALUES (30);
ALTER TABLE root ATTACH PARTITION attached FOR VALUES FROM (30) TO (40);
SELECT dlock_define('plain', capacity => 3, ttl => '1 min', takeover_delay => '2 s', notify => true),
	dlock_define('$quoted', min_hold => '5 s', role => current_user::regrole, history => false);
SELECT dlock_acquire('plain', ttl => '1 h');
SQL
	my $protection = <<'SQL';
SELECT string_agg(format('%s %s %s %s', t.tgrelid::regclass, t.tgtype & 1, t.tgenabled, encode(t.tgargs, 'escape')), ', '
	ORDER BY t.tgrelid::regclass::text COLLATE "C", t.tgtype)
FROM pg_trigger t WHERE t.tgfoid = 'dlock_protected'::regproc
SQL
	my $before = value($node, $protection, 'source');
	like($before, qr/later 1 A root/, 'dump: the protection of the source');
	my $defined = value($node, 'SELECT * FROM dlock.definition ORDER BY name', 'source');
	my %tables = ('plain' => 5, 'child' => 6, '"Odd ""Table"""' => 7, 'root' => 5, 'part' => 5, 'sub' => 11, 'subpart' => 12,
		'later' => 20, 'attached' => 31);

	for my $format (qw(plain custom directory))
	{
		my $file = "$dir/$format";
		my $db = "restored_$format";

		$node->command_ok([ 'pg_dump', '--format', $format, '-f', $file, '-d', $node->connstr('source') ], "dump, $format: dumped");
		value($node, "CREATE DATABASE $db");
		$node->command_ok(
			$format eq 'plain'
			? [ 'psql', '-X', '-q', '-o', '/dev/null', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($db), '-f', $file ]
			: [ 'pg_restore', '--exit-on-error', '-d', $node->connstr($db), $file ],
			"dump, $format: restored, rows of protected tables too");
		is(value($node, 'SELECT (SELECT count(*) FROM plain), (SELECT count(*) FROM root), (SELECT k FROM "Odd ""Table""")', $db),
			'2|3|3', "dump, $format: the rows");
		is(value($node, $protection, $db), $before, "dump, $format: the protection is the same");
		is(value($node, 'SELECT * FROM dlock.definition ORDER BY name', $db), $defined, "dump, $format: definitions are the same");
		is(value($node, 'SELECT count(*) FROM dlock_leases', $db), 0, "dump, $format: nothing is held");
		for my $table (sort keys %tables)
		{
			my $insert = "INSERT INTO $table VALUES ($tables{$table})";

			fails($node, $insert, 'LK002', '.*dlock_guard', "dump, $format: $table is protected", $db);
			fails($node, "TRUNCATE $table CASCADE", 'LK002', '.*dlock_guard', "dump, $format: and from TRUNCATE", $db);
			fails($node, "SET session_replication_role = replica; $insert", 'LK002', '.*dlock_guard', "dump, $format: in a replica too", $db);
			my $lock = value($node, "SELECT encode(t.tgargs, 'escape') FROM pg_trigger t WHERE tgrelid = '$table'::regclass AND tgname = 'dlock_protect'", $db);
			$lock = $lock =~ s/\\000$//r =~ s/\\\\/\\/gr =~ s/'/''/gr;
			is(value($node, <<SQL, $db), 't', "dump, $format: with a guard it can be written");
BEGIN;
SELECT dlock_guard(dlock_acquire('$lock', ttl => '1 s')) > 0;
$insert;
ROLLBACK;
SQL
		}
		is(value($node, "SELECT count(dlock_acquire('plain')) FROM generate_series(1, 5)", $db), 3, "dump, $format: a definition is in force");
	}

	# First the schema, then the data: that needs --disable-triggers, which enables
	# the triggers again afterwards, though not as they were.
	value($node, 'CREATE DATABASE in_two');
	for my $part ([ 'schema', '--schema-only' ], [ 'data', '--data-only', '--disable-triggers' ])
	{
		my ($what, @options) = @$part;

		$node->command_ok([ 'pg_dump', '--format', 'custom', '-f', "$dir/$what", '-d', $node->connstr('source') ],
			"dump, in two: $what dumped");
		$node->command_ok([ 'pg_restore', '--exit-on-error', @options, '-d', $node->connstr('in_two'), "$dir/$what" ],
			"dump, in two: $what restored");
	}
	is(value($node, 'SELECT (SELECT count(*) FROM plain), (SELECT count(*) FROM root), (SELECT k FROM "Odd ""Table""")', 'in_two'),
		'2|3|3', 'dump, in two: the rows');
	for my $table (sort keys %tables)
	{
		fails($node, "INSERT INTO $table VALUES ($tables{$table})", 'LK002', '.*dlock_guard',
			"dump, in two: $table is protected", 'in_two');
		fails($node, "TRUNCATE $table CASCADE", 'LK002', '.*dlock_guard', 'dump, in two: and from TRUNCATE', 'in_two');
	}
	$node->stop;
}

done_testing();
