-- Arguments that are declared, but whose issues have not landed yet.  Take each
-- line out with its issue, and then this file.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

CREATE FUNCTION pg_temp.try(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE command;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ': ' || SQLERRM;
END
$$;
\pset tuples_only on
\pset format unaligned

SELECT pg_temp.try($$SELECT dlock_acquire('later', wait => '1 ms')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('later', session => 1)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('later', capacity => 2)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('later', share => 'read')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('later', must_exist => true)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('later', retry => true)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('later', reentrant => true)$$);

-- Said before anything is done, and whether or not the lock is free.
SELECT count(*) FROM dlock_leases WHERE name = 'later';
SELECT dlock_acquire('later') AS token \gset
SELECT pg_temp.try($$SELECT dlock_acquire('later', wait => '1 ms')$$);
SELECT dlock_release(:token);

-- Not to wait, and not to want any of it, is fine.
SELECT dlock_release(dlock_acquire('later', wait => '0', must_exist => false, retry => false, reentrant => false));
SELECT dlock_release(dlock_acquire('later', must_exist => NULL, retry => NULL, reentrant => NULL));
