# A throw-away PostgreSQL server: the directory, the process, and ways to end
# it.  The postmaster is our child, so that it can be killed and waited for.

package Server;

use strict;
use warnings;

use Cwd 'abs_path';
use DBI;
use POSIX ();

use Torture;

# $opt: dir (of the data), socket (directory), bindir, log, env (for the
# postmaster)
sub new
{
	my ($class, %opt) = @_;

	mkdir $opt{socket};
	return bless {%opt}, $class;
}

sub program
{
	my ($self, $program, @args) = @_;
	my $pid = fork // die "fork: $!";

	if ($pid == 0)
	{
		open STDIN, '<', '/dev/null';
		open STDOUT, '>>', "$self->{dir}.programs";
		open STDERR, '>>&', 'STDOUT';
		exec "$self->{bindir}/$program", @args or POSIX::_exit(127);
	}
	waitpid $pid, 0;
	return $? == 0;
}

sub init
{
	my ($self, $conf) = @_;

	$self->program('initdb', '-D', $self->{dir}, qw(-U postgres -A trust -E UTF8 --locale=C --no-sync))
	  or die "initdb failed, see $self->{dir}.programs\n";
	$self->configure($conf);
	return;
}

# Begin as a standby of another server; false when that one went away.
sub init_from
{
	my ($self, $primary) = @_;

	$self->program('pg_basebackup', '-D', $self->{dir}, qw(-U postgres -X stream -c fast --no-sync -R),
		'-h', $primary->{socket})
	  or return 0;
	$self->configure("synchronous_standby_names = ''\nprimary_conninfo = 'host=$primary->{socket} user=postgres application_name=standby'");
	return 1;
}

# Settings that outdo all others, those of ALTER SYSTEM too.
sub configure
{
	my ($self, $conf) = @_;

	open my $file, '>>', "$self->{dir}/postgresql.auto.conf" or die "$self->{dir}: $!";
	print $file "$conf\n";
	close $file or die "$self->{dir}: $!";
	return;
}

sub start
{
	my ($self) = @_;

	$self->{pid} = fork // die "fork: $!";
	if ($self->{pid} == 0)
	{
		POSIX::setpgid(0, 0);
		%ENV = (%ENV, %{ $self->{env} || {} });
		open STDIN, '<', '/dev/null';
		open STDOUT, '>>', $self->{log};
		open STDERR, '>>&', 'STDOUT';
		exec "$self->{bindir}/postgres", '-D', $self->{dir}, '-c', "unix_socket_directories=$self->{socket}"
		  or POSIX::_exit(127);
	}
	return;
}

# A connection as superuser, or undef.
sub connect
{
	my ($self) = @_;

	return DBI->connect("dbi:Pg:dbname=postgres;host=$self->{socket};port=5432;application_name=conductor",
		'postgres', '', { RaiseError => 0, PrintError => 0, PrintWarn => 0 });
}

# Wait until it takes connections, and is as wanted: false when it never is.
sub ready
{
	my ($self, $query) = @_;
	my $end = clock() + 60;

	while (clock() < $end)
	{
		return 0 if !$self->{pid} || waitpid($self->{pid}, POSIX::WNOHANG) != 0;
		my $dbh = $self->connect;
		my $answer = $dbh && $dbh->selectrow_array($query // 'SELECT 1');
		$dbh->disconnect if $dbh;
		return 1 if $answer;
		nap(0.02);
	}
	return 0;
}

# The server's processes that are left.
sub processes
{
	my ($self) = @_;
	my $dir = abs_path($self->{dir});

	return grep { (readlink("/proc/$_/cwd") // '') eq $dir } map { /(\d+)/ } glob('/proc/[0-9]*');
}

# kill -9 of the postmaster; its children notice, and go.
sub kill9
{
	my ($self) = @_;
	my $end = clock() + 5;

	kill 'KILL', $self->{pid};
	waitpid $self->{pid}, 0;
	$self->{pid} = 0;
	while (my @left = $self->processes)
	{
		kill 'KILL', @left if clock() > $end;
		nap(0.002);
	}
	unlink "$self->{dir}/postmaster.pid", "$self->{socket}/.s.PGSQL.5432.lock";
	return;
}

# Shut it down: fast or immediate.
sub stop
{
	my ($self, $mode) = @_;
	my $end = clock() + 60;

	return unless $self->{pid};
	kill $mode eq 'fast' ? 'INT' : 'QUIT', $self->{pid};
	while (waitpid($self->{pid}, POSIX::WNOHANG) == 0)
	{
		return $self->kill9 if clock() > $end;
		nap(0.01);
	}
	$self->{pid} = 0;
	return;
}

1;
