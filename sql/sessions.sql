-- Sessions: one TTL and one heartbeat for many leases.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- Tokens and sessions are never the same twice: without them in the message.
CREATE FUNCTION try(command text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
	hint text;
BEGIN
	EXECUTE command;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN regexp_replace(concat_ws(E'\n', SQLSTATE || ': ' || SQLERRM, 'DETAIL: ' || nullif(detail, ''), 'HINT: ' || nullif(hint, '')),
						  '\d{9,}', 'N', 'g');
END
$$;

--
-- Its leases: the session's owner and TTL, one heartbeat
--
SELECT dlock_session_open('worker 7', ttl => '10 min') AS session \gset
SELECT :session > 0 AS opened, dlock_session_heartbeat(:session) AS lost;
SELECT dlock_acquire('sessions a', session => :session) AS a \gset
SELECT dlock_acquire('sessions b', session => :session, owner => 'thread 2', ttl => '10 min', why => 'import') AS b \gset
SELECT dlock_acquire('sessions c', session => :session, share => 'read') AS c \gset
SELECT dlock_acquire('sessions other', owner => 'worker 7') AS other \gset
SELECT :a > :session AND :b > :a AND :c > :b AS ids_and_tokens_rise;
SELECT name, state, owner, share, why, ttl, session = :session AS session, heartbeats
FROM dlock_leases WHERE name LIKE 'sessions%' ORDER BY token;
SELECT dlock_acquire('sessions a') IS NULL AS busy_for_others;
SELECT FROM pg_sleep(0.1);
SELECT max(remaining) < '10 min' AS time_goes_by FROM dlock_leases WHERE session = :session;
SELECT dlock_session_heartbeat(:session) AS lost;
-- That of one lease is one of them all.
SELECT dlock_heartbeat(:a) AS a, dlock_heartbeat(:c) AS c;
SELECT name, heartbeats, last_heartbeat_at IS NOT NULL AS last_heartbeat_at FROM dlock_leases WHERE name LIKE 'sessions%' ORDER BY token;
SELECT dlock_heartbeat_all(ARRAY[:a, :b, :c, :other]) AS lost;
SELECT dlock_held(:b) AS held, dlock_remaining(:b) > '9 min' AS remaining, dlock_guard(:b) = :b AS guard;
-- Released one by one, as any; what it has given back it has not lost.
SELECT dlock_release(:b, 'done') AS released, dlock_release(:b) AS released_again;
SELECT owner, outcome, result, heartbeats FROM dlock_history WHERE token = :b;
SELECT dlock_session_heartbeat(:session) AS lost;
SELECT dlock_held(:a) AS a, dlock_held(:b) AS b, dlock_held(:c) AS c;

-- A TTL of their own its leases cannot have.
SELECT try(format($$SELECT dlock_acquire('sessions d', session => %s, ttl => '10 min 1 ms')$$, :session));
SELECT try(format($$SELECT dlock_set_ttl(%s, '1 min')$$, :a));
SELECT count(*) AS leases, min(ttl) AS ttl FROM dlock_leases WHERE session = :session;

-- Closed: how many leases that ended.
SELECT dlock_session_close(:session) AS closed;
SELECT dlock_held(:a) AS a, dlock_held(:c) AS c, dlock_heartbeat(:a) AS heartbeat, dlock_held(:other) AS other;
SELECT name, owner, outcome, result FROM dlock_history WHERE token IN (:a, :b, :c) ORDER BY token;
-- Gone, and never back.
SELECT dlock_session_heartbeat(:session) AS lost, dlock_session_close(:session) AS closed_again;
SELECT try(format($$SELECT dlock_acquire('sessions a', session => %s)$$, :session));
SELECT try(format($$SELECT dlock_acquire('sessions a', session => %s, wait => '1 min')$$, :session));
SELECT try(format($$SELECT dlock_acquire('sessions other', session => %s)$$, :session));
SELECT dlock_release(dlock_acquire('sessions a')) AS a, dlock_release(dlock_acquire('sessions c')) AS c, dlock_release(:other) AS other;
-- One without leases.
SELECT dlock_session_open() AS session \gset
SELECT dlock_session_close(:session) AS closed;

-- The owner by default: who has opened it, as for a lease.
SELECT dlock_session_open() AS session \gset
SELECT dlock_acquire('sessions a', session => :session) AS a \gset
SELECT dlock_acquire('sessions b') AS b \gset
SELECT count(DISTINCT owner) AS owners, min(ttl) AS ttl FROM dlock_leases WHERE token IN (:a, :b);
SELECT dlock_release(:b) AS released;

-- A session is no token, and a token is no session.
SELECT dlock_heartbeat(:session) AS heartbeat, dlock_held(:session) AS held, dlock_release(:session) AS release,
	   dlock_session_heartbeat(:a) AS session_heartbeat, dlock_session_close(:a) AS session_close;
SELECT try(format($$SELECT dlock_acquire('sessions b', session => %s)$$, :a));
-- Nor is nothing one: NULL is gone; to acquire with NULL is to have none.
SELECT s AS session, dlock_session_heartbeat(s) AS lost, dlock_session_close(s) AS closed
FROM unnest(ARRAY[NULL, 0, 1, -1, 9223372036854775807, -9223372036854775808]) AS s;
SELECT dlock_release(dlock_acquire('sessions b', session => NULL)) AS without;
SELECT try($$SELECT dlock_acquire('sessions b', session => 0)$$);
\set VERBOSITY sqlstate
SELECT dlock_acquire('sessions b', session => 1);
SELECT dlock_acquire('sessions b', session => -1);
SELECT dlock_acquire('sessions b', session => 9223372036854775807);
SELECT dlock_acquire('sessions b', session => -9223372036854775808);
\set VERBOSITY default
SELECT dlock_session_close(:session) AS closed;

--
-- Its time
--

-- It passes for all of them at once: false, NULL, LK001.
SELECT session AS session, dlock_acquire('sessions a', session => session) AS a, dlock_acquire('sessions b', session => session) AS b
FROM dlock_session_open('dead', ttl => '500 ms') AS session \gset
SELECT FROM pg_sleep(0.7);
SELECT dlock_heartbeat(:a) AS a, dlock_heartbeat(:b) AS b, dlock_held(:a) AS held, dlock_remaining(:a) AS remaining, dlock_release(:a) AS release;
SELECT dlock_session_heartbeat(:session) AS lost, dlock_session_close(:session) AS closed;
SELECT try(format($$SELECT dlock_guard(%s)$$, :a));
SELECT try(format($$SELECT dlock_acquire('sessions c', session => %s)$$, :session));
SELECT dlock_release(dlock_acquire('sessions a')) AS a, dlock_release(dlock_acquire('sessions b')) AS b;
SELECT name, owner, outcome IN ('expired', 'taken over') AS lost FROM dlock_history WHERE token IN (:a, :b) ORDER BY token;

-- Heartbeats of one of its leases keep the session, and so the others.
SELECT dlock_session_open(ttl => '3 s') AS session \gset
SELECT dlock_acquire('sessions a', session => :session) AS a \gset
SELECT dlock_acquire('sessions b', session => :session) AS b \gset
DO $$
BEGIN
	FOR i IN 1..70 LOOP
		PERFORM pg_sleep(0.05);
		IF NOT dlock_heartbeat(token) FROM dlock_holders('sessions a') THEN
			RAISE EXCEPTION 'lost at heartbeat %', i;
		END IF;
	END LOOP;
END
$$;
SELECT dlock_held(:a) AS a, dlock_held(:b) AS b, dlock_session_heartbeat(:session) AS lost;
-- A lease that is pending moves nothing, as ever.
BEGIN;
SELECT dlock_acquire('sessions c', session => :session) AS c \gset
SELECT heartbeats AS heartbeats FROM dlock_leases WHERE token = :a \gset
SELECT dlock_heartbeat(:c) AS heartbeat, state FROM dlock_leases WHERE token = :c;
SELECT heartbeats - :heartbeats AS heartbeats FROM dlock_leases WHERE token = :a;
COMMIT;
SELECT dlock_session_close(:session) AS closed;

--
-- What it lost is told once
--
SELECT dlock_session_open(ttl => '10 min') AS session \gset
SELECT dlock_acquire('sessions a', session => :session) AS a \gset
SELECT dlock_acquire('sessions b', session => :session) AS b \gset
SELECT dlock_acquire('sessions c', session => :session) AS c \gset
SELECT dlock_revoke(:a, 'make room') AS revoked;
SELECT lost = ARRAY[:a] AS lost FROM dlock_session_heartbeat(:session);
SELECT dlock_session_heartbeat(:session) AS lost;
SELECT dlock_held(:a) AS a, dlock_held(:b) AS b, dlock_held(:c) AS c;
-- Not a revocation that was rolled back; with a time of grace, when that begins.
BEGIN;
SELECT dlock_revoke(:b, 'make room') AS revoked;
ROLLBACK;
SELECT dlock_session_heartbeat(:session) AS lost;
SELECT dlock_revoke(:b, 'make room', '2 s') AS revoked;
SELECT lost = ARRAY[:b] AS lost FROM dlock_session_heartbeat(:session);
SELECT dlock_session_heartbeat(:session) AS lost, dlock_heartbeat(:b) AS heartbeat_says_stop;
SELECT state, remaining <= '2 s' AS remaining FROM dlock_leases WHERE token = :b;
SELECT FROM pg_sleep(2.2);
SELECT dlock_held(:b) AS b, dlock_held(:c) AS c, dlock_session_heartbeat(:session) AS lost;
SELECT dlock_release(dlock_acquire('sessions b')) AS free;
SELECT dlock_session_heartbeat(:session) AS lost;
SELECT outcome, result FROM dlock_history WHERE token IN (:a, :b) ORDER BY token;
-- Several at a time.
SELECT dlock_acquire('sessions a', session => :session) AS a \gset
SELECT dlock_acquire('sessions b', session => :session) AS b \gset
SELECT dlock_revoke(:a, 'make room') AS a, dlock_revoke(:b, 'make room') AS b;
SELECT ARRAY(SELECT unnest(lost) ORDER BY 1) = ARRAY[:a, :b] AS lost FROM dlock_session_heartbeat(:session);
SELECT dlock_session_heartbeat(:session) AS lost;
-- Who says what he believes to have is told as often as he asks, also what is of
-- another session, or never was.
SELECT lost = ARRAY[:b, :a] AS lost FROM dlock_session_heartbeat(:session, ARRAY[:b, :c, :a]);
SELECT lost = ARRAY[:b, :a] AS lost FROM dlock_session_heartbeat(:session, tokens => ARRAY[:b, :c, :a]);
SELECT dlock_session_heartbeat(:session, ARRAY[:c]) AS none, dlock_session_heartbeat(:session, '{}') AS none;
SELECT dlock_session_open() AS other \gset
SELECT dlock_acquire('sessions a', session => :other) AS a \gset
SELECT lost = ARRAY[:a, :session, NULL] AS lost FROM dlock_session_heartbeat(:session, ARRAY[:a, :session, :c, NULL]);
SELECT dlock_session_heartbeat(:other, ARRAY[:a]) AS none;
-- What the transaction itself has released it does not have.
BEGIN;
SELECT dlock_release(:c) AS released;
SELECT lost = ARRAY[:c] AS lost FROM dlock_session_heartbeat(:session, ARRAY[:c]);
ROLLBACK;
SELECT dlock_session_heartbeat(:session, ARRAY[:c]) AS none;
-- Nor what is being taken away, though it has some time left.
SELECT dlock_revoke(:c, 'make room', '1 hour') AS revoked;
SELECT lost = ARRAY[:c] AS lost FROM dlock_session_heartbeat(:session, ARRAY[:c]);
SELECT lost = ARRAY[:c] AS told_too FROM dlock_session_heartbeat(:session);
SELECT dlock_session_close(:other) AS closed, dlock_session_heartbeat(:other, ARRAY[:a]) AS gone;
SELECT dlock_session_close(:session) AS closed;

--
-- Transactions
--

-- A close that is rolled back never was, savepoints included.
SELECT dlock_session_open(ttl => '10 min') AS session \gset
SELECT dlock_acquire('sessions a', session => :session) AS a \gset
BEGIN;
SELECT dlock_session_close(:session) AS closed;
SELECT dlock_held(:a) AS held;
ROLLBACK;
SELECT dlock_held(:a) AS held, dlock_session_heartbeat(:session) AS lost;
BEGIN;
SAVEPOINT a;
SELECT dlock_session_close(:session) AS closed;
ROLLBACK TO a;
SELECT dlock_acquire('sessions b', session => :session) AS b \gset
COMMIT;
SELECT dlock_held(:a) AS a, dlock_held(:b) AS b, dlock_session_heartbeat(:session) AS lost;
-- All in one transaction.  Closed is closed for the rest of it.
BEGIN;
SELECT dlock_acquire('sessions c', session => :session) AS c \gset
SELECT dlock_release(:b) AS released;
SELECT dlock_session_close(:session) AS closed;
SELECT dlock_held(:a) AS a, dlock_held(:b) AS b, dlock_held(:c) AS c;
SELECT dlock_session_heartbeat(:session) AS lost, dlock_session_close(:session) AS closed_again;
SELECT try(format($$SELECT dlock_acquire('sessions d', session => %s)$$, :session));
COMMIT;
SELECT dlock_held(:a) AS a, dlock_held(:b) AS b, dlock_held(:c) AS c, dlock_session_heartbeat(:session) AS lost;
SELECT outcome, count(*) FROM dlock_history WHERE token IN (:a, :b, :c) GROUP BY 1;

-- Heartbeats work in read-only transactions and survive ROLLBACK.
SELECT dlock_session_open(ttl => '10 min') AS session \gset
SELECT dlock_acquire('sessions a', session => :session) AS a \gset
BEGIN READ ONLY;
SELECT dlock_session_heartbeat(:session) AS lost;
ROLLBACK;
SELECT heartbeats FROM dlock_leases WHERE token = :a;
\set VERBOSITY sqlstate
BEGIN READ ONLY;
SELECT dlock_session_open();
ROLLBACK;
BEGIN READ ONLY;
SELECT dlock_session_close(:session);
ROLLBACK;
\set VERBOSITY default
SELECT dlock_session_close(:session) AS closed;

-- More leases than one transaction ends: all are dead at once, and end once,
-- as released, whoever gets to it.
SELECT dlock_session_open(ttl => '10 min') AS session \gset
SELECT count(dlock_acquire('sessions many ' || i, session => :session)) AS granted FROM generate_series(1, 1500) AS i;
SELECT dlock_session_close(:session) AS closed;
SELECT count(*) AS held FROM dlock_leases WHERE session = :session AND state <> 'expired';
SELECT count(dlock_acquire('sessions many ' || i, wait => '1 min')) AS granted FROM generate_series(1, 1500) AS i;
SELECT count(*) FILTER (WHERE dlock_release(token, 'next')) AS released FROM dlock_leases WHERE name LIKE 'sessions many %';
SELECT outcome, result, count(*), count(DISTINCT name) AS names FROM dlock_history WHERE name LIKE 'sessions many %' GROUP BY 1, 2 ORDER BY 2;

--
-- Roles
--
CREATE ROLE regress_dlock_session;
CREATE ROLE regress_dlock_session_member IN ROLE regress_dlock_session;
CREATE ROLE regress_dlock_session_other;
SET ROLE regress_dlock_session;
SELECT dlock_session_open('secret', ttl => '10 min') AS session \gset
SELECT dlock_acquire('sessions a', session => :session) AS a \gset
SET ROLE regress_dlock_session_other;
SELECT try(format('SELECT dlock_session_heartbeat(%s)', :session));
SELECT try(format('SELECT dlock_session_close(%s)', :session));
SELECT try(format($$SELECT dlock_acquire('sessions b', session => %s)$$, :session));
-- A member may, and what it takes belongs to the session's role.
SET ROLE regress_dlock_session_member;
SELECT dlock_acquire('sessions b', session => :session) AS b \gset
SELECT dlock_session_heartbeat(:session) AS lost;
SELECT name, owner, role FROM dlock_leases ORDER BY token;
SET ROLE regress_dlock_session;
SELECT dlock_session_close(:session) AS closed;
-- One that is gone is nobody's.
SET ROLE regress_dlock_session_other;
SELECT dlock_session_heartbeat(:session) AS lost, dlock_session_close(:session) AS closed;
RESET ROLE;
DROP ROLE regress_dlock_session, regress_dlock_session_member, regress_dlock_session_other;

--
-- With the connection
--

-- It needs no heartbeat, as long as the connection is there.
SELECT dlock_session_open('connected', ttl => '50 ms', on_disconnect => 'release') AS bound \gset
SELECT dlock_session_open('kept', ttl => '10 min', on_disconnect => 'keep') AS kept \gset
SELECT dlock_acquire('sessions a', session => :bound) AS a \gset
SELECT dlock_acquire('sessions b', session => :kept) AS b \gset
SELECT FROM pg_sleep(0.2);
SELECT name, state, owner, remaining >= '9 min' OR remaining = ttl AS remaining FROM dlock_leases WHERE token IN (:a, :b) ORDER BY token;
SELECT dlock_held(:a) AS held, dlock_heartbeat(:a) AS heartbeat, dlock_session_heartbeat(:bound) AS lost;
-- Its end is the end of both, for one of two.
\c -
SELECT dlock_acquire('sessions a', wait => '1 min') AS next \gset
SELECT dlock_held(:a) AS a, dlock_held(:b) AS b, dlock_held(:next) AS next;
SELECT dlock_session_heartbeat(:bound) AS bound, dlock_session_heartbeat(:kept) AS kept;
SELECT owner, outcome FROM dlock_history WHERE token = :a;
SELECT dlock_session_close(:kept) AS closed, dlock_release(:next) AS released;
-- It may be closed before.
SELECT dlock_session_open(on_disconnect => 'release') AS bound \gset
SELECT dlock_acquire('sessions a', session => :bound) AS a \gset
SELECT dlock_session_close(:bound) AS closed, dlock_session_heartbeat(:bound) AS lost;
SELECT outcome FROM dlock_history WHERE token = :a;

--
-- Bad arguments
--
\pset tuples_only on
\pset format unaligned
SELECT try($$SELECT dlock_session_open(ttl => '9 ms')$$);
SELECT try($$SELECT dlock_session_open(ttl => '2 days')$$);
SELECT try($$SELECT dlock_session_open(ttl => '1 month')$$);
SELECT try($$SELECT dlock_session_open(owner => repeat('x', 1025))$$);
SELECT try($$SELECT dlock_session_open(on_disconnect => 'explode')$$);
SELECT dlock_session_close(dlock_session_open(on_disconnect => NULL)), dlock_session_close(dlock_session_open(NULL, NULL, NULL));
SELECT count(*) FROM dlock_leases WHERE name LIKE 'sessions%' AND state <> 'expired';
DROP FUNCTION try;
