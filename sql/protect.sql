-- Protected tables: every write needs a guard on the table's lock, in the same
-- transaction, whichever way it comes.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

-- 'done', or the SQLSTATE of what went wrong.
CREATE FUNCTION pg_temp.try(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE command;
	RETURN 'done';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END
$$;

CREATE TABLE protect_t (k int PRIMARY KEY, v text);
INSERT INTO protect_t SELECT n, 'before' FROM generate_series(1, 8) n;
SELECT dlock_protect('protect_t', 'protect');
SELECT tgname, tgenabled, pg_get_triggerdef(oid) AS def FROM pg_trigger WHERE tgrelid = 'protect_t'::regclass ORDER BY tgname;

--
-- The ways to write, without a guard and with one
--
INSERT INTO protect_t VALUES (9, 'unguarded');
TRUNCATE protect_t;
\set VERBOSITY terse
COPY protect_t FROM stdin;
9	unguarded
\.

CREATE TEMP TABLE way (n serial, command text);
INSERT INTO way (command) VALUES
	('INSERT INTO protect_t VALUES (9, ''insert'')'),
	('INSERT INTO protect_t SELECT n, ''insert select'' FROM generate_series(10, 20) n'),
	('UPDATE protect_t SET v = ''update'' WHERE k = 1'),
	('UPDATE protect_t SET k = 40 WHERE k = 4'),
	('DELETE FROM protect_t WHERE k = 2'),
	('INSERT INTO protect_t VALUES (1, ''conflict'') ON CONFLICT DO NOTHING'),
	('INSERT INTO protect_t VALUES (3, ''conflict'') ON CONFLICT (k) DO UPDATE SET v = excluded.v'),
	('MERGE INTO protect_t t USING (VALUES (1), (50)) s (k) ON t.k = s.k '
	 'WHEN MATCHED THEN UPDATE SET v = ''merge update'' WHEN NOT MATCHED THEN INSERT VALUES (s.k, ''merge insert'')'),
	('MERGE INTO protect_t t USING (VALUES (5)) s (k) ON t.k = s.k WHEN MATCHED THEN DELETE'),
	('WITH w AS (DELETE FROM protect_t WHERE k = 6 RETURNING *) SELECT count(*) FROM w'),
	('DO $d$ BEGIN INSERT INTO protect_t VALUES (60, ''do''); END $d$');
SELECT n, pg_temp.try(command) FROM way ORDER BY n;
SELECT count(*), min(v), max(v) FROM protect_t;

SELECT dlock_acquire('protect') AS token \gset
BEGIN;
SELECT dlock_guard(:token) = :token AS guarded;
SELECT n, pg_temp.try(command) FROM way ORDER BY n;
COPY protect_t FROM stdin;
70	copy
\.
COMMIT;
SELECT string_agg(k || ' ' || v, ', ' ORDER BY k) AS written FROM protect_t WHERE k < 11 OR k > 19;
SELECT count(*) AS deleted FROM protect_t WHERE k IN (2, 4, 5, 6);

-- A statement that writes no row is no write.
SELECT pg_temp.try('UPDATE protect_t SET v = ''none'' WHERE k = 0') AS update,
	   pg_temp.try('DELETE FROM protect_t WHERE k = 0') AS delete,
	   pg_temp.try('INSERT INTO protect_t SELECT 0 WHERE false') AS insert,
	   pg_temp.try('SELECT * FROM protect_t FOR UPDATE') AS lock;
BEGIN;
SELECT dlock_guard(:token) = :token AS guarded;
TRUNCATE protect_t;
COMMIT;
SELECT count(*) FROM protect_t;

--
-- What is a guard, and what is none
--

-- It was that transaction's.
INSERT INTO protect_t VALUES (1, 'afterwards');
-- An acquire is none, even in the same transaction.
BEGIN;
SELECT dlock_release(:token) AS released, dlock_acquire('protect') AS token \gset
SELECT pg_temp.try('INSERT INTO protect_t VALUES (1)') AS acquired;
SELECT dlock_guard(:token) = :token AS guarded;
SELECT pg_temp.try('INSERT INTO protect_t VALUES (1, ''guarded'')') AS guarded;
COMMIT;
-- Nor is one of another lock, though its name begins in the same way, or is the
-- table's.
SELECT dlock_acquire('protect_t') AS other, dlock_acquire('protect ') AS longer, dlock_acquire('protec') AS shorter,
	   dlock_acquire('PROTECT') AS upper \gset
BEGIN;
SELECT dlock_guard(:other) + dlock_guard(:longer) + dlock_guard(:shorter) + dlock_guard(:upper) > 0 AS guarded;
SELECT pg_temp.try('INSERT INTO protect_t VALUES (2)') AS other_lock;
SELECT dlock_guard(:token) = :token AS guarded;
SELECT pg_temp.try('INSERT INTO protect_t VALUES (2, ''among others'')') AS this_too;
COMMIT;
SELECT count(*) FILTER (WHERE dlock_release(t)) AS released FROM unnest(ARRAY[:other, :longer, :shorter, :upper]) t;

-- A guard in a savepoint that is rolled back counts no more.
BEGIN;
SAVEPOINT a;
SELECT dlock_guard(:token) = :token AS guarded;
SELECT pg_temp.try('INSERT INTO protect_t VALUES (3)') AS within;
ROLLBACK TO a;
SELECT pg_temp.try('INSERT INTO protect_t VALUES (3)') AS rolled_back;
SAVEPOINT b;
SELECT dlock_guard(:token) = :token AS guarded;
RELEASE b;
SELECT pg_temp.try('INSERT INTO protect_t VALUES (3, ''after release'')') AS released;
ROLLBACK TO a;
SELECT pg_temp.try('INSERT INTO protect_t VALUES (3)') AS rolled_back;
COMMIT;
-- One of before the savepoint stays.
BEGIN;
SELECT dlock_guard(:token) = :token AS guarded;
SAVEPOINT a;
SELECT dlock_guard(:token) = :token AS guarded;
ROLLBACK TO a;
SELECT pg_temp.try('INSERT INTO protect_t VALUES (3, ''before the savepoint'')') AS outer_guard;
COMMIT;
-- An exception block is a savepoint.
DO $$
DECLARE
	token bigint := (SELECT token FROM dlock_holders('protect'));
BEGIN
	BEGIN
		PERFORM dlock_guard(token);
		RAISE EXCEPTION 'the work failed';
	EXCEPTION WHEN raise_exception THEN
		NULL;
	END;
	INSERT INTO protect_t VALUES (4, 'after the exception');
END
$$;

-- What this transaction itself has released it still keeps from others until it
-- ends, if it was guarded before.
BEGIN;
SELECT dlock_guard(:token) = :token AS guarded;
SELECT dlock_release(:token) AS released;
SELECT pg_temp.try('INSERT INTO protect_t VALUES (4, ''after the release'')') AS own_release;
COMMIT;
-- A lost lease guards nothing.
BEGIN;
\set VERBOSITY sqlstate
SAVEPOINT a;
SELECT dlock_guard(:token);
ROLLBACK TO a;
SELECT dlock_guard(NULL);
ROLLBACK TO a;
\set VERBOSITY terse
SELECT pg_temp.try('INSERT INTO protect_t VALUES (5)') AS lost;
COMMIT;
SELECT dlock_acquire('protect', ttl => '10 ms') AS token \gset
SELECT FROM pg_sleep(0.1);
BEGIN;
\set VERBOSITY sqlstate
SAVEPOINT a;
SELECT dlock_guard(:token);
ROLLBACK TO a;
\set VERBOSITY terse
SELECT pg_temp.try('INSERT INTO protect_t VALUES (5)') AS expired;
COMMIT;

-- Any permit of the lock will do, and a lease of a session.
SELECT dlock_acquire('protect', capacity => 2) AS one, dlock_acquire('protect', capacity => 2) AS two \gset
SELECT pg_temp.try(format('DO $d$ BEGIN PERFORM dlock_guard(%s); INSERT INTO protect_t VALUES (5, ''one''); END $d$', :one)) AS one,
	   pg_temp.try(format('DO $d$ BEGIN PERFORM dlock_guard(%s); INSERT INTO protect_t VALUES (6, ''two''); END $d$', :two)) AS two;
SELECT dlock_release(:one) AS one, dlock_release(:two) AS two;
SELECT dlock_session_open() AS session \gset
SELECT dlock_acquire('protect', session => :session) AS token \gset
BEGIN;
SELECT dlock_guard(:token) = :token AS guarded;
SELECT pg_temp.try('INSERT INTO protect_t VALUES (7, ''session'')') AS session;
COMMIT;
SELECT dlock_session_close(:session) AS closed;
SELECT string_agg(k || ' ' || v, ', ' ORDER BY k) AS written FROM protect_t;

SELECT dlock_acquire('protect', '10 min') AS token \gset

--
-- Ways around
--

-- Triggers that are off for a replica are not these.
SET session_replication_role = replica;
SELECT n, pg_temp.try(command) FROM way WHERE n < 7 ORDER BY n;
TRUNCATE protect_t;
BEGIN;
SELECT dlock_guard(:token) = :token AS guarded;
SELECT pg_temp.try('UPDATE protect_t SET v = ''replica'' WHERE k = 7') AS replica;
COMMIT;
RESET session_replication_role;

-- A view, a rule, a cursor, a prepared statement, a deferred trigger, a function
-- of somebody else.
CREATE VIEW protect_view AS SELECT * FROM protect_t;
CREATE TABLE protect_ruled (k int);
CREATE RULE protect_rule AS ON INSERT TO protect_ruled DO ALSO INSERT INTO protect_t VALUES (new.k, 'rule');
CREATE FUNCTION protect_write() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	INSERT INTO protect_t VALUES (new.k, TG_NAME);
	RETURN NULL;
END
$$;
CREATE TABLE protect_deferred (k int);
CREATE CONSTRAINT TRIGGER deferred AFTER INSERT ON protect_deferred
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION protect_write();
PREPARE protect_insert (int) AS INSERT INTO protect_t VALUES ($1, 'prepared');
INSERT INTO protect_view VALUES (8, 'view');
INSERT INTO protect_ruled VALUES (8);
INSERT INTO protect_deferred VALUES (8);
EXECUTE protect_insert(8);
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM protect_t WHERE k = 7 FOR UPDATE;
MOVE c;
DELETE FROM protect_t WHERE CURRENT OF c;
ROLLBACK;
-- With a guard they work; the deferred one is guarded at commit too.
BEGIN;
SELECT dlock_guard(:token) = :token AS guarded;
INSERT INTO protect_view VALUES (8, 'view');
INSERT INTO protect_ruled VALUES (9);
INSERT INTO protect_deferred VALUES (10);
EXECUTE protect_insert(11);
DECLARE c CURSOR FOR SELECT * FROM protect_t WHERE k = 7 FOR UPDATE;
MOVE c;
DELETE FROM protect_t WHERE CURRENT OF c;
COMMIT;
SELECT string_agg(k || ' ' || v, ', ' ORDER BY k) AS written FROM protect_t WHERE k > 6;
DEALLOCATE protect_insert;
DROP VIEW protect_view;
DROP TABLE protect_ruled, protect_deferred;
DROP FUNCTION protect_write;

-- What other triggers of the table make of a row is kept, and one that comes
-- before and drops the row has nothing written.
CREATE FUNCTION protect_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF new.v = 'nothing' THEN
		RETURN NULL;
	END IF;
	new.v := new.v || ' ' || TG_NAME;
	RETURN new;
END
$$;
CREATE TRIGGER a BEFORE INSERT OR UPDATE ON protect_t FOR EACH ROW EXECUTE FUNCTION protect_change();
CREATE TRIGGER z BEFORE INSERT OR UPDATE ON protect_t FOR EACH ROW EXECUTE FUNCTION protect_change();
BEGIN;
SELECT dlock_guard(:token) = :token AS guarded;
INSERT INTO protect_t VALUES (12, 'changed by');
UPDATE protect_t SET v = 'update by' WHERE k = 11;
INSERT INTO protect_t VALUES (13, 'nothing');
COMMIT;
SELECT string_agg(k || ' ' || v, ', ' ORDER BY k) AS written FROM protect_t WHERE k > 10;
DROP TRIGGER a ON protect_t;
DROP TRIGGER z ON protect_t;
DROP FUNCTION protect_change;

-- What the owner does to the table is no write; the protection goes with it.
ALTER TABLE protect_t RENAME TO protect_renamed;
ALTER TABLE protect_renamed ADD extra int DEFAULT random() * 0;
ALTER TABLE protect_renamed ALTER k TYPE bigint;
SELECT pg_temp.try('INSERT INTO protect_renamed VALUES (99)') AS renamed,
	   pg_temp.try('TRUNCATE protect_renamed') AS truncate;
VACUUM FULL protect_renamed;
SELECT pg_temp.try('DELETE FROM protect_renamed') AS rewritten;
ALTER TABLE protect_renamed RENAME TO protect_t;

--
-- Taken off
--
BEGIN;
SELECT dlock_unprotect('protect_t') AS unprotected;
SELECT pg_temp.try('INSERT INTO protect_t VALUES (99)') AS free;
ROLLBACK;
SELECT pg_temp.try('INSERT INTO protect_t VALUES (99)') AS rolled_back;
-- A second protection by another lock is refused, and leaves the first.
SELECT pg_temp.try($$SELECT dlock_protect('protect_t', 'other')$$) AS by_another_lock;
SELECT pg_temp.try('INSERT INTO protect_t VALUES (99)') AS still;
-- By the same lock, it makes whole what a restore with --disable-triggers, or
-- somebody, has made of it.
ALTER TABLE protect_t ENABLE TRIGGER ALL;
DROP TRIGGER dlock_protect_truncate ON protect_t;
SET session_replication_role = replica;
BEGIN;
SELECT pg_temp.try('INSERT INTO protect_t VALUES (99)') AS not_covered;
ROLLBACK;
RESET session_replication_role;
SELECT dlock_protect('protect_t', 'protect');
SET session_replication_role = replica;
SELECT pg_temp.try('INSERT INTO protect_t VALUES (99)') AS covered, pg_temp.try('TRUNCATE protect_t') AS truncate;
RESET session_replication_role;
SELECT tgname, tgenabled FROM pg_trigger WHERE tgrelid = 'protect_t'::regclass ORDER BY tgname;
SELECT dlock_unprotect('protect_t') AS unprotected, dlock_unprotect('protect_t') AS again;
SELECT pg_temp.try('INSERT INTO protect_t VALUES (99)') AS free, pg_temp.try('TRUNCATE protect_t') AS truncate;
SELECT count(*) AS triggers FROM pg_trigger WHERE tgrelid = 'protect_t'::regclass;
-- It can be taken up again, by another lock.
SELECT dlock_protect('protect_t', 'another');
BEGIN;
SELECT dlock_guard(:token) = :token AS guarded;
INSERT INTO protect_t VALUES (1);
ROLLBACK;
SELECT dlock_unprotect('protect_t') AS unprotected;
-- Protection that is rolled back never was.
BEGIN;
SELECT dlock_protect('protect_t', 'protect');
SELECT pg_temp.try('INSERT INTO protect_t VALUES (99)') AS protected;
ROLLBACK;
SELECT pg_temp.try('INSERT INTO protect_t VALUES (99)') AS rolled_back;
-- A read-only transaction can neither.
BEGIN READ ONLY;
SELECT pg_temp.try($$SELECT dlock_protect('protect_t', 'protect')$$) AS protect,
	   pg_temp.try($$SELECT dlock_unprotect('protect_t')$$) AS unprotect;
COMMIT;
SELECT count(*) AS triggers FROM pg_trigger WHERE tgrelid = 'protect_t'::regclass;
DROP TABLE protect_t;

--
-- Partitions
--
CREATE TABLE protect_p (k int, v text) PARTITION BY RANGE (k);
CREATE TABLE protect_p1 PARTITION OF protect_p FOR VALUES FROM (0) TO (10);
CREATE TABLE protect_p2 PARTITION OF protect_p FOR VALUES FROM (10) TO (20) PARTITION BY LIST (k);
CREATE TABLE protect_p2a PARTITION OF protect_p2 FOR VALUES IN (10, 11);
CREATE FOREIGN DATA WRAPPER regress_dlock_fdw;
CREATE SERVER regress_dlock_server FOREIGN DATA WRAPPER regress_dlock_fdw;
CREATE FOREIGN TABLE protect_foreign PARTITION OF protect_p FOR VALUES FROM (90) TO (100) SERVER regress_dlock_server;
INSERT INTO protect_p VALUES (1, 'before'), (10, 'before');
SELECT dlock_protect('protect_p', 'protect');
-- ... and those that come later, in each way.
CREATE TABLE protect_p3 PARTITION OF protect_p FOR VALUES FROM (20) TO (30);
CREATE TABLE protect_p4 (LIKE protect_p);
INSERT INTO protect_p4 VALUES (30, 'before');
ALTER TABLE protect_p ATTACH PARTITION protect_p4 FOR VALUES FROM (30) TO (40);
CREATE TABLE protect_p2b PARTITION OF protect_p2 FOR VALUES IN (12);
CREATE TABLE protect_p5 (LIKE protect_p) PARTITION BY RANGE (k);
CREATE TABLE protect_p5a PARTITION OF protect_p5 FOR VALUES FROM (40) TO (45);
ALTER TABLE protect_p ATTACH PARTITION protect_p5 FOR VALUES FROM (40) TO (50);
CREATE TABLE protect_p5b PARTITION OF protect_p5 FOR VALUES FROM (45) TO (50);
CREATE TABLE protect_default PARTITION OF protect_p DEFAULT;

CREATE TEMP TABLE place (name regclass, k int);
INSERT INTO place VALUES ('protect_p', 1), ('protect_p1', 1), ('protect_p2', 10), ('protect_p2a', 10), ('protect_p2b', 12), ('protect_p3', 20),
	('protect_p4', 30), ('protect_p5', 40), ('protect_p5a', 40), ('protect_p5b', 45), ('protect_default', 1000);
SELECT c.relname, min(t.tgenabled) FILTER (WHERE t.tgtype & 1 = 1) AS row_trigger
FROM pg_class c LEFT JOIN pg_trigger t ON t.tgrelid = c.oid
WHERE c.relname LIKE 'protect\_%' AND c.relkind IN ('r', 'p', 'f')
GROUP BY 1 ORDER BY 1;
SELECT name, pg_temp.try(format('INSERT INTO %s VALUES (%s, ''unguarded'')', name, k)) AS insert,
	   pg_temp.try(format('TRUNCATE %s', name)) AS truncate
FROM place WHERE name <> 'protect_p'::regclass ORDER BY k, name::text;
COPY protect_p FROM stdin;
20	unguarded
\.
TRUNCATE ONLY protect_p4;
SELECT pg_temp.try('UPDATE protect_p SET v = ''unguarded'' WHERE k < 50') AS update,
	   pg_temp.try('UPDATE protect_p SET k = 20 WHERE k = 1') AS move,
	   pg_temp.try('DELETE FROM protect_p WHERE k = 30') AS delete,
	   pg_temp.try('DELETE FROM protect_p2a') AS delete_sub,
	   pg_temp.try('MERGE INTO protect_p p USING (VALUES (12)) s (k) ON p.k = s.k WHEN NOT MATCHED THEN INSERT VALUES (s.k)') AS merge;
SET session_replication_role = replica;
SELECT pg_temp.try('INSERT INTO protect_p3 VALUES (20)') AS insert, pg_temp.try('UPDATE protect_p4 SET k = 31') AS update,
	   pg_temp.try('DELETE FROM protect_p2a') AS delete, pg_temp.try('TRUNCATE protect_p5b') AS truncate;
RESET session_replication_role;
SELECT string_agg(k || ' ' || v, ', ' ORDER BY k) AS unchanged
FROM (SELECT * FROM protect_p1 UNION ALL SELECT * FROM protect_p2 UNION ALL SELECT * FROM protect_p3 UNION ALL SELECT * FROM protect_p4
	  UNION ALL SELECT * FROM protect_p5 UNION ALL SELECT * FROM protect_default) p;

BEGIN;
SELECT dlock_guard(:token) = :token AS guarded;
SELECT name, pg_temp.try(format('INSERT INTO %s VALUES (%s, ''guarded'')', name, k)) AS insert FROM place ORDER BY k, name::text;
SELECT pg_temp.try('UPDATE protect_p1 SET v = ''updated'' WHERE k = 1') AS update,
	   pg_temp.try('UPDATE ONLY protect_p3 SET v = ''updated''') AS update_only;
UPDATE protect_default SET k = 1001;
DELETE FROM protect_p2b;
SELECT name, pg_temp.try(format('TRUNCATE %s', name)) AS truncate FROM place WHERE name <> 'protect_p'::regclass AND k > 35 ORDER BY k, name::text;
COMMIT;
SELECT string_agg(k || ' ' || v, ', ' ORDER BY k, v) AS written
FROM (SELECT * FROM protect_p1 UNION ALL SELECT * FROM protect_p2 UNION ALL SELECT * FROM protect_p3 UNION ALL SELECT * FROM protect_p4
	  UNION ALL SELECT * FROM protect_p5 UNION ALL SELECT * FROM protect_default) p;

-- A partition's protection is the whole table's.
SELECT pg_temp.try($$SELECT dlock_unprotect('protect_p1')$$) AS of_a_partition,
	   pg_temp.try('DROP TRIGGER dlock_protect ON protect_p3') AS of_a_later_one;
SELECT pg_temp.try('DELETE FROM protect_p1') AS still;
-- One that is detached is a table like others, free or to be protected anew.
ALTER TABLE protect_p DETACH PARTITION protect_p1;
ALTER TABLE protect_p DETACH PARTITION protect_p3;
SELECT pg_temp.try('DELETE FROM protect_p1') AS detached, pg_temp.try('DELETE FROM protect_p3') AS detached_later;
SELECT dlock_protect('protect_p1', 'another');
SELECT pg_temp.try('INSERT INTO protect_p1 VALUES (1)') AS protected, pg_temp.try('TRUNCATE protect_p1') AS truncate;
SELECT dlock_unprotect('protect_p1') AS unprotected;
SELECT pg_temp.try('INSERT INTO protect_p1 VALUES (1)') AS free, pg_temp.try('TRUNCATE protect_p1') AS truncate;
ALTER TABLE protect_p ATTACH PARTITION protect_p1 FOR VALUES FROM (0) TO (10);
SELECT pg_temp.try('INSERT INTO protect_p1 VALUES (1)') AS back, pg_temp.try('TRUNCATE protect_p1') AS truncate;

-- Taken off, all of it.
SELECT dlock_unprotect('protect_p') AS unprotected, dlock_unprotect('protect_p') AS again;
SELECT count(*) AS triggers FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relname LIKE 'protect\_%' AND tgname LIKE 'dlock%';
SELECT name, pg_temp.try(format('INSERT INTO %s VALUES (%s)', name, k)) AS insert, pg_temp.try(format('TRUNCATE %s', name)) AS truncate
FROM place WHERE name NOT IN ('protect_p'::regclass, 'protect_p3'::regclass) ORDER BY k, name::text;
-- A part of it can be protected by itself.
SELECT dlock_protect('protect_p2', 'protect');
SELECT pg_temp.try('INSERT INTO protect_p VALUES (1)') AS beside, pg_temp.try('INSERT INTO protect_p VALUES (12)') AS routed,
	   pg_temp.try('INSERT INTO protect_p2a VALUES (10)') AS direct;
DROP TABLE protect_p, protect_p3;
DROP SERVER regress_dlock_server CASCADE;

--
-- Inheritance
--
CREATE TABLE protect_i (k int, v text);
CREATE TABLE protect_i1 (extra int) INHERITS (protect_i);
CREATE TABLE protect_i2 () INHERITS (protect_i1);
INSERT INTO protect_i VALUES (0);
INSERT INTO protect_i1 VALUES (1);
INSERT INTO protect_i2 VALUES (2);
SELECT dlock_protect('protect_i', 'protect');
TRUNCATE place;
INSERT INTO place VALUES ('protect_i', 0), ('protect_i1', 1), ('protect_i2', 2);
SELECT name, pg_temp.try(format('INSERT INTO %s VALUES (9)', name)) AS insert,
	   pg_temp.try(format('UPDATE %s SET v = ''unguarded''', name)) AS update,
	   pg_temp.try(format('UPDATE protect_i SET v = ''unguarded'' WHERE k = %s', k)) AS by_parent,
	   pg_temp.try(format('DELETE FROM ONLY %s', name)) AS delete,
	   pg_temp.try(format('MERGE INTO %s t USING (VALUES (%s)) s (k) ON t.k = s.k WHEN MATCHED THEN DELETE', name, k)) AS merge,
	   pg_temp.try(format('TRUNCATE ONLY %s', name)) AS truncate
FROM place ORDER BY k;
BEGIN;
SELECT dlock_guard(:token) = :token AS guarded;
SELECT name, pg_temp.try(format('INSERT INTO %s VALUES (9)', name)) AS insert,
	   pg_temp.try(format('UPDATE %s SET v = ''guarded''', name)) AS update,
	   pg_temp.try(format('UPDATE protect_i SET v = ''guarded'' WHERE k = %s', k)) AS by_parent,
	   pg_temp.try(format('DELETE FROM ONLY %s WHERE k = 9', name)) AS delete,
	   pg_temp.try(format('MERGE INTO %s t USING (VALUES (%s)) s (k) ON t.k = s.k WHEN MATCHED THEN UPDATE SET v = v || '' merged''', name, k)) AS merge
FROM place ORDER BY k;
COMMIT;
SELECT tableoid::regclass, k, v FROM protect_i ORDER BY k;
SELECT dlock_unprotect('protect_i') AS unprotected;
SELECT name, pg_temp.try(format('INSERT INTO %s VALUES (9)', name)) AS insert, pg_temp.try(format('TRUNCATE ONLY %s', name)) AS truncate
FROM place ORDER BY k;
DROP TABLE protect_i CASCADE;

--
-- Foreign keys
--
CREATE TABLE protect_order (k int PRIMARY KEY);
CREATE TABLE protect_line (k int REFERENCES protect_order ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE protect_note (k int REFERENCES protect_order ON DELETE SET NULL);
INSERT INTO protect_order VALUES (1), (2), (3), (4), (5);
INSERT INTO protect_line VALUES (1), (2);
INSERT INTO protect_note VALUES (3), (4);
SELECT dlock_protect('protect_line', 'protect'), dlock_protect('protect_note', 'another');
DELETE FROM protect_order WHERE k = 1;
UPDATE protect_order SET k = 20 WHERE k = 2;
DELETE FROM protect_order WHERE k = 3;
SET client_min_messages = warning;
TRUNCATE protect_order CASCADE;
DELETE FROM protect_order WHERE k = 5;
SELECT dlock_acquire('another') AS another \gset
BEGIN;
SELECT dlock_guard(:token) = :token AS guarded;
SELECT pg_temp.try('DELETE FROM protect_order WHERE k = 1') AS delete, pg_temp.try('UPDATE protect_order SET k = 20 WHERE k = 2') AS update,
	   pg_temp.try('DELETE FROM protect_order WHERE k = 3') AS of_the_other_lock, pg_temp.try('TRUNCATE protect_order CASCADE') AS needs_both;
SELECT dlock_guard(:another) = :another AS guarded;
SELECT pg_temp.try('DELETE FROM protect_order WHERE k = 3') AS of_the_other_lock;
SELECT (SELECT array_agg(k ORDER BY k) FROM protect_order) AS orders, (SELECT array_agg(k) FROM protect_line) AS lines,
	   (SELECT array_agg(k) FROM protect_note) AS notes;
SELECT pg_temp.try('TRUNCATE protect_order CASCADE') AS has_both;
COMMIT;
SELECT (SELECT count(*) FROM protect_order) AS orders, (SELECT count(*) FROM protect_line) AS lines, (SELECT count(*) FROM protect_note) AS notes;
RESET client_min_messages;
SELECT dlock_release(:another) AS released;
DROP TABLE protect_line, protect_note, protect_order;

--
-- What can be protected, and by whom
--
CREATE ROLE regress_dlock_owner;
CREATE ROLE regress_dlock_member IN ROLE regress_dlock_owner;
CREATE ROLE regress_dlock_writer;
CREATE SCHEMA regress_dlock_shop;
GRANT ALL ON SCHEMA regress_dlock_shop TO regress_dlock_owner;
GRANT USAGE ON SCHEMA regress_dlock_shop TO regress_dlock_writer;
SET ROLE regress_dlock_owner;
CREATE TABLE regress_dlock_shop."a ""Table""" (k int);
GRANT ALL ON regress_dlock_shop."a ""Table""" TO regress_dlock_writer;
-- Not for everybody, also not for an owner.
SELECT dlock_protect('regress_dlock_shop."a ""Table"""', 'protect');
SELECT dlock_unprotect('regress_dlock_shop."a ""Table"""');
RESET ROLE;
GRANT EXECUTE ON FUNCTION dlock_protect, dlock_unprotect TO regress_dlock_owner, regress_dlock_writer;
-- And who may call it must own the table.
SET ROLE regress_dlock_writer;
SELECT dlock_protect('regress_dlock_shop."a ""Table"""', 'protect');
SELECT dlock_unprotect('regress_dlock_shop."a ""Table"""');
-- A name with everything in it.
SET ROLE regress_dlock_member;
SELECT dlock_protect('regress_dlock_shop."a ""Table"""', E'it''s "a" \\x41\n$1 %s ''); DROP TABLE t; --');
SELECT pg_get_triggerdef(oid) AS def FROM pg_trigger WHERE tgrelid = 'regress_dlock_shop."a ""Table"""'::regclass AND tgtype & 1 = 1;
INSERT INTO regress_dlock_shop."a ""Table""" VALUES (1);
TRUNCATE regress_dlock_shop."a ""Table""";
SELECT dlock_acquire(E'it''s "a" \\x41\n$1 %s ''); DROP TABLE t; --') AS odd \gset
BEGIN;
SELECT dlock_guard(:odd) = :odd AS guarded;
INSERT INTO regress_dlock_shop."a ""Table""" VALUES (1);
TRUNCATE regress_dlock_shop."a ""Table""";
INSERT INTO regress_dlock_shop."a ""Table""" VALUES (2);
COMMIT;
TABLE regress_dlock_shop."a ""Table""";
-- Who may write but may not use the lease cannot write.
SET ROLE regress_dlock_writer;
\set VERBOSITY sqlstate
SELECT dlock_guard(:odd);
\set VERBOSITY terse
INSERT INTO regress_dlock_shop."a ""Table""" VALUES (3);
SELECT dlock_unprotect('regress_dlock_shop."a ""Table"""');
SET ROLE regress_dlock_member;
SELECT dlock_release(:odd) AS released;
SELECT dlock_unprotect('regress_dlock_shop."a ""Table"""') AS unprotected;
-- The longest name, in bytes.
SELECT dlock_protect('regress_dlock_shop."a ""Table"""', repeat('x', 255));
SELECT pg_temp.try('INSERT INTO regress_dlock_shop."a ""Table""" VALUES (4)') AS protected;
SELECT dlock_acquire(repeat('x', 255)) AS odd \gset
BEGIN;
SELECT dlock_guard(:odd) = :odd AS guarded;
SELECT pg_temp.try('INSERT INTO regress_dlock_shop."a ""Table""" VALUES (4)') AS guarded;
COMMIT;
SELECT dlock_release(:odd) AS released;
SELECT dlock_unprotect('regress_dlock_shop."a ""Table"""') AS unprotected;
-- What inherits may be another's, and its protection another one.
GRANT ALL ON regress_dlock_shop."a ""Table""" TO regress_dlock_writer;
RESET ROLE;
CREATE TABLE regress_dlock_shop.child () INHERITS (regress_dlock_shop."a ""Table""");
ALTER TABLE regress_dlock_shop.child OWNER TO regress_dlock_writer;
SET ROLE regress_dlock_writer;
SELECT dlock_protect('regress_dlock_shop.child', 'child');
SET ROLE regress_dlock_member;
SELECT dlock_unprotect('regress_dlock_shop."a ""Table"""') AS not_protected;
SELECT dlock_protect('regress_dlock_shop."a ""Table"""', 'parent');
SET ROLE regress_dlock_writer;
SELECT pg_temp.try('INSERT INTO regress_dlock_shop.child VALUES (5)') AS still_protected;
SELECT dlock_unprotect('regress_dlock_shop.child') AS unprotected;
GRANT TRIGGER ON regress_dlock_shop.child TO regress_dlock_owner;
SET ROLE regress_dlock_member;
SELECT dlock_protect('regress_dlock_shop."a ""Table"""', 'parent');
SELECT dlock_unprotect('regress_dlock_shop."a ""Table"""') AS not_its_owner;
RESET ROLE;
SELECT dlock_unprotect('regress_dlock_shop."a ""Table"""') AS unprotected;
-- Triggers that only have our names.
CREATE FUNCTION regress_dlock_shop.theirs() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER dlock_protect BEFORE INSERT ON regress_dlock_shop."a ""Table""" FOR EACH ROW EXECUTE FUNCTION regress_dlock_shop.theirs('parent');
CREATE TRIGGER dlock_protect_truncate BEFORE TRUNCATE ON regress_dlock_shop."a ""Table""" EXECUTE FUNCTION regress_dlock_shop.theirs('parent');
SELECT dlock_unprotect('regress_dlock_shop."a ""Table"""') AS not_protected;
SELECT pg_temp.try($$SELECT dlock_protect('regress_dlock_shop."a ""Table"""', 'parent')$$) AS protect;
DROP TRIGGER dlock_protect ON regress_dlock_shop."a ""Table""";
SELECT pg_temp.try($$SELECT dlock_protect('regress_dlock_shop."a ""Table"""', 'parent')$$) AS protect;
SELECT tgname, tgfoid::regproc FROM pg_trigger WHERE tgrelid = 'regress_dlock_shop."a ""Table"""'::regclass;
SET client_min_messages = warning;
DROP SCHEMA regress_dlock_shop CASCADE;
RESET client_min_messages;
REVOKE EXECUTE ON FUNCTION dlock_protect, dlock_unprotect FROM regress_dlock_owner, regress_dlock_writer;
DROP ROLE regress_dlock_owner, regress_dlock_member, regress_dlock_writer;

CREATE TABLE protect_t (k int PRIMARY KEY);
CREATE VIEW protect_view AS SELECT 1 AS k;
CREATE MATERIALIZED VIEW protect_mat AS SELECT 1 AS k;
CREATE SEQUENCE protect_seq;
CREATE TYPE protect_type AS (k int);
CREATE SERVER regress_dlock_server FOREIGN DATA WRAPPER regress_dlock_fdw;
CREATE FOREIGN TABLE protect_foreign (k int) SERVER regress_dlock_server;
SELECT name, pg_temp.try(format('SELECT dlock_protect(%L, ''protect'')', name)) AS protect,
	   pg_temp.try(format('SELECT dlock_unprotect(%L)', name)) AS unprotect
FROM unnest(ARRAY['protect_view', 'protect_mat', 'protect_seq', 'protect_type', 'protect_foreign', 'protect_t_pkey', 'protect_none']) name;
SELECT dlock_protect('protect_view', 'protect');
SELECT dlock_protect('protect_seq', 'protect');
-- Arguments.
SELECT call, pg_temp.try('SELECT ' || call) AS sqlstate
FROM unnest(ARRAY['dlock_protect(NULL, ''protect'')', 'dlock_protect(''protect_t'', NULL)', 'dlock_protect(''protect_t'', '''')',
	'dlock_protect(''protect_t'', repeat(''x'', 256))', 'dlock_unprotect(NULL)',
	'dlock_protect(''pg_class'', ''protect'')', 'dlock_protect(''dlock.lease'', ''protect'')',
	'dlock_protect(''dlock.history'', ''protect'')', 'dlock_protect(''dlock.definition'', ''protect'')']) call;
SELECT count(*) AS triggers FROM pg_trigger WHERE tgrelid = 'protect_t'::regclass;
-- Tables that are not there, and a function that is for triggers.
SELECT pg_temp.try('SELECT dlock_protect(0, ''protect'')') <> 'done' AS none, pg_temp.try('SELECT dlock_unprotect(0)') <> 'done' AS none,
	   pg_temp.try('SELECT dlock_protected()') <> 'done' AS no_trigger;
-- Temporary and unlogged tables are tables.
CREATE TEMP TABLE protect_temp (k int);
CREATE UNLOGGED TABLE protect_unlogged (k int);
SELECT dlock_protect('protect_temp', 'protect'), dlock_protect('protect_unlogged', 'protect');
SELECT pg_temp.try('INSERT INTO protect_temp VALUES (1)') AS temp, pg_temp.try('INSERT INTO protect_unlogged VALUES (1)') AS unlogged;
BEGIN;
SELECT dlock_guard(:token) = :token AS guarded;
SELECT pg_temp.try('INSERT INTO protect_temp VALUES (1)') AS temp, pg_temp.try('INSERT INTO protect_unlogged VALUES (1)') AS unlogged;
COMMIT;

-- The extension does not go while a table relies on it.
\set VERBOSITY sqlstate
DROP EXTENSION dlock;
\set VERBOSITY default
SELECT dlock_release(:token) AS released;
DROP TABLE protect_t, protect_temp, protect_unlogged;
DROP VIEW protect_view;
DROP MATERIALIZED VIEW protect_mat;
DROP SEQUENCE protect_seq;
DROP TYPE protect_type;
DROP FOREIGN DATA WRAPPER regress_dlock_fdw CASCADE;
