# NOTIFY.
#
# Who listens to channel dlock hears of locks that are defined so: JSON with event,
# name, token and owner, for every way in which a lease begins and ends, also when
# the worker ends it; valid for any name and owner, at full length.  Nothing of
# other locks, of what is rolled back, or in another database.

use strict;
use warnings;

use Dlock;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = new_node('notify', conf => 'dlock.worker_naptime = 1s',
	init => { extra => [ '--encoding=UTF8', '--locale=C' ] });

value($node, 'CREATE DATABASE other');
my $listener = start_psql($node);
my $elsewhere = start_psql($node, 'other');
$_->ask('LISTEN dlock') for $listener, $elsewhere;

# The payloads that have come, in order: decoded, or a text that says what is wrong.
sub heard
{
	my $psql = shift || $listener;
	my @events;

	for my $line (split /\n/, $psql->ask('SELECT 1'))
	{
		next unless $line =~ /^Asynchronous notification "(.*?)" with payload "(.*)" received from server process with PID \d+\.$/;
		is($1, 'dlock', 'the channel') if $1 ne 'dlock';
		my $event = eval { JSON::PP->new->utf8->decode($2) } || "no JSON: $2 ($@)";
		push @events, $event;
	}
	return @events;
}

# Wait until these have come, and nothing else: "event token" each.
sub hears
{
	my ($what, $name, $owner, @expected) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @events = heard();
	my $end = clock() + 60;

	while (@events < @expected && clock() < $end)
	{
		usleep(20_000);
		push @events, heard();
	}
	is_deeply(\@events,
		[ map { my ($event, $token) = /^(.*) (\d+)$/;
				{ event => $event, token => $token + 0, name => $name, owner => $owner } } @expected ],
		$what) || diag(explain(\@events));
	return;
}

sub take
{
	my ($name, $args) = @_;

	return value($node, "SELECT dlock_acquire('$name', owner => 'me'" . ($args ? ", $args" : '') . ')');
}

value($node, "SELECT dlock_define('told', notify => true), dlock_define('quiet')");

## Every beginning, every end

{
	my $token = take('told');
	hears('acquired', 'told', 'me', "acquired $token");
	value($node, "SELECT dlock_heartbeat($token), dlock_acquire('told') IS NULL, dlock_guard($token), dlock_set_ttl($token, '1 min')");
	hears('nothing of heartbeats, refusals, guards', 'told', 'me');
	value($node, "SELECT dlock_release($token)");
	hears('released', 'told', 'me', "released $token");
	value($node, "SELECT dlock_release($token)");
	hears('nothing of what is not there', 'told', 'me');

	$token = take('told');
	value($node, "SELECT dlock_release($token, 'done')");
	hears('released with a result', 'told', 'me', "acquired $token", "released $token");

	$token = take('told', "ttl => '100 ms'");
	hears('expired, by the worker', 'told', 'me', "acquired $token", "expired $token");

	# taken over: the worker leaves what somebody waits for
	$token = take('told', "ttl => '700 ms'");
	my $next = take('told', "wait => '1 min'");
	hears('taken over', 'told', 'me', "acquired $token", "taken over $token", "acquired $next");
	value($node, "SELECT dlock_revoke($next, 'maintenance')");
	hears('revoked', 'told', 'me', "revoked $next");

	$token = take('told', "ttl => '1 h'");
	value($node, "SELECT dlock_revoke($token, 'maintenance', grace => '200 ms')");
	hears('revoked, after a time of grace', 'told', 'me', "acquired $token", "revoked $token");

	my $holder = start_psql($node);
	$token = $holder->ask("SELECT dlock_acquire('told', session => dlock_session_open(owner => 'me', on_disconnect => 'release'))");
	$holder->close;
	hears('disconnected', 'told', 'me', "acquired $token", "disconnected $token");

	my $session = value($node, "SELECT dlock_session_open(owner => 'me')");
	$token = value($node, "SELECT dlock_acquire('told', session => $session)");
	value($node, "SELECT dlock_acquire('told', session => $session, reentrant => true), dlock_release($token)");
	value($node, "SELECT dlock_session_close($session)");
	hears('released with its session', 'told', 'me', "acquired $token", "released $token");

	$token = value($node, "CALL dlock_await('told', owner => 'me')");
	value($node, "SELECT dlock_release($token)");
	hears('acquired between transactions', 'told', 'me', "acquired $token", "released $token");
	$token = value($node, "SELECT (dlock_acquire_all(ARRAY['told', 'quiet'], owner => 'me', ttl => '1 h'))[1]");
	value($node, "SELECT dlock_release(token) FROM dlock_leases");
	hears('acquired with others', 'told', 'me', "acquired $token", "released $token");
}

## At commit, or not at all

{
	my $psql = start_psql($node);
	my $token = $psql->ask("BEGIN; SELECT dlock_acquire('told', owner => 'me')");

	hears('nothing before the commit', 'told', 'me');
	$psql->ask('COMMIT');
	hears('with the commit', 'told', 'me', "acquired $token");
	$psql->ask("BEGIN; SELECT dlock_release($token); ROLLBACK");
	$psql->ask("BEGIN; SAVEPOINT s; SELECT dlock_release($token); ROLLBACK TO s; COMMIT");
	$psql->ask("BEGIN; SELECT dlock_revoke($token, 'x'); ROLLBACK");
	hears('nothing of an end that is rolled back', 'told', 'me');
	$psql->ask("SELECT dlock_release($token)");
	$psql->ask("BEGIN; SELECT dlock_acquire('told'); ROLLBACK");
	hears('nor of a grant', 'told', 'me', "released $token");
	$token = $psql->ask("BEGIN; SELECT dlock_acquire('told', owner => 'me')");
	$psql->ask("SELECT dlock_release($token); COMMIT");
	hears('both in one transaction', 'told', 'me', "acquired $token", "released $token");
	$psql->close;
}

## Other locks

{
	my $token = take('quiet');
	value($node, "SELECT dlock_release($token)");
	$token = take('unknown', "ttl => '50 ms'");
	until_true('expired', sub { value($node, "SELECT count(*) FROM dlock_history WHERE token = $token") == 1 }, 60);
	hears('nothing of locks that are not defined so', 'quiet', 'me');

	# The definition counts when it happens.
	$token = take('quiet');
	value($node, "SELECT dlock_define('quiet', notify => true)");
	value($node, "SELECT dlock_release($token)");
	hears('defined meanwhile', 'quiet', 'me', "released $token");
	$token = take('told');
	value($node, "SELECT dlock_undefine('told')");
	value($node, "SELECT dlock_release($token)");
	hears('undefined meanwhile', 'told', 'me', "acquired $token");
	is_deeply([ heard($elsewhere) ], [], 'nothing in another database');
}

## Any name, any owner

my $control = join '', map { chr } 1 .. 31, 127;
for my $case (
	[ 'quotes', q('"`), q("quoted" 'owner') ],
	[ 'backslashes', q(a\\b\\"c\\u0041), q(\\) ],
	[ 'control characters', $control, "$control$control" ],
	[ 'JSON in JSON', '{"event":"released","name":"x"}', '","token":1,"x":"' ],
	[ 'other scripts', "\x{17e}\x{1f512}\x{5d0}\x{202e}", "\x{2028}\x{0301}" ],
	[ 'a long name and owner', 'n' x 255, 'o' x 1024 ],
	[ 'a long name and owner, of what takes most room', chr(1) x 255, chr(31) x 1024 ],
	[ 'the same in two bytes each', "\x{e9}" x 127, "\x{e9}" x 512 ])
{
	my ($what, $name, $owner) = @$case;

	# As octets, in a way that psql and the shell leave alone.
	my ($n, $o) = map { my $octets = $_; utf8::encode($octets); "convert_from('\\x" . unpack('H*', $octets) . "', 'UTF8')" } $name, $owner;

	value($node, "SELECT dlock_define($n, notify => true)");
	my $token = value($node, "SELECT dlock_acquire($n, owner => $o, ttl => '300 ms')");
	isnt($token, '', "$what: acquired");
	my $next = value($node, "SELECT dlock_acquire($n, owner => $o, wait => '1 min')");
	value($node, "SELECT dlock_revoke($next, $o)");
	hears("$what: heard", $name, $owner, "acquired $token", "taken over $token", "acquired $next", "revoked $next");
	value($node, "SELECT dlock_undefine($n)");
}

# Many, by many.
{
	value($node, "SELECT dlock_define('busy', notify => true)");
	$node->pgbench('--no-vacuum --client=8 --jobs=2 --transactions=50', 0,
		[qr/number of transactions actually processed: 400/], [qr/^$/], 'many: no error',
		{ '025_notify_busy' => <<'SQL' });
SELECT dlock_acquire('busy', wait => '1 min', ttl => '1 h') AS token \gset
SELECT dlock_release(:token);
SQL
	my @events = heard();
	my $end = clock() + 60;
	push @events, heard() while @events < 800 && clock() < $end;

	my @tokens = split / /, value($node, "SELECT string_agg(token::text, ' ' ORDER BY token) FROM dlock_history WHERE name = 'busy'");
	is(join(' ', map { "$_->{event} $_->{token}" } @events), join(' ', map { ("acquired $_", "released $_") } @tokens),
		'many: each beginning and each end, in their order');
}

is_deeply([ heard() ], [], 'and nothing else');
$_->close for $listener, $elsewhere;
$node->stop;
done_testing();
