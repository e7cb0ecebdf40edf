-- A lease follows the transaction that grants or ends it: a rolled-back acquire
-- never was, a rolled-back release never was, savepoints included.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

--
-- Acquire
--

-- Until it commits a grant is pending: held for everybody, and its time stands
-- still.  A heartbeat is true and moves nothing.
BEGIN;
SELECT dlock_acquire('tx acquire') AS token \gset
SELECT dlock_heartbeat(:token) AS heartbeat, dlock_held(:token) AS held,
	   dlock_remaining(:token) = '30 s' AS remaining_is_the_ttl;
SELECT state, pid = pg_backend_pid() AS pid, heartbeats FROM dlock_leases WHERE token = :token;
SELECT dlock_acquire('tx acquire') IS NULL AS busy_for_myself_too;
COMMIT;
SELECT state FROM dlock_leases WHERE token = :token;
SELECT dlock_release(:token) AS released;

-- X1: acquire; ROLLBACK.
BEGIN;
SELECT dlock_acquire('tx acquire') AS token \gset
ROLLBACK;
SELECT dlock_held(:token) AS held, dlock_heartbeat(:token) AS heartbeat, dlock_remaining(:token) AS remaining,
	   dlock_release(:token) AS release;
SELECT count(*) AS leases FROM dlock_leases WHERE name = 'tx acquire';
SELECT count(*) AS history FROM dlock_history WHERE token = :token;

-- A failed transaction is the same.
BEGIN;
SELECT dlock_acquire('tx acquire') AS token \gset
SELECT 1 / 0;
COMMIT;
SELECT dlock_held(:token) AS held;

-- In a savepoint that is rolled back: free at once, for the same transaction too.
BEGIN;
SAVEPOINT a;
SELECT dlock_acquire('tx acquire') AS token \gset
ROLLBACK TO a;
SELECT dlock_held(:token) AS held, dlock_heartbeat(:token) AS heartbeat;
SELECT dlock_acquire('tx acquire') AS token2 \gset
SELECT :token2 > :token AS granted_again;
COMMIT;
SELECT dlock_held(:token) AS rolled_back, dlock_held(:token2) AS committed, dlock_release(:token2) AS released;

-- In a savepoint that is released, of a transaction that is not committed.
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SELECT dlock_acquire('tx acquire') AS token \gset
RELEASE b;
SELECT dlock_held(:token) AS held;
ROLLBACK TO a;
SELECT dlock_held(:token) AS held;
SELECT dlock_acquire('tx acquire') IS NOT NULL AS granted;
RELEASE a;
ROLLBACK;
SELECT count(*) AS leases FROM dlock_leases WHERE name = 'tx acquire';

-- In an exception block.
DO $$
DECLARE
	token bigint;
BEGIN
	BEGIN
		token := dlock_acquire('tx acquire');
		RAISE NOTICE 'granted: %', token IS NOT NULL;
		RAISE EXCEPTION 'the work failed';
	EXCEPTION WHEN raise_exception THEN
		RAISE NOTICE 'held after the exception: %', dlock_held(token);
	END;
	RAISE NOTICE 'granted again: %', dlock_acquire('tx acquire') IS NOT NULL;
END
$$;
SELECT state, dlock_release(token) AS released FROM dlock_leases WHERE name = 'tx acquire';

-- An acquire that is busy costs the transaction nothing when it is rolled back.
SELECT dlock_acquire('tx acquire') AS token \gset
BEGIN;
SAVEPOINT a;
SELECT dlock_acquire('tx acquire') IS NULL AS busy;
ROLLBACK TO a;
ROLLBACK;
SELECT dlock_release(:token) AS released;

-- T1: time is read when the lock is taken and starts again at commit; a lease
-- is never born expired.
BEGIN;
SELECT FROM pg_sleep(1.1);
SELECT dlock_acquire('tx acquire', ttl => '1 s') AS token \gset
SELECT FROM pg_sleep(1.1);
SELECT dlock_heartbeat(:token) AS heartbeat, dlock_remaining(:token) AS remaining;
COMMIT;
SELECT dlock_held(:token) AS held, dlock_release(:token) AS released;

--
-- Release
--

-- Released for this transaction, held for all others until it commits.
SELECT dlock_acquire('tx release') AS token \gset
BEGIN;
SELECT dlock_release(:token) AS released;
SELECT dlock_release(:token) AS released_again;
SELECT dlock_heartbeat(:token) AS heartbeat, dlock_held(:token) AS held, dlock_remaining(:token) AS remaining;
SELECT dlock_set_ttl(:token, '1 min') AS set_ttl;
SELECT outcome FROM dlock_history WHERE token = :token;
-- X3: release; ROLLBACK.
ROLLBACK;
SELECT dlock_held(:token) AS held, dlock_heartbeat(:token) AS heartbeat;
SELECT count(*) AS history FROM dlock_history WHERE token = :token;
SELECT dlock_acquire('tx release') IS NULL AS busy;

-- The same with a savepoint ...
BEGIN;
SAVEPOINT a;
SELECT dlock_release(:token) AS released;
ROLLBACK TO a;
SELECT dlock_held(:token) AS held, dlock_heartbeat(:token) AS heartbeat;
SELECT dlock_acquire('tx release') IS NULL AS busy;
COMMIT;
SELECT dlock_held(:token) AS held, dlock_heartbeat(:token) AS heartbeat;

-- ... and an exception block.
DO $$
DECLARE
	token bigint := (SELECT token FROM dlock_holders('tx release'));
BEGIN
	BEGIN
		RAISE NOTICE 'released: %', dlock_release(token);
		RAISE EXCEPTION 'the work failed';
	EXCEPTION WHEN raise_exception THEN
		RAISE NOTICE 'held after the exception: %', dlock_held(token);
	END;
END
$$;
SELECT dlock_held(:token) AS held, dlock_heartbeat(:token) AS heartbeat;

-- Only once, whatever was rolled back before.
SELECT dlock_release(:token) AS released;
SELECT dlock_release(:token) AS released_again;
SELECT count(*) AS history FROM dlock_history WHERE token = :token;

-- W4: no heartbeat brings a released token back.
SELECT dlock_heartbeat(:token) AS heartbeat;
SELECT count(*) AS leases FROM dlock_leases WHERE name = 'tx release';

--
-- Both in one transaction
--

-- Release and take again: a new lease.
SELECT dlock_acquire('tx both') AS token \gset
BEGIN;
SELECT dlock_release(:token, 'first') AS released;
SELECT dlock_acquire('tx both') AS token2 \gset
SELECT dlock_held(:token) AS first, dlock_held(:token2) AS second;
ROLLBACK;
SELECT dlock_held(:token) AS first, dlock_held(:token2) AS second;
SELECT count(*) AS history FROM dlock_history WHERE name = 'tx both';
BEGIN;
SELECT dlock_release(:token, 'first') AS released;
SELECT dlock_acquire('tx both') AS token2 \gset
COMMIT;
SELECT dlock_held(:token) AS first, dlock_held(:token2) AS second;
SELECT dlock_heartbeat(:token) AS first, dlock_heartbeat(:token2) AS second;
SELECT dlock_release(:token2, 'second') AS released;
SELECT result FROM dlock_history WHERE name = 'tx both' ORDER BY token;

-- Take and release.  A lease that began and ended in one transaction is history too.
BEGIN;
SELECT dlock_acquire('tx both') AS token \gset
SELECT dlock_release(:token, 'third') AS released;
SELECT dlock_held(:token) AS held;
COMMIT;
SELECT dlock_held(:token) AS held;
SELECT outcome, result FROM dlock_history WHERE token = :token;
BEGIN;
SELECT dlock_acquire('tx both') AS token \gset
SELECT dlock_release(:token, 'never was') AS released;
ROLLBACK;
SELECT dlock_held(:token) AS held;
SELECT count(*) AS history FROM dlock_history WHERE token = :token;

-- In one statement, once and a hundred times.
SELECT dlock_release(dlock_acquire('tx both'), 'one statement') AS released;
SELECT count(*) AS history FROM dlock_history WHERE name = 'tx both' AND result = 'one statement';
SELECT count(*) FILTER (WHERE dlock_release(dlock_acquire('tx both'), 'a hundred')) AS released
FROM generate_series(1, 100);
SELECT count(*) AS history, count(DISTINCT token) AS tokens FROM dlock_history WHERE result = 'a hundred';

-- Take, release in a savepoint that is rolled back: the grant stands.
BEGIN;
SELECT dlock_acquire('tx both') AS token \gset
SAVEPOINT a;
SELECT dlock_release(:token) AS released;
SELECT dlock_acquire('tx both') IS NOT NULL AS granted_again;
ROLLBACK TO a;
SELECT dlock_held(:token) AS held, dlock_heartbeat(:token) AS heartbeat;
COMMIT;
SELECT state, token = :token AS token FROM dlock_holders('tx both');
SELECT dlock_release(:token) AS released;

-- Many locks, deep savepoints, a part of it rolled back.
DO $$
BEGIN
	FOR i IN 1..20 LOOP
		BEGIN
			PERFORM dlock_acquire('tx many ' || i);
			IF i % 2 = 0 THEN
				RAISE EXCEPTION 'even';
			END IF;
		EXCEPTION WHEN raise_exception THEN
			NULL;
		END;
	END LOOP;
END
$$;
SELECT count(*) AS leases FROM dlock_leases WHERE name LIKE 'tx many %' AND state = 'held';
SELECT count(*) FILTER (WHERE dlock_release(token)) AS released FROM dlock_leases WHERE name LIKE 'tx many %';

-- A changed TTL goes with its transaction as well.
SELECT dlock_acquire('tx both', ttl => '1 min') AS token \gset
BEGIN;
SELECT dlock_set_ttl(:token, '2 hours') AS changed;
ROLLBACK;
SELECT dlock_heartbeat(:token) AS heartbeat;
SELECT ttl, remaining <= '1 min' AS remaining FROM dlock_leases WHERE token = :token;
BEGIN;
SAVEPOINT a;
SELECT dlock_set_ttl(:token, '2 hours') AS changed;
ROLLBACK TO a;
COMMIT;
SELECT dlock_heartbeat(:token) AS heartbeat;
SELECT ttl, remaining <= '1 min' AS remaining FROM dlock_leases WHERE token = :token;
BEGIN;
SELECT dlock_set_ttl(:token, '2 hours') AS changed;
COMMIT;
SELECT ttl, remaining > '119 min' AS remaining FROM dlock_leases WHERE token = :token;

-- Heartbeats are no part of any transaction: they survive ROLLBACK.
SELECT heartbeats AS heartbeats FROM dlock_leases WHERE token = :token \gset
BEGIN;
SELECT dlock_heartbeat(:token) AS heartbeat;
ROLLBACK;
SELECT heartbeats - :heartbeats AS counted FROM dlock_leases WHERE token = :token;

-- A guard ends with its transaction, and with its savepoint.
BEGIN;
SAVEPOINT a;
SELECT dlock_guard(:token) = :token AS guarded;
SELECT guard_pids IS NOT NULL AS guarded FROM dlock_leases WHERE token = :token;
ROLLBACK TO a;
SELECT guard_pids IS NOT NULL AS guarded FROM dlock_leases WHERE token = :token;
SELECT dlock_guard(:token) = :token AS guarded, dlock_guard(:token) = :token AS and_again;
SELECT guard_pids = ARRAY[pg_backend_pid()] AS guarded FROM dlock_leases WHERE token = :token;
COMMIT;
SELECT guard_pids IS NOT NULL AS guarded FROM dlock_leases WHERE token = :token;

-- A transaction may guard, release and take again, and guard what it has taken.
BEGIN;
SELECT dlock_guard(:token) = :token AS guarded;
SELECT dlock_release(:token) AS released;
SELECT dlock_acquire('tx both') AS token \gset
SELECT dlock_guard(:token) = :token AS guarded;
COMMIT;
SELECT dlock_heartbeat(:token) AS heartbeat;

-- But what it has released it cannot guard.
BEGIN;
SELECT dlock_release(:token) AS released;
\set VERBOSITY sqlstate
SELECT dlock_guard(:token);
\set VERBOSITY default
ROLLBACK;
SELECT dlock_release(:token) AS released;

--
-- Two-phase commit would part a lock from its transaction: refused
--
SET lock_timeout = '10 s';
SELECT dlock_acquire('tx prepare') AS token \gset
BEGIN;
SELECT dlock_acquire('tx prepare 2') IS NOT NULL AS granted;
PREPARE TRANSACTION 'dlock';
BEGIN;
SELECT dlock_guard(:token) = :token AS guarded;
PREPARE TRANSACTION 'dlock';
\set VERBOSITY sqlstate
BEGIN;
SELECT dlock_release(:token) AS released;
PREPARE TRANSACTION 'dlock';
BEGIN;
SELECT dlock_set_ttl(:token, '1 min') AS changed;
PREPARE TRANSACTION 'dlock';
BEGIN;
SELECT dlock_revoke(:token, 'test', '1 min') AS revoked;
PREPARE TRANSACTION 'dlock';
\set VERBOSITY default
-- Refused means rolled back.
SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts WHERE database = current_database() \gexec
SELECT name, state, ttl FROM dlock_leases WHERE name LIKE 'tx prepare%';
-- A transaction that holds no lock of dlock is none of its business: it only
-- looked, sent a heartbeat, was refused or rolled it back.
BEGIN;
SELECT dlock_heartbeat(:token) AS heartbeat, dlock_held(:token) AS held;
SELECT dlock_acquire('tx prepare') IS NULL AS busy;
SAVEPOINT a;
SELECT dlock_guard(:token) = :token AS guarded;
SELECT dlock_acquire('tx prepare 2') IS NOT NULL AS granted;
ROLLBACK TO a;
SELECT current_setting('max_prepared_transactions')::int > 0 AS two_phase \gset
\if :two_phase
PREPARE TRANSACTION 'dlock';
ROLLBACK PREPARED 'dlock';
\else
ROLLBACK;
\endif
SELECT dlock_release(:token) AS released;

RESET lock_timeout;

--
-- Read-only transactions
--
SELECT dlock_acquire('tx read-only') AS token \gset
BEGIN READ ONLY;
SELECT dlock_heartbeat(:token) AS heartbeat, dlock_held(:token) AS held, dlock_remaining(:token) > '0' AS remaining;
SELECT lost = '{}' AS none_lost FROM dlock_heartbeat_all(ARRAY[:token]);
SELECT state FROM dlock_holders('tx read-only');
SELECT state FROM dlock_leases WHERE token = :token;
SAVEPOINT a;
SELECT dlock_acquire('tx read-only 2');
ROLLBACK TO a;
SELECT dlock_release(:token);
ROLLBACK TO a;
\set VERBOSITY sqlstate
SELECT dlock_acquire('tx read-only 2');
ROLLBACK TO a;
SELECT dlock_acquire('tx read-only');
ROLLBACK TO a;
SELECT dlock_release(:token);
ROLLBACK TO a;
SELECT dlock_set_ttl(:token, '1 min');
ROLLBACK TO a;
SELECT dlock_revoke(:token, 'test');
ROLLBACK TO a;
SELECT dlock_revoke(:token, 'test', '1 min');
ROLLBACK TO a;
\set VERBOSITY default
COMMIT;
SELECT dlock_held(:token) AS held, dlock_release(:token) AS released;

-- What is taken and ended by one transaction rests for it, too.
BEGIN;
SELECT dlock_release(dlock_acquire('tx rest', min_hold => '1 hour')) AS released;
SELECT dlock_acquire('tx rest') IS NULL AS busy;
SAVEPOINT a;
SELECT dlock_release(dlock_acquire('tx rest 2', min_hold => '1 hour')) AS released;
ROLLBACK TO a;
SELECT dlock_release(dlock_acquire('tx rest 2')) AS free;
COMMIT;
SELECT dlock_acquire('tx rest') IS NULL AS busy;
SELECT state FROM dlock_leases WHERE name LIKE 'tx rest%';

-- A parallel worker's transaction is not the one that commits: not by a function
-- with a wrong label either.
CREATE TABLE tx_parallel AS SELECT generate_series(1, 1000) AS n;
CREATE FUNCTION tx_guard(token bigint) RETURNS bigint LANGUAGE sql PARALLEL SAFE AS 'SELECT dlock_guard(token)';
CREATE FUNCTION tx_release(token bigint) RETURNS boolean LANGUAGE sql PARALLEL SAFE AS 'SELECT dlock_release(token)';
ALTER FUNCTION dlock_guard PARALLEL SAFE;
ALTER FUNCTION dlock_release(bigint, text) PARALLEL SAFE;
SELECT dlock_acquire('tx parallel') AS token \gset
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET max_parallel_workers_per_gather = 2;
\set VERBOSITY sqlstate
SELECT count(tx_guard(:token)) FROM tx_parallel;
SELECT count(tx_release(:token)) FROM tx_parallel;
\set VERBOSITY default
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;
RESET max_parallel_workers_per_gather;
ALTER FUNCTION dlock_guard PARALLEL UNSAFE;
ALTER FUNCTION dlock_release(bigint, text) PARALLEL UNSAFE;
DROP FUNCTION tx_guard, tx_release;
DROP TABLE tx_parallel;
SELECT dlock_release(:token) AS released;

-- After all that, lease, history and memory fit together.
SELECT * FROM dlock_verify();
