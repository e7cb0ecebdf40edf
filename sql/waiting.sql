-- Waiting in line, as far as one session can show it: what ends a wait, and that
-- it leaves nothing behind.  (Who is served when: see the isolation tests.)
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

CREATE FUNCTION pg_temp.try(command text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
BEGIN
	EXECUTE command;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RETURN concat_ws(E'\n', SQLSTATE || ': ' || SQLERRM, 'DETAIL: ' || nullif(detail, ''));
END
$$;
CREATE VIEW pg_temp.traces AS
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid,
	   (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory') AS locks,
	   (SELECT count(*) FROM dlock_waiters) AS waiters;

-- Q3: a wait that runs out gives NULL, neither a token nor an error, and not
-- before its time.
SELECT dlock_acquire('waiting', ttl => '1 hour', owner => 'holder') AS token \gset
SELECT waits AS waits, waits_timed_out AS timed_out, waited AS waited, refused AS refused FROM dlock_stats \gset
SELECT clock_timestamp() AS started \gset
SELECT dlock_acquire('waiting', wait => '200 ms') IS NULL AS busy;
SELECT clock_timestamp() - :'started' >= '200 ms' AS waited;
SELECT dlock_acquire('waiting', wait => '1 us') IS NULL AS busy;
SELECT dlock_acquire('waiting', wait => '0') IS NULL AS busy_without_wait, dlock_acquire('waiting', wait => NULL) IS NULL AS by_default;

-- It is counted: as a refusal by the lease that was in the way, and among the
-- waits of this database.
SELECT refused FROM dlock_leases WHERE token = :token;
SELECT waits - :waits AS waits, waits_timed_out - :timed_out AS timed_out, refused - :refused AS refused,
	   waited - :'waited' >= '200 ms' AS waited FROM dlock_stats;

-- Promise 8: it takes no transaction id, and no lock stays.
BEGIN;
SELECT dlock_acquire('waiting', wait => '10 ms') IS NULL AS busy;
SELECT * FROM pg_temp.traces;
COMMIT;

-- Three times are three things (Q4): a lease with a TTL that is shorter than the
-- wait for it, and a wait that is longer than both.
SELECT dlock_release(dlock_acquire('waiting free', ttl => '10 ms', wait => '20 days')) IS NOT NULL AS no_error;
SELECT dlock_acquire('waiting ttl', ttl => '500 ms') AS first \gset
BEGIN;
SELECT dlock_acquire('waiting ttl', ttl => '100 ms', wait => '1 min') AS second \gset
SELECT :second > :first AS granted, dlock_remaining(:second) = '100 ms' AS whole;
ROLLBACK;
SELECT dlock_release(dlock_acquire('waiting ttl', wait => '1 min')) AS released;

--
-- What ends a wait by an error
--
\set VERBOSITY sqlstate
SET lock_timeout = '50 ms';
SELECT dlock_acquire('waiting', wait => '1 min');
-- The shorter one counts.
SELECT dlock_acquire('waiting', wait => '10 ms') IS NULL AS busy;
RESET lock_timeout;
SET statement_timeout = '50 ms';
SELECT dlock_acquire('waiting', wait => '1 min');
RESET statement_timeout;
\set VERBOSITY default
SELECT * FROM pg_temp.traces;

-- In a savepoint, and in an exception block: the transaction goes on.
BEGIN;
SET LOCAL lock_timeout = '50 ms';
SAVEPOINT a;
SELECT dlock_acquire('waiting', wait => '1 min');
ROLLBACK TO a;
SELECT * FROM pg_temp.traces;
SELECT dlock_release(dlock_acquire('waiting other', wait => '1 min')) AS released;
COMMIT;
SET lock_timeout = '50 ms';
SELECT pg_temp.try($$SELECT dlock_acquire('waiting', wait => '1 min')$$);
RESET lock_timeout;
SELECT * FROM pg_temp.traces;
SELECT waits - :waits AS waits, waits_timed_out - :timed_out AS timed_out FROM dlock_stats;

-- Waits that nobody can have.  An interval without an end exists from 17 on.
SELECT pg_temp.try($$SELECT dlock_acquire('waiting', wait => '-1 us')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('waiting', wait => '1 month')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('waiting', wait => '24 days')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('waiting', wait => '2147483647 days')$$);
SELECT current_setting('server_version_num')::int < 170000 OR
	   (pg_temp.try($$SELECT dlock_acquire('waiting', wait => 'infinity')$$) LIKE '22023: argument "wait" is too long%' AND
		pg_temp.try($$SELECT dlock_acquire('waiting', wait => '-infinity')$$) LIKE '22023: argument "wait" must not be negative%') AS refused;
SELECT dlock_release(:token) AS released;

--
-- What ends a wait by a grant
--

-- The holder's deadline.  How long it took is in history, with the lease's end.
SELECT dlock_acquire('waiting deadline', ttl => '300 ms', owner => 'first') AS first \gset
SELECT dlock_acquire('waiting deadline', wait => '1 min', owner => 'second') AS second \gset
SELECT :second > :first AS rises, dlock_heartbeat(:first) AS first, dlock_heartbeat(:second) AS second;
SELECT dlock_release(:second) AS released;
SELECT owner, outcome IN ('expired', 'taken over') AS lost, outcome = 'released' AS released, waited > '0' AS waited, waited <= '1 min' AS in_time
FROM dlock_history WHERE name = 'waiting deadline' ORDER BY token;
SELECT b.acquired_at - a.acquired_at >= '300 ms' AS not_early
FROM dlock_history AS a, dlock_history AS b WHERE a.token = :first AND b.token = :second;
SELECT waits - :waits AS waits, waits_timed_out - :timed_out AS timed_out FROM dlock_stats;

-- A wait that was not needed is none.
SELECT dlock_acquire('waiting deadline', wait => '1 min') AS token \gset
SELECT dlock_release(:token) AS released;
SELECT waited FROM dlock_history WHERE token = :token;
SELECT waits - :waits AS waits FROM dlock_stats;

-- The end of a rest.
SELECT dlock_acquire('waiting min_hold', min_hold => '300 ms', owner => 'first') AS first \gset
SELECT dlock_release(:first) AS released;
SELECT dlock_acquire('waiting min_hold', wait => '50 ms') IS NULL AS busy;
SELECT dlock_acquire('waiting min_hold', wait => '1 min', owner => 'second') AS second \gset
SELECT dlock_release(:second) AS released;
SELECT b.acquired_at - a.acquired_at >= '300 ms' AS not_early, b.waited > '0' AS waited
FROM dlock_history AS a, dlock_history AS b WHERE a.token = :first AND b.token = :second;

-- The end of the time of grace.
SELECT dlock_acquire('waiting revoke', ttl => '1 hour') AS first \gset
SELECT dlock_revoke(:first, 'make room', grace => '200 ms') AS revoked;
SELECT dlock_acquire('waiting revoke', wait => '1 min') AS second \gset
SELECT :second > :first AS granted, dlock_release(:second) AS released;
SELECT outcome, result FROM dlock_history WHERE name = 'waiting revoke' ORDER BY token;

-- What this transaction has ended itself is no reason to wait.
SELECT dlock_acquire('waiting own') AS token \gset
BEGIN;
SELECT dlock_release(:token) AS released;
SELECT dlock_acquire('waiting own', wait => '1 min') AS token \gset
COMMIT;
SELECT dlock_held(:token) AS held, dlock_release(:token) AS released;
SELECT waited FROM dlock_history WHERE token = :token;

--
-- dlock_await: the same, between transactions
--
CALL dlock_await('await', owner => 'holder', why => 'by call') \gset
SELECT :token > 0 AS granted;
SELECT owner, why, state FROM dlock_leases WHERE token = :token;
CALL dlock_await('await');
CALL dlock_await('await', wait => '50 ms');
CALL dlock_await('await', '1 min', '50 ms', 'me', 'no reason', NULL, NULL, NULL, NULL, false, false, false, NULL);
SELECT refused FROM dlock_leases WHERE token = :token;
SELECT dlock_set_ttl(:token, '200 ms') AS set_ttl;
CALL dlock_await('await', wait => '1 min', owner => 'next') \gset
SELECT owner, state FROM dlock_leases WHERE token = :token;
SELECT * FROM pg_temp.traces;

-- The same errors ...
\set VERBOSITY sqlstate
SET lock_timeout = '50 ms';
CALL dlock_await('await', wait => '1 min');
RESET lock_timeout;
SET statement_timeout = '50 ms';
CALL dlock_await('await', wait => '1 min');
RESET statement_timeout;
CALL dlock_await('');
CALL dlock_await('await', wait => '-1 us');
CALL dlock_await('await', must_exist => true);
\set VERBOSITY default

-- ... and a clear one where there is nothing between.
BEGIN;
CALL dlock_await('await', wait => '1 min');
ROLLBACK;
BEGIN;
CALL dlock_await('await free');
ROLLBACK;
CREATE FUNCTION pg_temp.await() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	token bigint;
BEGIN
	CALL dlock_await('await free', token => token);
END
$$;
SELECT pg_temp.try('SELECT pg_temp.await()');
DO $$
DECLARE
	token bigint;
BEGIN
	CALL dlock_await('await free', token => token);
EXCEPTION WHEN active_sql_transaction THEN
	RAISE NOTICE 'not in an exception block either';
END
$$;
SELECT * FROM pg_temp.traces;

-- It ends transactions, so it wants nothing in them: not even when it need not
-- wait, as that would be luck.
CREATE TABLE await_test (line text);
DO $$
DECLARE
	token bigint;
BEGIN
	INSERT INTO await_test VALUES ('lost');
	CALL dlock_await('await free', token => token);
END
$$;
SELECT set_config('test.token', :token::text, false) IS NOT NULL AS set;
DO $$
DECLARE
	token bigint;
BEGIN
	PERFORM dlock_guard(current_setting('test.token')::bigint);
	CALL dlock_await('await free', token => token);
END
$$;
DO $$
DECLARE
	token bigint;
BEGIN
	INSERT INTO await_test VALUES ('before');
	COMMIT;
	CALL dlock_await('await', wait => '10 ms', token => token);
	RAISE NOTICE 'busy: %', token IS NULL;
	CALL dlock_await('await', wait => '10 ms', token => token);
	RAISE NOTICE 'busy: %', token IS NULL;
	CALL dlock_await('await free', token => token);
	INSERT INTO await_test VALUES ('after');
	RAISE NOTICE 'granted: %, release: %', token IS NOT NULL, dlock_release(token, 'in the same transaction');
	ROLLBACK;
END
$$;
SELECT * FROM await_test;
SELECT count(*) AS history FROM dlock_history WHERE name = 'await free';
DROP TABLE await_test;
SELECT dlock_release(:token) AS released;
SELECT owner, outcome IN ('expired', 'taken over') AS lost, waited > '0' AS waited FROM dlock_history WHERE name = 'await' ORDER BY token;
SELECT count(*) AS leases FROM dlock_leases WHERE name LIKE 'await%' OR name LIKE 'waiting%';
