# The README: its SQL runs and gives what it says, its programs work, and it
# names every function, view, column, setting, error, source file and link.
#
# Of the SQL blocks:
#
#	```sql					run in order, in one session of psql
#	```sql error=LK001		the last statement fails with that SQLSTATE
#	```sql session=NAME		in a session of its own, with that application name
#	```sql session=NAME waits	and its last statement waits: it is answered
#							before that session's next block, or at the end
#	```sql database=NAME	in a database of its own
#
#	-- => value				a row that the statement above gives; columns are
#							separated by " | ", "…" is anything, " or " means
#							that either will do
#
# What stands between <!-- issue N --> and <!-- end --> has not landed yet: a
# block there is skipped as long as what it calls does not exist.

use strict;
use warnings;
use utf8;

use Dlock;
use Encode qw(decode encode);
use FindBin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = "$FindBin::RealBin/../..";
my $readme = read_text('README.md');

# Something that each issue brings, to tell whether it has landed.
my %token_of_issue = (3 => 'dlock_waiters', 4 => 'dlock_protect');

# The handles of the tests' output take bytes.
sub explain_failure
{
	diag(encode('UTF-8', join('', @_)));
	return;
}

sub read_text
{
	my ($path) = @_;

	return decode('UTF-8', slurp_file("$root/$path"), Encode::FB_CROAK);
}

# The text without what has not landed.
sub landed
{
	my ($text) = @_;

	$text =~ s/<!-- issue \d+ -->.*?<!-- end -->//gs;
	return $text;
}

my @opened = $readme =~ /<!-- issue \d+ -->/g;
my @closed = $readme =~ /<!-- issue \d+ -->(?:(?!<!-- issue).)*?<!-- end -->/gs;
my @ends = $readme =~ /<!-- end -->/g;
ok(@opened == @closed && @opened == @ends, 'every mark of what has not landed is closed');

# Blocks --------------------------------------------------------------------

# Every fenced block: language, attributes, text, line, and the issue that it
# waits for, if any.
my @blocks;
{
	my ($block, $issue);
	my $line = 0;

	for (split /\n/, $readme)
	{
		$line++;
		if ($block && $_ eq '```')
		{
			push @blocks, $block;
			undef $block;
		}
		elsif ($block)
		{
			$block->{text} .= "$_\n";
		}
		elsif (/^```(\S*) *(.*)$/)
		{
			my ($language, $attributes) = ($1, $2);

			$block = { language => $language, line => $line, text => '', issue => $issue };
			$block->{$1} = defined $2 ? $2 : 1 while $attributes =~ /(\w+)(?:=(\S+))?/g;
		}
		else
		{
			while (/<!-- (?:issue (\d+)|end) -->/g)
			{
				$issue = $1;
			}
		}
	}
	ok(!$block, 'every block is closed') || diag("line $block->{line}");
}

# A block's statements, each with the rows that it should give.
sub statements
{
	my ($block) = @_;
	my @statements;
	my $sql = '';

	for (split /\n/, $block->{text})
	{
		if (/^-- => (.*)$/)
		{
			push @{ $statements[-1]{rows} }, $1;
		}
		elsif ($sql ne '' || /\S/ && !/^--/)
		{
			$sql .= "$_\n";
			next unless /(?:;|\\g\w*)\s*(?:--.*)?$/;
			push @statements, { sql => $sql };
			$sql = '';
		}
	}
	die "line $block->{line}: a statement does not end: $sql" if $sql ne '';
	return @statements;
}

# Is this what the README says?
sub matches
{
	my ($got, $rows) = @_;
	my @got = split /\n/, $got;

	return 1 unless $rows;
	return 0 unless @got == @$rows;
	for my $row (@$rows)
	{
		my $line = shift @got;
		my $pattern = join '|', map { join '.*', map quotemeta, split /…/, $_, -1 } split / or /, $row;

		return 0 unless $line =~ /^(?:$pattern)$/;
	}
	return 1;
}

# Sessions ------------------------------------------------------------------

# All settings of dlock have their defaults, and the README creates the extension.
my $node = new_node('readme', bare => 1, conf => "shared_preload_libraries = 'dlock'");

my %sessions;

sub session
{
	my ($database, $name) = @_;
	my $key = "$database/$name";

	if (!$sessions{$key})
	{
		$node->safe_psql('postgres', "CREATE DATABASE $database")
		  if $node->safe_psql('postgres', "SELECT count(*) FROM pg_database WHERE datname = '$database'") eq '0';
		$sessions{$key} = start_psql($node, $database, params => [ '-P', 'null=NULL', '-F', ' | ' ]);
		$sessions{$key}->ask("SET application_name = '$name'") if $name ne '';
	}
	return $sessions{$key};
}

sub exists_there
{
	my ($database, @names) = @_;

	return $node->safe_psql($database,
		'SELECT count(*) FROM unnest(ARRAY[' . join(', ', map { "'$_'" } @names) . ']) AS n (name)'
		  . " WHERE NOT EXISTS (SELECT FROM pg_proc WHERE proname = name)"
		  . " AND NOT EXISTS (SELECT FROM pg_class WHERE relname = name)") eq '0';
}

# Does this backend wait, for a transaction or in line?
sub waits
{
	my ($pid) = @_;
	my $query = "SELECT FROM pg_locks WHERE pid = $pid AND NOT granted";

	$query .= " UNION ALL SELECT FROM dlock_waiters WHERE pid = $pid"
	  if exists_there('postgres', 'dlock_waiters');
	return $node->safe_psql('postgres', "SELECT EXISTS ($query)") eq 't';
}

# What a session was asked last, when that waits.
my %waiting;

sub answered
{
	my ($key) = @_;
	my $asked = delete $waiting{$key} or return;
	my $session = $sessions{$key};
	my $answer = decode('UTF-8', $session->wait_answer);

	ok($session->errors !~ /ERROR:/ && matches($answer, $asked->{rows}), "$asked->{where}: waited and got it")
	  || explain_failure("$asked->{sql}gave: $answer\n", $session->errors);
	return;
}

sub run_block
{
	my ($block) = @_;
	my $database = $block->{database} || 'postgres';
	my $key = "$database/" . ($block->{session} || '');
	my $session = session($database, $block->{session} || '');
	my @statements = statements($block);
	my $where = "line $block->{line}";
	my $error = '';

	answered($key);
	for my $statement (@statements)
	{
		$session->send(encode('UTF-8', $statement->{sql}));
		if ($block->{waits} && $statement == $statements[-1])
		{
			until_true("$where: it waits", sub { waits($session->backend) || $session->answered });
			ok(!$session->answered, "$where: and is not answered");
			$waiting{$key} = { %$statement, where => $where };
			return;
		}
		my $answer = decode('UTF-8', $session->wait_answer);

		($error) = $session->errors =~ /(?:ERROR|FATAL|PANIC):  (\w{5}):/;
		if (defined $error)
		{
			if (!defined $block->{error} || $block->{error} ne $error || $statement != $statements[-1])
			{
				fail($where);
				explain_failure("$statement->{sql}failed: ", $session->errors);
			}
			else
			{
				pass("$where: fails with $error");
			}
			$session->try('ROLLBACK');
			return;
		}
		next if matches($answer, $statement->{rows});
		fail($where);
		explain_failure("$statement->{sql}gave: $answer\nnot:  ", join("\n      ", @{ $statement->{rows} }));
		return;
	}
	ok(!defined $block->{error}, $where) || diag("does not fail with $block->{error}");
	return;
}

for my $block (grep { $_->{language} eq 'sql' } @blocks)
{
	my %names = map { $_ => 1 } $block->{text} =~ /\b(dlock_\w+)(?=\b)/g;

  SKIP:
	{
		if (defined $block->{issue})
		{
			$names{ $token_of_issue{ $block->{issue} } } = 1;
			skip "line $block->{line}: issue $block->{issue} has not landed", 1
			  unless exists_there('postgres', keys %names);
		}
		run_block($block);
	}
}
answered($_) for keys %waiting;
$_->close for values %sessions;
cmp_ok(scalar(grep { $_->{language} eq 'sql' } @blocks), '>', 20, 'there are SQL blocks');

# Programs ------------------------------------------------------------------

$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
$ENV{PGDATABASE} = 'postgres';
delete @ENV{qw(PGUSER PGSERVICE PGOPTIONS)};

my $dir = PostgreSQL::Test::Utils::tempdir();

sub program
{
	my ($language, $pattern) = @_;
	my ($block) = grep { $_->{language} eq $language && $_->{text} =~ $pattern } @blocks;
	my $file = "$dir/" . ($block ? $block->{line} : 'none') . ".$language";

	ok($block, "there is a program in $language") or return;
	append_to_file($file, encode('UTF-8', $block->{text}));
	return $file;
}

# Run a command; is this its exit status?
sub exits
{
	my ($status, $name, @command) = @_;
	my ($out, $err) = ('', '');
	my $run = IPC::Run::start(\@command, '<', \undef, '>', \$out, '2>', \$err, IPC::Run::timeout(180));

	$run->finish;
	return is($run->full_result(0), $status << 8, $name) || diag("$out$err");
}

if (my $script = program('bash', qr/with-lease/))
{
	exits(0, 'with-lease: runs the command', 'bash', $script, 'shell', 'true');
	exits(7, 'with-lease: its status is the command\'s', 'bash', $script, 'shell', 'sh', '-c', 'exit 7');
	is(value($node, "SELECT string_agg(result, ', ' ORDER BY token) FROM dlock_history WHERE name = 'shell'"),
		'exit 0, exit 7', 'with-lease: history has the results');

	my $token = value($node, q{SELECT dlock_acquire('it''s "taken"')});

	exits(75, 'with-lease: busy', 'bash', $script, q{it's "taken"}, 'touch', "$dir/ran");
	ok(!-e "$dir/ran", 'with-lease: then the command does not run');
	{
		local $ENV{PGPORT} = 1;
		exits(2, 'with-lease: no server', 'bash', $script, 'shell', 'touch', "$dir/ran");
	}

	# The same at another pace: three TTLs long, and then it loses the lease.
	my $text = slurp_file($script);
	ok($text =~ s/'30 s'/'1.5 s'/ && $text =~ s/sleep 10/sleep 0.5/, 'with-lease: its pace');
	append_to_file("$dir/fast.bash", $text);
	exits(0, 'with-lease: keeps the lease', 'bash', "$dir/fast.bash", 'shell', 'sleep', '4.5');
	is(value($node, "SELECT outcome, result, heartbeats > 3 FROM dlock_history WHERE name = 'shell' ORDER BY token DESC LIMIT 1"),
		'released|exit 0|t', 'with-lease: with heartbeats');

	my $run = IPC::Run::start([ 'bash', "$dir/fast.bash", 'shell', 'sleep', '60' ],
		'<', \undef, '>', '/dev/null', '2>', '/dev/null', IPC::Run::timeout(180));
	until_true('with-lease: has it', sub { value($node, "SELECT count(*) FROM dlock_holders('shell') WHERE state = 'held'") eq '1' });
	value($node, "SELECT dlock_revoke(token, 'test') FROM dlock_holders('shell')");
	$run->finish;
	is($run->full_result(0) >> 8, 128 + 15, 'with-lease: a lost lease stops the command');
}

SKIP:
{
	my $script = program('python', qr/dlock_heartbeat/) or last SKIP;

	skip 'no python3', 1 if system('python3 -c pass >/dev/null 2>&1') != 0;
	is(system('python3', '-c', 'import sys; compile(open(sys.argv[1]).read(), sys.argv[1], "exec")', $script),
		0, 'Python: compiles');
	skip 'no psycopg', 1 if system('python3 -c "import psycopg" >/dev/null 2>&1') != 0;
	exits(0, 'Python: runs', 'python3', $script);
	is(value($node, "SELECT count(*) FROM report WHERE body = 'from Python'"), '2', 'Python: has done its work');
	is(value($node, "SELECT outcome, result FROM dlock_history WHERE name = 'nightly-report' ORDER BY token DESC LIMIT 1"),
		'released|done', 'Python: and released');
}

# Functions -----------------------------------------------------------------

# The signatures in blocks without a language.
my %signatures;
for my $block (grep { $_->{language} eq '' } @blocks)
{
	my $text = $block->{text};

	$text =~ s/\n\s+/ /g;
	for (split /\n/, $text)
	{
		$signatures{$1} = { text => $_, issue => $block->{issue} } if /^(dlock_\w+)\(/;
	}
}

my %functions = map { split /\t/, $_, 2 } split /\n/, value($node, <<'SQL');
SELECT p.proname || E'\t' || p.proname || '(' || pg_get_function_arguments(p.oid) || ')'
	|| coalesce(' → ' || pg_get_function_result(p.oid), '')
FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
WHERE p.pronamespace = 'public'::regnamespace
ORDER BY 1
SQL

for my $name (sort keys %functions)
{
	my $signature = decode('UTF-8', $functions{$name});

	$signature =~ s/ DEFAULT ('[^']*'|\w+)(?:::[\w ]+(?:\[\])?)?/ = $1/g;
	$signature =~ s/([(,] ?)IN /$1/g;
	is(encode('UTF-8', $signatures{$name} ? $signatures{$name}{text} : 'nothing'),
		encode('UTF-8', $signature), "$name has its reference");
}
for my $name (grep { !defined $signatures{$_}{issue} } sort keys %signatures)
{
	ok($functions{$name}, "$name is there");
}
for my $name (sort { $a cmp $b } do { my %seen; grep { !$seen{$_}++ } landed($readme) =~ /\b(dlock_\w+)(?=\()/g })
{
	ok($functions{$name}, "$name, which the text calls, is there");
}

# Views ---------------------------------------------------------------------

# The rows of the table below a heading, each a list of cells.
sub table
{
	my ($heading) = @_;
	my ($section) = $readme =~ /^#+ \Q$heading\E\n(.*?)(?=^#|\z)/ms;
	my @rows;

	return unless defined $section;
	for (split /\n/, $section)
	{
		next unless /^\|(.*)\|$/;
		my @cells = split /\|/, $1, -1;
		s/<!--.*?-->//g, s/^\s+|\s+$//g for @cells;
		push @rows, \@cells;
	}
	return @rows[ 2 .. $#rows ];
}

for my $view (split /\n/, value($node, <<'SQL'))
SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'v' AND relname LIKE 'dlock%'
ORDER BY 1
SQL
{
	my $columns = value($node, <<SQL);
SELECT string_agg('`' || attname || '` ' || format_type(atttypid, NULL), ', ' ORDER BY attnum)
FROM pg_attribute WHERE attrelid = '$view'::regclass AND attnum > 0
SQL
	is(join(', ', map { "$_->[0] $_->[1]" } table($view)), $columns, "$view has every column in its reference");
}
is(value($node, <<'SQL'), '', 'dlock.history has the columns of its view, and the indexes');
SELECT attname FROM pg_attribute a WHERE attrelid = 'dlock_history'::regclass AND attnum > 0
AND NOT EXISTS (SELECT FROM pg_attribute b WHERE attrelid = 'dlock.history'::regclass AND b.attname = a.attname)
UNION ALL
SELECT k FROM unnest(ARRAY['(name, acquired_at)', '(ended_at)']) AS k
WHERE NOT EXISTS (SELECT FROM pg_indexes WHERE tablename = 'history' AND indexdef LIKE '% ' || k)
SQL

# Settings ------------------------------------------------------------------

{
	my %who = (user => 'anyone', superuser => 'superuser', sighup => 'reload', postmaster => 'restart');
	my %documented = map { $_->[0] => join(' | ', @$_) } table('Settings');

	for (split /\n/, value($node, <<'SQL'))
SELECT name, current_setting(name), unit, CASE vartype WHEN 'integer' THEN min_val || ' to ' || max_val END, context
FROM pg_settings WHERE name LIKE 'dlock.%' ORDER BY name COLLATE "C"
SQL
	{
		my ($name, $default, $unit, $range, $context) = split /\|/;

		is($documented{"`$name`"}, "`$name` | `$default` | $unit | $range | $who{$context}", "$name is as the README says");
		like($readme, qr/^- `\Q$name\E`: /m, "$name is explained");
	}
}

# Errors --------------------------------------------------------------------

{
	my %sqlstate;
	my %rows = map { $_->[0] => 1 } table('Errors');
	my $sharedir = qx(pg_config --sharedir);
	my %used;

	chomp $sharedir;
	for (split /\n/, slurp_file("$sharedir/errcodes.txt"))
	{
		$sqlstate{$2} = $1 if /^(\w{5})\s+[EWS]\s+(ERRCODE_\w+)/;
	}
	for my $file (glob "$root/src/*.[ch]")
	{
		my $source = slurp_file($file);

		while ($source =~ /#define\s+(ERRCODE_DLOCK_\w+)\s+MAKE_SQLSTATE\(([^)]*)\)/g)
		{
			my ($name, $letters) = ($1, $2);

			$sqlstate{$name} = join '', $letters =~ /'(.)'/g;
		}
		$used{$1} = 1 while $source =~ /\b(ERRCODE_\w+)/g;
	}
	for my $name (sort keys %used)
	{
		ok($sqlstate{$name} && $rows{"`$sqlstate{$name}`"}, "$name has its reference")
		  || diag('SQLSTATE ' . ($sqlstate{$name} || 'unknown'));
	}
}

# Files and links -----------------------------------------------------------

{
	my @map = map { map { /`([\w.]+)`/g } $_->[0] } table('Map of the source');
	my ($landed) = landed($readme) =~ /^### Map of the source\n(.*?)(?=^#|\z)/ms;
	my %missing = map { $_ => 1 } grep { !-e "$root/src/$_" } $landed =~ /^\| `([\w.]+)`/mg;

	is(join(' ', sort keys %missing), '', 'every file in the map of the source is there');
	for my $file (glob "$root/src/*.[ch]")
	{
		my $name = (split m{/}, $file)[-1];

		ok((grep { $_ eq $name } @map), "src/$name is in the map of the source");
	}
}
{
	my %anchors;
	my $text = $readme;

	$text =~ s/^```.*?^```$//gms;
	for ($text =~ /^#+ (.*)$/mg)
	{
		my $anchor = lc;

		$anchor =~ s/[^\w\- ]//g;
		$anchor =~ s/ /-/g;
		$anchors{$anchor} = 1;
	}
	my %broken = map { $_ => 1 } grep { /^#(.*)/ ? !$anchors{$1} : !m{^https?://} && !-e "$root/$_" }
	  $text =~ /\]\(([^)\s]+)\)/g;

	is(join(' ', sort keys %broken), '', 'every link leads somewhere');
}
{
	my $makefile = read_text('Makefile');
	my %targets = map { $_ => 1 } map { /^make ([\w-]+)/mg } map { $_->{text} } grep { $_->{language} eq 'sh' } @blocks;

	# The others are PGXS's own.
	for my $target (grep { $_ !~ /^(?:install|installcheck|uninstall)$/ } sort keys %targets)
	{
		like($makefile, qr/^(?:\.PHONY|[\w -]+):.*\b\Q$target\E\b|^[\w -]*\b\Q$target\E\b[\w -]*:/m, "make $target is there");
	}
}

$node->stop;
done_testing();
