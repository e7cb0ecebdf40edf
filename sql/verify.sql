-- dlock_verify(): none when all is sound, whatever has happened, and one row for
-- each breach.
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS dlock;
CREATE EXTENSION dlock;
RESET client_min_messages;

SELECT * FROM dlock_verify();

--
-- Sound: after every kind of end, and in the middle of every kind of change
--
SELECT dlock_release(dlock_acquire('verify released')) AS released, dlock_release(dlock_acquire('verify released'), 'done') AS with_a_result;
SELECT dlock_acquire('verify lost', ttl => '10 ms') IS NOT NULL AS granted;
SELECT FROM pg_sleep(0.05);
SELECT * FROM dlock_verify();
SELECT dlock_acquire('verify lost', ttl => '10 ms') IS NOT NULL AS taken_over;
SELECT FROM pg_sleep(0.05);
SELECT dlock_release(dlock_acquire('verify lost')) AS and_again;
SELECT dlock_revoke(dlock_acquire('verify revoked'), 'test') AS revoked;
SELECT dlock_acquire('verify grace') AS grace \gset
SELECT dlock_revoke(:grace, 'test', grace => '1 hour') AS revoked;
SELECT * FROM dlock_verify();
SELECT dlock_release(:grace) AS released;
SELECT dlock_revoke(dlock_acquire('verify grace'), 'test', grace => '10 ms') AS revoked;
SELECT FROM pg_sleep(0.05);
SELECT dlock_release(dlock_acquire('verify grace')) AS after_the_grace;
-- at rest
SELECT dlock_release(dlock_acquire('verify rest', min_hold => '1 hour')) AS released;
SELECT dlock_define('verify delayed', takeover_delay => '1 hour');
SELECT dlock_acquire('verify delayed', ttl => '10 ms') IS NOT NULL AS granted;
SELECT FROM pg_sleep(0.05);
SELECT * FROM dlock_verify();
-- without history
SELECT dlock_define('verify silent', history => false);
SELECT dlock_release(dlock_acquire('verify silent')) AS released, dlock_acquire('verify silent') IS NOT NULL AS held;
-- permits, of which some are lost
SELECT count(dlock_acquire('verify permits', capacity => 3, ttl => CASE n WHEN 2 THEN interval '10 ms' END)) AS permits FROM generate_series(1, 4) n;
SELECT FROM pg_sleep(0.05);
SELECT count(dlock_acquire('verify permits', capacity => 3)) AS permits FROM generate_series(1, 2);
-- readers, more than one; then a definition that allows less than are held
SELECT count(dlock_acquire('verify readers', share => 'read')) AS readers FROM generate_series(1, 5);
SELECT dlock_define('verify permits', capacity => 1);
SELECT dlock_acquire('verify permits') IS NULL AS busy;
SELECT * FROM dlock_verify();
SELECT count(*) FILTER (WHERE dlock_release(token)) AS released FROM dlock_holders('verify permits');
SELECT dlock_acquire('verify permits') IS NOT NULL AS granted;
-- sessions, closed, expired and disconnected
SELECT dlock_session_open() AS session \gset
SELECT dlock_acquire('verify session', session => :session, reentrant => true) AS token \gset
SELECT dlock_acquire('verify session', session => :session, reentrant => true) = :token AS reentered;
SELECT dlock_release(:token) AS one_of_two;
SELECT * FROM dlock_verify();
SELECT dlock_session_close(:session) AS closed;
SELECT dlock_session_open(ttl => '10 ms') AS session \gset
SELECT dlock_acquire('verify session lost', session => :session) IS NOT NULL AS granted;
SELECT dlock_session_open(on_disconnect => 'release') AS session \gset
SELECT dlock_acquire('verify disconnected', session => :session) IS NOT NULL AS granted;
SELECT * FROM dlock_verify();
\c -
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM dlock_holders('verify disconnected') WHERE state = 'held') LOOP
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$;
SELECT FROM pg_sleep(0.05);
SELECT dlock_release(dlock_acquire('verify disconnected')) AS disconnected, dlock_release(dlock_acquire('verify session lost')) AS session_lost;
-- rolled back, in a savepoint, twice in one transaction
BEGIN;
SELECT dlock_acquire('verify tx') AS token \gset
SELECT * FROM dlock_verify();
ROLLBACK;
BEGIN;
SELECT dlock_acquire('verify tx') AS token \gset
SELECT dlock_release(:token) AS released;
SELECT * FROM dlock_verify();
SAVEPOINT a;
SELECT dlock_acquire('verify tx') IS NOT NULL AS granted;
SELECT * FROM dlock_verify();
ROLLBACK TO a;
SELECT dlock_acquire('verify tx') AS token \gset
SELECT * FROM dlock_verify();
COMMIT;
BEGIN;
SELECT dlock_release(:token) AS released, dlock_acquire('verify tx') AS token \gset
SELECT dlock_guard(:token) = :token AS guarded;
SELECT * FROM dlock_verify();
ROLLBACK;
SELECT * FROM dlock_verify();
SELECT DISTINCT CASE WHEN outcome IN ('expired', 'taken over') THEN 'lost' ELSE outcome END AS outcome FROM dlock_history ORDER BY 1;
-- in every kind of transaction, and it writes nothing
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE;
SELECT count(*) AS breaches FROM dlock_verify();
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) AS breaches FROM dlock_verify();
SELECT dlock_release(dlock_acquire('verify later')) AS released, dlock_acquire('verify later') IS NOT NULL AS held;
SELECT count(*) AS breaches FROM dlock_verify();
COMMIT;
BEGIN;
SELECT count(*) AS breaches FROM dlock_verify();
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
SELECT count(*) AS tags FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
COMMIT;

-- For whom it is granted, who need not be able to read anything.
CREATE ROLE regress_dlock_auditor;
SET ROLE regress_dlock_auditor;
SELECT * FROM dlock_verify();
RESET ROLE;
GRANT EXECUTE ON FUNCTION dlock_verify TO regress_dlock_auditor;
SET ROLE regress_dlock_auditor;
SELECT count(*) AS breaches FROM dlock_verify();
SELECT count(*) FROM dlock_leases;
RESET ROLE;
REVOKE EXECUTE ON FUNCTION dlock_verify FROM regress_dlock_auditor;

--
-- Breaches, made by a superuser, each in a transaction that is rolled back
--
SELECT dlock_acquire('breach') AS token \gset
SELECT dlock_acquire('breach other') AS other \gset
SELECT dlock_release(dlock_acquire('breach free')) AS released;
SELECT token AS freed FROM dlock_history WHERE name = 'breach free' \gset
-- Both sides of a mismatch name the token that they know.
CREATE FUNCTION pg_temp.who(t bigint, token bigint, other bigint, freed bigint) RETURNS text LANGUAGE sql AS $$
	SELECT CASE t WHEN token THEN 'token' WHEN other THEN 'other' WHEN freed THEN 'freed' WHEN token + 1000000 THEN 'future' ELSE 'made up' END
$$;
\set verify 'SELECT breach, name, pg_temp.who(token, ' :token ', ' :other ', ' :freed ') AS token FROM dlock_verify() ORDER BY 1, 2, 3;'

-- A held row that memory knows nothing of, or knows as another lock's.
BEGIN;
ALTER TABLE dlock.lease DISABLE TRIGGER ALL;
INSERT INTO dlock.lease SELECT 'breach ghost', slot, 1, role, owner, why, share, capacity, session, session_ttl, session_pid, holds, ttl, min_hold, waited,
	acquired_at, ended_at, rests_until, rests_for, revoke_grace, revoke_why, revoked_by FROM dlock.lease WHERE token = :token;
:verify
UPDATE dlock.lease SET token = :token WHERE name = 'breach ghost';
:verify
ROLLBACK;
-- A free row that was held by what has ended.
BEGIN;
ALTER TABLE dlock.lease DISABLE TRIGGER ALL;
UPDATE dlock.lease SET ended_at = NULL WHERE name = 'breach free';
:verify
ROLLBACK;
-- A row is free, gone, or another lease's, and memory says held.
BEGIN;
ALTER TABLE dlock.lease DISABLE TRIGGER ALL;
UPDATE dlock.lease SET ended_at = now() WHERE token = :token;
:verify
ROLLBACK;
BEGIN;
ALTER TABLE dlock.lease DISABLE TRIGGER ALL;
DELETE FROM dlock.lease WHERE token IN (:token, :freed);
:verify
ROLLBACK;
BEGIN;
ALTER TABLE dlock.lease DISABLE TRIGGER ALL;
UPDATE dlock.lease SET token = 1 WHERE token = :token;
:verify
ROLLBACK;
BEGIN;
ALTER TABLE dlock.lease DISABLE TRIGGER ALL;
UPDATE dlock.lease SET slot = 7 WHERE token = :token;
:verify
ROLLBACK;
BEGIN;
ALTER TABLE dlock.lease DISABLE TRIGGER ALL;
UPDATE dlock.lease SET name = name || ' renamed' WHERE token = :token;
:verify
ROLLBACK;
-- A lease that began before the one before it ended: both over, or one held.
BEGIN;
INSERT INTO dlock.history SELECT name, token - 1, owner, role, share, why, acquired_at - interval '1 min', ended_at - interval '1 us', outcome, result, waited,
	heartbeats, refused, last_refused_at, ended_by, slot FROM dlock.history WHERE token = :freed;
:verify
SELECT detail LIKE 'it begins at %, and lease ' || :freed - 1 || ' before it ended at %' AS detail FROM dlock_verify() WHERE breach = 'overlap';
UPDATE dlock.history SET ended_at = acquired_at + interval '30 s' WHERE token = :freed - 1;
:verify
ROLLBACK;
BEGIN;
INSERT INTO dlock.history SELECT l.name, l.token - 1, h.owner, h.role, h.share, h.why, l.acquired_at - interval '1 s', l.acquired_at + interval '1 us', h.outcome, h.result,
	h.waited, h.heartbeats, h.refused, h.last_refused_at, h.ended_by, l.slot FROM dlock.history h, dlock.lease l WHERE h.token = :freed AND l.token = :token;
:verify
UPDATE dlock.history SET ended_at = ended_at - interval '1 us' WHERE token = :token - 1;
:verify
ROLLBACK;
-- Other slots of a lock don't matter.
BEGIN;
INSERT INTO dlock.history SELECT name, token - 1, owner, role, share, why, acquired_at - interval '1 min', ended_at + interval '1 hour', outcome, result, waited,
	heartbeats, refused, last_refused_at, ended_by, slot + 1 FROM dlock.history WHERE token = :freed;
:verify
ROLLBACK;
-- A token that ended twice.
BEGIN;
INSERT INTO dlock.history SELECT * FROM dlock.history WHERE token = :freed;
SELECT breach, name, detail, pg_temp.who(token, :token, :other, :freed) AS token FROM dlock_verify() WHERE breach <> 'overlap';
ROLLBACK;
-- Under another name too.
BEGIN;
INSERT INTO dlock.history SELECT 'breach elsewhere', token, owner, role, share, why, acquired_at, ended_at, outcome, result, waited,
	heartbeats, refused, last_refused_at, ended_by, slot FROM dlock.history WHERE token = :freed;
:verify
ROLLBACK;
-- A lease that is held and has ended.
BEGIN;
INSERT INTO dlock.history SELECT l.name, l.token, h.owner, h.role, h.share, h.why, l.acquired_at, l.acquired_at, h.outcome, h.result,
	h.waited, h.heartbeats, h.refused, h.last_refused_at, h.ended_by, l.slot FROM dlock.history h, dlock.lease l WHERE h.token = :freed AND l.token = :token;
:verify
ROLLBACK;
-- A token of the future; a sequence that was set back; an order that is none.
BEGIN;
INSERT INTO dlock.history SELECT name, :token + 1000000, owner, role, share, why, now(), now(), outcome, result, waited,
	heartbeats, refused, last_refused_at, ended_by, slot + 1 FROM dlock.history WHERE token = :freed;
:verify
ROLLBACK;
BEGIN;
SELECT last_value AS last_value FROM dlock.token_seq \gset
SELECT setval('dlock.token_seq', :other - 1) = :other - 1 AS set_back;
SELECT DISTINCT breach FROM dlock_verify();
SELECT count(*) AS tokens FROM dlock_verify() WHERE token IN (:other, :freed);
ROLLBACK;
SELECT setval('dlock.token_seq', :last_value) = :last_value AS set_again;
BEGIN;
INSERT INTO dlock.history SELECT l.name, :other, h.owner, h.role, h.share, h.why, l.acquired_at - interval '2 s', l.acquired_at - interval '1 s', h.outcome, h.result,
	h.waited, h.heartbeats, h.refused, h.last_refused_at, h.ended_by, l.slot FROM dlock.history h, dlock.lease l WHERE h.token = :freed AND l.token = :token;
:verify
ROLLBACK;
SELECT * FROM dlock_verify();
SELECT dlock_heartbeat(:token) AS heartbeat, dlock_heartbeat(:other) AS other;

-- More leases than there may be, as if the table had been written to while the
-- server was down.
CREATE TEMP TABLE lease AS SELECT * FROM dlock.lease WHERE token IN (:token, :other);
BEGIN;
SET LOCAL client_min_messages = warning;
DROP EXTENSION dlock;
CREATE EXTENSION dlock;
SELECT setval('dlock.token_seq', :other) = :other AS set;
ALTER TABLE dlock.lease DISABLE TRIGGER ALL;
INSERT INTO dlock.lease SELECT * FROM lease WHERE token = :token;
UPDATE lease SET name = 'breach', slot = 1 WHERE token = :other;
INSERT INTO dlock.lease SELECT * FROM lease WHERE token = :other;
SELECT breach, name, detail, pg_temp.who(token, :token, :other, :freed) AS token FROM dlock_verify();
ROLLBACK;
-- With room for two it is sound, as it is for two of one group.
BEGIN;
SET LOCAL client_min_messages = warning;
DROP EXTENSION dlock;
CREATE EXTENSION dlock;
SELECT setval('dlock.token_seq', :other) = :other AS set;
ALTER TABLE dlock.lease DISABLE TRIGGER ALL;
UPDATE lease SET name = 'breach permits', slot = (token = :other)::int, capacity = 2;
INSERT INTO dlock.lease SELECT * FROM lease;
UPDATE lease SET name = 'breach readers', token = token - 100, capacity = 1, share = 'read';
INSERT INTO dlock.lease SELECT * FROM lease;
SELECT * FROM dlock_verify();
SELECT name, state, capacity, share FROM dlock_leases ORDER BY name, token;
ROLLBACK;
-- A reader beside a writer.
BEGIN;
SET LOCAL client_min_messages = warning;
DROP EXTENSION dlock;
CREATE EXTENSION dlock;
SELECT setval('dlock.token_seq', :other) = :other AS set;
ALTER TABLE dlock.lease DISABLE TRIGGER ALL;
UPDATE lease SET name = 'breach', slot = (token = :other)::int, share = CASE token WHEN :token THEN 'read' END;
INSERT INTO dlock.lease SELECT * FROM lease;
SELECT breach, name, detail FROM dlock_verify();
ROLLBACK;
SELECT * FROM dlock_verify();
DROP TABLE lease;
DROP ROLE regress_dlock_auditor;
SELECT count(*) FILTER (WHERE dlock_release(token)) > 0 AS released FROM dlock_leases WHERE state = 'held';
SELECT * FROM dlock_verify();
