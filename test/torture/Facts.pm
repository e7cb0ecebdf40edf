# What is certain of a round: its logs, sorted by lease and session, and from
# when until when each lease certainly lived.
#
# Everything happened between its call and its answer; what a call without an
# answer did, nobody knows.  So
#
#	- a lease is certainly held from the answer to its acquire until its TTL has
#	  passed since the *call* of its last good heartbeat, or until the call of
#	  what may have ended it;
#	- it is certainly over when the *answer* has come to what ended it, or when
#	  its TTL has passed since the answer to the last call that can have renewed
#	  it;
#	- a call in a transaction counts when that has committed, which is between
#	  the call of COMMIT and its answer.  Where nobody knows whether it has, the
#	  database does: a lease that is in the table or in history was granted.
#
# A crash makes what was not durable come back (an expiry that nobody had
# recorded, a release without a result), as the design says.  The promotion of
# an asynchronous standby can lose anything that was acknowledged before.

package Facts;

use strict;
use warnings;

use Exporter 'import';
use List::Util qw(max min);
use Torture;

use constant {
	NEVER => 9e99,
	SLACK => 0.0001,		# times are rounded in the logs
};

our @EXPORT = qw(
  NEVER SLACK
  %round @crashes @clock_steps %database %memory @calls @breaches
  %of_token %of_session %lease %session %in_history %in_table
  %did %nemeses %checked %errors
  read_facts breach may_count loss_after crashed_between same_transaction
  revoking_since certain_ends ended_in_own_transaction session_renewals connection_lives
);

our %round;				# how it was run
our @crashes;			# from, till, how, safe (of promotions)
our @clock_steps;
our %database;			# "stopped" and "ended": tables
our %memory;			# and what memory had then
our @calls;
our %of_token;			# token: calls that use it, with their verdicts
our %of_session;		# session: the same
our %lease;				# token: what is known of it
our %session;			# id: ttl, bound, call
our %in_history;		# token: rows
our %in_table;			# token: its held row
our @breaches;
our %nemeses;			# counts: what was done to them,
our %did;				# what the clients did,
our %checked;			# what was looked at,
our %errors;			# and which errors there were
my %transaction;		# "client/x"
my %asked_by;			# session: calls that ask for a lease
my $dir;

sub read_facts
{
	($dir) = @_;

	read_conductor();
	read_client($_) for glob("$dir/client-*.log");
	settle($_) for @calls;
	push @{ $asked_by{ $_->{session} } }, $_ for grep { $_->{session} && $_->{op} =~ /^(?:acquire|await|acquire_all)$/ } @calls;
	sort_calls();
	read_database();
	for my $lease (values %lease)
	{
		push @{ $session{ $lease->{session} }{leases} }, $lease if $lease->{session} && $session{ $lease->{session} };
	}
	live($_) for grep { $_->{committed} } values %lease;
	return;
}

# A promise, what is wrong, and what the story is about: tokens, sessions,
# calls, and until when it goes.
sub breach
{
	my ($promise, $what, %about) = @_;

	push @breaches, { promise => $promise, what => $what, %about };
	return;
}

# Reading --------------------------------------------------------------------

sub read_conductor
{
	for my $line (read_log("$dir/conductor.log"))
	{
		my $op = $line->{op};

		if ($op eq 'round') { %round = %$line }
		elsif ($op eq 'crash') { push @crashes, $line; $nemeses{ $line->{how} }++ }
		elsif ($op eq 'database') { $database{ $line->{when} } = $line }
		elsif ($op eq 'memory') { $memory{ $line->{when} } = $line }
		elsif ($op eq 'verify')
		{
			$nemeses{verify}++;
			breach('dlock_verify', "it reports $_->[0] of lock $_->[1], token $_->[2]: $_->[3]", tokens => [ $_->[2] ])
			  for grep { $_->[0] ne 'overlap' || !@clock_steps } @{ $line->{breaches} };
		}
		elsif ($op eq 'server_says') { breach('server', $line->{line}, log => $line->{before}) unless $line->{line} =~ /SIGKILL|signal 9/ }
		elsif ($op eq 'stuck') { stuck($line) }
		elsif ($op eq 'client_died') { breach('harness', "client $line->{client} died, see $dir/clients.err") }
		else { push @clock_steps, $line if $op eq 'clock'; $nemeses{$op}++ }
	}
	die "$dir: the round did not come to its end\n" unless $database{ended} && $memory{ended};
	return;
}

# A clock that was set back makes the server's timeouts late, so that one of
# these proves nothing then.
sub stuck
{
	my ($line) = @_;

	$nemeses{'stuck calls'}++;
	return if grep { $_->{from} > $line->{t} - $line->{seconds} - 5 } @clock_steps;
	breach('hang', 'a call did not come back: ' . ($line->{query} // "clients @{ $line->{clients} }"));
	return;
}

sub read_client
{
	my ($file) = @_;
	my ($c) = $file =~ /client-(\d+)\.log/;
	my %by_number;

	for my $line (read_log($file))
	{
		if (exists $line->{op})
		{
			my $call = { %$line, c => $c, inv => $line->{t}, ans => NEVER, state => 'open' };

			$by_number{ $line->{i} } = $call;
			push @calls, $call;
			push @{ $transaction{"$c/$line->{x}"}{calls} }, $call if $line->{x};
		}
		elsif (exists $line->{i})
		{
			my $call = $by_number{ $line->{i} };

			$call->{ans} = $line->{t};
			$call->{state} = exists $line->{r} ? 'done' : $line->{lost} ? 'open' : 'failed';
			$call->{$_} = $line->{$_} for grep { exists $line->{$_} } qw(r e m w pid);
		}
		elsif (exists $line->{x})
		{
			my $txn = $transaction{"$c/$line->{x}"} //= { calls => [] };

			if ($line->{begin}) { $txn->{isolation} = $line->{begin}; $txn->{sc} = $line->{sc}; $txn->{calls} //= [] }
			elsif ($line->{undo}) { $by_number{$_}{undone} //= $line->{t} for @{ $line->{undo} } }
			elsif ($line->{end}) { @$txn{qw(end end_inv)} = ($line->{end}, $line->{t}) }
			else { @$txn{qw(ended end_ans)} = ($line->{ended}, $line->{t}); $txn->{w} = $line->{w} }
		}
	}
	return;
}

# What became of a call: commit, rollback or open, and between when.
sub settle
{
	my ($call) = @_;
	my $txn = $call->{x} ? $transaction{"$call->{c}/$call->{x}"} : undef;
	my ($fate, $from, $till) = ('rollback', $call->{inv}, $call->{ans});

	if ($call->{state} eq 'failed') { }
	elsif (!$txn)
	{
		$fate = $call->{state} eq 'done' ? 'commit' : 'open';
		$till = NEVER if $fate eq 'open';
	}
	elsif ($call->{state} eq 'open' || $call->{undone}) { }
	elsif (($txn->{ended} // '') eq 'commit')
	{
		($fate, $from, $till) = ('commit', $txn->{end_inv}, $txn->{end_ans});
		$call->{w} = 1 if $txn->{w};
	}
	elsif (($txn->{end} // '') eq 'commit' && ($txn->{ended} // 'open') eq 'open')
	{
		($fate, $from, $till) = ('open', $txn->{end_inv}, NEVER);
	}
	@$call{qw(fate commits committed)} = ($fate, $from, $till);
	$call->{txn} = $txn;
	return;
}

sub same_transaction
{
	my ($a, $b) = @_;

	return $a->{txn} && $b->{txn} && $a->{txn} == $b->{txn};
}

# What is known of leases ------------------------------------------------------

# The next promotion after this time that may have lost what was promised, or
# undef.  No answer came from the old server after it was "gone".
sub loss_after
{
	my ($time, $fragile) = @_;
	my ($first) = grep { $_->{how} eq 'promote' && (!$_->{safe} || $fragile) && $_->{gone} > $time } @crashes;

	return $first;
}

sub crashed_between
{
	my ($from, $till) = @_;

	return scalar grep { $_->{till} >= $from && $_->{from} <= $till } @crashes;
}

# A call said something of a token: true, false, or undef for unknown.
sub note
{
	my ($call, $token, $verdict) = @_;

	push @{ $of_token{$token} }, { call => $call, verdict => $verdict };
	return;
}

# Sort what calls said by token and session, and find who was granted what.
sub sort_calls
{
	for my $call (sort { $a->{ans} <=> $b->{ans} || $a->{inv} <=> $b->{inv} } @calls)
	{
		my ($op, $r) = @$call{qw(op r)};
		my $done = $call->{state} eq 'done';

		$did{calls}++;
		$did{'without an answer'}++ if $call->{state} eq 'open';
		next if $call->{state} eq 'failed' && !($op eq 'guard' && $call->{e} eq 'LK001')
		  && !($op =~ /^(?:acquire|await|acquire_all)$/ && $call->{e} eq 'LK001');

		if ($op =~ /^(?:acquire|await)$/)
		{
			grant($call, $call->{name}, $r) if $done && $r;
		}
		elsif ($op eq 'acquire_all')
		{
			if ($done && $r) { grant($call, $call->{names}[$_], $r->[$_]) for 0 .. $#$r }
		}
		elsif ($op =~ /^(?:heartbeat|held|set_ttl|release|revoke)$/)
		{
			note($call, $call->{token}, $done ? ($r ? 1 : 0) : undef);
		}
		elsif ($op eq 'remaining')
		{
			note($call, $call->{token}, defined $r ? 1 : 0) if $done;
		}
		elsif ($op eq 'guard')
		{
			note($call, $call->{token}, $done ? 1 : 0) if $call->{state} ne 'open';
		}
		elsif ($op eq 'heartbeat_all')
		{
			my %lost = map { $_ => 1 } @{ $r // [] };

			note($call, $_, $done ? ($lost{$_} ? 0 : 1) : undef) for @{ $call->{tokens} };
		}
		elsif ($op eq 'session_open')
		{
			$session{$r} = { id => $r, ttl => $call->{ttl}, bound => $call->{bound}, call => $call } if $done;
			push @{ $of_session{$r} }, { call => $call, verdict => 1 } if $done;
		}
		elsif ($op eq 'session_heartbeat')
		{
			push @{ $of_session{ $call->{session} } }, { call => $call, verdict => $done ? (defined $r ? 1 : 0) : undef };
			note($call, $_, 0) for @{ $r // [] };
		}
		elsif ($op eq 'session_close')
		{
			push @{ $of_session{ $call->{session} } }, { call => $call, verdict => $done ? (defined $r ? 1 : 0) : undef };
		}
		if ($op =~ /^(?:acquire|await|acquire_all)$/ && $call->{session} && $call->{state} eq 'failed')
		{
			push @{ $of_session{ $call->{session} } }, { call => $call, verdict => 0 };
		}
	}

	# Where the lock may rest after a lease, a revocation may have ended the lease
	# or the rest, and does not say which.
	for my $lease (grep { $_->{min_hold} || $_->{name} eq 'delayed' } values %lease)
	{
		$_->{verdict} = undef
		  for grep { $_->{verdict} && $_->{call}{op} eq 'revoke' && !defined $_->{call}{grace} } @{ $of_token{ $lease->{token} } // [] };
	}
	return;
}

# From when on is it certain that a lease keeps others out?  From the answer,
# but where the same transaction may have ended an earlier one: who has that one
# is told so only from the COMMIT on.
sub begins
{
	my ($call) = @_;

	return $call->{ans} unless $call->{txn};
	return $call->{ans} unless grep { $_->{inv} < $call->{inv} && $_->{op} =~ /^(?:release|revoke|session_close)$/ } @{ $call->{txn}{calls} };
	return $call->{committed};
}

# A token was given out.  With retry or reentrant it may be an old one; if an
# earlier call of that session was never answered, it may be that one's.
sub grant
{
	my ($call, $name, $token) = @_;
	my $known = $lease{$token};

	if ($call->{retry} || $call->{reentrant})
	{
		if ($known)
		{
			breach('promise 2', "token $token of lock $known->{name} is given out again for lock $name", tokens => [$token])
			  if $known->{name} ne $name || ($known->{session} // 0) != $call->{session};
			note($call, $token, 1);
			return;
		}
	}
	elsif ($known)
	{
		return breach('promise 2', "token $token is given out twice", tokens => [$token], calls => [$call]);
	}
	my $doubtful = ($call->{retry} || $call->{reentrant}) &&
	  grep { $_->{fate} eq 'open' && $_->{inv} < $call->{inv} } @{ $asked_by{ $call->{session} } };
	$lease{$token} = {
		token => $token, name => $name, call => $call, start => begins($call),
		share => $call->{share}, session => $call->{session}, ttl => $call->{ttl}, min_hold => $call->{min_hold},
		capacity => ($DEFINED{$name} && !defined $call->{share} ? $DEFINED{$name}{capacity} : undef) // $call->{capacity} // 1,
		strict => is_strict($name, $call->{share}, $call->{capacity}), doubtful => $doubtful ? 1 : 0
	};
	$did{grants}++;
	return;
}

sub read_database
{
	my $last = $database{ended};

	push @{ $in_history{ $_->{token} } }, $_ for @{ $last->{history} };
	$in_table{ $_->{token} } = $_ for grep { $_->{held} } @{ $last->{lease} };
	for my $lease (values %lease)
	{
		my $call = $lease->{call};

		$lease->{committed} = $call->{fate} eq 'commit' ||
		  ($call->{fate} eq 'open' || $lease->{doubtful}) && ($in_history{ $lease->{token} } || $in_table{ $lease->{token} });
		$lease->{fragile} = 1 if $call->{w} || grep { $_->{call}{w} } @{ $of_token{ $lease->{token} } // [] };
	}
	return;
}

# May this call have ended, or shortened, something?
sub may_count
{
	my ($note) = @_;

	return $note->{call}{fate} ne 'rollback' && (!defined $note->{verdict} || $note->{verdict});
}

# What may have ended the lease: when at the earliest, and by when for sure.
sub cuts
{
	my ($lease) = @_;
	my @cuts;

	for my $note (@{ $of_token{ $lease->{token} } // [] })
	{
		my $call = $note->{call};

		next unless may_count($note);
		my $at = $call->{op} eq 'release' ? $call->{inv}
		  : $call->{op} eq 'revoke' ? (defined $call->{grace} ? $call->{commits} + $call->{grace} : $call->{inv})
		  : $call->{op} eq 'set_ttl' ? $call->{commits} + $call->{ttl}
		  : next;
		push @cuts, { at => $at, by => $call->{committed}, call => $call };
	}
	for my $note (@{ $of_session{ $lease->{session} // 0 } // [] })
	{
		my $call = $note->{call};

		push @cuts, { at => $call->{inv}, by => $call->{committed}, call => $call }
		  if $call->{op} eq 'session_close' && may_count($note);
	}
	return @cuts;
}

# The shortest TTL that a heartbeat may have set.
sub ttl_at
{
	my ($lease, $call) = @_;
	my @may = ({ ttl => $lease->{ttl}, by => 0 });

	for my $note (sort { $a->{call}{commits} <=> $b->{call}{commits} } grep { $_->{call}{op} eq 'set_ttl' && may_count($_) } @{ $of_token{ $lease->{token} } })
	{
		my $set = $note->{call};

		@may = grep { $_->{by} > $set->{commits} } @may if $set->{committed} < $call->{inv};
		push @may, { ttl => $set->{ttl}, by => $set->{committed} } if $set->{commits} < $call->{ans};
	}
	return min(map { $_->{ttl} } @may);
}

# When was the lease revoked with grace, at the earliest?
sub revoking_since
{
	my ($lease) = @_;

	return min(NEVER, map { $_->{call}{inv} }
		grep { $_->{call}{op} eq 'revoke' && may_count($_) } @{ $of_token{ $lease->{token} } // [] });
}

# Until when does a guard certainly keep others out?  To the COMMIT that was
# acknowledged, or to the last call that shows that the transaction was alive.
sub guarded_until
{
	my ($call) = @_;
	my $txn = $call->{txn} or return $call->{inv};

	return $call->{commits} if $call->{fate} eq 'commit';
	return max($call->{inv}, map { $_->{inv} } grep { $_->{state} eq 'done' && $_->{inv} < ($call->{undone} // NEVER) } @{ $txn->{calls} });
}

# Everything that shows that the lease was alive, and until when that is sure.
sub proofs
{
	my ($lease) = @_;
	my $grant = $lease->{call};
	my $revoking = revoking_since($lease);
	my $session = $lease->{session} ? $session{ $lease->{session} } : undef;
	my @proofs = ({ at => $lease->{start}, inv => $grant->{inv}, call => $grant,
		until => $lease->{session} ? $grant->{commits} : $grant->{commits} + $lease->{ttl} });

	for my $note (@{ $of_token{ $lease->{token} } // [] })
	{
		my $call = $note->{call};
		my $op = $call->{op};

		next unless $note->{verdict};
		my $proof = { at => $call->{inv}, inv => $call->{inv}, call => $call, until => $call->{inv} };

		if ($op =~ /^heartbeat/ && !$lease->{session}) { $proof->{until} += ttl_at($lease, $call) }
		elsif ($op eq 'remaining' && !($session && ($session->{bound} || $call->{inv} < $grant->{committed}))) { $proof->{until} += $call->{r} }
		elsif ($op eq 'guard') { $proof->{guarded} = guarded_until($call) }
		elsif ($op eq 'set_ttl' && $call->{fate} eq 'commit' && $call->{commits} < $revoking) { $proof->{if_alive_at_commit} = $call->{ttl} }
		elsif ($op eq 'revoke' && $call->{fate} eq 'commit') { $proof->{if_alive_at_commit} = $call->{grace} // 0 }
		push @proofs, $proof;
	}
	if ($session && !$session->{bound})
	{
		push @proofs, map { { at => $_->{at}, until => $_->{at} + $session->{ttl}, call => $_->{call}, of_session => 1 } }
		  session_renewals($session);
	}
	elsif ($session)
	{
		push @proofs, map { { at => $_, until => $_, of_session => 1, call => $session->{call} } } connection_lives($session);
	}
	return sort { $a->{at} <=> $b->{at} } @proofs;
}

# What certainly renewed a session: its own heartbeats and those of its
# leases, but for leases whose grant had not committed.
my %renewals;

sub session_renewals
{
	my ($session) = @_;

	return @{ $renewals{ $session->{id} } //= do {
		my @renewals = map { { at => $_->{call}{inv}, call => $_->{call} } }
		  grep { $_->{verdict} && $_->{call}{op} =~ /^session_(?:open|heartbeat)$/ } @{ $of_session{ $session->{id} } };

		for my $lease (grep { $_->{committed} } @{ $session->{leases} // [] })
		{
			push @renewals, map { { at => $_->{call}{inv}, call => $_->{call} } }
			  grep { $_->{verdict} && $_->{call}{op} =~ /^heartbeat/ && $_->{call}{inv} > $lease->{call}{committed} }
			  @{ $of_token{ $lease->{token} } // [] };
		}
		[ sort { $a->{at} <=> $b->{at} } @renewals ];
	} };
}

# When was the connection of a bound session certainly alive?
my %lives;

sub connection_lives
{
	my ($session) = @_;
	my $opened = $session->{call};
	my $lives = $lives{"$opened->{c}/$opened->{k}"} //= do {
		[ sort { $a <=> $b } map { $_->{inv} } grep { $_->{c} == $opened->{c} && $_->{k} == $opened->{k} && $_->{state} ne 'open' } @calls ];
	};

	return grep { $_ > $opened->{ans} } @$lives;
}

# The certain life of a lease: each proof says until when it is "alive", and
# "lives" has from when until when it kept others out.  That is one span of
# time, but for promotions that may have lost some of what was in between.
sub live
{
	my ($lease) = @_;
	my @cuts = cuts($lease);
	my $running = 0;
	my $life;

	$lease->{proofs} = [ proofs($lease) ];
	for my $proof (@{ $lease->{proofs} })
	{
		my $loss = loss_after($proof->{inv} // $proof->{at}, $lease->{fragile});

		if (!$life || $life->{loss} && $proof->{at} > $life->{loss}{gone})
		{
			next if $proof->{of_session};	# says nothing of this lease
			$life = { lease => $lease, from => max($proof->{at}, $lease->{start}), till => 0, loss => $loss };
			push @{ $lease->{lives} }, $life;
		}
		my $end = sub {
			my ($until, @cuts) = @_;

			for my $cut (@cuts)
			{
				next if !$proof->{of_session} && $cut->{by} < $proof->{inv};
				$until = min($until, $proof->{of_session} ? $cut->{at} : max($cut->{at}, $proof->{at}));
			}
			return $loss ? min($until, max($loss->{from}, $proof->{at})) : $until;
		};

		$proof->{until} = $proof->{call}{commits} + $proof->{if_alive_at_commit}
		  if defined $proof->{if_alive_at_commit} && $running >= $proof->{call}{committed};
		$proof->{alive} = $end->($proof->{until}, grep { $_->{call} != $proof->{call} } @cuts);
		$running = max($running, $proof->{alive});
		$checked{'lives told after a crash'}++ if !$proof->{of_session} && crashed_between($lease->{start}, $proof->{at});
		$life->{till} = max($life->{till}, $proof->{alive});
		$life->{till} = max($life->{till}, $end->($proof->{guarded}, grep { same_transaction($_->{call}, $proof->{call}) } @cuts))
		  if $proof->{guarded};
	}
	$lease->{lives}[0]{till} = max($lease->{lives}[0]{till}, rest_of($lease, @cuts)) if $lease->{min_hold};
	return;
}

# min_hold keeps the lock at rest after the lease, but for one that was revoked.
# Over a restart the rest is measured by the wall clock, which we set.
sub rest_of
{
	my ($lease, @cuts) = @_;

	return 0 if grep { same_transaction($_->{call}, $lease->{call}) } @cuts;
	my $until = $lease->{call}{commits} + $lease->{min_hold};

	return min($until, revoking_since($lease), map { $_->{from} } grep { $_->{till} > $lease->{call}{inv} } @crashes);
}

# Has the transaction of this call ended the lease itself?
sub ended_in_own_transaction
{
	my ($call, $lease) = @_;
	my $txn = $call->{txn} or return 0;

	return scalar grep {
		$_->{inv} < $call->{inv} && ($_->{op} =~ /^(?:release|revoke)$/ && $_->{token} == $lease->{token}
			|| $_->{op} eq 'session_close' && $_->{session} == ($lease->{session} // 0))
	} @{ $txn->{calls} };
}

# Ends that were acknowledged.  A lease that its session may have acquired
# again needs as many releases.
sub certain_ends
{
	my ($lease, @notes) = @_;
	my $needed = 1 + grep { $_->{call}{reentrant} && $_->{call}{fate} ne 'rollback' } @notes;
	my @ends;

	if ($lease->{session})
	{
		$needed += grep { $_->{reentrant} && $_->{state} eq 'open' } @{ $asked_by{ $lease->{session} } };
		push @ends, map { { by => $_->{call}{committed}, call => $_->{call}, durable => 1, why => 'its session was closed' } }
		  grep { $_->{verdict} && $_->{call}{op} eq 'session_close' && $_->{call}{fate} eq 'commit' && $_->{call}{inv} > $lease->{start} }
		  @{ $of_session{ $lease->{session} } // [] };
	}
	for my $note (sort { $a->{call}{committed} <=> $b->{call}{committed} } grep { $_->{verdict} && $_->{call}{fate} eq 'commit' } @notes)
	{
		my $call = $note->{call};

		if ($call->{op} eq 'revoke')
		{
			push @ends, { by => $call->{committed}, call => $call, durable => 1, why => 'revoked', heartbeats => defined $call->{grace} };
		}
		elsif ($call->{op} eq 'release' && --$needed == 0)
		{
			push @ends, { by => $call->{committed}, call => $call, durable => defined $call->{result}, why => 'released' };
		}
	}
	return @ends;
}

1;
