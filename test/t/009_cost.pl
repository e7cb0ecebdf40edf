# What a call costs.
#
# Promise 8: a refused attempt, and a heartbeat, takes no transaction id, writes
# no row version and no log line, and leaves no lock, 10,000 times in one
# transaction too.  Heartbeats under a transaction that holds back xmin: no
# growth.  Many grants and releases on 1,000 names: the heap stays at twice its
# size, and updates are HOT.  DLOCK_LONG=1 makes it 1,000,000 cycles.

use strict;
use warnings;

use Dlock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('cost', conf => <<CONF);
autovacuum = off
log_checkpoints = off
log_connections = off
log_disconnections = off
log_min_messages = info
checkpoint_timeout = 1h
max_wal_size = 4GB
CONF

my $psql = start_psql($node);
my $token = value($node, "SELECT dlock_acquire('held', ttl => '1 h')");
my $gone = value($node, "SELECT dlock_acquire('gone')");
value($node, "SELECT dlock_release($gone)");
my $n = 10_000;

## Calls that change nothing

my $stat = "SELECT n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del FROM pg_stat_all_tables WHERE schemaname = 'dlock' ORDER BY relname";
my $locks = 'SELECT locktype, relation::regclass, classid, objid, objsubid, mode, count(*) FROM pg_locks WHERE pid = pg_backend_pid() GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6';
my $flush = "SELECT pg_stat_force_next_flush() \\g /dev/null\nSELECT pg_stat_clear_snapshot() \\g /dev/null\n";

for my $case (
	[ 'a refused attempt', "dlock_acquire('held') IS NULL" ],
	[ 'a heartbeat', "dlock_heartbeat($token)" ],
	[ 'a heartbeat of a lost lease', "NOT dlock_heartbeat($gone)" ],
	[ 'many heartbeats', "dlock_heartbeat_all(ARRAY[$token, $gone]) = ARRAY[${gone}::bigint]" ],
	[ 'a look', "dlock_held($token) AND dlock_remaining($token) > '1 min'" ],
	[ 'a list', "(SELECT count(*) = 1 FROM dlock_holders('held'))" ],
	[ 'a late release', "NOT dlock_release($gone)" ],
	[ 'a late change of TTL', "NOT dlock_set_ttl($gone, '1 min')" ])
{
	my ($what, $call) = @$case;

	# The first call may read catalogs.
	$psql->ask("SELECT $call");
	$psql->ask($locks);

	for my $block ('one transaction', 'one statement', 'savepoints')
	{
		my $offset = -s $node->logfile;
		my $stats = $psql->ask($flush . $stat);
		my $size = value($node, "SELECT pg_relation_size('dlock.lease'), pg_relation_size('dlock.lease_pkey'), pg_relation_size('dlock.history')");
		my $lsn = value($node, 'SELECT pg_current_wal_insert_lsn()');

		$psql->ask('BEGIN') if $block ne 'one statement';
		my $before = $psql->ask($locks) if $block ne 'one statement';
		if ($block eq 'savepoints')
		{
			is($psql->ask("SAVEPOINT s; SELECT count(*) FROM generate_series(1, 100) WHERE $call; ROLLBACK TO s; SELECT count(*) FROM generate_series(1, 100) WHERE $call; RELEASE s"),
				"100\n100", "$what, $block: as it should be");
		}
		else
		{
			is($psql->ask("SELECT count(*) FROM generate_series(1, $n) g WHERE $call"), $n, "$what, $block: $n times as it should be");
		}
		if ($block ne 'one statement')
		{
			is($psql->ask('SELECT pg_current_xact_id_if_assigned() IS NULL'), 't', "$what, $block: no transaction id");
			is($psql->ask($locks), $before, "$what, $block: no lock is left");
			$psql->ask('COMMIT');
		}
		else
		{
			is(value($node, "SELECT count(*) FROM pg_locks WHERE pid = " . $psql->backend), 0, "$what, $block: no lock is left");
		}
		my $wal = value($node, "SELECT pg_current_wal_insert_lsn() - '$lsn'");
		cmp_ok($wal, '<', 5000, "$what, $block: no WAL ($wal bytes)");
		is($psql->ask($flush . $stat), $stats, "$what, $block: no row version");
		is(value($node, "SELECT pg_relation_size('dlock.lease'), pg_relation_size('dlock.lease_pkey'), pg_relation_size('dlock.history')"),
			$size, "$what, $block: no growth");
		is(join("\n", log_lines($node, $offset, qr/./)), '', "$what, $block: no log line");
	}
}
is(value($node, "SELECT refused >= 2 * $n FROM dlock_leases WHERE token = $token"), 't', 'the refusals are counted all the same');

## Heartbeats while xmin is held back

{
	my $old = start_psql($node);

	$old->ask('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id(), count(*) FROM dlock.lease');
	value($node, "SELECT dlock_acquire('beat ' || n, ttl => '1 h') FROM generate_series(1, 200) n");
	my $size = value($node, "SELECT pg_total_relation_size('dlock.lease'), pg_total_relation_size('dlock.history')");
	my $stats = $psql->ask($flush . $stat);

	# In the list of results, where no planner calls it but once a row.
	is($psql->ask("SELECT count(dlock_heartbeat(token) OR NULL) FROM generate_series(1, 200) g, (SELECT token FROM dlock_leases WHERE name LIKE 'beat %' OFFSET 0) l"),
		200 * 200, '40,000 heartbeats under an old transaction');
	is(value($node, "SELECT pg_total_relation_size('dlock.lease'), pg_total_relation_size('dlock.history')"), $size,
		'no growth');
	is($psql->ask($flush . $stat), $stats, 'no row version');
	is($old->ask("SELECT count(*) FROM dlock.lease WHERE name LIKE 'beat %'"), 0, 'the transaction was as old as that');
	$old->close;
	is(value($node, "SELECT min(heartbeats) FROM dlock_leases WHERE name LIKE 'beat %'"), 200, 'each counted');
}

## Grants and releases

{
	my $cycles = $ENV{DLOCK_LONG} ? 1_000_000 : 100_000;
	my $clients = 4;
	my $round = sub {
		my ($n) = @_;

		$node->pgbench(
			"--no-vacuum --client=$clients --jobs=2 --transactions=" . $n / $clients, 0,
			[ qr/actually processed: $n\/$n/, qr/number of failed transactions: 0 / ], [qr/^$/],
			"$n grants and releases", { '009_cost_cycle' => <<'SQL' });
\set n random(1, 1000)
SELECT coalesce(dlock_acquire('cycle ' || :n, ttl => '1 min'), 0) AS token \gset
SELECT dlock_release(:token);
SQL
	};
	my $counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_all_tables WHERE relid = 'dlock.lease'::regclass";

	# The first 1,000: each name once.
	$psql->ask("SELECT count(dlock_release(dlock_acquire('cycle ' || n))) FROM generate_series(1, 1000) n");
	$psql->ask($flush . 'SELECT 1');
	my $size = value($node, "SELECT pg_relation_size('dlock.lease')");
	my $index = value($node, "SELECT pg_relation_size('dlock.lease_pkey')");
	my $granted = "SELECT granted FROM dlock_stats";
	my $before = value($node, $granted);
	my ($upd, $hot) = split /\|/, value($node, $counts);
	$round->($cycles);
	# A client that finds a name busy goes on to the next.
	my $grants = value($node, $granted) - $before;
	cmp_ok($grants, '>', 0.95 * $cycles, "$grants grants");
	is(value($node, "SELECT count(*) FROM dlock.history WHERE name LIKE 'cycle %'"), $grants + 1000, 'each is recorded');

	my $now = value($node, "SELECT pg_relation_size('dlock.lease')");
	cmp_ok($now, '<=', 2 * $size, "the heap: $size bytes after 1,000 cycles, $now after $cycles more");
	my $index_now = value($node, "SELECT pg_relation_size('dlock.lease_pkey')");
	cmp_ok($index_now, '<=', 2 * $index, "its index: $index bytes, $index_now");
	until_true('every update is counted', sub {
		(split /\|/, value($node, $counts))[0] - $upd >= 2 * $grants });
	my ($upd2, $hot2) = split /\|/, value($node, $counts);
	my $share = 100 * ($hot2 - $hot) / ($upd2 - $upd);
	cmp_ok($share, '>', 95, sprintf('%.2f %% of the updates are HOT', $share));
	is($upd2 - $upd, 2 * $grants, 'one update a grant, one an end');
}

$psql->close;
$node->stop;
done_testing();
