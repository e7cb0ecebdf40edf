-- An administrator takes a lease away: at once, or after a time of grace.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

--
-- At once
--
SELECT dlock_acquire('revoke', owner => 'a worker') AS token \gset
SELECT dlock_revoke(:token, 'maintenance') AS revoked;
SELECT dlock_revoke(:token, 'maintenance') AS revoked_again;
SELECT dlock_held(:token) AS held, dlock_heartbeat(:token) AS heartbeat, dlock_remaining(:token) AS remaining,
	   dlock_release(:token) AS release;
\set VERBOSITY sqlstate
SELECT dlock_guard(:token);
\set VERBOSITY default
SELECT owner, outcome, result, ended_by LIKE '%' || pg_backend_pid() || '%' AS ended_by_me
FROM dlock_history WHERE token = :token;
-- Free for the next.
SELECT dlock_release(dlock_acquire('revoke')) AS released;

-- A revocation that is rolled back never was.
SELECT dlock_acquire('revoke') AS token \gset
BEGIN;
SELECT dlock_revoke(:token, 'maintenance') AS revoked;
SELECT dlock_held(:token) AS held;
ROLLBACK;
SELECT dlock_held(:token) AS held, dlock_heartbeat(:token) AS heartbeat;
BEGIN;
SELECT dlock_revoke(:token, 'maintenance', grace => '1 min') AS revoked;
ROLLBACK;
SELECT state, dlock_heartbeat(token) AS heartbeat FROM dlock_holders('revoke');
SELECT dlock_release(:token) AS released;

--
-- With grace: the holder is told by its next heartbeat, and may finish
--
SELECT dlock_acquire('revoke', ttl => '1 min', owner => 'a worker') AS token \gset
SELECT dlock_revoke(:token, 'maintenance', grace => '1 hour') AS revoked;
SELECT state, remaining BETWEEN '50 min' AND '1 hour' AS remaining FROM dlock_leases WHERE token = :token;
SELECT state FROM dlock_holders('revoke');
SELECT dlock_heartbeat(:token) AS heartbeat_says_stop;
SELECT lost = ARRAY[:token] AS heartbeat_all_says_stop FROM dlock_heartbeat_all(ARRAY[:token]);
SELECT dlock_held(:token) AS held, dlock_remaining(:token) BETWEEN '50 min' AND '1 hour' AS remaining;
SELECT dlock_guard(:token) = :token AS guard_passes;
SELECT dlock_acquire('revoke') IS NULL AS busy;
-- A release works, and frees at once.
SELECT dlock_release(:token, 'stopped in time') AS released;
SELECT outcome, result FROM dlock_history WHERE token = :token;
SELECT dlock_release(dlock_acquire('revoke')) AS released;

-- After the grace it is gone, and the revoker has ended it.
SELECT dlock_acquire('revoke', ttl => '1 hour', owner => 'a worker') AS token \gset
SELECT dlock_revoke(:token, 'maintenance', grace => '50 ms') AS revoked;
SELECT FROM pg_sleep(0.2);
SELECT dlock_held(:token) AS held, dlock_heartbeat(:token) AS heartbeat, dlock_remaining(:token) AS remaining,
	   dlock_release(:token) AS release;
SELECT dlock_release(dlock_acquire('revoke')) AS released;
SELECT owner, outcome, ended_by LIKE '%' || pg_backend_pid() || '%' AS ended_by_me
FROM dlock_history WHERE token = :token;

-- While it lasts, the administrator may still take it at once.
SELECT dlock_acquire('revoke') AS token \gset
SELECT dlock_revoke(:token, 'maintenance', grace => '1 hour') AS revoked;
SELECT dlock_revoke(:token, 'now') AS revoked;
SELECT dlock_held(:token) AS held;
SELECT outcome, dlock_release(dlock_acquire('revoke')) AS free_again FROM dlock_history WHERE token = :token;

-- A grant of the same transaction can be revoked as well.
BEGIN;
SELECT dlock_acquire('revoke') AS token \gset
SELECT dlock_revoke(:token, 'never mind') AS revoked;
COMMIT;
SELECT dlock_held(:token) AS held;
SELECT outcome FROM dlock_history WHERE token = :token;

-- When the lease is over, what its lock still rests.
SELECT dlock_acquire('revoke rest', min_hold => '1 hour') AS token \gset
SELECT dlock_release(:token) AS released, dlock_acquire('revoke rest') IS NULL AS rests;
BEGIN;
SELECT dlock_revoke(:token, 'free it') AS revoked;
ROLLBACK;
SELECT dlock_acquire('revoke rest') IS NULL AS rests, dlock_revoke(:token, 'free it', grace => '1 min') AS no_grace;
SELECT dlock_revoke(:token, 'free it') AS revoked;
SELECT dlock_revoke(:token, 'free it') AS again, rests_until, rests_for FROM dlock.lease WHERE token = :token;
SELECT dlock_release(dlock_acquire('revoke rest')) AS free;
SELECT dlock_define('revoke delayed', takeover_delay => '1 hour');
SELECT dlock_acquire('revoke delayed') AS token \gset
SELECT dlock_revoke(:token, 'test') AS revoked, dlock_acquire('revoke delayed') IS NULL AS rests;
SELECT state FROM dlock_leases WHERE token = :token;
SELECT dlock_revoke(:token, 'free it') AS revoked;
SELECT dlock_release(dlock_acquire('revoke delayed')) AS free;
SELECT dlock_undefine('revoke delayed') AS undefined;
SELECT name, outcome, result FROM dlock_history WHERE name LIKE 'revoke rest' OR name = 'revoke delayed' ORDER BY token;

-- After all that, lease, history and memory fit together.
SELECT * FROM dlock_verify();
