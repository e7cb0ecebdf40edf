# What the TAP tests of dlock share: servers with the library preloaded, crashes,
# background sessions, and checks of an error's SQLSTATE and hint.

package Dlock;

use strict;
use warnings;

use Cwd 'abs_path';
use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC usleep);

our @EXPORT = qw(
  new_node value fails clock sleep_until until_true
  kill_server crash runs
  worker_pid pause_worker continue_worker log_lines
  rising start_psql
);

my $timeout = $PostgreSQL::Test::Utils::timeout_default || 180;

# Every paused worker, so that no test leaves one behind.
my %paused;

END { kill 'CONT', keys %paused if %paused; }

# A running server with dlock in database postgres.
#
#	conf	lines for postgresql.conf
#	init	arguments of PostgreSQL::Test::Cluster::init
#	bare	don't preload, don't create the extension
#	start	0 to leave it stopped (then there's no extension either)
sub new_node
{
	my ($name, %opt) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(%{ $opt{init} || {} });
	$node->append_conf('postgresql.conf', <<CONF);
max_connections = 100
log_statement = none
restart_after_crash = on
autovacuum_naptime = 1h
CONF
	$node->append_conf('postgresql.conf', "shared_preload_libraries = 'dlock'")
	  unless $opt{bare};
	$node->append_conf('postgresql.conf', $opt{conf}) if defined $opt{conf};

	return $node if defined $opt{start} && !$opt{start};
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION dlock') unless $opt{bare};
	return $node;
}

# What a query gives; it must not fail.
sub value
{
	my ($node, $sql, $db) = @_;

	return $node->safe_psql($db || 'postgres', $sql);
}

# Does this fail with that SQLSTATE and, when asked, a hint?
sub fails
{
	my ($node, $sql, $sqlstate, $hint, $name, $db) = @_;
	my ($rc, $out, $err) = $node->psql(
		$db || 'postgres', $sql,
		on_error_stop => 1,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);

	return is_error($err, $sqlstate, $hint, $name)
	  || diag("got $out");
}

sub is_error
{
	my ($err, $sqlstate, $hint, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 2;
	my $good = $err =~ /(?:ERROR|FATAL):  \Q$sqlstate\E:/;

	$good &&= $err =~ /HINT:  .*$hint/s if defined $hint;
	return ok($good, $name) || !diag("stderr: $err");
}

# Seconds of a clock that nobody sets.
sub clock
{
	return clock_gettime(CLOCK_MONOTONIC);
}

sub sleep_until
{
	my ($when) = @_;

	while ((my $rest = $when - clock()) > 0)
	{
		usleep(int($rest * 1_000_000) + 1);
	}
	return;
}

# Wait until a piece of code says true; the test fails when it never does.
sub until_true
{
	my ($name, $code, $limit) = @_;
	my $end = clock() + ($limit || $timeout);
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	while (1)
	{
		my $got = $code->();

		return ok(1, $name) if $got;
		return ok(0, $name) if clock() > $end;
		usleep(20_000);
	}
}

# Do these numbers rise strictly?
sub rising
{
	my ($name, @numbers) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	for my $i (1 .. $#numbers)
	{
		next if $numbers[$i] > $numbers[ $i - 1 ];
		fail($name);
		diag("number $i: $numbers[$i] after $numbers[$i - 1]");
		return 0;
	}
	return ok(@numbers > 1, $name);
}

# Crashes ------------------------------------------------------------------

# kill -9 of the postmaster.  Its children notice and go; when the last one has
# gone, the server can be started again.
sub kill_server
{
	my ($node) = @_;
	my $dir = abs_path($node->data_dir);
	my $end = clock() + $timeout;

	$node->kill9;
	while (grep { (readlink($_) // '') eq $dir } glob('/proc/[0-9]*/cwd'))
	{
		die 'processes of a killed server stay' if clock() > $end;
		usleep(2_000);
	}
	# Where init is slow to reap, the dead postmaster looks alive.
	unlink "$dir/postmaster.pid", $node->host . '/.s.PGSQL.' . $node->port . '.lock';
	return;
}

sub crash
{
	my ($node) = @_;

	kill_server($node);
	$node->start;
	return;
}

# Is this process there, and not just waiting for its parent to ask?
sub runs
{
	my ($pid) = @_;
	my $state = '';

	if (open my $stat, '<', "/proc/$pid/stat")
	{
		$state = (split ' ', <$stat> // '')[2] // '';
		close $stat;
	}
	return $state ne '' && $state ne 'Z';
}

# The worker ---------------------------------------------------------------

# The launcher's pid, when it is there.
sub worker_pid
{
	my ($node) = @_;

	return value($node,
		"SELECT pid FROM pg_stat_activity WHERE backend_type = 'dlock launcher'");
}

# Stop the launcher as a debugger would, between two of its rounds, and wait
# until what it had started is over.
sub pause_worker
{
	my ($node) = @_;
	my $pid;

	$node->poll_query_until('postgres', <<SQL) or die 'no idle launcher';
SELECT count(*) = 1 FROM pg_stat_activity
WHERE backend_type = 'dlock launcher' AND wait_event IS NOT NULL
SQL
	$pid = worker_pid($node);
	kill('STOP', $pid) or die "cannot stop $pid";
	$paused{$pid} = 1;
	$node->poll_query_until('postgres',
		"SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'dlock reaper')")
	  or die 'a reaper stays';
	return $pid;
}

sub continue_worker
{
	my ($pid) = @_;

	delete $paused{$pid};
	kill 'CONT', $pid;
	return;
}

# Lines of the server's log since a position, that match.
sub log_lines
{
	my ($node, $offset, $pattern) = @_;

	return grep { $_ =~ $pattern } split /\n/, slurp_file($node->logfile, $offset);
}

# Sessions -----------------------------------------------------------------

# A psql in the background.  The objects of background_psql differ among the
# versions of PostgreSQL::Test, so this is our own.
sub start_psql
{
	return Dlock::Session->new(@_);
}

package Dlock::Session;

use strict;
use warnings;

use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

# $node, $db, and: connstr (instead of node and db), params (of psql)
sub new
{
	my ($class, $node, $db, %opt) = @_;
	my $self = bless {
		in => '', out => '', err => '', asked => 0, errors => '',
		timer => IPC::Run::timeout($timeout)
	}, $class;
	my $connstr = $opt{connstr} || $node->connstr($db || 'postgres');

	$self->{run} = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', @{ $opt{params} || [] },
			'-d', $connstr, '-f', '-' ],
		'<', \$self->{in}, '>', \$self->{out}, '2>', \$self->{err},
		$self->{timer});
	$self->{pid} = $opt{connstr} ? undef : $self->ask('SELECT pg_backend_pid()');
	return $self;
}

# The pid of the server process.
sub backend { return $_[0]->{pid}; }

# Send, without waiting for the answer.
sub send
{
	my ($self, $sql) = @_;
	my $n = ++$self->{asked};

	$self->{in} .= "$sql\n;\n\\echo -- end $n\n\\warn -- end $n\n";
	$self->{timer}->start($timeout);
	$self->{run}->pump_nb;
	return;
}

# Has the answer to the last question come?
sub answered
{
	my ($self) = @_;
	my $n = $self->{asked};

	$self->{run}->pump_nb;
	return $self->{out} =~ /^-- end $n\n/m && $self->{err} =~ /^-- end $n\n/m;
}

# Wait for the answer to what was sent; errors() then has what failed in it.
sub wait_answer
{
	my ($self) = @_;
	my $n = $self->{asked};

	until ($self->answered)
	{
		die "psql ended: $self->{err}" unless $self->{run}->pumpable;
		$self->{run}->pump;
	}
	my ($out) = $self->{out} =~ /\A(?:.*^-- end @{[$n - 1]}\n)?(.*?)^-- end $n\n/ms;
	my ($err) = $self->{err} =~ /\A(?:.*^-- end @{[$n - 1]}\n)?(.*?)^-- end $n\n/ms;

	($self->{out}, $self->{err}) = ('', '');
	$self->{errors} = $err;
	chomp $out;
	return $out;
}

# Ask, wait, and give the answer; it must not fail.
sub ask
{
	my ($self, $sql) = @_;

	$self->send($sql);
	my $out = $self->wait_answer;
	die "$sql: $self->{errors}" if $self->{errors} =~ /^psql:.*(?:ERROR|FATAL):/m;
	return $out;
}

# Ask, and give what was answered, errors or not.
sub try
{
	my ($self, $sql) = @_;

	$self->send($sql);
	return $self->wait_answer;
}

sub errors { return $_[0]->{errors}; }

# Does this fail with that SQLSTATE and, when asked, a hint?
sub fails
{
	my ($self, $sql, $sqlstate, $hint, $name) = @_;

	$self->try($sql);
	return Dlock::is_error($self->{errors}, $sqlstate, $hint, $name);
}

# kill -9 of the client.
sub kill9
{
	my ($self) = @_;

	$self->{run}->signal('KILL');
	$self->close;
	return;
}

# Leave, also when the server has gone before.
sub close
{
	my ($self) = @_;

	return unless $self->{run};
	eval {
		local $SIG{PIPE} = 'IGNORE';
		$self->{in} .= "\\q\n" if $self->{run}->pumpable;
		$self->{run}->finish;
	};
	delete $self->{run};
	return;
}

1;
