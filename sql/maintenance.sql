-- The tables are tables: they can be vacuumed, rewritten, reindexed and published
-- while leases are held.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;

CREATE FUNCTION pg_temp.cycle() RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN dlock_release(dlock_acquire('maintenance cycle'), 'done') THEN 'works' END
$$;
SELECT dlock_acquire('maintenance', '10 min') AS token \gset
SELECT pg_temp.cycle();

REINDEX TABLE CONCURRENTLY dlock.lease;
SELECT pg_temp.cycle(), dlock_heartbeat(:token) AS heartbeat, dlock_set_ttl(:token, '11 min') AS set_ttl;
REINDEX TABLE CONCURRENTLY dlock.history;
REINDEX TABLE dlock.lease;
SELECT pg_temp.cycle(), dlock_heartbeat(:token) AS heartbeat, dlock_set_ttl(:token, '12 min') AS set_ttl;
VACUUM dlock.lease, dlock.history;
VACUUM FULL dlock.lease;
VACUUM FULL dlock.history;
SELECT pg_temp.cycle(), dlock_heartbeat(:token) AS heartbeat, dlock_set_ttl(:token, '13 min') AS set_ttl;
ANALYZE dlock.lease, dlock.history;
SELECT pg_temp.cycle(), dlock_heartbeat(:token) AS heartbeat, dlock_set_ttl(:token, '14 min') AS set_ttl;

-- An index that an operator adds is kept up to date.
CREATE INDEX maintenance_owner ON dlock.history (owner);
SELECT dlock_release(dlock_acquire('maintenance cycle', owner => 'indexed')) AS released;
SET enable_seqscan = off;
SELECT owner, outcome FROM dlock.history WHERE owner = 'indexed';
RESET enable_seqscan;
DROP INDEX dlock.maintenance_owner;

-- A publication of all tables, though history has no replica identity.
SET client_min_messages = error;
CREATE PUBLICATION regress_dlock FOR ALL TABLES;
SELECT pg_temp.cycle(), dlock_set_ttl(:token, '15 min') AS set_ttl;
DROP PUBLICATION regress_dlock;

-- History is the administrator's to delete.
DELETE FROM dlock.history WHERE name = 'maintenance cycle' AND result = 'done';
SELECT result FROM dlock_history WHERE name = 'maintenance cycle';
TRUNCATE dlock.history;
SELECT dlock_release(:token, 'all the while') AS released;
SELECT result FROM dlock_history WHERE name = 'maintenance';

-- After all that, lease, history and memory fit together.
SELECT * FROM dlock_verify();
