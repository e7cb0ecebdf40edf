-- Every lease that ends leaves exactly one row of history.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- A released one: its result, its heartbeats, and who was refused meanwhile.
SELECT dlock_acquire('history', owner => 'worker 1', why => 'nightly') AS token \gset
SELECT count(*) AS not_yet FROM dlock_history WHERE name = 'history';
SELECT count(*) FILTER (WHERE dlock_heartbeat(:token)) AS heartbeats FROM generate_series(1, 3);
SELECT count(dlock_acquire('history')) AS granted FROM generate_series(1, 5);
SELECT refused, heartbeats, last_refused_at IS NOT NULL AS last_refused_at FROM dlock_leases WHERE token = :token;
SELECT dlock_release(:token, '42 rows') AS released;
SELECT name, owner, role = current_user::regrole AS role, share, why, acquired_at <= ended_at AS acquired_at,
	   ended_at <= clock_timestamp() AS ended_at, outcome, result, heartbeats, refused,
	   last_refused_at BETWEEN acquired_at AND ended_at AS last_refused_at, ended_by IS NOT NULL AS ended_by
FROM dlock_history WHERE token = :token \gx

-- One without any of it.
SELECT dlock_acquire('history 2') AS token \gset
SELECT dlock_release(:token) AS released;
SELECT why, outcome, result, heartbeats, refused, last_refused_at FROM dlock_history WHERE token = :token;

-- What is refused while it is pending counts, a heartbeat of it doesn't.
BEGIN;
SELECT dlock_acquire('history 3') AS token \gset
SELECT dlock_heartbeat(:token) AS heartbeat, dlock_acquire('history 3') IS NULL AS busy;
COMMIT;
SELECT dlock_release(:token) AS released;
SELECT outcome, heartbeats, refused FROM dlock_history WHERE token = :token;

-- The others.
SELECT dlock_acquire('history expired', ttl => '10 ms', owner => 'lost') AS expired \gset
SELECT dlock_acquire('history revoked', owner => 'revoked') AS revoked \gset
SELECT dlock_acquire('history grace', owner => 'revoked with grace') AS grace \gset
SELECT dlock_revoke(:revoked, 'make room') AS revoked_at_once, dlock_revoke(:grace, 'make room', '10 ms') AS revoked_with_grace;
SELECT FROM pg_sleep(0.1);
SELECT count(*) FILTER (WHERE dlock_release(dlock_acquire(name))) AS granted_anew
FROM unnest(ARRAY['history expired', 'history revoked', 'history grace']) AS name;
SELECT name, owner, CASE WHEN outcome IN ('expired', 'taken over') THEN 'expired or taken over' ELSE outcome END AS outcome
FROM dlock_history WHERE token IN (:expired, :revoked, :grace) ORDER BY token;

-- What is rolled back leaves none.
BEGIN;
SELECT dlock_release(dlock_acquire('history rolled back')) AS released;
ROLLBACK;
SELECT count(*) AS history FROM dlock_history WHERE name = 'history rolled back';

-- One row a lease, in this whole database, and none for one that is held.
SELECT count(*) AS more_than_one FROM (SELECT FROM dlock_history GROUP BY token HAVING count(*) > 1) AS t;
SELECT count(*) AS held_and_ended FROM dlock_history JOIN dlock_leases USING (token) WHERE dlock_leases.name LIKE 'history%';

-- Retention 0 keeps none.
SET dlock.history_retention = 0;
SELECT dlock_release(dlock_acquire('history none'), 'unseen') AS released;
SELECT count(*) AS history FROM dlock_history WHERE name = 'history none';
RESET dlock.history_retention;

-- After all that, lease, history and memory fit together.
SELECT * FROM dlock_verify();
