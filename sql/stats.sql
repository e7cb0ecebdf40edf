-- Counters of this database, and the list of databases.  A new extension, since
-- its counters begin at 0.
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS dlock;
CREATE EXTENSION dlock;
RESET client_min_messages;

SELECT granted, refused, heartbeats, guards, released, revoked FROM dlock_stats;

SELECT dlock_acquire('stats') AS token \gset
SELECT count(dlock_acquire('stats')) AS granted FROM generate_series(1, 5);
SELECT count(*) FILTER (WHERE dlock_heartbeat(:token)) AS heartbeats FROM generate_series(1, 3);
SELECT dlock_guard(:token) = :token AS guard;
SELECT dlock_release(:token) AS released;
SELECT dlock_heartbeat(:token) AS heartbeat;
\set VERBOSITY sqlstate
SELECT dlock_guard(:token);
\set VERBOSITY default
SELECT dlock_acquire('stats') AS token \gset
SELECT dlock_revoke(:token, 'test') AS revoked;
SELECT dlock_acquire('stats', ttl => '10 ms') IS NOT NULL AS granted;
SELECT FROM pg_sleep(0.1);
SELECT dlock_release(dlock_acquire('stats')) AS released;

SELECT granted, refused, heartbeats, heartbeats_lost, guards, guards_lost, released,
	   expired + taken_over AS expired_or_taken_over, revoked, disconnected
FROM dlock_stats \gx

-- What is rolled back is not counted.
BEGIN;
SELECT dlock_release(dlock_acquire('stats')) AS released;
ROLLBACK;
SELECT granted, released FROM dlock_stats;

-- This database is one of those that use dlock, with one row.
SELECT dlock_acquire('stats') AS token \gset
SELECT database = current_database() AS database, adopted, held, waiting, worker_last_error
FROM dlock_databases WHERE database = current_database();
SELECT dlock_release(:token) AS released;
SELECT held FROM dlock_databases WHERE database = current_database();

-- Everybody may see them.
CREATE ROLE regress_dlock_stats;
SET ROLE regress_dlock_stats;
SELECT granted FROM dlock_stats;
SELECT count(*) AS databases FROM dlock_databases WHERE database = current_database();
RESET ROLE;
DROP ROLE regress_dlock_stats;
