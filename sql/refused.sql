-- Promise 8: a refused attempt takes no transaction id, writes no row version
-- and holds no lock when it returns.  The same goes for a heartbeat.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

SELECT dlock_acquire('refused') AS token \gset
SELECT pg_relation_size('dlock.lease') AS lease_size, pg_relation_size('dlock.history') AS history_size \gset

-- Ten thousand of each, in one transaction.
BEGIN;
SELECT count(dlock_acquire('refused')) AS granted FROM generate_series(1, 10000);
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
SELECT count(*) AS locks FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';
SELECT count(*) FILTER (WHERE dlock_heartbeat(:token)) AS heartbeats FROM generate_series(1, 10000);
SELECT count(*) FILTER (WHERE dlock_held(:token)) AS held FROM generate_series(1, 10000);
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
SELECT count(*) AS locks FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';
COMMIT;

-- In savepoints and exception blocks as well.
DO $$
DECLARE
	granted int := 0;
BEGIN
	FOR i IN 1..1000 LOOP
		BEGIN
			IF dlock_acquire('refused') IS NOT NULL THEN
				granted := granted + 1;
			END IF;
		EXCEPTION WHEN division_by_zero THEN
			NULL;
		END;
	END LOOP;
	RAISE NOTICE 'granted %, no xid: %, locks: %', granted, pg_current_xact_id_if_assigned() IS NULL,
		(SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory');
END
$$;

-- What comes too late changes nothing either.
SELECT dlock_acquire('refused late') AS late \gset
SELECT dlock_release(:late) AS released;
BEGIN;
SELECT count(*) FILTER (WHERE dlock_release(:late)) AS released,
	   count(*) FILTER (WHERE dlock_heartbeat(:late)) AS heartbeats,
	   count(*) FILTER (WHERE dlock_set_ttl(:late, '1 min')) AS set_ttl,
	   count(*) FILTER (WHERE dlock_revoke(:late, 'late')) AS revoked
FROM generate_series(1, 1000);
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
SELECT count(*) AS locks FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';
COMMIT;

-- An acquire that fails holds nothing either, and a guard that passes is a lock,
-- but no transaction id.
BEGIN;
SAVEPOINT a;
\set VERBOSITY sqlstate
SELECT dlock_guard(:late);
\set VERBOSITY default
ROLLBACK TO a;
SELECT count(*) AS locks FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';
SELECT dlock_guard(:token) = :token AS guarded;
SELECT count(*) AS locks, min(mode) AS mode FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
COMMIT;

-- A grant holds one lock until its transaction ends: that of its slot.
BEGIN;
SELECT dlock_acquire('refused grant') AS grant \gset
SELECT count(*) AS locks, min(mode) AS mode FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';
COMMIT;
SELECT count(*) AS locks FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';

-- The tables have not grown, and all was counted.
SELECT pg_relation_size('dlock.lease') = :lease_size AS lease_size, pg_relation_size('dlock.history') - :history_size < 16384 AS history_size;
SELECT refused, heartbeats FROM dlock_leases WHERE token = :token;
SELECT dlock_release(:token) AS released, dlock_release(:grant) AS released;
SELECT refused, heartbeats FROM dlock_history WHERE token = :token;
