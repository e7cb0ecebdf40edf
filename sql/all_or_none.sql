-- dlock_acquire_all: several locks, all of them or none.
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
CREATE VIEW pg_temp.traces AS
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid,
	   (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory') AS locks,
	   (SELECT count(*) FROM dlock_leases WHERE name LIKE 'all %' AND pid = pg_backend_pid()) AS leases,
	   (SELECT count(*) FROM dlock_waiters) AS waiters;

-- The tokens come in the order of the names, whatever that is.
SELECT dlock_acquire_all(ARRAY['all c', 'all a', 'all b'], ttl => '10 min', owner => 'me', why => 'move') AS tokens \gset
SELECT name, state, owner, why, ttl, array_position(:'tokens', token) AS place FROM dlock_leases WHERE name LIKE 'all %' ORDER BY name;
SELECT dlock_heartbeat_all(:'tokens') AS lost;
-- Each is a lease of its own.
SELECT dlock_release(token) AS released FROM dlock_holders('all a');
SELECT name FROM dlock_leases WHERE name LIKE 'all %' ORDER BY name;
SELECT cardinality(lost) AS lost FROM dlock_heartbeat_all(:'tokens');

-- One of them is busy: none, and nothing has happened to the others.
SELECT dlock_acquire_all(ARRAY['all a', 'all b', 'all d']) IS NULL AS busy;
SELECT dlock_acquire_all(ARRAY['all d', 'all c']) IS NULL AS busy, dlock_acquire_all(ARRAY['all b']) IS NULL AS busy_too;
SELECT name, refused FROM dlock_leases WHERE name LIKE 'all %' ORDER BY name;
SELECT count(*) AS rows FROM dlock.lease WHERE name = 'all d';
-- Nothing stays of a wait that has run out either (promise 8).
BEGIN;
SELECT dlock_acquire_all(ARRAY['all a', 'all b', 'all d']) IS NULL AS busy;
SELECT no_xid, locks, waiters FROM pg_temp.traces;
SELECT dlock_acquire_all(ARRAY['all b', 'all a', 'all d'], wait => '50 ms') IS NULL AS busy;
SELECT locks, waiters FROM pg_temp.traces;
COMMIT;
SELECT name FROM dlock_leases WHERE name LIKE 'all %' ORDER BY name;
SELECT name, count(*) AS history FROM dlock_history WHERE name LIKE 'all %' GROUP BY 1;
\set VERBOSITY sqlstate
SET lock_timeout = '50 ms';
SELECT dlock_acquire_all(ARRAY['all a', 'all b', 'all d'], wait => '1 min');
RESET lock_timeout;
\set VERBOSITY default
SELECT name FROM dlock_leases WHERE name LIKE 'all %' ORDER BY name;
SELECT count(*) FILTER (WHERE dlock_release(t)) AS released FROM unnest(:'tokens'::bigint[]) AS t;

-- A name that is there twice counts once, and has its token in both places.
SELECT tokens AS tokens FROM dlock_acquire_all(ARRAY['all a', 'all b', 'all a', 'all a']) AS tokens \gset
SELECT cardinality(t) AS tokens, t[1] = t[3] AND t[1] = t[4] AS same_token, t[2] <> t[1] AS another FROM (SELECT :'tokens'::bigint[]) AS x (t);
SELECT name, holds FROM dlock_leases WHERE name LIKE 'all %' ORDER BY name;
SELECT count(*) FILTER (WHERE dlock_release(t)) AS released FROM unnest(:'tokens'::bigint[]) AS t;
-- One name, two dimensions, names that differ in the bytes alone.
SELECT cardinality(dlock_acquire_all(ARRAY['all a'])) AS tokens;
SELECT cardinality(dlock_acquire_all(ARRAY[['all b', 'all c'], ['all d', 'all b']])) AS tokens;
SELECT cardinality(dlock_acquire_all(ARRAY['all É', 'all é', 'all E', 'all e', 'all e '])) AS tokens;
SELECT name FROM dlock_leases WHERE name LIKE 'all %' ORDER BY name COLLATE "C";
SELECT count(*) FILTER (WHERE dlock_release(token)) AS released FROM dlock_leases WHERE name LIKE 'all %';

-- A hundred.
SELECT dlock_acquire_all(array_agg('all ' || i)) AS tokens FROM generate_series(100, 1, -1) AS i \gset
SELECT count(DISTINCT t) AS tokens FROM unnest(:'tokens'::bigint[]) AS t;
SELECT bool_and(name = 'all ' || 101 - i) AS in_order FROM unnest(:'tokens'::bigint[]) WITH ORDINALITY AS t (token, i) JOIN dlock_leases USING (token);
SELECT dlock_acquire_all(ARRAY['all 0', 'all 57']) IS NULL AS busy;
SELECT count(*) FILTER (WHERE dlock_release(t)) AS released FROM unnest(:'tokens'::bigint[]) AS t;

--
-- Waits
--

-- One time for all of them; what is free meanwhile is not kept from others when
-- it runs out.
SELECT dlock_acquire('all b', ttl => '300 ms') IS NOT NULL AS granted;
SELECT dlock_acquire_all(ARRAY['all c', 'all b', 'all a'], wait => '1 min') AS tokens \gset
SELECT dlock_heartbeat_all(:'tokens') AS lost;
SELECT count(*) FILTER (WHERE dlock_release(t)) AS released FROM unnest(:'tokens'::bigint[]) AS t;
SELECT name, count(waited) AS waited FROM dlock_history WHERE token = ANY (:'tokens') GROUP BY 1 ORDER BY 1;

-- For itself: at once.
BEGIN;
SELECT dlock_acquire('all b') IS NOT NULL AS granted;
SELECT dlock_acquire_all(ARRAY['all a', 'all b']) IS NULL AS busy;
SELECT pg_temp.try($$SELECT dlock_acquire_all(ARRAY['all a', 'all b'], wait => '1 hour')$$);
SELECT name FROM dlock_leases WHERE name LIKE 'all %';
ROLLBACK;

--
-- Transactions
--
BEGIN;
SAVEPOINT a;
SELECT cardinality(dlock_acquire_all(ARRAY['all a', 'all b'])) AS tokens;
ROLLBACK TO a;
SELECT dlock_acquire_all(ARRAY['all b', 'all c']) AS tokens \gset
SELECT name, state FROM dlock_leases WHERE name LIKE 'all %' ORDER BY name;
COMMIT;
SELECT name, state FROM dlock_leases WHERE name LIKE 'all %' ORDER BY name;
SELECT count(*) FILTER (WHERE dlock_release(t)) AS released FROM unnest(:'tokens'::bigint[]) AS t;
BEGIN;
SELECT cardinality(dlock_acquire_all(ARRAY['all a', 'all b'])) AS tokens;
ROLLBACK;
SELECT * FROM pg_temp.traces;
SET default_transaction_isolation = 'serializable';
SELECT dlock_acquire_all(ARRAY['all a', 'all b']) AS tokens \gset
SELECT count(*) FILTER (WHERE dlock_release(t)) AS released FROM unnest(:'tokens'::bigint[]) AS t;
RESET default_transaction_isolation;

-- A takeover of some of them.
SELECT dlock_acquire('all b', ttl => '10 ms') IS NOT NULL AS granted;
SELECT FROM pg_sleep(0.1);
SELECT dlock_acquire_all(ARRAY['all a', 'all b']) AS tokens \gset
SELECT dlock_heartbeat_all(:'tokens') AS lost;
SELECT count(*) FILTER (WHERE dlock_release(t)) AS released FROM unnest(:'tokens'::bigint[]) AS t;

--
-- With a session, and definitions
--
SELECT dlock_session_open('my session', ttl => '10 min') AS session \gset
SELECT dlock_define('all b', capacity => 2, min_hold => '1 ms');
SELECT dlock_acquire('all b', owner => 'other permit') AS other \gset
SELECT dlock_acquire_all(ARRAY['all a', 'all b'], session => :session) AS tokens \gset
SELECT name, owner, ttl, capacity, session = :session AS session FROM dlock_leases WHERE token = ANY (:'tokens') ORDER BY name;
SELECT dlock_acquire_all(ARRAY['all c', 'all b'], session => :session) IS NULL AS busy;
SELECT pg_temp.try(format($$SELECT dlock_acquire_all(ARRAY['all d'], session => %s, ttl => '1 hour')$$, :session));
SELECT dlock_session_close(:session) AS closed, dlock_release(:other) AS released, dlock_undefine('all b') AS undefined;
SELECT pg_temp.try(format($$SELECT dlock_acquire_all(ARRAY['all a', 'all b'], session => %s)$$, :session));

-- One that may not be taken: an error, and none.
CREATE ROLE regress_dlock_all;
CREATE ROLE regress_dlock_none;
SELECT dlock_define('all b', role => 'regress_dlock_all');
SET ROLE regress_dlock_none;
SELECT pg_temp.try($$SELECT dlock_acquire_all(ARRAY['all a', 'all b', 'all c'])$$);
SELECT pg_temp.try($$SELECT dlock_acquire_all(ARRAY['all a', 'all b', 'all c'], wait => '1 min')$$);
RESET ROLE;
SELECT * FROM pg_temp.traces;
SELECT dlock_undefine('all b') AS undefined;
DROP ROLE regress_dlock_all, regress_dlock_none;

--
-- Bad arguments
--
\pset tuples_only on
\pset format unaligned
SELECT pg_temp.try($$SELECT dlock_acquire_all(NULL)$$);
SELECT pg_temp.try($$SELECT dlock_acquire_all('{}')$$);
SELECT pg_temp.try($$SELECT dlock_acquire_all(ARRAY['all a', NULL])$$);
SELECT pg_temp.try($$SELECT dlock_acquire_all(ARRAY['all a', ''])$$);
SELECT pg_temp.try($$SELECT dlock_acquire_all(ARRAY['all a', repeat('x', 256)])$$);
SELECT pg_temp.try($$SELECT dlock_acquire_all(ARRAY['all a'], ttl => '0')$$);
SELECT pg_temp.try($$SELECT dlock_acquire_all(ARRAY['all a'], wait => '-1 us')$$);
SELECT pg_temp.try($$SELECT dlock_acquire_all(ARRAY['all a'], owner => repeat('x', 1025))$$);
SELECT pg_temp.try($$SELECT dlock_acquire_all(ARRAY['all a'], why => repeat('x', 1025))$$);
BEGIN READ ONLY;
\set VERBOSITY sqlstate
SELECT dlock_acquire_all(ARRAY['all a']);
\set VERBOSITY default
ROLLBACK;
SELECT count(*) FROM dlock_leases WHERE name LIKE 'all %';
