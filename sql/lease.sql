-- The life of a lease: acquire, keep, look, change, release.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- The first who asks gets a token, the second NULL.
SELECT dlock_acquire('lease') AS token \gset
SELECT :token > 0 AS granted;
SELECT dlock_acquire('lease') IS NULL AS busy;

-- The holder keeps it with heartbeats and can ask how it stands.
SELECT dlock_heartbeat(:token) AS renewed;
SELECT dlock_held(:token) AS held;
SELECT dlock_remaining(:token) BETWEEN '20 s' AND '30 s' AS remaining;
SELECT dlock_guard(:token) = :token AS guarded;

-- The end, once.
SELECT dlock_release(:token) AS released;
SELECT dlock_release(:token) AS released_again;
SELECT dlock_held(:token) AS held, dlock_remaining(:token) AS remaining,
	   dlock_heartbeat(:token) AS renewed;

-- Then it is free, and the next token is higher.  Tokens fit into a double.
SELECT dlock_acquire('lease') AS next_token \gset
SELECT :next_token > :token AS rises, :next_token < 2::numeric ^ 53 AS safe_in_javascript;

-- The earlier token is worth nothing, whoever asks and whatever the owner text.
SELECT dlock_release(:token) AS released_by_the_late;
SELECT dlock_heartbeat(:token) AS renewed_by_the_late;
SELECT dlock_heartbeat(:next_token) AS renewed;
SELECT dlock_release(:next_token) AS released;

-- Names are compared byte by byte, and need no declaration.
SELECT count(dlock_acquire(name)) AS granted
FROM unnest(ARRAY['lease/a', 'Lease/a', 'lease/a ', ' lease/a', 'lease/ä', 'lease/a''"\;--']) AS name;
SELECT bool_and(dlock_release(token)) AS released FROM dlock_leases WHERE lower(name) LIKE '%lease/%';

-- Every argument has a name, and NULL is its default.
SELECT dlock_acquire(name => 'lease', ttl => '90 s', owner => 'worker 7', why => 'nightly report',
					 min_hold => '0') AS token \gset
SELECT name, state, owner, why, ttl, dlock_remaining(token) > '80 s' AS fresh
FROM dlock_leases WHERE token = :token;
SELECT dlock_release(token => :token, result => '42 rows') AS released;
SELECT outcome, owner, why, result FROM dlock_history WHERE token = :token;

SELECT dlock_acquire('lease', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL) AS token \gset
SELECT ttl, why, capacity, share, session, holds FROM dlock_leases WHERE token = :token;

-- The owner is told from application, client and backend, if it doesn't say.
SELECT owner LIKE '%' || current_setting('application_name') || '%' AS has_application,
	   owner LIKE '%' || pg_backend_pid() || '%' AS has_pid
FROM dlock_leases WHERE token = :token;
SELECT dlock_release(:token) AS released;

-- Untyped parameters, as drivers send them, find one function.
PREPARE acquire AS SELECT dlock_acquire($1, $2, owner => $3) AS token;
PREPARE heartbeat AS SELECT dlock_heartbeat($1);
PREPARE guard AS SELECT dlock_guard($1) > 0 AS guarded;
PREPARE set_ttl AS SELECT dlock_set_ttl($1, $2);
PREPARE release AS SELECT dlock_release($1, $2);
SELECT name, parameter_types FROM pg_prepared_statements ORDER BY name;
EXECUTE acquire ('lease', '1500 ms', 'a driver') \gset
EXECUTE heartbeat (:'token');
EXECUTE guard (:'token');
EXECUTE set_ttl (:'token', '1 min');
EXECUTE release (:'token', 'done');
-- Plans are kept; a generic one does the same.
SET plan_cache_mode = force_generic_plan;
EXECUTE acquire ('lease', '30 s', 'a driver') \gset
EXECUTE heartbeat (:'token');
EXECUTE release (:'token', NULL);
RESET plan_cache_mode;
DEALLOCATE ALL;

-- The TTL can be changed: durable, and counted from the commit.
SELECT dlock_acquire('lease', '1 hour') AS token \gset
SELECT dlock_set_ttl(:token, '30 s') AS shorter;
SELECT dlock_remaining(:token) <= '30 s' AS remaining, ttl FROM dlock_leases WHERE token = :token;
SELECT dlock_set_ttl(:token, '2 hours') AS longer;
SELECT dlock_remaining(:token) > '119 min' AS remaining, ttl FROM dlock_leases WHERE token = :token;
SELECT dlock_set_ttl(:token, NULL) AS back_to_the_default;
SELECT dlock_remaining(:token) <= '30 s' AS remaining, ttl FROM dlock_leases WHERE token = :token;
SELECT dlock_release(:token) AS released;
SELECT dlock_set_ttl(:token, '1 min') AS too_late;

-- A TTL is kept to the microsecond, not rounded to seconds (T4).
SELECT dlock_acquire('lease', '1.5 s') AS token \gset
SELECT ttl, dlock_remaining(token) BETWEEN '0.5 s' AND '1.5 s' AS remaining FROM dlock_leases WHERE token = :token;
SELECT dlock_set_ttl(:token, '999.5 ms') AS changed;
SELECT ttl FROM dlock_leases WHERE token = :token;
SELECT dlock_release(:token) AS released;

-- The default TTL is a setting.
SET dlock.default_ttl = '5 min';
SELECT dlock_acquire('lease') AS token \gset
SELECT ttl FROM dlock_leases WHERE token = :token;
RESET dlock.default_ttl;

-- Many leases in one call; the lost ones come back.
SELECT dlock_acquire('lease 2') AS token2 \gset
SELECT lost = '{}' AS none_lost FROM dlock_heartbeat_all(ARRAY[:token, :token2]);
SELECT dlock_release(:token2) AS released;
SELECT lost = ARRAY[:token2] AS one_lost FROM dlock_heartbeat_all(ARRAY[:token2, :token]);
SELECT lost = '{}' AS none_lost FROM dlock_heartbeat_all('{}');

-- Who holds it, by name.
SELECT dlock_holders.token = :token AS token, owner IS NOT NULL AS owner, why, acquired_at <= clock_timestamp() AS acquired_at,
	   remaining > '0' AS remaining, state
FROM dlock_holders('lease');
SELECT count(*) AS nobody FROM dlock_holders('lease 2');
SELECT count(*) AS nobody FROM dlock_holders('never heard of');

-- The view says all of it.
SELECT dlock_acquire('lease') IS NULL AS refused;
SELECT name, state, pid = pg_backend_pid() AS pid, guard_pids, role = current_user::regrole AS role, share, capacity, session,
	   why, acquired_at <= clock_timestamp() AS acquired_at, ttl, remaining > '0' AS remaining, heartbeats,
	   last_heartbeat_at BETWEEN acquired_at AND clock_timestamp() AS last_heartbeat_at, holds,
	   refused, last_refused_at BETWEEN acquired_at AND clock_timestamp() AS last_refused_at
FROM dlock_leases WHERE token = :token \gx
BEGIN;
SELECT dlock_guard(:token) = :token AS guarded;
SELECT state, guard_pids = ARRAY[pg_backend_pid()] AS guard_pids FROM dlock_leases WHERE token = :token;
COMMIT;
SELECT state, guard_pids FROM dlock_leases WHERE token = :token;
SELECT dlock_release(:token) AS released;

-- After all that, lease, history and memory fit together.
SELECT * FROM dlock_verify();
