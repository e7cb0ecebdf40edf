# A database that the launcher has not listed yet: what expires there is recorded
# at its deadline, and not only after dlock.worker_naptime.

use strict;
use warnings;

use Dlock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('new_database', conf => 'dlock.worker_naptime = 1h');

# The launcher has listed what was there at the start.
value($node, "SELECT dlock_acquire('x', ttl => '100 ms')");
until_true('a lease is recorded', sub { value($node, "SELECT count(*) FROM dlock_history WHERE outcome = 'expired'") == 1 });

value($node, 'CREATE DATABASE later');
value($node, 'CREATE EXTENSION dlock', 'later');
value($node, "SELECT dlock_acquire('x', ttl => '100 ms')", 'later');
until_true('and one of a new database, long before the next list', sub {
	value($node, "SELECT count(*) FROM dlock_history WHERE outcome = 'expired'", 'later') == 1 });

$node->stop;
done_testing();
