# Standbys and promotion.
#
# F2 a standby says 25006 with a hint, never NULL; F3 an asynchronous standby is
# promoted that lacks the last grants: its tokens are higher than any that the
# old primary gave; promise 3, an acknowledged grant is on a synchronous
# standby, whatever the caller's synchronous_commit; leases get one TTL of grace
# after a promotion, and end without any call.

use strict;
use warnings;

use Dlock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = new_node('primary', init => { allows_streaming => 1 },
	conf => "dlock.worker_naptime = 1s\nmax_wal_size = 256MB");

$primary->backup('base');

sub new_standby
{
	my ($name) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($name);

	$standby->init_from_backup($primary, 'base', has_streaming => 1);
	$standby->start;
	return $standby;
}

my $standby = new_standby('standby');

## F2

value($primary, 'CREATE TABLE plain ()');
my $token = value($primary, "SELECT dlock_acquire('replicated', ttl => '1 hour', owner => 'me')");
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
is(value($standby, "SELECT count(*) FROM dlock.lease WHERE token = $token"), 1, 'the lease is on the standby');

for my $call (
	map({ "SELECT $_" }
		"dlock_acquire('replicated')", "dlock_acquire('free')", "dlock_acquire('replicated', wait => '1 h')",
		"dlock_acquire_all(ARRAY['free', 'replicated'])",
		"dlock_heartbeat($token)", 'dlock_heartbeat(NULL)', "dlock_heartbeat_all(ARRAY[$token])",
		"dlock_set_ttl($token, '1 min')", "dlock_release($token)", "dlock_release($token, 'done')",
		"dlock_held($token)", "dlock_remaining($token)", "dlock_guard($token)", "dlock_holders('replicated')",
		'dlock_session_open()', 'dlock_session_heartbeat(1)', 'dlock_session_close(1)',
		"dlock_define('free')", "dlock_undefine('free')", "dlock_revoke($token, 'why')", "dlock_revoke($token, 'why', '1 s')",
		"dlock_protect('plain', 'free')", "dlock_unprotect('plain')"),
	"CALL dlock_await('replicated')")
{
	fails($standby, $call, '25006', '.*primary', "standby: $call");
}
like(value($standby, 'SELECT dlock_version()'), qr/^\(\d/, 'standby: dlock_version answers');

# A view says how things are or says why not, and never says that all is free.
for my $view (qw(dlock_leases dlock_waiters dlock_history dlock_locks dlock_stats dlock_databases dlock_verify()))
{
	my ($rc, $out, $err) = $standby->psql('postgres', "SELECT * FROM $view",
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	my $good = $rc == 0 ? ($view ne 'dlock_leases' || $out =~ /replicated/) : $err =~ /ERROR:  25006/;

	ok($good, "standby: $view") || diag("$out\n$err");
}
is(value($standby, 'SELECT pg_is_in_recovery()'), 't', 'the standby is there');
ok(!log_lines($standby, 0, qr/terminated by signal|PANIC|TRAP|FATAL:  (?!the database system is starting)/),
	'and nothing of it crashed');
is(value($standby, "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'dlock%'"), 0,
	'no worker runs on a standby');
is(value($primary, "SELECT dlock_heartbeat($token)"), 't', 'the primary holds the lease all the time');

## F3

my $short = value($primary, "SELECT dlock_acquire('grace', ttl => '4 s')");
my $forgotten = value($primary, "SELECT dlock_acquire('forgotten', ttl => '4 s')");
my $ended = value($primary, "SELECT dlock_acquire('ended', ttl => '1 h')");
value($primary, "SELECT dlock_release($ended, 'done')");
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));

# From here on the standby hears nothing.
$standby->append_conf('postgresql.conf', "primary_conninfo = ''");
$standby->reload;
$primary->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_replication')
  or die 'the standby stays connected';

my $highest = 0;
{
	my $psql = start_psql($primary);

	for my $i (1 .. 500)
	{
		my $new = $psql->ask("SELECT dlock_acquire('lacking $i', ttl => '1 h')");

		cmp_ok($new, '>', $highest, 'the old primary gives higher tokens') if $new <= $highest;
		$highest = $new;
	}
	# Many more than a sequence logs ahead.
	$psql->ask("SELECT count(nextval('dlock.token_seq')) FROM generate_series(1, 100000)");
	$highest = $psql->ask("SELECT dlock_acquire('lacking last', ttl => '1 h')");
	$psql->close;
}
$primary->stop('immediate');
# The primary is away for longer than the TTL.
sleep_until(clock() + 4);
my $before = clock();
$standby->promote;
$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die 'not promoted';

is(value($standby, "SELECT dlock_heartbeat($short), dlock_held($token)"), 't|t',
	'promoted: the first heartbeats are true');
is(value($standby, "SELECT dlock_acquire('replicated') IS NULL"), 't', 'promoted: what was held is held');
is(value($standby, "SELECT owner, state FROM dlock_leases WHERE token = $token"), 'me|held',
	'promoted: by whom it was');
my $first = value($standby, "SELECT dlock_acquire('lacking 1')");
cmp_ok($first, '>', $highest, 'promoted: tokens are higher than any of the old primary');
rising('promoted: and go on rising', $highest, $first, map { value($standby, "SELECT dlock_acquire('more $_')") } 1 .. 3);
is(value($standby, "SELECT dlock_held($ended), dlock_heartbeat($ended)"), 'f|f',
	'promoted: what had ended is not revived');
until_true('promoted: who does not heartbeat loses the lease without any call', sub {
	value($standby, "SELECT outcome FROM dlock.history WHERE token = $forgotten") eq 'expired' });
cmp_ok(clock() - $before, '>=', 4, 'promoted: one TTL after the promotion');

## Promise 3 with a synchronous standby

$primary = $standby;
$primary->backup('base');
$standby = new_standby('synchronous');
$primary->append_conf('postgresql.conf', "synchronous_standby_names = '*'");
$primary->reload;
$primary->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
  or die 'no synchronous standby';

for my $level (qw(off local))
{
	my $psql = start_psql($primary);

	$psql->ask("SET synchronous_commit = $level");
	like($psql->ask("SELECT dlock_acquire('sync $level', ttl => '1 h')"), qr/^\d+$/, "sync, $level: granted");

	# The standby is paused: no answer may come before it has heard of the
	# grant, as it comes for a plain write of this caller.
	my ($walreceiver) = value($standby, 'SELECT pid FROM pg_stat_wal_receiver');
	kill 'STOP', $walreceiver;
	$psql->ask("CREATE TABLE control_$level ()");
	pass("sync, $level: a plain write does not wait");
	$psql->send("SELECT dlock_acquire('paused $level', ttl => '1 h')");
	until_true("sync, $level: the grant waits for the standby", sub {
		value($primary, 'SELECT wait_event FROM pg_stat_activity WHERE pid = ' . $psql->backend) eq 'SyncRep'
		|| ($psql->answered && die 'answered without the standby') });
	kill 'CONT', $walreceiver;
	like($psql->wait_answer, qr/^\d+$/, "sync, $level: and is answered when it is there");
	$psql->close;
}

my @acknowledged = map { value($primary, "SET synchronous_commit = off; SELECT dlock_acquire('acknowledged $_', ttl => '1 h')") } 1 .. 20;
$primary->stop('immediate');
$standby->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$standby->promote;
$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die 'not promoted';
is(value($standby, 'SELECT count(*) FROM unnest(ARRAY[' . join(',', @acknowledged) . ']::bigint[]) t WHERE dlock_heartbeat(t)'),
	20, 'sync: every acknowledged grant survives the failover');
cmp_ok(value($standby, "SELECT dlock_acquire('after the failover')"), '>', $acknowledged[-1],
	'sync: tokens rise');

is(value($standby, 'SELECT * FROM dlock_verify()'), '', 'dlock_verify finds nothing');

$standby->stop;
done_testing();
