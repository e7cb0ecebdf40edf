-- Definitions: a lock's own defaults, who may take it, the pause after a loss.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

CREATE FUNCTION pg_temp.try(command text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
	hint text;
BEGIN
	EXECUTE command;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(E'\n', SQLSTATE || ': ' || SQLERRM, 'DETAIL: ' || nullif(detail, ''), 'HINT: ' || nullif(hint, ''));
END
$$;

-- A lock need not be defined; but one can insist on it.
SELECT dlock_release(dlock_acquire('def')) AS released;
SELECT pg_temp.try($$SELECT dlock_acquire('def', must_exist => true)$$);
SELECT dlock_define('def');
SELECT dlock_release(dlock_acquire('def', must_exist => true)) AS released;
SELECT * FROM dlock_locks WHERE name = 'def' \gx
-- Before anything else is said, also of a lock that is taken.
SELECT dlock_acquire('def 2') AS token \gset
SELECT pg_temp.try($$SELECT dlock_acquire('def 2', must_exist => true, wait => '1 min')$$);
SELECT dlock_release(:token) AS released;

-- Its defaults, which the call may override; capacity it may not.
SELECT dlock_define('def', capacity => 2, ttl => '5 min', min_hold => '1 hour', takeover_delay => '2 min', notify => true, history => false);
SELECT * FROM dlock_locks WHERE name = 'def' \gx
SELECT dlock_acquire('def') AS one \gset
SELECT dlock_acquire('def', ttl => '7 min', min_hold => '0', capacity => 7) AS two \gset
SELECT ttl, capacity FROM dlock_leases WHERE name = 'def' ORDER BY token;
SELECT held, waiting FROM dlock_locks WHERE name = 'def';
SELECT dlock_release(:one) AS one, dlock_release(:two) AS two;
SELECT state, remaining > '50 min' AS remaining FROM dlock_holders('def');
SELECT held, waiting FROM dlock_locks WHERE name = 'def';
-- A definition of now, not of the grant: the first one rests as it was told to.
SELECT dlock_define('def');
SELECT dlock_acquire('def') IS NULL AS busy;
SELECT capacity, ttl, min_hold, takeover_delay, notify, history FROM dlock_locks WHERE name = 'def';

-- Defined anew it is as the new one says, and nothing of the old one stays.
SELECT dlock_define('def 3', ttl => '1 min', min_hold => '50 ms');
SELECT dlock_define('def 3', takeover_delay => '1 s');
SELECT capacity, ttl, min_hold, takeover_delay, role, notify, history FROM dlock_locks WHERE name = 'def 3';
SELECT count(*) FROM dlock_locks WHERE name = 'def 3';
-- NULL is the default, for every argument.
SELECT dlock_define('def 3', NULL, NULL, NULL, NULL, NULL, NULL, NULL);
SELECT * FROM dlock_locks WHERE name = 'def 3' \gx
-- Taken back, once.
SELECT dlock_undefine('def 3') AS undefined, dlock_undefine('def 3') AS again, dlock_undefine('never defined') AS never;
SELECT count(*) FROM dlock_locks WHERE name = 'def 3';
-- The maximum of the settings is above all.
SELECT dlock_define('def 3', ttl => '10 min');
SET dlock.max_ttl = '1 min';
SELECT dlock_acquire('def 3') AS token \gset
RESET dlock.max_ttl;
SELECT ttl, dlock_release(token) AS released FROM dlock_leases WHERE token = :token;
-- A session has the one TTL.
SELECT dlock_session_open(ttl => '2 min') AS session \gset
SELECT dlock_acquire('def 3', session => :session) AS token \gset
SELECT ttl FROM dlock_leases WHERE token = :token;
SELECT dlock_session_close(:session) AS closed;

-- With its transaction, savepoints included.
BEGIN;
SELECT dlock_define('def 4', ttl => '1 min');
SELECT dlock_acquire('def 4', must_exist => true) AS token \gset
SELECT ttl FROM dlock_leases WHERE token = :token;
SAVEPOINT a;
SELECT dlock_define('def 4', ttl => '2 min');
SELECT dlock_undefine('def 4') AS undefined;
SELECT dlock_define('def 4', ttl => '3 min');
SELECT ttl FROM dlock_locks WHERE name = 'def 4';
ROLLBACK TO a;
SELECT ttl FROM dlock_locks WHERE name = 'def 4';
ROLLBACK;
SELECT count(*) FROM dlock_locks WHERE name = 'def 4';
SELECT pg_temp.try($$SELECT dlock_acquire('def 4', must_exist => true)$$);

--
-- takeover_delay: the lock rests after a loss
--
SELECT dlock_define('def delay', takeover_delay => '1 hour');
-- After a revocation ...
SELECT dlock_acquire('def delay') AS token \gset
SELECT dlock_revoke(:token, 'test') AS revoked;
SELECT dlock_held(:token) AS held, dlock_heartbeat(:token) AS heartbeat, dlock_release(:token) AS release;
SELECT dlock_acquire('def delay') IS NULL AS busy, dlock_acquire('def delay', wait => '20 ms') IS NULL AS still_busy;
SELECT state, remaining BETWEEN '50 min' AND '1 hour' AS remaining FROM dlock_holders('def delay');
SELECT state, remaining BETWEEN '50 min' AND '1 hour' AS remaining FROM dlock_leases WHERE name = 'def delay';
SELECT outcome FROM dlock_history WHERE token = :token;
-- ... and an expiry, whether or not that is recorded yet; counted from the death.
SELECT dlock_define('def delay 2', takeover_delay => '1 hour');
SELECT dlock_acquire('def delay 2', ttl => '10 ms') AS token \gset
SELECT FROM pg_sleep(0.1);
SELECT dlock_acquire('def delay 2') IS NULL AS busy, dlock_acquire('def delay 2', wait => '20 ms') IS NULL AS still_busy;
SELECT dlock_held(:token) AS held, dlock_heartbeat(:token) AS heartbeat;
SELECT state IN ('expired', 'delayed') AS state FROM dlock_holders('def delay 2');
-- When it is over it is over.
SELECT dlock_define('def delay 3', takeover_delay => '500 ms');
SELECT dlock_acquire('def delay 3', ttl => '100 ms') AS first \gset
SELECT dlock_acquire('def delay 3', wait => '1 min') AS second \gset
SELECT dlock_release(:second) AS released;
SELECT b.acquired_at - a.acquired_at >= '600 ms' AS not_early, b.waited > '0' AS waited, a.outcome IN ('expired', 'taken over') AS lost
FROM dlock_history AS a, dlock_history AS b WHERE a.token = :first AND b.token = :second;
-- Not after a release, and not after one that is rolled back.
SELECT dlock_define('def delay 4', takeover_delay => '1 hour');
SELECT dlock_release(dlock_acquire('def delay 4')) AS released;
SELECT dlock_acquire('def delay 4') AS token \gset
BEGIN;
SELECT dlock_revoke(:token, 'test') AS revoked;
ROLLBACK;
SELECT dlock_held(:token) AS held, dlock_release(:token) AS released;
SELECT dlock_release(dlock_acquire('def delay 4')) AS released;
-- A session's close is a release of its leases; a revocation after the grace is one.
SELECT dlock_session_open() AS session \gset
SELECT dlock_acquire('def delay 4', session => :session) IS NOT NULL AS granted;
SELECT dlock_session_close(:session) AS closed;
SELECT dlock_acquire('def delay 4') AS token \gset
SELECT dlock_revoke(:token, 'test', grace => '10 ms') AS revoked;
SELECT FROM pg_sleep(0.1);
SELECT dlock_acquire('def delay 4') IS NULL AS busy;
-- The longer one of two rests.
SELECT dlock_define('def delay 5', takeover_delay => '2 hours', min_hold => '1 hour');
SELECT dlock_acquire('def delay 5') AS token \gset
SELECT dlock_revoke(:token, 'test') AS revoked;
SELECT state, remaining > '1 hour' AS remaining FROM dlock_holders('def delay 5');
-- For whoever has revoked it, too, in the same transaction.
SELECT dlock_define('def delay 7', takeover_delay => '1 hour');
SELECT dlock_acquire('def delay 7') AS token \gset
BEGIN;
SELECT dlock_revoke(:token, 'test') AS revoked;
SELECT dlock_acquire('def delay 7') IS NULL AS busy;
COMMIT;
SELECT state FROM dlock_holders('def delay 7');
-- Permits rest one by one.
SELECT dlock_define('def delay 6', capacity => 2, takeover_delay => '1 hour');
SELECT dlock_acquire('def delay 6') AS one \gset
SELECT dlock_acquire('def delay 6') AS two \gset
SELECT dlock_revoke(:one, 'test') AS revoked, dlock_release(:two) AS released;
SELECT dlock_acquire('def delay 6') AS three \gset
SELECT dlock_acquire('def delay 6') IS NULL AS busy;
SELECT state FROM dlock_holders('def delay 6') ORDER BY token;
SELECT dlock_release(:three) AS released;

--
-- history off: no row, though it is counted
--
SELECT dlock_define('def quiet', history => false);
SELECT released AS released FROM dlock_stats \gset
SELECT dlock_release(dlock_acquire('def quiet'), 'unseen') AS released;
SELECT dlock_acquire('def quiet') AS token \gset
SELECT dlock_revoke(:token, 'unseen') AS revoked;
SELECT dlock_acquire('def quiet', ttl => '10 ms') IS NOT NULL AS granted;
SELECT FROM pg_sleep(0.1);
SELECT dlock_release(dlock_acquire('def quiet')) AS released;
SELECT count(*) AS history FROM dlock_history WHERE name = 'def quiet';
SELECT released - :released AS released FROM dlock_stats;
SELECT dlock_define('def quiet');
SELECT dlock_release(dlock_acquire('def quiet'), 'seen') AS released;
SELECT result FROM dlock_history WHERE name = 'def quiet';

--
-- Roles
--
CREATE ROLE regress_dlock_jobs;
CREATE ROLE regress_dlock_job1 IN ROLE regress_dlock_jobs;
CREATE ROLE regress_dlock_web;
CREATE ROLE regress_dlock_watch IN ROLE pg_read_all_stats;
SELECT pg_temp.try($$SELECT dlock_define('def role', role => 999999)$$);
SELECT dlock_define('def role', role => 'regress_dlock_jobs');
SELECT name, role FROM dlock_locks WHERE name = 'def role';

-- Who may not take it hears so, whether or not it is free, and leaves it alone.
SET ROLE regress_dlock_web;
SELECT pg_temp.try($$SELECT dlock_acquire('def role')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('def role', wait => '1 min', share => 'read')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('def role', must_exist => true)$$);
SELECT pg_temp.try($$SELECT dlock_acquire_all(ARRAY['def role'])$$);
SELECT count(*) AS holders FROM dlock_holders('def role');
-- It sees what concerns it alone, and cannot define anything.
SELECT name FROM dlock_locks WHERE name LIKE 'def role%';
SELECT count(*) > 0 AS others FROM dlock_locks;
SELECT dlock_define('def mine');
SELECT dlock_undefine('def role');
SELECT count(*) FROM dlock.definition;
SELECT count(*) FROM dlock.locks();
-- The role itself, its members, and superusers may.
SET ROLE regress_dlock_job1;
SELECT dlock_acquire('def role', must_exist => true) AS token \gset
SELECT role, state FROM dlock_leases WHERE token = :token;
SELECT name, role, held FROM dlock_locks WHERE name LIKE 'def role%';
SELECT dlock_release(:token) AS released;
SET ROLE regress_dlock_jobs;
SELECT dlock_release(dlock_acquire('def role')) AS released;
SET ROLE regress_dlock_watch;
SELECT name, role FROM dlock_locks WHERE name LIKE 'def role%';
\set VERBOSITY sqlstate
SELECT dlock_acquire('def role');
\set VERBOSITY default
RESET ROLE;
SELECT dlock_release(dlock_acquire('def role')) AS released;
-- What was taken before the definition can be kept and given back.
SELECT dlock_undefine('def role') AS undefined;
SET ROLE regress_dlock_web;
SELECT dlock_acquire('def role') AS token \gset
RESET ROLE;
SELECT dlock_define('def role', role => 'regress_dlock_jobs');
SET ROLE regress_dlock_web;
SELECT dlock_heartbeat(:token) AS heartbeat, dlock_guard(:token) = :token AS guard, dlock_release(:token) AS released;
SELECT pg_temp.try($$SELECT dlock_acquire('def role')$$);
RESET ROLE;
-- With a session, too, the caller has to be a member.
SET ROLE regress_dlock_web;
SELECT dlock_session_open(ttl => '1 min') AS session \gset
SELECT pg_temp.try(format($$SELECT dlock_acquire('def role', session => %s)$$, :session));
SELECT dlock_session_close(:session) AS closed;
RESET ROLE;
-- Whom the database's owner trusts may define.
GRANT EXECUTE ON FUNCTION dlock_define, dlock_undefine TO regress_dlock_web;
SET ROLE regress_dlock_web;
SELECT dlock_define('def web', ttl => '1 min');
SELECT name, ttl FROM dlock_locks WHERE name = 'def web';
SELECT dlock_undefine('def web') AS undefined, dlock_undefine('def role') AS undefined;
RESET ROLE;
REVOKE EXECUTE ON FUNCTION dlock_define, dlock_undefine FROM regress_dlock_web;
DROP ROLE regress_dlock_jobs, regress_dlock_job1, regress_dlock_web, regress_dlock_watch;

-- PUBLIC has neither; and of the tables, only definitions and the last token
-- are dumped.
SELECT p.oid::regprocedure::text LIKE 'dlock_%define(%' AS function, has_function_privilege('pg_monitor', p.oid, 'EXECUTE') AS monitor
FROM pg_proc AS p WHERE p.proname IN ('dlock_define', 'dlock_undefine');
SELECT t::regclass FROM pg_extension, unnest(extconfig) AS t WHERE extname = 'dlock' ORDER BY 1::text;

--
-- Bad arguments
--
\pset tuples_only on
\pset format unaligned
SELECT pg_temp.try($$SELECT dlock_define(NULL)$$);
SELECT pg_temp.try($$SELECT dlock_define('')$$);
SELECT pg_temp.try($$SELECT dlock_define(repeat('x', 256))$$);
SELECT pg_temp.try($$SELECT dlock_undefine(NULL)$$);
SELECT pg_temp.try($$SELECT dlock_define('def', capacity => 0)$$);
SELECT pg_temp.try($$SELECT dlock_define('def', capacity => 1000001)$$);
SELECT pg_temp.try($$SELECT dlock_define('def', ttl => '9 ms')$$);
SELECT pg_temp.try($$SELECT dlock_define('def', ttl => '25 hours')$$);
SELECT pg_temp.try($$SELECT dlock_define('def', ttl => '1 month')$$);
SELECT pg_temp.try($$SELECT dlock_define('def', min_hold => '-1 us')$$);
SELECT pg_temp.try($$SELECT dlock_define('def', takeover_delay => '-1 us')$$);
SELECT pg_temp.try($$SELECT dlock_define('def', takeover_delay => '25 hours')$$);
SELECT pg_temp.try($$SELECT dlock_define('def', role => 'regress_dlock_nobody')$$);
BEGIN READ ONLY;
\set VERBOSITY sqlstate
SELECT dlock_define('def');
ROLLBACK;
BEGIN READ ONLY;
SELECT dlock_undefine('def');
\set VERBOSITY default
ROLLBACK;
SELECT dlock_define(repeat('x', 255)), dlock_undefine(repeat('x', 255));
SELECT count(*) FILTER (WHERE dlock_undefine(name)) FROM dlock_locks WHERE name LIKE 'def%';
SELECT count(*) FROM dlock.definition WHERE name LIKE 'def%';
