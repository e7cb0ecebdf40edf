-- Counters of this database, and the list of databases.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

CREATE TEMP TABLE before AS SELECT * FROM dlock_stats;

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

SELECT s.granted - b.granted AS granted, s.refused - b.refused AS refused, s.heartbeats - b.heartbeats AS heartbeats,
	   s.heartbeats_lost - b.heartbeats_lost AS heartbeats_lost, s.guards - b.guards AS guards,
	   s.guards_lost - b.guards_lost AS guards_lost, s.released - b.released AS released,
	   s.expired + s.taken_over - b.expired - b.taken_over AS expired_or_taken_over,
	   s.revoked - b.revoked AS revoked, s.disconnected - b.disconnected AS disconnected
FROM dlock_stats s, before b \gx

-- What was rolled back has not happened.
TRUNCATE before;
INSERT INTO before SELECT * FROM dlock_stats;
BEGIN;
SELECT dlock_release(dlock_acquire('stats')) AS released;
ROLLBACK;
SELECT s.granted - b.granted AS granted, s.released - b.released AS released FROM dlock_stats s, before b;

-- This database is one of those that use dlock.
SELECT dlock_acquire('stats') AS token \gset
SELECT database = current_database() AS database, adopted, held > 0 AS held, waiting, worker_last_error
FROM dlock_databases WHERE database = current_database();
SELECT held AS held FROM dlock_databases WHERE database = current_database() \gset
SELECT dlock_release(:token) AS released;
SELECT :held - held AS held FROM dlock_databases WHERE database = current_database();

-- Everybody may see them.
CREATE ROLE regress_dlock_stats;
SET ROLE regress_dlock_stats;
SELECT granted > 0 AS granted FROM dlock_stats;
SELECT count(*) AS databases FROM dlock_databases WHERE database = current_database();
RESET ROLE;
DROP ROLE regress_dlock_stats;
