-- Bad arguments: 22023, the argument by its name, the limit in the DETAIL.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- The SQLSTATE is the same for all; print it with each message.
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
\pset tuples_only on
\pset format unaligned

-- A name has 1 to 255 bytes.
SELECT pg_temp.try($$SELECT dlock_acquire(NULL)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('')$$);
SELECT pg_temp.try($$SELECT dlock_acquire(repeat('x', 256))$$);
SELECT pg_temp.try($$SELECT dlock_acquire(repeat('é', 128))$$);
SELECT pg_temp.try($$SELECT dlock_holders(NULL)$$);
SELECT pg_temp.try($$SELECT dlock_holders('')$$);
SELECT pg_temp.try($$SELECT dlock_holders(repeat('x', 256))$$);
SELECT dlock_release(dlock_acquire('x'));
SELECT dlock_release(dlock_acquire(repeat('x', 255)));
SELECT dlock_release(dlock_acquire(repeat('é', 127)));

-- Other texts have at most 1 kB.
SELECT pg_temp.try($$SELECT dlock_acquire('errors', owner => repeat('x', 1025))$$);
SELECT pg_temp.try($$SELECT dlock_acquire('errors', owner => repeat('é', 513))$$);
SELECT pg_temp.try($$SELECT dlock_acquire('errors', why => repeat('x', 1025))$$);
SELECT pg_temp.try($$SELECT dlock_release(1, result => repeat('x', 1025))$$);
SELECT pg_temp.try($$SELECT dlock_revoke(1, why => repeat('x', 1025))$$);
-- The longest of all fit into a row and its history.
SELECT dlock_acquire(repeat('x', 255), owner => repeat('x', 1024), why => repeat('é', 512)) AS token \gset
SELECT dlock_release(:token, result => repeat('x', 1024));
SELECT length(name), length(owner), octet_length(why), length(result) FROM dlock_history WHERE token = :token;

-- A TTL is at least 10 ms and at most dlock.max_ttl.
SELECT pg_temp.try($$SELECT dlock_acquire('errors', ttl => '0')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('errors', ttl => '-1 s')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('errors', ttl => '9.999 ms')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('errors', ttl => '1 day 1 us')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('errors', ttl => '2562047788 hours')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('errors', ttl => '-2562047788 hours')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('errors', ttl => '178000000 years')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('errors', ttl => '2147483647 days')$$);
SELECT pg_temp.try($$SELECT dlock_set_ttl(1, ttl => '0')$$);
SELECT pg_temp.try($$SELECT dlock_set_ttl(1, ttl => '25 hours')$$);
SELECT dlock_release(dlock_acquire('errors', ttl => '10 ms')) IS NOT NULL;
SELECT dlock_release(dlock_acquire('errors', ttl => '1 day'));
SELECT dlock_release(dlock_acquire('errors', ttl => '24 hours'));
SET dlock.max_ttl = '1 min';
SELECT pg_temp.try($$SELECT dlock_acquire('errors', ttl => '61 s')$$);
SELECT dlock_release(dlock_acquire('errors', ttl => '60 s'));
RESET dlock.max_ttl;

-- A month is no length of time.
SELECT pg_temp.try($$SELECT dlock_acquire('errors', ttl => '1 month')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('errors', ttl => '1 month -30 days')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('errors', wait => '1 month')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('errors', min_hold => '1 month')$$);
SELECT pg_temp.try($$SELECT dlock_set_ttl(1, ttl => '1 month')$$);
SELECT pg_temp.try($$SELECT dlock_revoke(1, 'errors', grace => '1 month')$$);

-- Nor can one wait, hold or give grace for less than nothing.
SELECT pg_temp.try($$SELECT dlock_acquire('errors', wait => '-1 us')$$);
SELECT pg_temp.try($$SELECT dlock_acquire('errors', min_hold => '-1 us')$$);
SELECT pg_temp.try($$SELECT dlock_revoke(1, 'errors', grace => '-1 us')$$);
SELECT dlock_release(dlock_acquire('errors', wait => '0', min_hold => '0'));

-- Nothing of all that has left a lease or a lock behind.
SELECT count(*) FROM dlock_leases WHERE name = 'errors';
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';
