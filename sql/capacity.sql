-- Capacity: up to N leases of one lock at once, each with a token and a slot.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- Three permits, and no fourth.
SELECT dlock_acquire('capacity', capacity => 3, owner => 'one') AS one \gset
SELECT dlock_acquire('capacity', capacity => 3, owner => 'two') AS two \gset
SELECT dlock_acquire('capacity', capacity => 3, owner => 'three') AS three \gset
SELECT :one < :two AND :two < :three AS three_tokens;
SELECT dlock_acquire('capacity', capacity => 3) IS NULL AS no_fourth;
SELECT slot, owner, capacity, ended_at IS NULL AS held FROM dlock.lease WHERE name = 'capacity' ORDER BY slot;
SELECT owner, state, capacity, refused FROM dlock_leases WHERE name = 'capacity' ORDER BY token;
SELECT count(*) AS holders FROM dlock_holders('capacity');

-- One goes, the next one has its slot; twice is not a second permit.
SELECT dlock_release(:two) AS released;
SELECT dlock_release(:two) AS released_again;
SELECT dlock_acquire('capacity', capacity => 3, owner => 'four') AS four \gset
SELECT dlock_acquire('capacity', capacity => 3) IS NULL AS no_fifth;
SELECT slot, owner, ended_at IS NULL AS held FROM dlock.lease WHERE name = 'capacity' ORDER BY slot;
SELECT dlock_heartbeat(:one) AS one, dlock_heartbeat(:two) AS two, dlock_heartbeat(:three) AS three, dlock_heartbeat(:four) AS four;

-- Revoked, guarded, changed: one permit, not the others.
SELECT dlock_revoke(:one, 'make room') AS revoked, dlock_guard(:three) = :three AS guard, dlock_set_ttl(:four, '1 hour') AS set_ttl;
SELECT owner, ttl FROM dlock_leases WHERE name = 'capacity' ORDER BY token;
SELECT dlock_release(:three) AS three, dlock_release(:four) AS four;
SELECT owner, outcome FROM dlock_history WHERE name = 'capacity' ORDER BY token;

-- A grant needs fewer live leases than its own capacity and than that of each
-- of these.
SELECT dlock_acquire('capacity') AS mutex \gset
SELECT dlock_acquire('capacity', capacity => 5) IS NULL AS none_beside_a_mutex;
SELECT dlock_release(:mutex) AS released;
SELECT dlock_acquire('capacity', capacity => 5) AS one \gset
SELECT dlock_acquire('capacity') IS NULL AS no_mutex_beside_a_permit;
SELECT dlock_acquire('capacity', capacity => 5) AS two \gset
SELECT dlock_acquire('capacity', capacity => 2) IS NULL AS none_beside_two;
SELECT dlock_acquire('capacity', capacity => 3) AS three \gset
SELECT dlock_acquire('capacity', capacity => 5) IS NULL AS none_beside_one_that_wants_three;
SELECT dlock_release(:three) AS released;
SELECT dlock_acquire('capacity', capacity => 5) AS three \gset
SELECT dlock_acquire('capacity', capacity => 4) AS four \gset
SELECT dlock_acquire('capacity', capacity => 5) IS NULL AS none_beside_one_that_wants_four;
SELECT count(*) FILTER (WHERE dlock_release(token)) AS released FROM dlock_holders('capacity');
-- Nor does it go with share groups.
SELECT dlock_acquire('capacity', capacity => 5) AS one \gset
SELECT dlock_acquire('capacity', share => 'read') IS NULL AS no_reader_beside_a_permit;
SELECT dlock_release(:one) AS released;

-- P1: the permits of the dead come back, each once.
SELECT count(DISTINCT dlock_acquire('capacity dead', capacity => 4, ttl => '20 ms', owner => 'dead')) AS dead FROM generate_series(1, 3);
SELECT dlock_acquire('capacity dead', capacity => 4, ttl => '1 hour', owner => 'alive') AS alive \gset
SELECT FROM pg_sleep(0.1);
SELECT count(dlock_acquire('capacity dead', capacity => 4, owner => 'next')) AS granted FROM generate_series(1, 10);
SELECT owner, count(*) FROM dlock_leases WHERE name = 'capacity dead' AND state = 'held' GROUP BY 1 ORDER BY 1;
SELECT count(DISTINCT slot) AS slots, min(slot), max(slot) FROM dlock.lease WHERE name = 'capacity dead' AND ended_at IS NULL;
SELECT owner, outcome IN ('expired', 'taken over') AS lost, count(*), count(DISTINCT token) AS tokens
FROM dlock_history WHERE name = 'capacity dead' GROUP BY 1, 2;
SELECT dlock_heartbeat(:alive) AS alive;
SELECT count(*) FILTER (WHERE dlock_release(token)) AS released FROM dlock_holders('capacity dead');
-- Those that nobody needs may stay; a mutex takes over from all of them.
SELECT count(dlock_acquire('capacity dead 2', capacity => 200, ttl => '10 ms')) AS dead FROM generate_series(1, 150);
SELECT FROM pg_sleep(0.1);
SELECT dlock_release(dlock_acquire('capacity dead 2', capacity => 200)) AS permit;
SELECT dlock_acquire('capacity dead 2') AS mutex \gset
SELECT dlock_release(:mutex) AS mutex;
SELECT outcome IN ('expired', 'taken over') AS lost, count(*), count(DISTINCT token) AS tokens FROM dlock_history
WHERE name = 'capacity dead 2' GROUP BY 1 ORDER BY 1;
SELECT count(*) AS not_free FROM dlock.lease WHERE name = 'capacity dead 2' AND ended_at IS NULL;

-- P0: a hundred in one transaction, and what is rolled back is free again.
BEGIN;
SELECT count(DISTINCT dlock_acquire('capacity hundred', capacity => 100)) AS granted FROM generate_series(1, 101);
SAVEPOINT a;
SELECT count(*) FILTER (WHERE dlock_release(token)) AS released FROM dlock_holders('capacity hundred') WHERE token % 2 = 0;
SELECT count(dlock_acquire('capacity hundred', capacity => 100)) AS granted FROM generate_series(1, 101);
ROLLBACK TO a;
SELECT dlock_acquire('capacity hundred', capacity => 100) IS NULL AS busy;
ROLLBACK;
SELECT count(*) AS holders FROM dlock_holders('capacity hundred');
SELECT count(DISTINCT dlock_acquire('capacity hundred', capacity => 100)) AS granted FROM generate_series(1, 101);
SELECT count(*) FILTER (WHERE dlock_release(token)) AS released FROM dlock_holders('capacity hundred');
SELECT count(*) AS history FROM dlock_history WHERE name = 'capacity hundred';

-- More of them than usual.
SELECT count(DISTINCT dlock_acquire('capacity many', capacity => 1100)) AS granted FROM generate_series(1, 1101);
SELECT count(DISTINCT slot) AS slots, min(slot), max(slot) FROM dlock.lease WHERE name = 'capacity many' AND ended_at IS NULL;
SELECT dlock_release(token) AS released FROM dlock.lease WHERE name = 'capacity many' AND slot = 7;
SELECT dlock_release(token) AS released FROM dlock.lease WHERE name = 'capacity many' AND slot = 1050;
SELECT count(dlock_acquire('capacity many', capacity => 1100)) AS granted FROM generate_series(1, 3);
SELECT count(DISTINCT slot) AS slots FROM dlock.lease WHERE name = 'capacity many' AND ended_at IS NULL;
SELECT count(*) FILTER (WHERE dlock_release(token)) AS released FROM dlock_holders('capacity many');

--
-- By definition, which overrides what the call says
--
SELECT dlock_define('capacity defined', capacity => 2);
SELECT dlock_acquire('capacity defined', owner => 'one') AS one \gset
SELECT dlock_acquire('capacity defined', capacity => 10, owner => 'two') AS two \gset
SELECT dlock_acquire('capacity defined', capacity => 10) IS NULL AS no_third, dlock_acquire('capacity defined') IS NULL AS no_third_by_default;
SELECT owner, capacity FROM dlock_leases WHERE name = 'capacity defined' ORDER BY token;
SELECT capacity, held, waiting FROM dlock_locks WHERE name = 'capacity defined';
-- Raised: the third is granted, beside two that were granted under the old one.
SELECT dlock_define('capacity defined', capacity => 3);
SELECT dlock_acquire('capacity defined', owner => 'three') AS three \gset
SELECT dlock_acquire('capacity defined') IS NULL AS no_fourth;
-- Lowered: nobody is killed, and nobody granted before enough have left.
SELECT dlock_define('capacity defined', capacity => 2);
SELECT capacity, held FROM dlock_locks WHERE name = 'capacity defined';
SELECT dlock_heartbeat(:one) AS one, dlock_heartbeat(:two) AS two, dlock_heartbeat(:three) AS three;
SELECT dlock_acquire('capacity defined') IS NULL AS none_beside_three;
SELECT dlock_release(:three) AS released;
SELECT dlock_acquire('capacity defined') IS NULL AS none_beside_two;
SELECT dlock_release(:two) AS released;
SELECT dlock_acquire('capacity defined', owner => 'four') AS four \gset
SELECT dlock_acquire('capacity defined') IS NULL AS none_beside_two;
-- To a mutex.
SELECT dlock_define('capacity defined', capacity => 1);
SELECT dlock_release(:one) AS released, dlock_acquire('capacity defined', capacity => 5) IS NULL AS none_beside_one;
SELECT dlock_release(:four) AS released;
SELECT dlock_acquire('capacity defined', capacity => 5) AS one \gset
SELECT dlock_acquire('capacity defined', capacity => 5) IS NULL AS none_beside_one;
-- In one transaction with what uses it; rolled back, it never was.
BEGIN;
SELECT dlock_define('capacity defined', capacity => 2);
SELECT dlock_acquire('capacity defined') IS NOT NULL AS second;
ROLLBACK;
SELECT dlock_acquire('capacity defined') IS NULL AS no_second, capacity FROM dlock_locks WHERE name = 'capacity defined';
-- Defined without one, and not defined any more: as the call says.
SELECT dlock_release(:one) AS released;
SELECT dlock_define('capacity defined');
SELECT dlock_acquire('capacity defined', capacity => 2) AS one \gset
SELECT dlock_acquire('capacity defined', capacity => 2) AS two \gset
SELECT dlock_acquire('capacity defined', capacity => 2) IS NULL AS no_third;
SELECT dlock_undefine('capacity defined') AS undefined, dlock_release(:one) AS one, dlock_release(:two) AS two;

--
-- Out of range
--
CREATE FUNCTION pg_temp.try(command text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
BEGIN
	EXECUTE command;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RETURN concat_ws(E'\n', SQLSTATE || ': ' || SQLERRM, 'DETAIL: ' || nullif(detail, ''));
END
$$;
\pset tuples_only on
\pset format unaligned
SELECT pg_temp.try($$SELECT dlock_acquire('capacity', capacity => 0)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('capacity', capacity => -1)$$);
SELECT pg_temp.try($$SELECT dlock_acquire('capacity', capacity => 1000001)$$);
SELECT pg_temp.try($$SELECT dlock_define('capacity', capacity => 0)$$);
SELECT dlock_release(dlock_acquire('capacity', capacity => 1000000)), dlock_release(dlock_acquire('capacity', capacity => NULL));
SELECT count(*) FROM dlock_leases WHERE name LIKE 'capacity%' AND state <> 'expired';
