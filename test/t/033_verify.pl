# dlock_verify() tells the truth in a busy server.
#
# It finds nothing while many clients take, keep, lose, end and share leases in
# every way, nor after a kill -9 in the middle of that, nor when the wall clock is
# set.  That it does find breaches, sql/verify shows.

use strict;
use warnings;

use Dlock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use WallClock;

## Under load

my $node = new_node('verify', conf => <<CONF);
dlock.worker_naptime = 500ms
dlock.log_lost_leases = off
CONF

# Everything, on few locks, with short times.  What is lost, deadlocked or not to
# be had (a TTL of a session's lease) is no failure; any other error is kept.
value($node, <<'SQL');
CREATE UNLOGGED TABLE did (what text, sqlstate text);
SELECT dlock_define('permits', capacity => 3, takeover_delay => '15 ms'), dlock_define('silent', history => false);
CREATE FUNCTION act(name text, how int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	ttl interval := CASE WHEN random() < 0.5 THEN '15 ms' ELSE '1 min' END;
	wait interval := CASE WHEN random() < 0.3 THEN '20 ms' END;
	share text := CASE WHEN name LIKE 'shared%' AND random() < 0.7 THEN 'read' END;
	t bigint; s bigint; u bigint;
BEGIN
	IF how = 0 THEN
		s := dlock_session_open(ttl => CASE WHEN random() < 0.5 THEN interval '20 ms' ELSE '1 min' END,
			on_disconnect => CASE WHEN random() < 0.2 THEN 'release' ELSE 'keep' END);
		t := dlock_acquire(name, session => s, share => share);
		u := dlock_acquire(name, session => s, share => share, reentrant => true);
		PERFORM dlock_acquire(name || ' too', session => s);
		PERFORM dlock_release(t);
		IF random() < 0.7 THEN
			PERFORM dlock_session_close(s);
		END IF;
		RETURN 'session';
	ELSIF how = 1 THEN
		RETURN 'all ' || (dlock_acquire_all(ARRAY['lock 1', 'lock 2', name], ttl, wait) IS NOT NULL);
	ELSIF how = 2 THEN
		SELECT token INTO t FROM dlock_holders(name) LIMIT 1;
		RETURN 'revoke ' || dlock_revoke(t, 'test', CASE WHEN random() < 0.5 THEN interval '10 ms' END);
	ELSIF how = 3 THEN
		SELECT token INTO t FROM dlock_holders(name) ORDER BY token DESC LIMIT 1;
		RETURN 'of another ' || coalesce(CASE (random() * 4)::int WHEN 0 THEN dlock_release(t, 'by another') WHEN 1 THEN dlock_heartbeat(t)
			WHEN 2 THEN dlock_set_ttl(t, '20 ms') WHEN 3 THEN dlock_guard(t) = t ELSE dlock_held(t) END, false);
	END IF;
	t := dlock_acquire(name, ttl, wait, share => share, min_hold => CASE WHEN random() < 0.1 THEN interval '10 ms' END);
	IF t IS NULL THEN
		RETURN 'busy';
	END IF;
	IF how = 4 THEN
		BEGIN
			PERFORM dlock_release(t);
			u := dlock_acquire(name, ttl, share => share);
			RAISE EXCEPTION 'rolled back' USING ERRCODE = 'P0099';
		EXCEPTION WHEN SQLSTATE 'P0099' THEN
			NULL;
		END;
	ELSIF how = 5 THEN
		PERFORM dlock_release(t, 'at once');
		t := dlock_acquire(name, ttl, share => share);
	ELSIF how = 6 THEN
		RAISE EXCEPTION 'never was' USING ERRCODE = 'P0099';
	ELSIF how = 7 THEN
		RETURN 'left';
	END IF;
	PERFORM set_config('test.token', coalesce(t, 0)::text, false);
	RETURN 'granted';
END $$;
CREATE PROCEDURE client(name text, how int) LANGUAGE plpgsql AS $$
DECLARE
	what text; state text := '00000';
BEGIN
	BEGIN
		what := act(name, how);
	EXCEPTION WHEN OTHERS THEN
		state := SQLSTATE;
	END;
	IF what = 'granted' THEN
		COMMIT;
		PERFORM pg_sleep(random() * 0.02);
		PERFORM dlock_heartbeat(current_setting('test.token')::bigint);
		BEGIN
			PERFORM dlock_guard(current_setting('test.token')::bigint);
			PERFORM pg_sleep(random() * 0.01);
		EXCEPTION WHEN SQLSTATE 'LK001' THEN
			what := 'granted and lost';
		END;
		IF random() < 0.7 THEN
			PERFORM dlock_release(current_setting('test.token')::bigint, CASE WHEN random() < 0.5 THEN 'done' END);
		END IF;
	END IF;
	INSERT INTO did VALUES (what, state);
END $$;
SQL

my $script = <<'SQL';
\set how random(0, 9)
\set n random(1, 6)
CALL client((ARRAY['lock 1', 'lock 2', 'lock 3', 'permits', 'shared', 'silent'])[:n], :how);
SQL

# pgbench in the background: its pid.
sub start_load
{
	my ($node, $seconds) = @_;
	my $pid = fork() // die "fork: $!";

	return $pid if $pid;
	open STDOUT, '>', $node->basedir . '/pgbench.out';
	open STDERR, '>&', \*STDOUT;
	exec 'pgbench', '-n', '-c', '12', '-j', '2', '-T', $seconds, '-f', $node->basedir . '/load.sql', '-d', $node->connstr('postgres');
}

# Look all the time, in each kind of transaction, until pgbench has come to its end.
sub verify_during
{
	my ($node, $seconds) = @_;
	my $psql = start_psql($node);
	my ($looks, @found) = (0);
	my $pid = start_load($node, $seconds);
	my @levels = ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE READ ONLY');

	while (waitpid($pid, 1) == 0)	# WNOHANG
	{
		my $answer = $psql->ask("BEGIN ISOLATION LEVEL $levels[$looks++ % 3]; SELECT * FROM dlock_verify(); COMMIT");

		push @found, $answer if $answer ne '';
	}
	my $status = $?;
	$psql->close;
	return ($status, $looks, @found);
}

append_to_file($node->basedir . '/load.sql', $script);
{
	my ($status, $looks, @found) = verify_during($node, 10);

	is($status, 0, 'load: no client met an error that was not expected')
	  || diag(slurp_file($node->basedir . '/pgbench.out'));
	cmp_ok($looks, '>', 20, "load: $looks looks meanwhile");
	is(join("\n", @found), '', 'load: which found nothing');
	is(value($node, "SELECT DISTINCT sqlstate FROM did WHERE sqlstate NOT IN ('00000', 'LK001', '40P01', '22023', 'P0099') ORDER BY 1"), '',
		'load: nor was there any other error');
	is(value($node, <<SQL), 't|t|t|t', 'load: and there was enough of each')
SELECT (SELECT count(*) > 200 FROM did WHERE what LIKE 'granted%'), (SELECT count(*) > 20 FROM did WHERE what = 'session'),
	(SELECT count(*) > 5 FROM did WHERE what = 'all true'), (SELECT count(*) > 5 FROM did WHERE what = 'revoke true')
SQL
	  || diag(value($node, 'SELECT what, sqlstate, count(*) FROM did GROUP BY 1, 2 UNION ALL SELECT outcome, NULL, count(*) FROM dlock_history GROUP BY 1'));
	is(value($node, 'SELECT * FROM dlock_verify()'), '', 'load: nothing afterwards');
	until_true('load: all that is short ends', sub {
		value($node, "SELECT count(*) FROM dlock_leases WHERE ttl < '1 s' AND state <> 'held'") == 0 }, 60);
	until_true('load: in every way', sub { value($node, 'SELECT count(DISTINCT outcome) FROM dlock_history') == 5 }, 60);
	is(value($node, 'SELECT * FROM dlock_verify()'), '', 'load: nor after that');
	is(value($node, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), 0, 'load: no tag is left');
}

## After a crash in the middle

for my $round (1 .. 3)
{
	my $pid = start_load($node, 60);
	my $n = value($node, 'SELECT granted FROM dlock_stats');
	until_true("crash $round: in the middle of it", sub { value($node, 'SELECT granted FROM dlock_stats') > $n + 100 });
	kill_server($node);
	waitpid $pid, 0;
	$node->start;
	is(value($node, 'SELECT * FROM dlock_verify()'), '', "crash $round: nothing right after it");
	my $held = value($node, 'SELECT count(*) FROM dlock.lease WHERE ended_at IS NULL');
	cmp_ok($held, '>', 0, "crash $round: $held leases were adopted");
	is(value($node, 'SELECT * FROM dlock_verify()'), '', "crash $round: nor with these");
}
{
	my ($status, $looks, @found) = verify_during($node, 3);

	is(join("\n", $status, @found), '0', 'after the crashes: nor under load');
}
ok(!log_lines($node, 0, qr/PANIC|TRAP|terminated by signal (?!9)/), 'nothing crashed by itself');
$node->stop;

## The wall clock

{
	my $clock = WallClock->new(PostgreSQL::Test::Utils::tempdir());
	my $fake = new_node('wallclock', start => 0, conf => 'autovacuum = off');

	{
		local %ENV = (%ENV, $clock->env);
		$fake->start;
	}
	value($fake, 'CREATE EXTENSION dlock');
	for my $step (3600, -3600, 0)
	{
		my $short = value($fake, "SELECT dlock_acquire('short', ttl => '1 s')");
		my $long = value($fake, "SELECT dlock_acquire('long', ttl => '1 h')");

		value($fake, "SELECT dlock_release(dlock_acquire('cycle'), 'before')");
		$clock->set($step);
		value($fake, "SELECT dlock_release(dlock_acquire('cycle'), 'after')");
		is(value($fake, "SELECT dlock_release($long, 'done')"), 't', "the clock is set to $step s: a lease is held over it");
		value($fake, "SELECT dlock_release(dlock_acquire('long'))");
		until_true("the clock is set to $step s: one ends by its time", sub {
			value($fake, "SELECT outcome FROM dlock.history WHERE token = $short") eq 'expired' }, 60);
		is(value($fake, "SELECT dlock_acquire('short', ttl => '10 ms') > $short"), 't', "the clock is set to $step s: and is followed");
		is(value($fake, 'SELECT * FROM dlock_verify()'), '', "the clock is set to $step s: dlock_verify finds nothing");
	}
	$fake->stop;
}

done_testing();
