-- Who may do what: membership in the lease's role decides, never the owner text
-- and never the knowledge of a token (F4).
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

CREATE ROLE regress_dlock_a;
CREATE ROLE regress_dlock_b;
CREATE ROLE regress_dlock_member IN ROLE regress_dlock_a;
CREATE ROLE regress_dlock_admin;
CREATE ROLE regress_dlock_monitor IN ROLE pg_read_all_stats;

SET ROLE regress_dlock_a;
SELECT dlock_acquire('roles', owner => 'secret owner', why => 'secret reason') AS token \gset
SELECT dlock_heartbeat(:token) AS heartbeat, dlock_held(:token) AS held;
SELECT name, owner, why, role FROM dlock_leases;

-- Another role: nothing works, nothing is shown, and it can only see that the
-- name that it knows is taken.
SET ROLE regress_dlock_b;
SELECT dlock_acquire('roles') IS NULL AS busy;
SELECT owner, why, state, acquired_at IS NOT NULL AS acquired_at, remaining > '0' AS remaining FROM dlock_holders('roles');
SELECT count(*) AS leases FROM dlock_leases;
\set VERBOSITY sqlstate
SELECT dlock_heartbeat(:token);
SELECT dlock_heartbeat_all(ARRAY[:token]);
SELECT dlock_release(:token);
SELECT dlock_guard(:token);
SELECT dlock_set_ttl(:token, '1 min');
SELECT dlock_held(:token);
SELECT dlock_remaining(:token);
\set VERBOSITY default
SELECT dlock_revoke(:token, 'mine now');
SELECT count(*) FROM dlock.lease;
SELECT count(*) FROM dlock.history;
SELECT last_value FROM dlock.token_seq;
SELECT count(*) FROM dlock.leases();

-- It held through all of this, with one heartbeat.
SET ROLE regress_dlock_a;
SELECT state, heartbeats FROM dlock_leases WHERE token = :token;

-- A member of the role: all of it.
SET ROLE regress_dlock_member;
SELECT owner, why, state FROM dlock_holders('roles');
SELECT name, owner, why, role FROM dlock_leases;
SELECT dlock_heartbeat(:token) AS heartbeat, dlock_held(:token) AS held, dlock_guard(:token) = :token AS guard,
	   dlock_set_ttl(:token, '1 min') AS set_ttl, dlock_remaining(:token) > '0' AS remaining;
SELECT dlock_revoke(:token, 'members are no administrators');
SELECT dlock_release(:token, 'secret result') AS released;
SELECT outcome, result, role FROM dlock_history;

-- Membership works in one direction.
SELECT dlock_acquire('roles', owner => 'member') AS token \gset
SET ROLE regress_dlock_a;
\set VERBOSITY sqlstate
SELECT dlock_release(:token);
\set VERBOSITY default
SELECT owner, state FROM dlock_holders('roles');
SELECT count(*) AS leases FROM dlock_leases;

-- History is filtered in the same way ...
SET ROLE regress_dlock_b;
SELECT count(*) AS history FROM dlock_history;
SELECT dlock_release(dlock_acquire('roles b')) AS released;
SELECT name FROM dlock_history;
-- ... monitoring sees all of it, and may do nothing.
SET ROLE regress_dlock_monitor;
SELECT name, owner, role FROM dlock_leases WHERE name LIKE 'roles%';
SELECT owner FROM dlock_holders('roles');
SELECT name, result FROM dlock_history WHERE name LIKE 'roles%' ORDER BY token;
SELECT count(*) > 0 AS history_by_its_indexes FROM dlock.history WHERE name = 'roles';
\set VERBOSITY sqlstate
SELECT dlock_heartbeat(:token);
SELECT dlock_release(:token);
SELECT dlock_revoke(:token, 'monitoring');
SELECT count(*) FROM dlock.lease;
\set VERBOSITY default
RESET ROLE;

-- A lease that has ended, or whose time is over, is nobody's: no error, no hint.
SELECT dlock_release(:token) AS released_by_superuser;
SET ROLE regress_dlock_b;
SELECT dlock_heartbeat(:token) AS heartbeat, dlock_held(:token) AS held, dlock_release(:token) AS release;
SELECT count(*) AS holders FROM dlock_holders('roles');

-- Takeover needs no membership: the lock is free.
SET ROLE regress_dlock_a;
SELECT dlock_acquire('roles', ttl => '10 ms') AS token \gset
SET ROLE regress_dlock_b;
SELECT FROM pg_sleep(0.1);
SELECT dlock_acquire('roles') IS NOT NULL AS granted;
SELECT role FROM dlock_leases;
SELECT name FROM dlock_history ORDER BY token;
SET ROLE regress_dlock_a;
SELECT outcome IN ('expired', 'taken over') AS outcome, role FROM dlock_history WHERE token = :token;
RESET ROLE;

-- dlock_revoke is granted to whom the database's owner trusts.
GRANT EXECUTE ON FUNCTION dlock_revoke TO regress_dlock_admin;
SELECT token AS token FROM dlock_holders('roles') \gset
SET ROLE regress_dlock_admin;
SELECT dlock_revoke(:token, 'maintenance') AS revoked;
SELECT dlock_release(:token) AS release;
RESET ROLE;
SELECT outcome, role, ended_by IS NOT NULL AS ended_by FROM dlock_history WHERE token = :token;
REVOKE EXECUTE ON FUNCTION dlock_revoke FROM regress_dlock_admin;

-- A setting that is not for everybody.
SET ROLE regress_dlock_a;
SET dlock.max_ttl = '7 days';
SET dlock.default_ttl = '1 min';
RESET dlock.default_ttl;
RESET ROLE;

-- A role that is dropped leaves its leases and history readable.
SET ROLE regress_dlock_b;
SELECT dlock_acquire('roles dropped') AS token \gset
RESET ROLE;
DROP ROLE regress_dlock_a, regress_dlock_b, regress_dlock_member, regress_dlock_admin, regress_dlock_monitor;
SELECT name, state FROM dlock_leases WHERE token = :token;
SELECT dlock_release(:token) AS released;
SELECT name, outcome FROM dlock_history WHERE token = :token;

-- After all that, lease, history and memory fit together.
SELECT * FROM dlock_verify();
