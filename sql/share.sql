-- Share groups: leases of one lock with the same group don't exclude each other,
-- all others do.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- Readers together, each with a lease of its own.
SELECT dlock_acquire('share', share => 'read', owner => 'reader 1') AS reader1 \gset
SELECT dlock_acquire('share', share => 'read', owner => 'reader 2', ttl => '10 min') AS reader2 \gset
SELECT dlock_acquire('share', share => 'read', owner => 'reader 3', why => 'report') AS reader3 \gset
SELECT :reader1 < :reader2 AND :reader2 < :reader3 AS three_tokens;
SELECT name, state, owner, share, capacity, why, ttl FROM dlock_leases WHERE name = 'share' ORDER BY token;
SELECT count(*) AS holders, count(DISTINCT token) AS tokens FROM dlock_holders('share');

-- No writer, which gives no group, and nobody of another group.
SELECT dlock_acquire('share') IS NULL AS no_writer;
SELECT dlock_acquire('share', share => 'import') IS NULL AS no_other_group;
SELECT dlock_acquire('share', share => 'READ') IS NULL AS no_group_in_capitals;
SELECT dlock_acquire('share', capacity => 10) IS NULL AS no_permit;
SELECT dlock_acquire('share', wait => '20 ms') IS NULL AS no_writer_with_a_wait;
-- Each lease that was in the way has counted it.
SELECT owner, refused FROM dlock_leases WHERE name = 'share' ORDER BY token;

-- The writer has it after the last of them, in whatever order they go.
SELECT dlock_release(:reader2) AS released;
SELECT dlock_acquire('share') IS NULL AS no_writer;
SELECT dlock_release(:reader1) AS released;
SELECT dlock_acquire('share') IS NULL AS no_writer;
SELECT dlock_release(:reader3, 'done') AS released;
SELECT dlock_acquire('share', owner => 'writer') AS writer \gset
SELECT dlock_acquire('share', share => 'read') IS NULL AS no_reader, dlock_acquire('share') IS NULL AS no_writer;
SELECT owner, share, state FROM dlock_leases WHERE name = 'share';
SELECT dlock_release(:writer) AS released;
SELECT owner, share, outcome, result, refused FROM dlock_history WHERE name = 'share' ORDER BY token;

-- Another group may have it then, and excludes the first.
SELECT dlock_acquire('share', share => 'import') AS import \gset
SELECT dlock_acquire('share', share => 'read') IS NULL AS no_reader;
SELECT dlock_release(dlock_acquire('share', share => 'import')) AS second_import, dlock_held(:import) AS first_import;
SELECT dlock_release(:import) AS released;

-- P2: one reader's heartbeats don't keep another one's lease.
SELECT dlock_acquire('share', share => 'read', ttl => '50 ms', owner => 'dead') AS dead \gset
SELECT dlock_acquire('share', share => 'read', ttl => '1 hour', owner => 'alive') AS alive \gset
SELECT FROM pg_sleep(0.2);
SELECT dlock_heartbeat(:alive) AS alive, dlock_heartbeat(:dead) AS dead, dlock_held(:dead) AS held;
SELECT dlock_acquire('share') IS NULL AS no_writer;
SELECT dlock_release(:dead) AS dead, dlock_release(:alive) AS alive;
-- The writer comes after both; each is recorded once.
SELECT dlock_release(dlock_acquire('share', owner => 'after')) AS writer;
SELECT owner, CASE WHEN outcome IN ('expired', 'taken over') THEN 'lost' ELSE outcome END AS outcome
FROM dlock_history WHERE name = 'share' AND token >= :dead ORDER BY token;

-- A writer takes over from any number of dead readers, all in one grant.
SELECT count(DISTINCT dlock_acquire('share many', share => 'read', ttl => '10 ms')) AS readers FROM generate_series(1, 200);
SELECT FROM pg_sleep(0.1);
SELECT dlock_acquire('share many', owner => 'writer') AS writer \gset
SELECT owner, state FROM dlock_holders('share many');
SELECT outcome IN ('expired', 'taken over') AS lost, count(*), count(DISTINCT token) AS tokens
FROM dlock_history WHERE name = 'share many' GROUP BY 1;
SELECT dlock_release(:writer) AS released;
-- A reader has it beside dead readers, and leaves them to others.
SELECT dlock_acquire('share many', share => 'read', ttl => '10 ms') IS NOT NULL AS granted;
SELECT FROM pg_sleep(0.1);
SELECT dlock_acquire('share many', share => 'read', owner => 'reader') AS reader \gset
SELECT owner FROM dlock_holders('share many') WHERE state = 'held';
SELECT dlock_acquire('share many') IS NULL AS no_writer;
SELECT dlock_release(:reader) AS released;
SELECT dlock_release(dlock_acquire('share many')) AS writer;

-- Transactions and savepoints.
BEGIN;
SELECT dlock_acquire('share', share => 'read') AS reader1 \gset
SAVEPOINT a;
SELECT dlock_acquire('share', share => 'read') AS reader2 \gset
SELECT dlock_held(:reader1) AS reader1, dlock_held(:reader2) AS reader2, dlock_acquire('share') IS NULL AS no_writer;
ROLLBACK TO a;
SELECT dlock_held(:reader1) AS reader1, dlock_held(:reader2) AS reader2, dlock_acquire('share') IS NULL AS no_writer;
-- A reader that is to become a writer gives its lease back first.
SELECT dlock_release(:reader1) AS released;
SELECT dlock_acquire('share') AS writer \gset
COMMIT;
SELECT dlock_held(:writer) AS writer, dlock_acquire('share', share => 'read') IS NULL AS no_reader;
SELECT dlock_release(:writer) AS released;

-- Of one reader only: revoked, changed, guarded.
SELECT dlock_acquire('share', share => 'read') AS reader1 \gset
SELECT dlock_acquire('share', share => 'read') AS reader2 \gset
SELECT dlock_revoke(:reader1, 'one of two') AS revoked, dlock_set_ttl(:reader2, '1 hour') AS set_ttl, dlock_guard(:reader2) = :reader2 AS guard;
SELECT dlock_held(:reader1) AS reader1, dlock_held(:reader2) AS reader2, dlock_acquire('share') IS NULL AS no_writer;
SELECT dlock_release(:reader2) AS released;
SELECT dlock_release(dlock_acquire('share')) AS writer;

--
-- Refused: words that mean the opposite, with a hint
--
CREATE FUNCTION pg_temp.try(command text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
	hint text;
BEGIN
	EXECUTE command;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(E'\n', SQLSTATE || ': ' || SQLERRM, 'DETAIL: ' || nullif(detail, ''), 'HINT: ' || nullif(hint, ''));
END
$$;
\pset tuples_only on
\pset format unaligned
SELECT pg_temp.try($$SELECT dlock_acquire('share', share => 'write')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('share', share => 'exclusive')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('share', share => 'x')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('share', share => 'WRITE')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('share', share => 'Exclusive')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('share', share => 'X')$$);
-- A group has 1 to 63 bytes, and no capacity.
SELECT pg_temp.try($$SELECT dlock_acquire('share', share => '')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('share', share => repeat('r', 64))$$);
SELECT pg_temp.try($$SELECT dlock_acquire('share', share => repeat('é', 32))$$);
SELECT pg_temp.try($$SELECT dlock_acquire('share', share => 'read', capacity => 2)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('share', share => 'read', capacity => 1)$$);
SELECT dlock_release(dlock_acquire('share', share => repeat('r', 63))), dlock_release(dlock_acquire('share', share => repeat('é', 31)));
SELECT dlock_release(dlock_acquire('share', share => 'read', capacity => NULL)), dlock_release(dlock_acquire('share', share => NULL, capacity => 2));
-- Any other word is a group, with these letters and no others.
SELECT dlock_acquire('share', share => 'writers of blog posts') AS token \gset
SELECT dlock_acquire('share', share => 'writers of blog posts ') IS NULL, dlock_acquire('share', share => 'writers') IS NULL;
SELECT dlock_release(:token);
SELECT count(*) FROM dlock_leases WHERE name LIKE 'share%' AND state <> 'expired';
