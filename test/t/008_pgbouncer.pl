# Behind PgBouncer in transaction mode.
#
# F1 acquire, heartbeat, guard and release each on another server connection;
# nothing is left on a server connection: no lock, no setting.  W6 two clients
# that share a connection are two contenders.

use strict;
use warnings;

use Dlock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($bouncer) = grep { -x $_ } map { "$_/pgbouncer" } (split(/:/, $ENV{PATH}), '/usr/sbin', '/usr/local/sbin');

plan skip_all => 'pgbouncer is not installed' unless $bouncer;
plan skip_all => 'pgbouncer does not run as root' if $> == 0;

my $node = new_node('bounced', conf => <<CONF);
synchronous_commit = off
application_name = 'none'
CONF
my $dir = PostgreSQL::Test::Utils::tempdir_short();
my $port = PostgreSQL::Test::Cluster::get_free_port();
my ($host, $user) = ($node->host, value($node, 'SELECT current_user'));

append_to_file("$dir/users.txt", qq("$user" ""\n));
append_to_file("$dir/pgbouncer.ini", <<INI);
[databases]
postgres = host=$host port=@{[ $node->port ]} dbname=postgres user=$user
[pgbouncer]
listen_addr =
unix_socket_dir = $dir
listen_port = $port
auth_type = any
auth_file = $dir/users.txt
pool_mode = transaction
default_pool_size = 2
server_reset_query =
logfile = $dir/pgbouncer.log
pidfile = $dir/pgbouncer.pid
INI

system_or_bail($bouncer, '-d', '-q', "$dir/pgbouncer.ini");
END
{
	my $status = $?;
	if (defined $dir && -e "$dir/pgbouncer.pid")
	{
		my $pid = slurp_file("$dir/pgbouncer.pid");
		kill 'TERM', $pid if $pid =~ /^\d+/;
	}
	$? = $status;
}

my $connstr = "host=$dir port=$port dbname=postgres user=$user";
until_true('pgbouncer answers', sub { system_log('psql', '-XAtq', '-o', '/dev/null', '-d', $connstr, '-c', 'SELECT 1') == 0 });

my @blocker = map { start_psql(undef, undef, connstr => $connstr) } 1 .. 2;
my @client = map { start_psql(undef, undef, connstr => $connstr) } 1 .. 5;

# There are two server connections, and a transaction that is open on one
# sends everybody else to the other.
my @server;
{
	my $first = $blocker[0]->ask('BEGIN; SELECT pg_backend_pid()');
	my $second = $client[0]->ask('SELECT pg_backend_pid()');

	$blocker[0]->ask('COMMIT');
	isnt($first, $second, 'two server connections');
	@server = ($first, $second);
}

# Ask by way of the server connection n: the other one is kept busy meanwhile.
sub on
{
	my ($n, $client, $sql) = @_;
	my ($keep, $spare) = @blocker;

	if ($keep->ask('BEGIN; SELECT pg_backend_pid()') eq $server[$n])
	{
		($keep, $spare) = ($spare, $keep);
		$keep->ask('BEGIN');
		$spare->ask('COMMIT');
	}
	my $where = $client->ask('SELECT pg_backend_pid()');
	my $answer = $client->try($sql);

	$keep->ask('COMMIT');
	die "on connection $where" if $where ne $server[$n];
	return $answer;
}

sub nothing_left
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is(value($node, 'SELECT count(*) FROM pg_locks WHERE pid IN (' . join(',', @server) . ')'), 0,
		"$what: no lock is left");
	for my $n (0, 1)
	{
		is(on($n, $client[4], <<SQL), 'off|30s|read committed', "$what: no setting on connection $n");
SELECT current_setting('synchronous_commit'), current_setting('dlock.default_ttl'), current_setting('transaction_isolation')
SQL
		is(on($n, $client[4], "SELECT count(*) FROM pg_settings WHERE source = 'session' AND name NOT IN ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings', 'search_path')"),
			0, "$what: none at all");
	}
	return;
}

for my $round (0, 1)
{
	my ($x, $y) = ($round, 1 - $round);
	my $name = "f1 $round";

	my $token = on($x, $client[0], "SELECT dlock_acquire('$name', ttl => '1 min')");
	like($token, qr/^\d+$/, "round $round: acquired");
	nothing_left("round $round, acquired");

	# W6: whoever shares the connection is another contender.
	is(on($x, $client[1], "SELECT dlock_acquire('$name') IS NULL"), 't', "round $round: busy to a client of the same connection");
	is(on($y, $client[1], "SELECT dlock_acquire('$name') IS NULL"), 't', "round $round: busy to a client of the other");
	is(on($x, $client[0], "SELECT dlock_acquire('$name') IS NULL"), 't', "round $round: busy to the client itself");

	is(on($y, $client[0], "SELECT dlock_heartbeat($token)"), 't', "round $round: heartbeat on the other connection");
	is(on($x, $client[2], "SELECT dlock_heartbeat($token), dlock_held($token), dlock_remaining($token) > '30 s'"), 't|t|t',
		"round $round: from another client");
	is(on($y, $client[0], "BEGIN; SELECT dlock_guard($token) = $token; CREATE TABLE IF NOT EXISTS work (n int); INSERT INTO work VALUES ($round); COMMIT"),
		't', "round $round: guard on the other connection");
	nothing_left("round $round, guarded");
	is(on($x, $client[0], "SELECT dlock_set_ttl($token, '2 min')"), 't', "round $round: new TTL");
	nothing_left("round $round, new TTL");
	on($y, $client[0], "BEGIN; SELECT dlock_guard($token); SELECT 1 / 0; ROLLBACK");
	nothing_left("round $round, failed");
	is(on($y, $client[0], "SELECT dlock_release($token, 'done')"), 't', "round $round: released on the other connection");
	is(on($x, $client[0], "SELECT dlock_release($token, 'done')"), 'f', "round $round: once");
	nothing_left("round $round, released");
	is(value($node, "SELECT outcome, result, heartbeats, refused FROM dlock_history WHERE token = $token"), 'released|done|2|3',
		"round $round: history");
}

# A client that goes takes nothing along: the connection stays, and the lease.
my $token = on(0, $client[3], "SELECT dlock_acquire('stays', ttl => '1 min')");
$client[3]->kill9;
is(on(0, $client[0], "SELECT dlock_heartbeat($token)"), 't', 'the lease outlives its client');
on(0, $client[2], "SET synchronous_commit = local; BEGIN; SELECT dlock_acquire('aborted'); ROLLBACK; RESET synchronous_commit");
nothing_left('rolled back');

$_->close for @blocker, @client;
$node->stop;
done_testing();
