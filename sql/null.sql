-- A busy lock gives NULL.  Passed on unchecked, NULL means a lost lease: never
-- an error that hides it, never a success.  So does 0, and a token of nothing.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

SELECT dlock_acquire('null') AS token \gset
SELECT dlock_heartbeat(dlock_acquire('null')) AS heartbeat_of_busy;

SELECT dlock_heartbeat(NULL) AS heartbeat, dlock_held(NULL) AS held, dlock_remaining(NULL) AS remaining,
	   dlock_set_ttl(NULL, '1 min') AS set_ttl, dlock_release(NULL) AS release,
	   dlock_release(NULL, 'done') AS release_with_result, dlock_revoke(NULL, 'test') AS revoke,
	   dlock_revoke(NULL, 'test', '1 min') AS revoke_with_grace;

SELECT t AS token, dlock_heartbeat(t) AS heartbeat, dlock_held(t) AS held, dlock_remaining(t) AS remaining,
	   dlock_set_ttl(t, '1 min') AS set_ttl, dlock_release(t) AS release, dlock_revoke(t, 'test') AS revoke
FROM unnest(ARRAY[0, 1, -1, 9223372036854775807, -9223372036854775808]) AS t;

-- Lost to a guard is an error, so that the transaction cannot commit.
\set VERBOSITY sqlstate
SELECT dlock_guard(NULL);
SELECT dlock_guard(0);
SELECT dlock_guard(1);
SELECT dlock_guard(-1);
SELECT dlock_guard(9223372036854775807);
SELECT dlock_guard(dlock_acquire('null'));
BEGIN;
SELECT dlock_guard(NULL);
SELECT 'not reached';
COMMIT;
\set VERBOSITY default

-- Of many, those that are lost; in the order given.
SELECT dlock_heartbeat_all(NULL) AS no_tokens;
SELECT dlock_heartbeat_all('{}') AS no_tokens;
SELECT dlock_heartbeat_all(ARRAY[0, NULL, :token, -1]) AS lost;

-- None of it has touched the one that is held.
SELECT dlock_held(:token) AS held, dlock_release(:token) AS released;
