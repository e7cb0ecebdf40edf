# Dump and restore.
#
# S5 a dump with live leases is restored: the restored database has no held
# lease, and its tokens rise from the old mark, in another server too, and when
# that mark is ahead of every clock (promise 2).  With the extension in public
# and in schema dlock; all three formats that matter.

use strict;
use warnings;

use Dlock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('source');
my $other = new_node('target');
my $dir = PostgreSQL::Test::Utils::tempdir();

for my $schema ('public', 'dlock')
{
	my $db = "in_$schema";
	# Ahead of what any clock of these years gives: seconds since 2025 << 20.
	my $mark = 1 << 51;

	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql('postgres', "ALTER DATABASE $db SET search_path = public, dlock");
	$node->safe_psql($db, $schema eq 'dlock' ? 'CREATE SCHEMA dlock; CREATE EXTENSION dlock SCHEMA dlock' : 'CREATE EXTENSION dlock');
	value($node, "SELECT setval('dlock.token_seq', $mark)", $db);
	my $token = value($node, "SELECT dlock_acquire('held', ttl => '1 h')", $db);
	value($node, "SELECT dlock_acquire('held ' || n, ttl => '1 h') FROM generate_series(1, 50) n", $db);
	value($node, "SELECT dlock_release(dlock_acquire('released ' || n), 'done') FROM generate_series(1, 50) n", $db);
	my $highest = value($node, "SELECT dlock_acquire('last', ttl => '1 h')", $db);
	cmp_ok($token, '>', $mark, "$schema: the mark is ahead of the clocks");

	for my $format (qw(custom directory plain))
	{
		my $file = "$dir/$db.$format";
		my $restored = "${db}_$format";

		$node->command_ok([ 'pg_dump', '--format', $format, '-f', $file, '-d', $node->connstr($db) ],
			"$schema, $format: dumped");

		for my $server ($node, $other)
		{
			my $where = "$schema, $format, " . $server->name;

			$server->safe_psql('postgres', "CREATE DATABASE $restored");
			$server->safe_psql('postgres', "ALTER DATABASE $restored SET search_path = public, dlock");
			$server->command_ok(
				$format eq 'plain'
				? [ 'psql', '-X', '-q', '-o', '/dev/null', '-v', 'ON_ERROR_STOP=1', '-d', $server->connstr($restored), '-f', $file ]
				: [ 'pg_restore', '--exit-on-error', '-d', $server->connstr($restored), $file ],
				"$where: restored");
			is(value($server, "SELECT count(*) FROM dlock_leases", $restored), 0, "$where: nothing is held");
			is(value($server, "SELECT count(*) FROM dlock.lease", $restored), 0, "$where: no row of a lease");
			is(value($server, "SELECT dlock_heartbeat($token), dlock_held($token), dlock_release($token)", $restored),
				'f|f|f', "$where: the old token is lost");
			my $new = value($server, "SELECT dlock_acquire('held')", $restored);
			cmp_ok($new, '>', $highest, "$where: tokens rise from the old mark");
			is(value($server, "SELECT dlock_heartbeat($new), dlock_release($new, 'done')", $restored), 't|t',
				"$where: and it works");
			is(value($server, "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE extname = 'dlock'", $restored),
				$schema, "$where: in its schema");
		}
	}
	is(value($node, "SELECT dlock_heartbeat($token)", $db), 't', "$schema: the source holds its leases all the time");
}

$node->stop;
$other->stop;
done_testing();
