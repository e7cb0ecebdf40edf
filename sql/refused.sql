-- Promise 8: a refused attempt takes no transaction id, writes no row version
-- and holds no lock when it returns.  The same goes for a heartbeat.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

SELECT dlock_acquire('refused') AS token \gset
SELECT dlock_acquire('refused late') AS late \gset
SELECT dlock_release(:late) AS released;

CREATE VIEW pg_temp.traces AS
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid,
	   (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory') AS locks;
SELECT pg_relation_size('dlock.lease') AS lease_size, pg_relation_size('dlock.history') AS history_size \gset

-- Ten thousand of each, in one transaction.
BEGIN;
SELECT count(dlock_acquire('refused')) AS granted FROM generate_series(1, 10000);
SELECT * FROM pg_temp.traces;
SELECT count(*) FILTER (WHERE dlock_heartbeat(:token)) AS heartbeats FROM generate_series(1, 10000);
SELECT count(*) FILTER (WHERE dlock_held(:token)) AS held FROM generate_series(1, 10000);
SELECT * FROM pg_temp.traces;
COMMIT;

-- In exception blocks as well.
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
	RAISE NOTICE 'granted %: %', granted, (SELECT traces FROM pg_temp.traces);
END
$$;

-- What comes too late changes nothing either.
BEGIN;
SELECT count(*) FILTER (WHERE dlock_release(:late)) AS released,
	   count(*) FILTER (WHERE dlock_heartbeat(:late)) AS heartbeats,
	   count(*) FILTER (WHERE dlock_set_ttl(:late, '1 min')) AS set_ttl,
	   count(*) FILTER (WHERE dlock_revoke(:late, 'late')) AS revoked
FROM generate_series(1, 1000);
SELECT * FROM pg_temp.traces;
SAVEPOINT a;
\set VERBOSITY sqlstate
SELECT dlock_guard(:late);
\set VERBOSITY default
ROLLBACK TO a;
SELECT * FROM pg_temp.traces;
COMMIT;

-- The tables have not grown, and all was counted.
SELECT pg_relation_size('dlock.lease') - :lease_size AS lease_grew,
	   pg_relation_size('dlock.history') - :history_size AS history_grew;
SELECT refused, heartbeats FROM dlock_leases WHERE token = :token;

-- What succeeds holds one lock to the end of its transaction, that of its slot:
-- shared and without a transaction id for a guard ...
BEGIN;
SELECT dlock_guard(:token) = :token AS guarded;
SELECT *, (SELECT min(mode) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory') AS mode FROM pg_temp.traces;
COMMIT;
SELECT * FROM pg_temp.traces;
-- ... exclusive for an end and a grant.
BEGIN;
SELECT dlock_release(:token) AS released;
SELECT *, (SELECT min(mode) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory') AS mode FROM pg_temp.traces;
COMMIT;
BEGIN;
SELECT dlock_acquire('refused') AS token \gset
SELECT *, (SELECT min(mode) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory') AS mode FROM pg_temp.traces;
COMMIT;
SELECT * FROM pg_temp.traces;
SELECT dlock_release(:token) AS released;
