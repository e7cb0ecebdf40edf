# A takeover that has not committed (promise 1, over a crash).
#
# A crash would bring the dead lease back to life, for its row is still held: so
# nobody may be granted anything beside it before its end is durable.  The torture
# found two holders after such a crash.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;
use Dlock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_node('takeover');
my $worker = pause_worker($node);
my $one = start_psql($node);

value($node, "SELECT dlock_acquire('takeover', ttl => '10 ms')");
usleep(20_000);
$one->ask('BEGIN');
is($one->ask("SELECT dlock_acquire('takeover', share => 'read') IS NOT NULL"), 't', 'a reader takes a dead lease over');
is(value($node, "SELECT dlock_acquire('takeover', share => 'read') IS NULL"), 't', 'no other reader comes in before that has committed');
$one->ask('ROLLBACK');
is(value($node, "SELECT dlock_acquire('takeover', share => 'read') IS NOT NULL"), 't', 'it does when that was rolled back');
is(value($node, "SELECT outcome FROM dlock_history WHERE name = 'takeover'"), 'taken over', 'having ended the dead one itself');
is(value($node, "SELECT dlock_acquire('takeover', share => 'read') IS NOT NULL"), 't', 'and from then on they all do');
is(value($node, 'SELECT count(*) FROM dlock_verify()'), 0, 'dlock_verify() finds nothing');

# Who waits for several leases that one transaction has taken over waits for that
# one, and the server finds a deadlock by way of a row.
{
	my $two = start_psql($node);

	value($node, 'CREATE TABLE work (n int); INSERT INTO work VALUES (0)');
	value($node, "SELECT count(dlock_acquire('two', share => 'read', ttl => '10 ms')) FROM generate_series(1, 2)");
	usleep(20_000);
	$one->ask("SET deadlock_timeout = '1 h'; BEGIN; SELECT dlock_acquire('two')");
	$two->ask("SET deadlock_timeout = '50 ms'; BEGIN; UPDATE work SET n = 1");
	$two->send("SELECT dlock_acquire('two', wait => '1 h')");
	until_true('it waits', sub { value($node, 'SELECT count(*) FROM dlock_waiters') == 1 });
	$one->send('UPDATE work SET n = 2');
	$two->wait_answer;
	like($two->errors, qr/ERROR:  (40P01: )?deadlock detected/, 'a deadlock through a row and two leases is found');
	$two->ask('ROLLBACK');
	$one->wait_answer;
	$one->ask('ROLLBACK');
	$two->close;
}
$one->close;
continue_worker($worker);

done_testing();
