/* dlock--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION dlock" to load this file. \quit

-- The tables live in schema dlock whatever schema the functions go to.  It may
-- be there already, as for CREATE EXTENSION dlock SCHEMA dlock; one that
-- somebody else owns is refused, since its owner could replace our tables.
DO $$
DECLARE
	schema_owner pg_catalog.name := (
		SELECT pg_catalog.pg_get_userbyid(n.nspowner) FROM pg_catalog.pg_namespace n
		WHERE n.nspname OPERATOR(pg_catalog.=) 'dlock');
BEGIN
	IF schema_owner IS NULL THEN
		CREATE SCHEMA dlock;
	ELSIF schema_owner OPERATOR(pg_catalog.<>) current_user THEN
		RAISE EXCEPTION 'schema "dlock" belongs to another role'
			USING ERRCODE = 'insufficient_privilege',
				  HINT = 'Drop or rename that schema, or give it to the role that creates the extension.';
	END IF;
END
$$;

--
-- Tables
--

-- One row a slot, held or free.  It stays when its lease ends, so that a grant
-- and an end are HOT updates of one row.  Written by the library alone.
CREATE TABLE dlock.lease (
	name pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
	slot pg_catalog.int4 NOT NULL,
	token pg_catalog.int8 NOT NULL,		-- of the last lease, also when free
	role pg_catalog.regrole NOT NULL,
	owner pg_catalog.text NOT NULL,
	why pg_catalog.text,
	share pg_catalog.text,
	capacity pg_catalog.int4 NOT NULL,
	session pg_catalog.int8,
	session_ttl pg_catalog.interval,	-- NULL: this lease has a deadline of its own
	session_pid pg_catalog.int4,		-- not NULL: ends with that connection
	holds pg_catalog.int4 NOT NULL,		-- releases that are needed
	ttl pg_catalog.interval NOT NULL,
	min_hold pg_catalog.interval,
	waited pg_catalog.interval,
	acquired_at pg_catalog.timestamptz NOT NULL,
	ended_at pg_catalog.timestamptz,	-- NULL: held
	rests_until pg_catalog.timestamptz,	-- the ended lease keeps the lock until then
	rests_for pg_catalog.text,			-- 'min_hold' or 'delayed'
	revoke_grace pg_catalog.interval,	-- not NULL: revoking
	revoke_why pg_catalog.text,
	revoked_by pg_catalog.text,
	PRIMARY KEY (name, slot)
) WITH (fillfactor = 60);

-- Nothing here is ever TOASTed: every text is bounded, and a row must be
-- readable without a second table.
ALTER TABLE dlock.lease
	ALTER name SET STORAGE PLAIN, ALTER owner SET STORAGE PLAIN,
	ALTER why SET STORAGE PLAIN, ALTER share SET STORAGE PLAIN,
	ALTER rests_for SET STORAGE PLAIN, ALTER revoke_why SET STORAGE PLAIN,
	ALTER revoked_by SET STORAGE PLAIN;

-- One row an ended lease, written by the transaction that ended it.
CREATE TABLE dlock.history (
	name pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
	token pg_catalog.int8 NOT NULL,
	owner pg_catalog.text NOT NULL,
	role pg_catalog.regrole NOT NULL,
	share pg_catalog.text,
	why pg_catalog.text,
	acquired_at pg_catalog.timestamptz NOT NULL,
	ended_at pg_catalog.timestamptz NOT NULL,
	outcome pg_catalog.text NOT NULL,
	result pg_catalog.text,
	waited pg_catalog.interval,
	heartbeats pg_catalog.int8 NOT NULL,
	refused pg_catalog.int8 NOT NULL,
	last_refused_at pg_catalog.timestamptz,
	ended_by pg_catalog.text NOT NULL,
	slot pg_catalog.int4 NOT NULL
);

ALTER TABLE dlock.history
	ALTER name SET STORAGE PLAIN, ALTER owner SET STORAGE PLAIN,
	ALTER share SET STORAGE PLAIN, ALTER why SET STORAGE PLAIN,
	ALTER outcome SET STORAGE PLAIN, ALTER result SET STORAGE PLAIN,
	ALTER ended_by SET STORAGE PLAIN;

CREATE INDEX history_name_acquired_at_idx ON dlock.history (name, acquired_at);
CREATE INDEX history_ended_at_idx ON dlock.history (ended_at);

-- A lock's own defaults.  No trigger: pg_restore copies into it.
CREATE TABLE dlock.definition (
	name pg_catalog.text COLLATE pg_catalog."C" NOT NULL PRIMARY KEY,
	capacity pg_catalog.int4,
	ttl pg_catalog.interval,
	min_hold pg_catalog.interval,
	takeover_delay pg_catalog.interval,
	role pg_catalog.regrole,
	notify pg_catalog.bool NOT NULL,
	history pg_catalog.bool NOT NULL
);

ALTER TABLE dlock.definition ALTER name SET STORAGE PLAIN;

-- Tokens and session ids.  Not cached: a cached block would be a lost block.
CREATE SEQUENCE dlock.token_seq CACHE 1;

SELECT pg_catalog.pg_extension_config_dump('dlock.definition', '');
SELECT pg_catalog.pg_extension_config_dump('dlock.token_seq', '');

-- An operator reads history with the indexes; everybody else has the view.
-- Where the functions are in this schema too, USAGE is the administrator's to
-- grant.
GRANT SELECT ON dlock.history TO pg_read_all_stats;
DO $$
BEGIN
	IF '@extschema@' OPERATOR(pg_catalog.<>) 'dlock' THEN
		GRANT USAGE ON SCHEMA dlock TO pg_read_all_stats;
	END IF;
END
$$;

CREATE FUNCTION dlock.refuse_dml()
RETURNS pg_catalog.trigger
AS 'MODULE_PATHNAME', 'dlock_refuse_dml'
LANGUAGE C;

CREATE TRIGGER refuse_dml
	BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON dlock.lease
	FOR EACH STATEMENT EXECUTE FUNCTION dlock.refuse_dml();

ALTER TABLE dlock.lease ENABLE ALWAYS TRIGGER refuse_dml;

--
-- Leases
--

CREATE FUNCTION @extschema@.dlock_acquire(
	name pg_catalog.text,
	ttl pg_catalog.interval DEFAULT NULL,
	wait pg_catalog.interval DEFAULT NULL,
	owner pg_catalog.text DEFAULT NULL,
	why pg_catalog.text DEFAULT NULL,
	min_hold pg_catalog.interval DEFAULT NULL,
	session pg_catalog.int8 DEFAULT NULL,
	capacity pg_catalog.int4 DEFAULT NULL,
	share pg_catalog.text DEFAULT NULL,
	must_exist pg_catalog.bool DEFAULT false,
	retry pg_catalog.bool DEFAULT false,
	reentrant pg_catalog.bool DEFAULT false)
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_acquire IS
'take a lease of a named lock: its token, or NULL when the lock is busy';

CREATE PROCEDURE @extschema@.dlock_await(
	name pg_catalog.text,
	ttl pg_catalog.interval DEFAULT NULL,
	wait pg_catalog.interval DEFAULT NULL,
	owner pg_catalog.text DEFAULT NULL,
	why pg_catalog.text DEFAULT NULL,
	min_hold pg_catalog.interval DEFAULT NULL,
	session pg_catalog.int8 DEFAULT NULL,
	capacity pg_catalog.int4 DEFAULT NULL,
	share pg_catalog.text DEFAULT NULL,
	must_exist pg_catalog.bool DEFAULT false,
	retry pg_catalog.bool DEFAULT false,
	reentrant pg_catalog.bool DEFAULT false,
	INOUT token pg_catalog.int8 DEFAULT NULL)
AS 'MODULE_PATHNAME'
LANGUAGE C;

COMMENT ON PROCEDURE @extschema@.dlock_await IS
'like dlock_acquire, but waits between transactions and holds no snapshot while it sleeps';

CREATE FUNCTION @extschema@.dlock_acquire_all(
	names pg_catalog.text[],
	ttl pg_catalog.interval DEFAULT NULL,
	wait pg_catalog.interval DEFAULT NULL,
	owner pg_catalog.text DEFAULT NULL,
	why pg_catalog.text DEFAULT NULL,
	session pg_catalog.int8 DEFAULT NULL)
RETURNS pg_catalog.int8[]
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_acquire_all IS
'take leases of several locks, all or none: their tokens in the order of the names, or NULL';

CREATE FUNCTION @extschema@.dlock_heartbeat(token pg_catalog.int8)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_heartbeat IS
'renew a lease from now on: true, or false when it is lost and the work must stop';

CREATE FUNCTION @extschema@.dlock_heartbeat_all(
	tokens pg_catalog.int8[],
	OUT lost pg_catalog.int8[])
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_heartbeat_all IS
'renew many leases: the tokens of those that are lost';

CREATE FUNCTION @extschema@.dlock_set_ttl(
	token pg_catalog.int8,
	ttl pg_catalog.interval)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_set_ttl IS
'change how long a lease lives after a heartbeat: false when it is lost';

CREATE FUNCTION @extschema@.dlock_release(
	token pg_catalog.int8,
	result pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_release IS
'end a lease and record its result: false when it was lost before';

CREATE FUNCTION @extschema@.dlock_held(token pg_catalog.int8)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_held IS
'is this lease still alive?';

CREATE FUNCTION @extschema@.dlock_remaining(token pg_catalog.int8)
RETURNS pg_catalog.interval
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_remaining IS
'time until the deadline of a lease, NULL when it is lost';

CREATE FUNCTION @extschema@.dlock_guard(token pg_catalog.int8)
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_guard IS
'let this transaction commit only while the lease is owned: the token, or error LK001';

CREATE FUNCTION @extschema@.dlock_holders(
	name pg_catalog.text,
	OUT token pg_catalog.int8,
	OUT owner pg_catalog.text,
	OUT why pg_catalog.text,
	OUT acquired_at pg_catalog.timestamptz,
	OUT remaining pg_catalog.interval,
	OUT state pg_catalog.text)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;

COMMENT ON FUNCTION @extschema@.dlock_holders IS
'who holds this lock: one row a lease, cheap to poll';

--
-- Sessions
--

CREATE FUNCTION @extschema@.dlock_session_open(
	owner pg_catalog.text DEFAULT NULL,
	ttl pg_catalog.interval DEFAULT NULL,
	on_disconnect pg_catalog.text DEFAULT 'keep')
RETURNS pg_catalog.int8
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_session_open IS
'open a session, which keeps many leases by one heartbeat; on_disconnect => ''release'' ends it with this connection, which behind a pooler is the pooler''s';

CREATE FUNCTION @extschema@.dlock_session_heartbeat(
	session pg_catalog.int8,
	tokens pg_catalog.int8[] DEFAULT NULL,
	OUT lost pg_catalog.int8[])
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_session_heartbeat IS
'renew a session and its leases: those of the tokens that it does not have or, without tokens, what it has lost since the last call; NULL when the session is gone';

CREATE FUNCTION @extschema@.dlock_session_close(session pg_catalog.int8)
RETURNS pg_catalog.int4
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_session_close IS
'end a session and its leases: how many these were, or NULL when the session is gone';

--
-- For the administrator
--

CREATE FUNCTION @extschema@.dlock_define(
	name pg_catalog.text,
	capacity pg_catalog.int4 DEFAULT NULL,
	ttl pg_catalog.interval DEFAULT NULL,
	min_hold pg_catalog.interval DEFAULT NULL,
	takeover_delay pg_catalog.interval DEFAULT NULL,
	role pg_catalog.regrole DEFAULT NULL,
	notify pg_catalog.bool DEFAULT false,
	history pg_catalog.bool DEFAULT true)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_define IS
'set the defaults of a lock, and who may take it';

CREATE FUNCTION @extschema@.dlock_undefine(name pg_catalog.text)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_undefine IS
'take the definition of a lock back: false when there was none';

REVOKE ALL ON FUNCTION @extschema@.dlock_define, @extschema@.dlock_undefine FROM PUBLIC;

CREATE FUNCTION @extschema@.dlock_revoke(
	token pg_catalog.int8,
	why pg_catalog.text,
	grace pg_catalog.interval DEFAULT NULL)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_revoke IS
'take a lease away from its holder, at once or after a time of grace, or end the rest of a lock after it: false when there is neither';

REVOKE ALL ON FUNCTION @extschema@.dlock_revoke FROM PUBLIC;

CREATE FUNCTION @extschema@.dlock_protected()
RETURNS pg_catalog.trigger
AS 'MODULE_PATHNAME'
LANGUAGE C;

COMMENT ON FUNCTION @extschema@.dlock_protected IS
'trigger of protected tables';

CREATE FUNCTION @extschema@.dlock_protect(
	relation pg_catalog.regclass,
	name pg_catalog.text)
RETURNS pg_catalog.void
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_protect IS
'let a table refuse writes from transactions without a guard on a lock';

CREATE FUNCTION @extschema@.dlock_unprotect(relation pg_catalog.regclass)
RETURNS pg_catalog.bool
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_unprotect IS
'let a table take writes again without a guard: false when it did anyway';

REVOKE ALL ON FUNCTION @extschema@.dlock_protect, @extschema@.dlock_unprotect FROM PUBLIC;

-- The leases of the table against those in memory.
CREATE FUNCTION dlock.verify_leases(
	OUT breach pg_catalog.text,
	OUT name pg_catalog.text,
	OUT token pg_catalog.int8,
	OUT detail pg_catalog.text)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'dlock_verify_leases'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

-- As its owner, since the caller may run it and need not read the tables.
CREATE FUNCTION @extschema@.dlock_verify(
	OUT breach pg_catalog.text,
	OUT name pg_catalog.text,
	OUT token pg_catalog.int8,
	OUT detail pg_catalog.text)
RETURNS SETOF pg_catalog.record
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
	SELECT * FROM dlock.verify_leases()
	UNION
	-- a slot's leases follow each other, in the order of their tokens
	SELECT 'overlap', h.name, h.token,
		   format('it begins at %s, and lease %s before it ended at %s',
				  h.acquired_at, h.earlier, h.earlier_ended_at)
	FROM (SELECT name, slot, token, acquired_at,
				 lag(token) OVER w AS earlier,
				 lag(ended_at) OVER w AS earlier_ended_at
		  FROM dlock.history
		  WINDOW w AS (PARTITION BY name, slot ORDER BY token)) h
	WHERE h.acquired_at < h.earlier_ended_at
	UNION
	SELECT 'overlap', l.name, l.token,
		   format('it begins at %s, and lease %s before it ended at %s',
				  l.acquired_at, h.token, h.ended_at)
	FROM dlock.lease l
	JOIN dlock.history h ON h.name = l.name AND h.slot = l.slot AND h.token < l.token
	WHERE h.ended_at > l.acquired_at
	UNION
	-- a token is one lease's, and has one end
	SELECT 'token in history twice', min(h.name), h.token, format('%s rows', count(*))
	FROM dlock.history h
	GROUP BY h.token HAVING count(*) > 1
	UNION
	SELECT 'held lease in history', h.name, h.token, h.outcome
	FROM dlock.history h
	JOIN dlock.lease l ON l.name = h.name AND l.slot = h.slot AND l.token = h.token
	WHERE l.ended_at IS NULL
	UNION
	-- every token came from the sequence, which never goes back
	SELECT 'token out of order', t.name, t.token,
		   format('the sequence stands at %s', s.last_value)
	FROM (SELECT name, token FROM dlock.lease
		  UNION ALL SELECT name, token FROM dlock.history) t,
		 dlock.token_seq s
	WHERE t.token > s.last_value
	UNION
	SELECT 'token out of order', h.name, h.token,
		   format('slot %s has lease %s', h.slot, l.token)
	FROM dlock.history h
	JOIN dlock.lease l ON l.name = h.name AND l.slot = h.slot
	WHERE h.token > l.token
$$;

COMMENT ON FUNCTION @extschema@.dlock_verify IS
'one row for each breach of the promises that leases, history and memory show; none when all is sound';

REVOKE ALL ON FUNCTION dlock.verify_leases, @extschema@.dlock_verify FROM PUBLIC;

CREATE FUNCTION @extschema@.dlock_version(
	OUT library pg_catalog.text,
	OUT sql pg_catalog.text)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION @extschema@.dlock_version IS
'versions of the loaded library and of the installed extension';

--
-- Views.  Each is a function that shows the caller what its roles may see.
--

CREATE FUNCTION dlock.leases(
	OUT name pg_catalog.text,
	OUT token pg_catalog.int8,
	OUT state pg_catalog.text,
	OUT pid pg_catalog.int4,
	OUT guard_pids pg_catalog.int4[],
	OUT owner pg_catalog.text,
	OUT role pg_catalog.regrole,
	OUT share pg_catalog.text,
	OUT capacity pg_catalog.int4,
	OUT session pg_catalog.int8,
	OUT why pg_catalog.text,
	OUT acquired_at pg_catalog.timestamptz,
	OUT ttl pg_catalog.interval,
	OUT remaining pg_catalog.interval,
	OUT heartbeats pg_catalog.int8,
	OUT last_heartbeat_at pg_catalog.timestamptz,
	OUT holds pg_catalog.int4,
	OUT refused pg_catalog.int8,
	OUT last_refused_at pg_catalog.timestamptz)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'dlock_leases'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE VIEW @extschema@.dlock_leases AS SELECT * FROM dlock.leases();

COMMENT ON VIEW @extschema@.dlock_leases IS
'every lease that is not over, and every lock that rests';

CREATE FUNCTION dlock.waiters(
	OUT name pg_catalog.text,
	OUT pid pg_catalog.int4,
	OUT owner pg_catalog.text,
	OUT share pg_catalog.text,
	OUT "position" pg_catalog.int4,
	OUT waiting_since pg_catalog.timestamptz,
	OUT gives_up_at pg_catalog.timestamptz,
	OUT blocked_by pg_catalog.int4[])
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'dlock_waiters'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE VIEW @extschema@.dlock_waiters AS SELECT * FROM dlock.waiters();

COMMENT ON VIEW @extschema@.dlock_waiters IS
'who waits for a lock, in which place, and for whom';

CREATE FUNCTION dlock.locks(
	OUT name pg_catalog.text,
	OUT capacity pg_catalog.int4,
	OUT ttl pg_catalog.interval,
	OUT min_hold pg_catalog.interval,
	OUT takeover_delay pg_catalog.interval,
	OUT role pg_catalog.regrole,
	OUT notify pg_catalog.bool,
	OUT history pg_catalog.bool,
	OUT held pg_catalog.int4,
	OUT waiting pg_catalog.int4)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'dlock_locks'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE VIEW @extschema@.dlock_locks AS SELECT * FROM dlock.locks();

COMMENT ON VIEW @extschema@.dlock_locks IS
'the locks that are defined, and how they are used now';

CREATE FUNCTION dlock.history(
	OUT name pg_catalog.text,
	OUT token pg_catalog.int8,
	OUT owner pg_catalog.text,
	OUT role pg_catalog.regrole,
	OUT share pg_catalog.text,
	OUT why pg_catalog.text,
	OUT acquired_at pg_catalog.timestamptz,
	OUT ended_at pg_catalog.timestamptz,
	OUT outcome pg_catalog.text,
	OUT result pg_catalog.text,
	OUT waited pg_catalog.interval,
	OUT heartbeats pg_catalog.int8,
	OUT refused pg_catalog.int8,
	OUT last_refused_at pg_catalog.timestamptz,
	OUT ended_by pg_catalog.text)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'dlock_history'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE VIEW @extschema@.dlock_history AS SELECT * FROM dlock.history();

COMMENT ON VIEW @extschema@.dlock_history IS
'every lease that has ended, and how';

CREATE FUNCTION dlock.stats(
	OUT granted pg_catalog.int8,
	OUT refused pg_catalog.int8,
	OUT heartbeats pg_catalog.int8,
	OUT heartbeats_lost pg_catalog.int8,
	OUT guards pg_catalog.int8,
	OUT guards_lost pg_catalog.int8,
	OUT waits pg_catalog.int8,
	OUT waits_timed_out pg_catalog.int8,
	OUT waited pg_catalog.interval,
	OUT released pg_catalog.int8,
	OUT expired pg_catalog.int8,
	OUT taken_over pg_catalog.int8,
	OUT revoked pg_catalog.int8,
	OUT disconnected pg_catalog.int8)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'dlock_stats'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;

CREATE VIEW @extschema@.dlock_stats AS SELECT * FROM dlock.stats();

COMMENT ON VIEW @extschema@.dlock_stats IS
'what happened in this database since the server started';

CREATE FUNCTION dlock.databases(
	OUT database pg_catalog.name,
	OUT adopted pg_catalog.bool,
	OUT held pg_catalog.int8,
	OUT waiting pg_catalog.int8,
	OUT worker_last_run pg_catalog.timestamptz,
	OUT worker_last_error pg_catalog.text,
	OUT worker_last_error_at pg_catalog.timestamptz)
RETURNS SETOF pg_catalog.record
AS 'MODULE_PATHNAME', 'dlock_databases'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

CREATE VIEW @extschema@.dlock_databases AS SELECT * FROM dlock.databases();

COMMENT ON VIEW @extschema@.dlock_databases IS
'every database of this server that uses dlock, and what the worker did there';

GRANT SELECT ON @extschema@.dlock_leases, @extschema@.dlock_waiters,
	@extschema@.dlock_locks, @extschema@.dlock_history,
	@extschema@.dlock_stats, @extschema@.dlock_databases TO PUBLIC;
