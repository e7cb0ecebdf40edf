-- F5: a search_path with hostile objects of the same names has no effect.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

CREATE SCHEMA regress_dlock_hostile;
SET search_path = regress_dlock_hostile;

-- Tables and a sequence of the same names, here and in pg_temp.
CREATE TABLE lease (name text, slot int, token bigint);
CREATE TABLE history (name text, token bigint);
CREATE SEQUENCE token_seq;
CREATE VIEW dlock_leases AS SELECT 'hostile' AS name;
CREATE TEMP TABLE lease (name text, slot int, token bigint);
CREATE TEMP TABLE history (name text, token bigint);
CREATE TEMP SEQUENCE token_seq;

-- Functions that lie, or that tell when they are called.
CREATE FUNCTION trap() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'a hostile object was used';
END
$$;
CREATE FUNCTION now() RETURNS timestamptz LANGUAGE sql AS 'SELECT regress_dlock_hostile.trap(); SELECT NULL::timestamptz';
CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT regress_dlock_hostile.trap(); SELECT NULL::timestamptz';
CREATE FUNCTION nextval(regclass) RETURNS bigint LANGUAGE sql AS 'SELECT regress_dlock_hostile.trap(); SELECT 7::bigint';
CREATE FUNCTION nextval(text) RETURNS bigint LANGUAGE sql AS 'SELECT regress_dlock_hostile.trap(); SELECT 7::bigint';
CREATE FUNCTION hashtextextended(text, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT regress_dlock_hostile.trap(); SELECT 7::bigint';
CREATE FUNCTION leases() RETURNS SETOF text LANGUAGE sql AS 'SELECT regress_dlock_hostile.trap(); SELECT ''hostile''';
CREATE FUNCTION dlock_held(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT regress_dlock_hostile.trap(); SELECT true';
CREATE FUNCTION dlock_refuse_dml() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';

-- Operators too.
CREATE FUNCTION texts(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT regress_dlock_hostile.trap(); SELECT false';
CREATE FUNCTION ints(int, int) RETURNS boolean LANGUAGE sql AS 'SELECT regress_dlock_hostile.trap(); SELECT false';
CREATE FUNCTION bigints(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT regress_dlock_hostile.trap(); SELECT false';
CREATE FUNCTION names(name, name) RETURNS boolean LANGUAGE sql AS 'SELECT regress_dlock_hostile.trap(); SELECT false';
CREATE FUNCTION oids(oid, oid) RETURNS boolean LANGUAGE sql AS 'SELECT regress_dlock_hostile.trap(); SELECT false';
CREATE FUNCTION times(timestamptz, timestamptz) RETURNS boolean LANGUAGE sql AS 'SELECT regress_dlock_hostile.trap(); SELECT false';
CREATE OPERATOR = (LEFTARG = text, RIGHTARG = text, FUNCTION = texts);
CREATE OPERATOR = (LEFTARG = int, RIGHTARG = int, FUNCTION = ints);
CREATE OPERATOR = (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = bigints);
CREATE OPERATOR = (LEFTARG = name, RIGHTARG = name, FUNCTION = names);
CREATE OPERATOR = (LEFTARG = oid, RIGHTARG = oid, FUNCTION = oids);
CREATE OPERATOR < (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = times);
CREATE OPERATOR <> (LEFTARG = text, RIGHTARG = text, FUNCTION = texts);

-- From here on they come before the server's own.
SET search_path = regress_dlock_hostile, pg_temp, pg_catalog;
\set SHOW_CONTEXT never
SELECT 1::bigint = 1::bigint;
\set SHOW_CONTEXT errors

SELECT public.dlock_acquire('hostile', owner => 'me') AS token \gset
SELECT public.dlock_acquire('hostile') IS NULL AS busy;
SELECT public.dlock_heartbeat(:token) AS heartbeat, public.dlock_held(:token) AS held,
	   public.dlock_remaining(:token) > '0' AS remaining, public.dlock_guard(:token) > 0 AS guard,
	   public.dlock_set_ttl(:token, '1 min') AS set_ttl;
SELECT public.dlock_heartbeat_all(ARRAY[:token]) AS lost;
SELECT owner, state FROM public.dlock_holders('hostile');
SELECT name, owner, state FROM public.dlock_leases WHERE name LIKE 'hostile%';
UPDATE dlock.lease SET ttl = '1 hour';
SELECT public.dlock_revoke(:token, 'test', grace => '1 min') AS revoked;
SELECT public.dlock_release(:token, 'done') AS released;
SELECT name, outcome, result FROM public.dlock_history WHERE name LIKE 'hostile%';
SELECT granted > 0 AS granted FROM public.dlock_stats;
SELECT count(*) > 0 AS databases FROM public.dlock_databases;
SELECT library IS NOT NULL AS library FROM public.dlock_version();

-- Takeover as well.
SELECT public.dlock_acquire('hostile', ttl => '10 ms') AS token \gset
SELECT FROM pg_sleep(0.1);
SELECT public.dlock_release(public.dlock_acquire('hostile')) AS released;

-- Nothing went into their tables.
SELECT count(*) FROM regress_dlock_hostile.lease;
SELECT count(*) FROM pg_temp.lease;
SELECT count(*) FROM pg_temp.history;
SELECT is_called FROM regress_dlock_hostile.token_seq;

-- An empty path is as good.
SET search_path = '';
SELECT public.dlock_release(public.dlock_acquire('hostile')) AS released;
SELECT count(*) AS leases FROM public.dlock_leases WHERE name = 'hostile';
RESET search_path;

-- Even CREATE EXTENSION, run by an unwary superuser.
SET client_min_messages = warning;
DROP EXTENSION dlock;
SET search_path = regress_dlock_hostile, pg_temp, pg_catalog;
CREATE EXTENSION dlock SCHEMA public;
RESET search_path;
SELECT dlock_release(dlock_acquire('hostile')) AS released;
SELECT name, outcome FROM dlock_history;
DROP SCHEMA regress_dlock_hostile CASCADE;
DROP TABLE pg_temp.lease, pg_temp.history;
DROP SEQUENCE pg_temp.token_seq;
