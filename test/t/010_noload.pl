# Without the preloaded library, and with one that does not fit.
#
# Every function and view says 55000 with a hint that tells what to do; promise
# 12, broken is never told as busy or lost.  The extension can be created and
# dropped all the same.

use strict;
use warnings;

use Dlock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('noload', bare => 1);
my $hint = 'shared_preload_libraries';

my @calls = (
	map({ "SELECT $_" }
		"dlock_acquire('x')", "dlock_acquire('x', wait => '0 s')", "dlock_acquire_all(ARRAY['x', 'y'])",
		'dlock_heartbeat(1)', 'dlock_heartbeat(NULL)', 'dlock_heartbeat_all(ARRAY[1])', "dlock_heartbeat_all('{}')",
		"dlock_set_ttl(1, '1 s')", 'dlock_release(1)', "dlock_release(1, 'done')", 'dlock_held(1)', 'dlock_remaining(1)',
		'dlock_guard(1)', 'dlock_guard(NULL)', "dlock_holders('x')",
		'dlock_session_open()', 'dlock_session_heartbeat(1)', 'dlock_session_close(1)',
		"dlock_define('x')", "dlock_undefine('x')", "dlock_revoke(1, 'why')", "dlock_revoke(1, 'why', '1 s')",
		"dlock_protect('plain', 'x')", "dlock_unprotect('plain')", 'dlock_verify()'),
	"CALL dlock_await('x')");
my @views = qw(dlock_leases dlock_waiters dlock_history dlock_locks dlock_stats dlock_databases);

$node->safe_psql('postgres', 'CREATE TABLE plain ()');
$node->safe_psql('postgres', 'CREATE EXTENSION dlock');
pass('the extension can be created');
fails($node, $_, '55000', $hint, "not preloaded: $_") for @calls;
fails($node, "SELECT * FROM $_", '55000', $hint, "not preloaded: $_") for @views;
fails($node, "LOAD 'dlock'; $calls[0]", '55000', $hint, 'loaded in a session: the same');
{
	my ($rc, $out, $err) = $node->psql('postgres', 'SELECT dlock_version()', extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	ok($rc == 0 ? $out =~ /^\(1/ : $err =~ /ERROR:  55000:.*HINT:  .*$hint/s, 'dlock_version answers or says so')
	  || diag("$out$err");
}
# All that users have is in the lists above.
is(value($node, <<SQL), '', 'no function was forgotten');
SELECT string_agg(proname, ',') FROM pg_proc
WHERE proname LIKE 'dlock\\_%' AND prorettype <> 'trigger'::regtype AND proname <> 'dlock_version'
	AND proname <> ALL (string_to_array('@{[ join(',', map { /(dlock_\w+)/ } @calls) ]}', ','))
SQL
is(value($node, "SELECT string_agg(viewname, ',' ORDER BY viewname) FROM pg_views WHERE viewname LIKE 'dlock\\_%'"),
	join(',', sort @views), 'nor a view');
ok(!log_lines($node, 0, qr/PANIC|TRAP|terminated by signal/), 'nothing crashed');

$node->append_conf('postgresql.conf', "session_preload_libraries = 'dlock'");
$node->reload;
fails($node, $calls[0], '55000', $hint, 'preloaded in sessions: the same');
$node->append_conf('postgresql.conf', "session_preload_libraries = ''");

## The server is set up after all, and works with what was created before

$node->append_conf('postgresql.conf', "shared_preload_libraries = 'dlock'");
$node->restart;
my $token = value($node, "SELECT dlock_acquire('x', ttl => '1 h')");
like($token, qr/^\d+$/, 'preloaded: it works');
is(value($node, "SELECT dlock_heartbeat($token)"), 't', 'preloaded: and beats');

# And in a database without the extension nobody is hurt.
$node->safe_psql('postgres', 'CREATE DATABASE empty');
is(value($node, "SELECT count(*) FROM pg_proc WHERE proname LIKE 'dlock%'", 'empty'), 0, 'a database without the extension');

## Library and SQL do not fit

{
	my $psql = start_psql($node);

	$psql->ask("SET allow_system_table_mods = on; UPDATE pg_extension SET extversion = '0.1' WHERE extname = 'dlock'");
	$psql->close;
	fails($node, "SELECT $_", '55000', 'ALTER EXTENSION', "another version: $_") for "dlock_acquire('y')", "dlock_heartbeat($token)";
	$psql = start_psql($node);
	$psql->ask("SET allow_system_table_mods = on; UPDATE pg_extension SET extversion = '1.0' WHERE extname = 'dlock'");
	$psql->close;
	is(value($node, "SELECT dlock_heartbeat($token)"), 't', 'the right version: it works');
}

## And back

$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
fails($node, "SELECT dlock_acquire('x')", '55000', $hint, 'not preloaded any more: a held lock is not told as busy');
fails($node, "SELECT dlock_heartbeat($token)", '55000', $hint, 'not preloaded any more: nor a lease as lost');
$node->safe_psql('postgres', 'DROP EXTENSION dlock');
pass('the extension can be dropped');

$node->stop;
done_testing();
