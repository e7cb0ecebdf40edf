# Failover, there and back.
#
# F3 a standby that lacks the last grants is promoted: its tokens are higher than
# any that the old primary gave, what it knows has its grace, what it does not
# know is lost.  The old primary is rewound (pg_rewind) and follows, and says
# 25006; then it is the synchronous standby, and is promoted after a kill -9:
# promise 3, no acknowledged grant is lost, however little the callers ask for
# (synchronous_commit off, local, ... set before and after), and promise 5, no
# acknowledged end comes back.  Then the whole way round once more: promise 2.

use strict;
use warnings;

use Dlock;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $conf = <<CONF;
wal_log_hints = on
full_page_writes = on
wal_keep_size = 256MB
max_wal_size = 256MB
dlock.worker_naptime = 1s
wal_writer_delay = 10s
autovacuum = off
CONF
my $a = new_node('a', init => { allows_streaming => 1 }, conf => $conf);

value($a, 'CREATE TABLE control (k int)');
$a->backup('base');
my $b = PostgreSQL::Test::Cluster->new('b');
$b->init_from_backup($a, 'base', has_streaming => 1);
$b->start;

my $highest = 0;	# of all tokens that any primary gave

# A token that a primary gave must be higher than all before.
sub given
{
	my ($token, $what) = @_;

	cmp_ok($token, '>', $highest, ($what // 'granted') . ': the token is higher than all before')
	  if $token <= $highest || defined $what;
	$highest = $token if $token > $highest;
	return $token;
}

sub connected
{
	my ($primary) = @_;

	$primary->poll_query_until('postgres', 'SELECT count(*) = 1 FROM pg_stat_replication WHERE state = \'streaming\'')
	  or die 'no standby';
	return value($primary, 'SELECT pid FROM pg_stat_replication');
}

# From here on the standby hears nothing, and the primary does not know.
sub cut
{
	my ($primary) = @_;
	my $walsender = connected($primary);

	kill('STOP', $walsender) or die "cannot stop $walsender";
	return $walsender;
}

# kill -9 of a primary, and of a process of it that is stopped.
sub kill_primary
{
	my ($primary, $walsender) = @_;
	my ($postmaster) = slurp_file($primary->data_dir . '/postmaster.pid') =~ /^(\d+)/;

	kill 'STOP', $postmaster;
	kill 'KILL', $walsender;
	kill_server($primary);
	return;
}

sub promote
{
	my ($standby) = @_;

	$standby->append_conf('postgresql.conf', "synchronous_standby_names = ''");
	$standby->reload;
	$standby->promote;
	$standby->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die 'not promoted';
	return;
}

# The old primary comes back as a standby of the new one.
sub follow
{
	my ($old, $new) = @_;
	my $saved = slurp_file($old->data_dir . '/postgresql.conf');

	# What pg_rewind compares must be on disk.
	value($new, 'CHECKPOINT');
	command_ok(
		[ 'pg_rewind', '--target-pgdata', $old->data_dir, '--source-server', $new->connstr('postgres') ],
		$old->name . ': pg_rewind');

	# It brings the configuration of the other one.
	unlink $old->data_dir . '/postgresql.conf';
	append_to_file($old->data_dir . '/postgresql.conf', $saved);
	$old->enable_streaming($new);
	$old->set_standby_mode;
	$old->start;
	connected($new);
	$new->wait_for_catchup($old, 'replay', $new->lsn('insert'));
	return;
}

sub sound
{
	my ($node, $what) = @_;

	is(value($node, 'SELECT * FROM dlock_verify()'), '', "$what: dlock_verify finds nothing");
	ok(!log_lines($node, 0, qr/PANIC|TRAP|terminated by signal (?!9)/), "$what: nothing crashed by itself");
	return;
}

## An asynchronous standby that lags

my $kept = given(value($a, "SELECT dlock_acquire('kept', ttl => '1 h', owner => 'me')"));
my $short = given(value($a, "SELECT dlock_acquire('short', ttl => '4 s')"));
my $forgotten = given(value($a, "SELECT dlock_acquire('forgotten', ttl => '4 s')"));
my $returns = given(value($a, "SELECT dlock_acquire('returns', ttl => '4 s')"));
my $ended = given(value($a, "SELECT dlock_acquire('ended', ttl => '1 h')"));
my $session = given(value($a, "SELECT dlock_session_open(ttl => '1 h')"));
my $leased = given(value($a, "SELECT dlock_acquire('leased', session => $session)"));
value($a, "SELECT dlock_release($ended, 'done')");
$a->wait_for_catchup($b, 'replay', $a->lsn('insert'));

my $walsender = cut($a);
is(value($a, "SELECT dlock_release($returns, 'not replicated')"), 't', 'a: an end that is not replicated');
my $taken = given(value($a, "SELECT dlock_acquire('returns', ttl => '1 h')"));
{
	my $psql = start_psql($a);

	for my $i (1 .. 200)
	{
		given($psql->ask("SELECT dlock_acquire('lacking $i', ttl => '1 h')"));
	}
	# Many more than a sequence logs ahead.
	$psql->ask("SELECT count(nextval('dlock.token_seq')) FROM generate_series(1, 100000)");
	given($psql->ask("SELECT dlock_acquire('lacking last', ttl => '1 h')"));
	$psql->ask("SELECT dlock_heartbeat($short)");
	$psql->close;
}
kill_primary($a, $walsender);
sleep_until(clock() + 4.2);		# longer than the TTL
my $before = clock();
promote($b);

is(value($b, "SELECT dlock_heartbeat($short), dlock_held($kept), dlock_guard($kept) = $kept"), 't|t|t',
	'promoted: what it knows has its grace');
is(value($b, "SELECT dlock_acquire('kept') IS NULL, dlock_acquire('returns') IS NULL"), 't|t', 'promoted: and is busy to others');
is(value($b, "SELECT owner, state FROM dlock_leases WHERE token = $kept"), 'me|held', 'promoted: as it was');
is(value($b, "SELECT dlock_session_heartbeat($session), dlock_held($leased)"), '{}|t', 'promoted: sessions too');
is(value($b, "SELECT dlock_heartbeat($ended), dlock_held($ended)"), 'f|f', 'promoted: what had ended is not revived');
is(value($b, "SELECT dlock_held($returns), dlock_remaining($returns) <= '4 s', count(*) FROM dlock_history WHERE token = $returns"),
	't|t|0', 'promoted: an end that was not replicated comes back as the same lease, for one TTL');
is(value($b, "SELECT dlock_heartbeat($taken), dlock_held($taken), dlock_release($taken)"), 'f|f|f',
	'promoted: a grant that was not replicated is lost');
fails($b, "SELECT dlock_guard($taken)", 'LK001', undef, 'promoted: and guards nothing');
given(value($b, "SELECT dlock_acquire('lacking 1', ttl => '1 h')"), 'promoted');
until_true('promoted: who does not heartbeat loses the lease without any call', sub {
	value($b, "SELECT count(*) FROM dlock.history WHERE token IN ($forgotten, $returns) AND outcome = 'expired'") == 2 });
cmp_ok(clock() - $before, '>=', 4, 'promoted: not before one TTL has passed');
given(value($b, "SELECT dlock_acquire('returns', ttl => '1 h')"), 'promoted, later');
sound($b, 'promoted');

## The old primary comes back

follow($a, $b);
for my $call ("dlock_acquire('returns')", "dlock_heartbeat($kept)", "dlock_guard($kept)", "dlock_release($taken)",
	"dlock_session_heartbeat($session)", 'dlock_verify()')
{
	fails($a, "SELECT $call", '25006', '.*primary', "rewound: $call");
}
is(value($a, "SELECT count(*) FROM dlock.lease WHERE name LIKE 'lacking%'"), 1,
	'rewound: the grants that the new primary does not know are gone');
is(value($a, "SELECT token FROM dlock.lease WHERE name = 'kept' AND ended_at IS NULL"), $kept, 'rewound: what was held is');

## Synchronous replication, and callers that ask for less

# %s is the acquire; the lease counts as granted when the last command is answered.
my @careless = (
	"SET synchronous_commit = off;\n%s\n",
	"SET synchronous_commit = local;\n%s\n",
	"SET synchronous_commit = remote_write;\n%s\n",
	"BEGIN;\nSET LOCAL synchronous_commit = off;\n%s\nCOMMIT;\n",
	"BEGIN;\n%s\nSET LOCAL synchronous_commit = off;\nCOMMIT;\n",
	"BEGIN;\n%s\nSET LOCAL synchronous_commit = local;\nCOMMIT;\n",
	"BEGIN;\n%s\nSET synchronous_commit = local;\nCOMMIT;\n",
	"BEGIN;\nSAVEPOINT s;\n%s\nSET LOCAL synchronous_commit = off;\nRELEASE s;\nCOMMIT;\n",
	"BEGIN;\n%s\nSELECT set_config('synchronous_commit', 'local', true) \\g /dev/null\nCOMMIT;\n",
	"SET synchronous_commit = off;\nCALL dlock_await(:'name', ttl => '1 h', wait => '1 s') \\gset\n");
my $acquire = "SELECT dlock_acquire(:'name', ttl => '1 h') AS token \\gset";
my $dir = PostgreSQL::Test::Utils::tempdir();

# The primary and its synchronous standby: kill -9 of the one while clients are at
# work, and promotion of the other.
sub fail_over
{
	my ($primary, $standby, $what) = @_;
	my (@clients, %granted, %released);

	$primary->append_conf('postgresql.conf', "synchronous_standby_names = '*'");
	$primary->reload;
	$primary->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
	  or die 'no synchronous standby';
	my $brief = given(value($primary, "SELECT dlock_acquire('$what brief', ttl => '4 s')"));

	for my $i (0 .. $#careless)
	{
		my $client = { out => '', err => '' };
		my $script = "$dir/$what-$i.sql";

		append_to_file($script, "\\set k 0\n" . <<SQL x 2000);
SELECT '$what $i ' || :k AS name, :k + 1 AS k, :k % 3 = 0 AS ends \\gset
@{[$careless[$i] =~ s/%s/$acquire/r]}
\\echo granted :token
\\if :ends
	SELECT dlock_release(:token, 'done') AS released \\gset
	\\echo released :token :released
\\endif
SQL
		$client->{run} = IPC::Run::start(
			[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $primary->connstr('postgres'), '-f', $script ],
			'<', \undef, '>', \$client->{out}, '2>', \$client->{err});
		push @clients, $client;
	}
	my $end = clock() + 120;
	while (grep { (() = $_->{out} =~ /^granted/gm) < 4 } @clients)
	{
		die 'the clients do not come forward: ' . join('', map { $_->{err} } @clients) if clock() > $end;
		$_->{run}->pumpable && $_->{run}->pump_nb for @clients;
		usleep(1_000);
	}

	# The standby is cut off.  A plain write of who asks for no more is answered,
	# and lost; a grant or an end is not answered.
	my $walsender = cut($primary);
	my $waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
	until_true("$what: each client waits for the standby", sub { value($primary, $waiting) == @careless }, 30);
	value($primary, 'SET synchronous_commit = local; INSERT INTO control VALUES (1)');
	usleep(200_000);
	kill_primary($primary, $walsender);

	for my $client (@clients)
	{
		eval { $client->{run}->finish };
		unlike($client->{err}, qr/ERROR/, "$what: no client met an error") if $client->{err} =~ /ERROR/ || $client == $clients[0];
		$granted{$1} = 1 while $client->{out} =~ /^granted (\d+)$/gm;
		$released{$1} = 1 while $client->{out} =~ /^released (\d+) t$/gm;
	}
	for my $token (keys %granted)
	{
		$highest = $token if $token > $highest;
	}
	sleep_until(clock() + 4.2);		# longer than the TTL of one
	promote($standby);

	is(value($standby, "SELECT dlock_heartbeat($brief), dlock_release($brief)"), 't|t', "$what: leases have their grace");
	is(value($standby, 'SELECT count(*) FROM control'), 0, "$what: what was written with synchronous_commit = local is lost");
	my @held = grep { !$released{$_} } keys %granted;
	my @ended = keys %released;
	cmp_ok(scalar(@held), '>=', 2 * @careless, "$what: there were " . @held . ' acknowledged grants');
	# A release that was not acknowledged may have come through.
	is(value($standby, <<SQL), '', "$what: promise 3, none of them is lost");
SELECT t FROM unnest('{@{[join ',', @held]}}'::bigint[]) t
WHERE NOT dlock_heartbeat(t) AND NOT EXISTS (SELECT FROM dlock_history h WHERE h.token = t AND outcome = 'released')
SQL
	is(value($standby, "SELECT count(*) - count(dlock_guard(t)), count(*) > @{[@held - @careless - 1]} FROM unnest('{@{[join ',', @held]}}'::bigint[]) t WHERE dlock_held(t)"),
		'0|t', "$what: and they can be used");
	cmp_ok(scalar(@ended), '>=', @careless, "$what: there were " . @ended . ' acknowledged ends');
	is(value($standby, <<SQL), '', "$what: promise 5, none of them is revived");
SELECT t FROM unnest('{@{[join ',', @ended]}}'::bigint[]) t
WHERE dlock_held(t) OR NOT EXISTS (SELECT FROM dlock_history h WHERE h.token = t AND outcome = 'released' AND result = 'done')
SQL
	given(value($standby, "SELECT dlock_acquire('$what after')"), $what);
	is(value($standby, "SELECT dlock_heartbeat($kept), dlock_acquire('kept') IS NULL"), 't|t', "$what: what was held from the beginning is");
	sound($standby, $what);
	return;
}

fail_over($b, $a, 'there');

## And back

follow($b, $a);
fails($b, "SELECT dlock_heartbeat($kept)", '25006', '.*primary', 'back: the old primary is a standby');
fail_over($a, $b, 'back');
is(value($b, "SELECT dlock_release($kept, 'after three failovers')"), 't', 'back: a lease outlived all of it');
is(value($b, "SELECT count(*) FROM dlock_history WHERE token = $kept"), 1, 'back: and has one row of history');

$b->stop;
done_testing();
