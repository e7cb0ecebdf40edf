-- CREATE EXTENSION in any schema, what it creates, and DROP EXTENSION.
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS dlock;

--
-- In schema public, the default
--
CREATE EXTENSION dlock;

-- What users call.
\pset format unaligned
\pset tuples_only on
SELECT format('%s(%s)%s', p.proname, pg_get_function_arguments(p.oid), ' -> ' || pg_get_function_result(p.oid))
FROM pg_proc p
WHERE p.pronamespace = 'public'::regnamespace AND p.proname LIKE 'dlock\_%'
ORDER BY p.proname COLLATE "C";
\pset format aligned
\pset tuples_only off

SELECT relname AS view
FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relname LIKE 'dlock\_%' AND relkind = 'v'
ORDER BY relname COLLATE "C";

-- Every one of these has a COMMENT.
SELECT pg_describe_object(d.classid, d.objid, 0) AS uncommented
FROM pg_depend d
WHERE d.deptype = 'e'
  AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'dlock')
  AND (d.objid IN (SELECT oid FROM pg_proc WHERE proname LIKE 'dlock\_%') OR
	   d.objid IN (SELECT oid FROM pg_class WHERE relname LIKE 'dlock\_%'))
  AND obj_description(d.objid, d.classid::regclass::name) IS NULL;

-- Every function is VOLATILE and PARALLEL UNSAFE, and none is overloaded.
SELECT p.oid::regprocedure AS mislabelled
FROM pg_proc p
JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
JOIN pg_extension e ON e.oid = d.refobjid
WHERE e.extname = 'dlock'
  AND (p.provolatile <> 'v' OR p.proparallel <> 'u'
	   OR (SELECT count(*) FROM pg_proc q WHERE q.proname = p.proname AND q.pronamespace = p.pronamespace) > 1);

-- What runs with the rights of its owner does so with a safe search_path.
SELECT p.oid::regprocedure AS security_definer, p.proconfig
FROM pg_proc p
JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
JOIN pg_extension e ON e.oid = d.refobjid
WHERE e.extname = 'dlock' AND p.prosecdef;

-- The library and the SQL objects fit together.
SELECT v.library = v.sql AS library_fits, v.sql = e.extversion AS sql_fits
FROM dlock_version() v, pg_extension e
WHERE e.extname = 'dlock';

-- What a plain role may do without a grant.
CREATE ROLE regress_dlock_plain;
SELECT p.oid::regproc AS plain_roles_may_not_call
FROM pg_proc p
WHERE p.pronamespace = 'public'::regnamespace AND p.proname LIKE 'dlock\_%'
  AND NOT has_function_privilege('regress_dlock_plain', p.oid, 'EXECUTE')
ORDER BY p.proname COLLATE "C";

SELECT c.oid::regclass AS relation, p.privilege AS plain_roles_have
FROM pg_class c,
	 unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) AS p (privilege)
WHERE (c.relnamespace = 'dlock'::regnamespace OR c.relname LIKE 'dlock\_%')
  AND c.relkind IN ('r', 'v') AND has_table_privilege('regress_dlock_plain', c.oid, p.privilege)
ORDER BY c.relname COLLATE "C", p.privilege;

SELECT has_schema_privilege('regress_dlock_plain', 'dlock', 'USAGE') AS plain_usage,
	   has_sequence_privilege('regress_dlock_plain', 'dlock.token_seq', 'USAGE,SELECT,UPDATE') AS plain_sequence,
	   has_table_privilege('pg_read_all_stats', 'dlock.history', 'SELECT') AS stats_history,
	   has_table_privilege('pg_read_all_stats', 'dlock.lease', 'SELECT') AS stats_lease;

-- Tokens and definitions go into a dump, leases and history do not.
SELECT c.oid::regclass AS dumped
FROM pg_extension e, unnest(e.extconfig) AS c (oid)
WHERE e.extname = 'dlock'
ORDER BY 1;

--
-- Nobody writes leases with SQL, whoever and however
--
INSERT INTO dlock.lease SELECT * FROM dlock.lease;
UPDATE dlock.lease SET ttl = '1 hour';
DELETE FROM dlock.lease;
TRUNCATE dlock.lease;
SET session_replication_role = replica;
UPDATE dlock.lease SET ttl = '1 hour';
DELETE FROM dlock.lease;
RESET session_replication_role;

--
-- DROP and CREATE in a running server: what was held is not, tokens still rise
--
SELECT dlock_acquire('install') AS old_token \gset
SELECT dlock_acquire('install') IS NULL AS busy;
DROP EXTENSION dlock;
SELECT count(*) AS left_behind
FROM pg_namespace n
LEFT JOIN pg_class c ON c.relnamespace = n.oid
WHERE n.nspname = 'dlock' OR c.relname LIKE 'dlock\_%';
CREATE EXTENSION dlock;
SELECT dlock_held(:old_token) AS old_held, dlock_heartbeat(:old_token) AS old_heartbeat,
	   dlock_release(:old_token) AS old_released;
SELECT count(*) AS leases FROM dlock_leases;
SELECT count(*) AS history FROM dlock_history;
SELECT dlock_acquire('install') AS token \gset
SELECT :token > :old_token AS rises;

-- A DROP that is rolled back has changed nothing.
BEGIN;
DROP EXTENSION dlock;
ROLLBACK;
SELECT dlock_heartbeat(:token) AS heartbeat;
BEGIN;
DROP EXTENSION dlock;
CREATE EXTENSION dlock;
SELECT dlock_acquire('install') IS NOT NULL AS granted_in_the_new_one;
SELECT dlock_heartbeat(:token) AS heartbeat_in_the_new_one;
ROLLBACK;
SELECT dlock_heartbeat(:token) AS heartbeat;
SELECT dlock_acquire('install') IS NULL AS busy;

-- A grant, an end and a guard whose extension is gone when they commit.
BEGIN;
SELECT dlock_acquire('install: pending') IS NOT NULL AS granted;
SELECT dlock_guard(:token) = :token AS guarded;
SELECT dlock_release(:token) AS released;
DROP EXTENSION dlock;
COMMIT;

-- CREATE, use and DROP in one transaction, committed and not.
BEGIN;
CREATE EXTENSION dlock;
SELECT dlock_acquire('install') IS NOT NULL AS granted;
ROLLBACK;
BEGIN;
CREATE EXTENSION dlock;
SELECT dlock_acquire('install') IS NOT NULL AS granted;
DROP EXTENSION dlock;
COMMIT;

--
-- In a schema of its own choice
--
CREATE SCHEMA regress_dlock_tools;
CREATE EXTENSION dlock SCHEMA regress_dlock_tools;
SELECT regress_dlock_tools.dlock_acquire('install') AS token \gset
SELECT :token > 0 AS granted;
SELECT regress_dlock_tools.dlock_heartbeat(:token) AS heartbeat;
SELECT name, state FROM regress_dlock_tools.dlock_leases;
SELECT regress_dlock_tools.dlock_release(:token) AS released;
SELECT name, outcome FROM regress_dlock_tools.dlock_history;
SELECT count(*) AS in_public FROM pg_proc
WHERE pronamespace = 'public'::regnamespace AND proname LIKE 'dlock\_%';
DROP EXTENSION dlock;
DROP SCHEMA regress_dlock_tools;

--
-- In schema dlock, beside the tables: USAGE on one schema locks it all down
--
CREATE SCHEMA dlock;
CREATE EXTENSION dlock SCHEMA dlock;
SELECT dlock.dlock_acquire('install') AS token \gset
SELECT :token > 0 AS granted;
SELECT name, state FROM dlock.dlock_leases;
SET ROLE regress_dlock_plain;
SELECT dlock.dlock_acquire('install');
RESET ROLE;
GRANT USAGE ON SCHEMA dlock TO regress_dlock_plain;
SET ROLE regress_dlock_plain;
SELECT dlock.dlock_acquire('install') IS NULL AS busy;
SELECT count(*) FROM dlock.lease;
RESET ROLE;
SELECT dlock.dlock_release(:token) AS released;
DROP EXTENSION dlock;
DROP SCHEMA dlock;

--
-- A schema dlock that another role owns is refused: it could replace our tables
--
\set SHOW_CONTEXT never
CREATE SCHEMA dlock AUTHORIZATION regress_dlock_plain;
CREATE EXTENSION dlock;
CREATE EXTENSION dlock SCHEMA dlock;
DROP SCHEMA dlock;
\set SHOW_CONTEXT errors

DROP ROLE regress_dlock_plain;
CREATE EXTENSION dlock;
