-- X2: isolation levels.  A statement of its own never gets 40001 from dlock,
-- nor does a block whose snapshot has seen the lock's last change.  (A block
-- that has not: see the isolation test "stale-snapshot".)
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- Statements of their own.
SET default_transaction_isolation = 'repeatable read';
SELECT dlock_acquire('snapshot') AS token \gset
SELECT dlock_acquire('snapshot') IS NULL AS busy;
SELECT dlock_heartbeat(:token) AS heartbeat, dlock_set_ttl(:token, '1 min') AS set_ttl, dlock_guard(:token) > 0 AS guard;
SELECT dlock_release(:token) AS released;
SELECT dlock_release(dlock_acquire('snapshot')) AS both_in_one;
SELECT dlock_acquire('snapshot', ttl => '10 ms') IS NOT NULL AS granted;
SELECT FROM pg_sleep(0.1);
SELECT dlock_release(dlock_acquire('snapshot')) AS takeover;
SET default_transaction_isolation = 'serializable';
SELECT dlock_acquire('snapshot') AS token \gset
SELECT dlock_acquire('snapshot') IS NULL AS busy;
SELECT dlock_heartbeat(:token) AS heartbeat, dlock_set_ttl(:token, '1 min') AS set_ttl, dlock_guard(:token) > 0 AS guard;
SELECT dlock_release(:token) AS released;
SELECT dlock_release(dlock_acquire('snapshot')) AS both_in_one;
SELECT dlock_acquire('snapshot', ttl => '10 ms') IS NOT NULL AS granted;
SELECT FROM pg_sleep(0.1);
SELECT dlock_release(dlock_acquire('snapshot')) AS takeover;
RESET default_transaction_isolation;

-- Blocks: a transaction's own changes are never news to it.
SELECT dlock_acquire('snapshot') AS token \gset
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) >= 0 AS takes_a_snapshot FROM pg_class;
SELECT dlock_guard(:token) = :token AS guard;
SELECT dlock_release(:token) AS released;
SELECT dlock_acquire('snapshot') AS token \gset
SELECT dlock_guard(:token) = :token AS guard;
SELECT dlock_release(dlock_acquire('snapshot fresh')) AS fresh_name;
SELECT dlock_release(:token) AS released;
SELECT dlock_acquire('snapshot') AS token \gset
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) >= 0 AS takes_a_snapshot FROM pg_class;
SELECT dlock_guard(:token) = :token AS guard;
SELECT dlock_release(:token) AS released;
SELECT dlock_acquire('snapshot') AS token \gset
SELECT dlock_release(:token) AS released;
-- What dlock reads of leases takes no predicate locks, so that it can't be in a
-- cycle.  (Definitions are read as other tables are.)
SELECT count(*) AS leases FROM dlock_leases WHERE name = 'snapshot';
SELECT count(*) AS history FROM dlock_history WHERE token = :token;
SELECT count(*) AS holders FROM dlock_holders('snapshot');
SELECT count(*) AS predicate_locks
FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
WHERE l.mode = 'SIReadLock' AND c.relnamespace = 'dlock'::regnamespace AND c.relname NOT LIKE 'definition%';
COMMIT;

-- What the views show is now, not when the snapshot was taken.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) AS leases FROM dlock_leases WHERE name = 'snapshot';
SELECT dlock_acquire('snapshot') AS token \gset
SELECT count(*) AS leases FROM dlock_leases WHERE name = 'snapshot';
SELECT dlock_release(:token) AS released;
SELECT count(*) AS leases FROM dlock_leases WHERE name = 'snapshot';
SELECT count(*) AS history FROM dlock_history WHERE token = :token;
COMMIT;

-- After all that, lease, history and memory fit together.
SELECT * FROM dlock_verify();
