-- Asking again for what one holds.  By default that is a second contender, as
-- anybody is: two threads of one process must not both win (W6, W7).
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
	RETURN regexp_replace(concat_ws(E'\n', SQLSTATE || ': ' || SQLERRM, 'DETAIL: ' || nullif(detail, ''), 'HINT: ' || nullif(hint, '')),
						  '\d{9,}', 'N', 'g');
END
$$;

SELECT dlock_session_open('me', ttl => '10 min') AS me \gset
SELECT dlock_session_open('other', ttl => '10 min') AS other \gset
SELECT dlock_acquire('reentry', session => :me) AS token \gset
SELECT dlock_acquire('reentry', session => :me) IS NULL AS busy, dlock_acquire('reentry') IS NULL AS busy_without;
SELECT holds, refused FROM dlock_leases WHERE token = :token;

--
-- retry: a reply was lost; the same token, and nothing has changed
--
SELECT dlock_acquire('reentry', session => :me, retry => true) = :token AS same_token;
SELECT dlock_acquire('reentry', session => :me, retry => true, wait => '1 min') = :token AS same_token;
SELECT dlock_acquire('reentry', session => :other, retry => true) IS NULL AS busy_for_others;
SELECT holds, refused FROM dlock_leases WHERE token = :token;
-- Without an effect on the lease, its owner or anything (T6).
SELECT dlock_acquire('reentry', session => :me, retry => true, owner => 'somebody', why => 'a reason', ttl => '10 ms') = :token AS same_token;
SELECT owner, why, ttl, heartbeats FROM dlock_leases WHERE token = :token;
-- One release is enough.
SELECT dlock_release(:token) AS released, dlock_release(:token) AS released_again;
-- What is not held is granted; what was lost is granted anew.
SELECT dlock_acquire('reentry', session => :me, retry => true) AS token2 \gset
SELECT :token2 > :token AS another;
SELECT dlock_revoke(:token2, 'test') AS revoked;
SELECT dlock_acquire('reentry', session => :me, retry => true) AS token3 \gset
SELECT :token3 > :token2 AS another;
-- It is not the one that this transaction has just released.
BEGIN;
SELECT dlock_release(:token3) AS released;
SELECT dlock_acquire('reentry', session => :me, retry => true) AS token4 \gset
SELECT :token4 > :token3 AS another, dlock_acquire('reentry', session => :me, retry => true) = :token4 AS same_token;
ROLLBACK;
SELECT dlock_acquire('reentry', session => :me, retry => true) = :token3 AS same_token;
SELECT dlock_release(:token3) AS released;
-- With a time of grace it is held, and so it is the one.
SELECT dlock_acquire('reentry', session => :me) AS token \gset
SELECT dlock_revoke(:token, 'test', '1 hour') AS revoked;
SELECT dlock_acquire('reentry', session => :me, retry => true) = :token AS same_token;
SELECT dlock_release(:token) AS released;
SELECT dlock_session_heartbeat(:me) IS NOT NULL AS told;

--
-- reentrant: the same token, and it counts
--
SELECT dlock_acquire('reentry', session => :me, reentrant => true) AS token \gset
SELECT dlock_acquire('reentry', session => :me, reentrant => true) = :token AS same_token;
SELECT dlock_acquire('reentry', session => :me, reentrant => true, ttl => '10 ms', wait => '1 min') = :token AS same_token;
SELECT holds, ttl, refused FROM dlock_leases WHERE token = :token;
SELECT dlock_acquire('reentry', session => :me) IS NULL AS busy, dlock_acquire('reentry', session => :other, reentrant => true) IS NULL AS busy_for_others;
-- As many releases as acquires, and no more (P3).
SELECT dlock_release(:token, 'not yet') AS released;
SELECT holds, state FROM dlock_leases WHERE token = :token;
SELECT dlock_acquire('reentry') IS NULL AS busy;
SELECT dlock_release(:token) AS released;
SELECT dlock_held(:token) AS held, dlock_heartbeat(:token) AS heartbeat;
SELECT dlock_release(:token, 'done') AS released;
SELECT dlock_release(:token) AS once_too_often, dlock_release(:token) AS twice;
SELECT dlock_held(:token) AS held, dlock_release(dlock_acquire('reentry')) AS free;
SELECT outcome, result FROM dlock_history WHERE token = :token;
SELECT min(holds) AS holds FROM dlock.lease WHERE name = 'reentry';

-- In transactions: what is rolled back was not asked.
SELECT dlock_acquire('reentry', session => :me, reentrant => true) AS token \gset
BEGIN;
SELECT dlock_acquire('reentry', session => :me, reentrant => true) = :token AS same_token;
SAVEPOINT a;
SELECT dlock_acquire('reentry', session => :me, reentrant => true) = :token AS same_token;
ROLLBACK TO a;
SELECT holds FROM dlock_leases WHERE token = :token;
COMMIT;
SELECT holds FROM dlock_leases WHERE token = :token;
BEGIN;
SELECT dlock_release(:token) AS one, dlock_release(:token) AS two, dlock_release(:token) AS three;
ROLLBACK;
SELECT holds, state FROM dlock_leases WHERE token = :token;
BEGIN;
SELECT dlock_release(:token) AS released;
COMMIT;
SELECT holds, state FROM dlock_leases WHERE token = :token;
SELECT dlock_release(:token) AS released, dlock_held(:token) AS held;
-- Of a grant that is not committed, by the transaction that has made it.
BEGIN;
SELECT dlock_acquire('reentry', session => :me, reentrant => true) AS token \gset
SELECT dlock_acquire('reentry', session => :me, reentrant => true) = :token AS same_token;
SELECT dlock_acquire('reentry', session => :me, retry => true) = :token AS same_token;
SELECT dlock_release(:token) AS released;
COMMIT;
SELECT holds, state FROM dlock_leases WHERE token = :token;

-- Whatever ends it otherwise ends all of it.
SELECT dlock_acquire('reentry', session => :me, reentrant => true) = :token AS same_token;
SELECT dlock_revoke(:token, 'test') AS revoked, dlock_release(:token) AS release, dlock_held(:token) AS held;
SELECT dlock_acquire('reentry', session => :me, reentrant => true) AS token \gset
SELECT dlock_acquire('reentry', session => :me, reentrant => true) = :token AS same_token;
SELECT dlock_session_close(:me) AS closed, dlock_release(:token) AS release;
SELECT dlock_release(dlock_acquire('reentry')) AS free;
SELECT dlock_session_open('me', ttl => '10 min') AS me \gset

-- Readers and permits: the session's own one.
SELECT dlock_acquire('reentry', session => :other, share => 'read') AS theirs \gset
SELECT dlock_acquire('reentry', session => :me, share => 'read') AS mine \gset
SELECT dlock_acquire('reentry', session => :me, share => 'read', retry => true) = :mine AS mine,
	   dlock_acquire('reentry', session => :other, share => 'read', reentrant => true) = :theirs AS theirs;
SELECT dlock_acquire('reentry', session => :me, share => 'read') AS second \gset
SELECT :second > :mine AS a_second_lease;
SELECT dlock_release(:mine) AS mine, dlock_release(:second) AS second, dlock_release(:theirs) AS theirs_once, dlock_release(:theirs) AS and_again;
SELECT dlock_acquire('reentry', session => :other, capacity => 3) AS theirs \gset
SELECT dlock_acquire('reentry', session => :me, capacity => 3) AS mine \gset
SELECT dlock_acquire('reentry', session => :me, capacity => 3, retry => true) = :mine AS mine,
	   dlock_acquire('reentry', session => :other, capacity => 3, reentrant => true) = :theirs AS theirs;
SELECT dlock_acquire('reentry', session => :me, capacity => 3) > :mine AS a_second_permit, dlock_acquire('reentry', session => :me, capacity => 3) IS NULL AS no_fourth;
SELECT count(*) FILTER (WHERE dlock_release(token)) AS released FROM dlock_holders('reentry');
SELECT dlock_release(:theirs) AS and_again;

--
-- To wait for oneself
--
SELECT dlock_acquire('reentry', session => :me) AS token \gset
SELECT pg_temp.try(format($$SELECT dlock_acquire('reentry', session => %s, wait => '1 hour')$$, :me));
SELECT pg_temp.try(format($$SELECT dlock_acquire('reentry', session => %s, wait => '1 hour', share => 'read')$$, :me));
-- What somebody else holds one can wait for.
SELECT dlock_acquire('reentry', session => :other, wait => '20 ms') IS NULL AS busy;
SELECT count(*) AS waiters FROM dlock_waiters;
SELECT dlock_release(:token) AS released;
-- Without a session, what this very transaction has taken.
BEGIN;
SELECT dlock_acquire('reentry') AS token \gset
SELECT dlock_acquire('reentry') IS NULL AS busy;
SELECT pg_temp.try($$SELECT dlock_acquire('reentry', wait => '1 hour')$$);
SELECT dlock_held(:token) AS held;
COMMIT;
-- What it guards cannot end before itself, alive or dead.
SELECT dlock_acquire('reentry guard', ttl => '1 s') AS guarded \gset
BEGIN;
SELECT dlock_guard(:guarded) = :guarded AS guarded;
SELECT pg_temp.try($$SELECT dlock_acquire('reentry guard', wait => '1 min')$$) LIKE '40P01%' AS deadlock;
SELECT FROM pg_sleep(1.2);
SELECT dlock_acquire('reentry guard') IS NULL AS busy;
SELECT pg_temp.try($$SELECT dlock_acquire('reentry guard', wait => '1 min')$$) LIKE '40P01%' AS deadlock;
COMMIT;
SELECT dlock_release(dlock_acquire('reentry guard', wait => '1 min')) AS free;
-- A lease that is committed is anybody's: its time may run out, somebody may
-- release it.
SELECT dlock_acquire('reentry', wait => '20 ms') IS NULL AS busy;
SELECT dlock_release(:token) AS released;
-- With room beside it there is nothing to wait for.
SELECT dlock_acquire('reentry', session => :me, capacity => 2) AS one \gset
SELECT dlock_acquire('reentry', session => :me, capacity => 2, wait => '1 hour') AS two \gset
SELECT pg_temp.try(format($$SELECT dlock_acquire('reentry', session => %s, capacity => 2, wait => '1 hour')$$, :me));
SELECT dlock_release(:one) AS one, dlock_release(:two) AS two;

--
-- Without a session nothing tells who has asked before
--
SELECT pg_temp.try($$SELECT dlock_acquire('reentry', retry => true)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('reentry', reentrant => true)$$);
SELECT dlock_release(dlock_acquire('reentry', retry => NULL, reentrant => NULL)) AS null_is_no;
-- And one that is gone has nothing to get back.
SELECT dlock_acquire('reentry', session => :me) AS token \gset
SELECT dlock_session_close(:me) AS closed, dlock_session_close(:other) AS closed;
SELECT pg_temp.try(format($$SELECT dlock_acquire('reentry', session => %s, retry => true)$$, :me));
SELECT pg_temp.try(format($$SELECT dlock_acquire('reentry', session => %s, reentrant => true)$$, :me));
SELECT count(*) AS leases FROM dlock_leases WHERE name = 'reentry';
