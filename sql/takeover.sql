-- A lease whose heartbeats stop is lost: to its holder at once and for ever, to
-- whoever asks next without any wait.  The worker may record the end first
-- ('expired'), or the next acquire does ('taken over').
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

SELECT dlock_acquire('takeover', ttl => '20 ms', owner => 'first') AS first \gset
SELECT FROM pg_sleep(0.1);

-- T5: nobody has taken it, and yet it stays lost.
SELECT dlock_heartbeat(:first) AS heartbeat;
SELECT dlock_held(:first) AS held, dlock_remaining(:first) AS remaining, dlock_heartbeat(:first) AS heartbeat,
	   dlock_set_ttl(:first, '1 hour') AS set_ttl;
SELECT lost = ARRAY[:first] AS lost FROM dlock_heartbeat_all(ARRAY[:first]);
SELECT dlock_release(:first, 'too late') AS release;
SELECT dlock_revoke(:first, 'too late') AS revoke;
\set VERBOSITY sqlstate
SELECT dlock_guard(:first);
\set VERBOSITY default

-- The next one has it with a higher token.
SELECT dlock_acquire('takeover', ttl => '1 min', owner => 'second') AS second \gset
SELECT :second > :first AS rises;
SELECT dlock_acquire('takeover') IS NULL AS busy;

-- W1, W2: the first one cannot touch it.
SELECT dlock_release(:first) AS release, dlock_heartbeat(:first) AS heartbeat, dlock_set_ttl(:first, '1 hour') AS set_ttl;
SELECT dlock_held(:first) AS first, dlock_held(:second) AS second;
SELECT owner, ttl FROM dlock_leases WHERE token = :second;

-- It is recorded once.
SELECT owner, outcome IN ('expired', 'taken over') AS outcome, result,
	   ended_at - acquired_at >= '20 ms' AS not_early, ended_by IS NOT NULL AS ended_by
FROM dlock_history WHERE name = 'takeover';
SELECT dlock_release(:second) AS released;

-- Taken over ten times in a row, each time one row and a higher token.
DO $$
DECLARE
	token bigint;
	last bigint := 0;
BEGIN
	FOR i IN 1..10 LOOP
		token := dlock_acquire('takeover loop', ttl => '10 ms');
		IF token IS NULL OR token <= last THEN
			RAISE EXCEPTION 'round %: % after %', i, token, last;
		END IF;
		last := token;
		COMMIT;
		PERFORM pg_sleep(0.03);
	END LOOP;
END
$$;
SELECT dlock_release(dlock_acquire('takeover loop')) AS released;
SELECT count(*) FILTER (WHERE outcome IN ('expired', 'taken over')) AS lost,
	   count(*) FILTER (WHERE outcome = 'released') AS released
FROM dlock_history WHERE name = 'takeover loop';

-- A takeover that is rolled back never was; the dead lease stays dead, and is
-- recorded by the one that commits.
SELECT dlock_acquire('takeover rollback', ttl => '20 ms') AS first \gset
SELECT FROM pg_sleep(0.1);
BEGIN;
SELECT dlock_acquire('takeover rollback') AS second \gset
SELECT dlock_held(:first) AS first, dlock_held(:second) AS second;
ROLLBACK;
SELECT dlock_held(:first) AS first, dlock_held(:second) AS second, dlock_heartbeat(:first) AS heartbeat;
SELECT dlock_acquire('takeover rollback') AS third \gset
SELECT :third > :second AS rises;
SELECT count(*) AS history FROM dlock_history WHERE name = 'takeover rollback' AND token = :first;
SELECT count(*) AS history FROM dlock_history WHERE name = 'takeover rollback' AND token = :second;
SELECT dlock_release(:third) AS released;

-- Heartbeats in time keep it for longer than its TTL.
SELECT dlock_acquire('takeover heartbeats', ttl => '1 s') AS token \gset
DO $$
DECLARE
	token bigint := (SELECT token FROM dlock_holders('takeover heartbeats'));
BEGIN
	FOR i IN 1..30 LOOP
		PERFORM pg_sleep(0.05);
		IF NOT dlock_heartbeat(token) THEN
			RAISE EXCEPTION 'lost at heartbeat %', i;
		END IF;
	END LOOP;
END
$$;
SELECT heartbeats, dlock_release(token) AS released FROM dlock_leases WHERE token = :token;

--
-- min_hold: the lock rests until that time after the grant, so that a job that
-- is too quick does not run twice
--
SELECT dlock_acquire('takeover min_hold', min_hold => '1 hour') AS token \gset
SELECT state FROM dlock_holders('takeover min_hold');
SELECT dlock_release(:token, 'done') AS released;
SELECT dlock_held(:token) AS held, dlock_heartbeat(:token) AS heartbeat, dlock_remaining(:token) AS remaining,
	   dlock_release(:token) AS released_again;
SELECT outcome, result FROM dlock_history WHERE token = :token;
SELECT dlock_acquire('takeover min_hold') IS NULL AS busy;
SELECT state, remaining BETWEEN '50 min' AND '1 hour' AS remaining FROM dlock_holders('takeover min_hold');
SELECT state, remaining BETWEEN '50 min' AND '1 hour' AS remaining FROM dlock_leases WHERE name = 'takeover min_hold';

-- A release that is rolled back lets nothing rest.
SELECT dlock_acquire('takeover min_hold 2', min_hold => '1 hour') AS token \gset
BEGIN;
SELECT dlock_release(:token) AS released;
ROLLBACK;
SELECT state, dlock_heartbeat(token) AS heartbeat FROM dlock_holders('takeover min_hold 2');
SELECT dlock_release(:token) AS released;

-- When the time is over, or was over before the release, it is free.
SELECT dlock_acquire('takeover min_hold 3', min_hold => '1 s') AS token \gset
SELECT dlock_release(:token) AS released;
SELECT dlock_acquire('takeover min_hold 3') IS NULL AS busy;
SELECT FROM pg_sleep(1.1);
SELECT count(*) AS holders FROM dlock_holders('takeover min_hold 3');
SELECT dlock_acquire('takeover min_hold 3', min_hold => '10 ms') AS token \gset
SELECT FROM pg_sleep(0.05);
SELECT dlock_release(:token) AS released;
SELECT dlock_release(dlock_acquire('takeover min_hold 3')) AS free_at_once;

-- After all that, lease, history and memory fit together.
SELECT * FROM dlock_verify();
