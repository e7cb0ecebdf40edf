-- Who may call what, and what a plain role gets to see: no function does harm, nor
-- tells what is not the caller's, whoever calls it.
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS dlock;
CREATE EXTENSION dlock;
RESET client_min_messages;

CREATE ROLE regress_dlock_a;
CREATE ROLE regress_dlock_plain;
CREATE ROLE regress_dlock_monitor IN ROLE pg_read_all_stats;

CREATE TEMP VIEW member AS
SELECT d.classid, d.objid
FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
WHERE e.extname = 'dlock' AND d.deptype = 'e';

-- Every function: whom it is for, and whose rights it has.
SELECT p.pronamespace::regnamespace AS schema, p.proname AS function,
	   has_function_privilege('regress_dlock_plain', p.oid, 'EXECUTE') AS everybody, p.prosecdef AS definer
FROM member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
ORDER BY p.pronamespace::regnamespace::text COLLATE "C" DESC, p.proname COLLATE "C";
-- What has its owner's rights has a search path of its own, with pg_temp last.
SELECT p.oid::regproc AS unsafe
FROM member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
WHERE p.prosecdef AND NOT (p.proconfig @> ARRAY['search_path=pg_catalog, pg_temp']);
-- None is granted to anybody by name, nor can the grant be passed on.
SELECT p.oid::regproc AS granted, a.grantee::regrole, a.is_grantable
FROM member m JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid, aclexplode(p.proacl) a
WHERE a.grantee <> 0 AND a.grantee <> p.proowner OR a.is_grantable AND a.grantee <> p.proowner;
-- Relations: their grants, all of them.
SELECT c.relnamespace::regnamespace AS schema, c.relname, c.relkind,
	   string_agg(CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END || ' ' || a.privilege_type, ', ' ORDER BY a.grantee, a.privilege_type) AS granted
FROM member m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
LEFT JOIN LATERAL (SELECT * FROM aclexplode(c.relacl) a WHERE a.grantee <> c.relowner) a ON true
GROUP BY 1, 2, 3 ORDER BY 1, 2;
SELECT string_agg(CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END || ' ' || a.privilege_type, ', ') AS schema_dlock
FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.nspname = 'dlock' AND a.grantee <> n.nspowner;
-- All of it belongs to who created the extension.
SELECT count(*) AS others
FROM member m LEFT JOIN pg_proc p ON m.classid = 'pg_proc'::regclass AND p.oid = m.objid
LEFT JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid
WHERE coalesce(p.proowner, c.relowner) <> (SELECT extowner FROM pg_extension WHERE extname = 'dlock');
-- A view of a view's owner would read with the owner's rights: these only call.
SELECT c.oid::regclass AS view
FROM member m JOIN pg_class c ON m.classid = 'pg_class'::regclass AND c.oid = m.objid AND c.relkind = 'v'
WHERE EXISTS (SELECT FROM pg_rewrite r JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
	JOIN pg_class t ON d.refclassid = 'pg_class'::regclass AND t.oid = d.refobjid AND t.relkind <> 'v' WHERE r.ev_class = c.oid);

--
-- What others hold and wait for
--
SET ROLE regress_dlock_a;
SELECT dlock_acquire('privileges secret', owner => 'secret owner', why => 'secret reason') AS token \gset
SELECT dlock_session_open('secret session') AS session \gset
SELECT dlock_acquire('privileges session', session => :session) AS leased \gset
SELECT dlock_release(dlock_acquire('privileges old', owner => 'secret owner', why => 'secret reason'), 'secret result') AS released;
RESET ROLE;
SELECT dlock_define('privileges secret', ttl => '1 min', role => 'regress_dlock_a'), dlock_define('privileges open', capacity => 2);

-- With USAGE on schema dlock a plain role calls what is in it, and sees no more
-- than through the views.
GRANT USAGE ON SCHEMA dlock TO regress_dlock_plain;
SET ROLE regress_dlock_plain;
SELECT count(*) FROM dlock.leases();
SELECT count(*) FROM dlock.waiters();
SELECT count(*) FROM dlock.history();
SELECT name FROM dlock.locks();
SELECT count(*) FROM dlock.stats();
SELECT database = current_database() AS this_database, worker_last_error FROM dlock.databases() WHERE database = current_database();
\set VERBOSITY sqlstate
SELECT count(*) FROM dlock.verify_leases();
SELECT count(*) FROM dlock.lease;
SELECT count(*) FROM dlock.history;
SELECT count(*) FROM dlock.definition;
SELECT last_value FROM dlock.token_seq;
SELECT nextval('dlock.token_seq');
SELECT setval('dlock.token_seq', 1);
INSERT INTO dlock.lease SELECT;
INSERT INTO dlock.history SELECT;
INSERT INTO dlock.definition (name, notify, history) VALUES ('mine', false, false);
DELETE FROM dlock.history;
TRUNCATE dlock.lease;
DO 'BEGIN LOCK TABLE dlock.lease; END';
DO 'BEGIN LOCK TABLE dlock.history IN ACCESS SHARE MODE; END';
ALTER TABLE dlock.lease DISABLE TRIGGER ALL;
CREATE TABLE dlock.mine ();
CREATE FUNCTION dlock.mine() RETURNS int LANGUAGE sql AS 'SELECT 1';
DROP FUNCTION dlock.leases;
DROP EXTENSION dlock;
ALTER EXTENSION dlock UPDATE;
\set VERBOSITY default
-- The holders of a name that it knows: that it is taken, and no more.
SELECT owner, why, state FROM dlock_holders('privileges secret');
SELECT owner, why, state FROM dlock_holders('privileges session');

-- What belongs to another role.
\set VERBOSITY sqlstate
SELECT dlock_heartbeat(:token);
SELECT dlock_release(:token);
SELECT dlock_guard(:token);
SELECT dlock_held(:token);
SELECT dlock_remaining(:token);
SELECT dlock_set_ttl(:token, '1 s');
SELECT dlock_heartbeat_all(ARRAY[:token, :leased]);
SELECT dlock_heartbeat(:leased);
SELECT dlock_session_heartbeat(:session);
SELECT dlock_session_close(:session);
SELECT dlock_acquire('privileges mine', session => :session);
SELECT dlock_acquire_all(ARRAY['privileges mine'], session => :session);
CALL dlock_await('privileges mine', session => :session);
SELECT dlock_acquire('privileges session', session => :session, retry => true);
SELECT dlock_acquire('privileges secret');
CALL dlock_await('privileges secret');
-- What is the administrator's.
SELECT dlock_revoke(:token, 'why');
SELECT dlock_define('privileges open');
SELECT dlock_undefine('privileges open');
SELECT dlock_protect('pg_class', 'x');
SELECT dlock_unprotect('pg_class');
SELECT * FROM dlock_verify();
\set VERBOSITY default
-- A session's id is no token, nor the reverse; what is no number of anything is lost.
SELECT dlock_held(:session) AS held, dlock_heartbeat(-:session) AS negative, dlock_release(-:session) AS negative, dlock_held(-:session) AS negative,
	   dlock_session_heartbeat(:token) AS lost, dlock_session_heartbeat(-:token) AS lost, dlock_session_close(-:leased) AS closed, dlock_held(0) AS zero,
	   dlock_held(-9223372036854775808) AS lowest, dlock_held(9223372036854775807) AS highest, dlock_session_heartbeat(-9223372036854775808) AS lowest;

-- The triggers' functions, on a table of its own.
CREATE TEMP TABLE mine (k int);
CREATE TRIGGER refuse BEFORE INSERT ON mine FOR EACH STATEMENT EXECUTE FUNCTION dlock.refuse_dml();
INSERT INTO mine VALUES (1);
DROP TRIGGER refuse ON mine;
CREATE TRIGGER protect BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION dlock_protected('privileges mine');
INSERT INTO mine VALUES (1);
SELECT dlock_acquire('privileges mine', owner => 'plain') AS mine \gset
BEGIN;
SELECT dlock_guard(:mine) = :mine AS guarded;
INSERT INTO mine VALUES (1);
COMMIT;
CREATE TRIGGER another AFTER INSERT OR UPDATE OR DELETE ON mine FOR EACH ROW EXECUTE FUNCTION dlock_protected('privileges mine');
BEGIN;
SELECT dlock_guard(:mine) = :mine AS guarded;
INSERT INTO mine VALUES (2);
UPDATE mine SET k = 3 WHERE k = 2;
DELETE FROM mine WHERE k = 1;
COMMIT;
TABLE mine;
CREATE FUNCTION pg_temp.fails(command text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE command;
	RETURN false;
EXCEPTION WHEN OTHERS THEN
	RETURN true;
END
$$;
CREATE TEMP TABLE odd (k int);
CREATE TRIGGER none BEFORE INSERT ON odd FOR EACH ROW EXECUTE FUNCTION dlock_protected();
CREATE TRIGGER two BEFORE DELETE ON odd FOR EACH STATEMENT EXECUTE FUNCTION dlock_protected('a', 'b');
SELECT pg_temp.fails('INSERT INTO odd VALUES (1)') AS no_argument, pg_temp.fails('DELETE FROM odd') AS two_arguments,
	   pg_temp.fails('SELECT dlock_protected()') AS no_trigger, pg_temp.fails('SELECT dlock.refuse_dml()') AS no_trigger;
SELECT dlock_release(:mine) AS released;
DROP TABLE mine, odd;

-- Functions of the library under names of one's own: only for superusers.
\set VERBOSITY sqlstate
CREATE FUNCTION pg_temp.mine() RETURNS SETOF record LANGUAGE C AS '$libdir/dlock', 'dlock_verify_leases';
\set VERBOSITY default

-- All of that has changed nothing.
SET ROLE regress_dlock_a;
SELECT name, state, owner, why, heartbeats FROM dlock_leases ORDER BY name;
SELECT name, owner, result FROM dlock_history;

-- Monitoring sees all, and may do no more than others.
SET ROLE regress_dlock_monitor;
SELECT name, owner, why FROM dlock_leases ORDER BY name;
SELECT name, owner, why, result FROM dlock_history ORDER BY token;
SELECT name FROM dlock_locks ORDER BY name;
SELECT owner, why FROM dlock_holders('privileges secret');
SELECT count(*) AS history FROM dlock.history;
\set VERBOSITY sqlstate
DELETE FROM dlock.history;
SELECT count(*) FROM dlock.lease;
SELECT count(*) FROM dlock.definition;
SELECT last_value FROM dlock.token_seq;
SELECT count(*) FROM dlock.verify_leases();
SELECT dlock_release(:token);
SELECT dlock_session_close(:session);
SELECT dlock_undefine('privileges open');
\set VERBOSITY default
RESET ROLE;

--
-- EXECUTE on what is the administrator's lets in, and no further
--
GRANT EXECUTE ON FUNCTION dlock_revoke, dlock_define, dlock_undefine, dlock_verify TO regress_dlock_plain;
SET ROLE regress_dlock_plain;
SELECT dlock_define('privileges granted', ttl => '1 min');
SELECT name FROM dlock_locks ORDER BY name;
SELECT count(*) AS breaches FROM dlock_verify();
SELECT dlock_revoke(:token, 'test') AS revoked;
SELECT count(*) AS history FROM dlock_history WHERE name = 'privileges secret';
SELECT dlock_undefine('privileges granted') AS undefined;
RESET ROLE;
SELECT name, owner, outcome, result FROM dlock_history WHERE token = :token;

-- No USAGE on the functions' schema, nothing at all.
SET client_min_messages = warning;
DROP EXTENSION dlock;
CREATE SCHEMA dlock;
CREATE EXTENSION dlock SCHEMA dlock;
RESET client_min_messages;
SET ROLE regress_dlock_plain;
\set VERBOSITY sqlstate
SELECT dlock.dlock_acquire('privileges');
SELECT * FROM dlock.dlock_leases;
SELECT dlock.dlock_version();
\set VERBOSITY default
RESET ROLE;
GRANT USAGE ON SCHEMA dlock TO regress_dlock_plain;
SET ROLE regress_dlock_plain;
SELECT dlock.dlock_release(dlock.dlock_acquire('privileges')) AS released;
\set VERBOSITY sqlstate
SELECT dlock.dlock_verify();
SELECT * FROM dlock.verify_leases();
SELECT count(*) FROM dlock.lease;
SELECT setval('dlock.token_seq', 1);
\set VERBOSITY default
RESET ROLE;

SET client_min_messages = warning;
DROP EXTENSION dlock;
DROP SCHEMA dlock;
CREATE EXTENSION dlock;
RESET client_min_messages;
DISCARD TEMP;
DROP ROLE regress_dlock_a, regress_dlock_plain, regress_dlock_monitor;
