# A wall clock that a test can set while servers run by it.
#
# (libfaketime won't do: it allocates memory when it is asked for the time, and a
# server asks in signal handlers.)

package WallClock;

use strict;
use warnings;

use Cwd 'abs_path';
use File::Basename 'dirname';

# It is built in this directory, and shows the right time.
sub new
{
	my ($class, $dir) = @_;

	$dir = abs_path($dir);
	my $self = bless { file => "$dir/wallclock", library => "$dir/wallclock.so" }, $class;
	system($ENV{CC} || 'gcc', '-O', '-shared', '-fPIC', '-o', $self->{library}, dirname(abs_path(__FILE__)) . '/wallclock.c') == 0
	  or die 'wallclock.c does not compile';
	$self->set(0);
	return $self;
}

# The environment of a postmaster that goes by it.
sub env
{
	my ($self) = @_;

	return (LD_PRELOAD => join(':', grep { $_ } $ENV{LD_PRELOAD}, $self->{library}), WALLCLOCK => $self->{file});
}

# Set it this many seconds before the right time (or behind, when negative).
sub set
{
	my ($self, $seconds) = @_;

	open my $file, '+>>', $self->{file} or die "$self->{file}: $!";
	close $file;
	open $file, '+<', $self->{file} or die "$self->{file}: $!";
	syswrite($file, pack('q', $seconds)) == 8 or die "$self->{file}: $!";
	close $file;
	return;
}

1;
