# Which snapshots are too old for a lock: those that a transaction keeps, in whatever
# way its statements come, and no others.

use strict;
use warnings;

use Dlock;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('snapshot');
my $other = start_psql($node);

# Run a command, and something else as soon as it waits.
sub meanwhile
{
	my ($command, $wait_event_type, $sql) = @_;
	my ($out, $err) = ('', '');
	my $run = IPC::Run::start($command, '<', \'', '>', \$out, '2>', \$err);

	until_true("it waits", sub {
		value($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'waits' AND wait_event_type = '$wait_event_type'") == 1 });
	$other->ask($sql);
	$run->finish;
	return "$out$err";
}

local $ENV{PGAPPNAME} = 'waits';

# All in one message, so that all statements begin at one time.
for my $acquire ("SELECT dlock_acquire('job')", "SELECT dlock_acquire_all(ARRAY['job'])",
	"SAVEPOINT a; SELECT dlock_acquire('job')", "SAVEPOINT a; SELECT dlock_acquire_all(ARRAY['job'])",
	"SAVEPOINT a; SELECT dlock_guard(token) FROM dlock_holders('held')")
{
	$other->ask("SELECT pg_advisory_lock(42)");
	like(meanwhile([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-v', 'VERBOSITY=verbose', '-c',
			"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class; SELECT pg_advisory_xact_lock(42); $acquire; COMMIT" ], 'Lock',
			"SELECT dlock_release(dlock_acquire('job')); SELECT dlock_acquire('held'); SELECT pg_advisory_unlock(42)"),
		qr/ERROR:  40001/, "kept, and too old: $acquire");
	$other->ask("SELECT dlock_release(token) FROM dlock_holders('held')");
}

# One statement is a transaction, though the server learns of it in three messages.
for my $acquire ("SELECT dlock_acquire('job', wait => '1 min')", "SELECT dlock_acquire_all(ARRAY['job'], wait => '1 min')")
{
	for my $protocol ('simple', 'extended', 'prepared')
	{
		my $script = PostgreSQL::Test::Utils::tempdir() . '/script';

		append_to_file($script, "$acquire;\n");
		$other->ask("SELECT dlock_acquire('job')");
		local $ENV{PGOPTIONS} = '-c default_transaction_isolation=serializable';
		like(meanwhile([ 'pgbench', '-n', '-t', '1', '-M', $protocol, '-f', $script, '-d', $node->connstr('postgres') ],
				'Extension', "SELECT dlock_release(token) FROM dlock_holders('job')"),
			qr{number of transactions actually processed: 1/1\n(?!.*(?:failed: [1-9]|aborted))}s, "not kept, $protocol: $acquire");
		$other->ask("SELECT dlock_release(token) FROM dlock_holders('job')");
	}
}

$other->close;
$node->stop;
done_testing();
