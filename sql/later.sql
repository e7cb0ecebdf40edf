-- Arguments that are declared, but whose issues have not landed yet.
-- Drop each statement with its issue, and then this file.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

SELECT dlock_acquire('later', wait => '1 ms');
SELECT dlock_acquire('later', session => 1);
SELECT dlock_acquire('later', capacity => 2);
SELECT dlock_acquire('later', share => 'read');
SELECT dlock_acquire('later', must_exist => true);
SELECT dlock_acquire('later', retry => true);
SELECT dlock_acquire('later', reentrant => true);
\set VERBOSITY sqlstate
SELECT dlock_acquire('later', wait => '1 ms');
SELECT dlock_acquire('later', session => 1);
SELECT dlock_acquire('later', capacity => 2);
SELECT dlock_acquire('later', share => 'read');
SELECT dlock_acquire('later', must_exist => true);
SELECT dlock_acquire('later', retry => true);
SELECT dlock_acquire('later', reentrant => true);
\set VERBOSITY default

-- Said before anything is done, and whether or not the lock is free.
SELECT count(*) AS leases FROM dlock_leases WHERE name = 'later';
SELECT dlock_acquire('later') AS token \gset
SELECT dlock_acquire('later', wait => '1 ms');
SELECT dlock_release(:token) AS released;

-- Not to wait, and not to want any of them, is fine.
SELECT dlock_release(dlock_acquire('later', wait => '0', must_exist => false, retry => false, reentrant => false));
SELECT dlock_release(dlock_acquire('later', must_exist => NULL, retry => NULL, reentrant => NULL));
