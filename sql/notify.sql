-- NOTIFY for locks that are defined with it, and for no others, since it makes
-- transactions commit one after the other.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;
LISTEN dlock;

-- None without a definition, and by default.
SELECT dlock_release(dlock_acquire('notify not')) AS released;
SELECT dlock_define('notify not', ttl => '1 min');
SELECT dlock_acquire('notify not') AS token \gset
SELECT dlock_revoke(:token, 'test') AS revoked;
SELECT dlock_undefine('notify not');

-- What psql says of one has a token and a pid in it.
SELECT dlock_define('notify', notify => true);
\pset tuples_only on
\pset format unaligned
\o | sed -e 's/"token":[0-9][0-9]*/"token":N/' -e 's/ received from server process with PID [0-9]*//'
SELECT dlock_acquire('notify', owner => 'one') AS token \gset
SELECT dlock_release(:token, 'done');
\o

-- Every way in which a lease can begin and end, each once.
\o | sed -e 's/"token":[0-9][0-9]*/"token":N/' -e 's/ received from server process with PID [0-9]*//'
SELECT dlock_acquire('notify', owner => 'revoked') AS token \gset
SELECT dlock_revoke(:token, 'make room');
SELECT dlock_acquire('notify', owner => 'both in one transaction') AS token \gset
BEGIN;
SELECT dlock_release(:token);
SELECT dlock_acquire('notify', owner => 'the next one') AS token \gset
COMMIT;
\o

-- The worker or the next grant says what was lost.
SELECT dlock_set_ttl(:token, '500 ms') AS set_ttl;
\o | sed -e 's/"token":[0-9][0-9]*/"token":N/' -e 's/ received from server process with PID [0-9]*//' -e 's/"event":"expired"/"event":"taken over"/'
SELECT dlock_acquire('notify', wait => '1 min', owner => 'one that waited') AS token \gset
\o

-- None of what is refused, asked again, renewed, or rolled back.
SELECT dlock_acquire('notify') IS NULL AS busy;
SELECT dlock_heartbeat(:token) AS heartbeat, dlock_set_ttl(:token, '1 min') AS set_ttl;
BEGIN;
SELECT dlock_release(:token) AS released;
SELECT dlock_acquire('notify') IS NOT NULL AS granted;
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT dlock_release(:token) AS released;
ROLLBACK TO a;
COMMIT;
\o | sed -e 's/"token":[0-9][0-9]*/"token":N/' -e 's/ received from server process with PID [0-9]*//'
SELECT dlock_release(:token);
\o
SELECT dlock_session_open('a session') AS session \gset
\o | sed -e 's/"token":[0-9][0-9]*/"token":N/' -e 's/ received from server process with PID [0-9]*//'
SELECT dlock_acquire('notify', session => :session, reentrant => true) AS token \gset
SELECT dlock_acquire('notify', session => :session, reentrant => true) AS token \gset
SELECT dlock_release(:token);
SELECT dlock_session_close(:session);
\o

-- JSON, whatever is in the texts.
SELECT dlock_define(E'notify "quoted" \\ \n é', notify => true);
\o | sed -e 's/"token":[0-9][0-9]*/"token":N/' -e 's/ received from server process with PID [0-9]*//'
SELECT dlock_acquire(E'notify "quoted" \\ \n é', owner => E'\t''x'' {"a": 1}, \u0001') AS token \gset
SELECT dlock_release(:token);
\o
SELECT dlock_undefine(E'notify "quoted" \\ \n é');

-- The longest name and owner, of characters that are longest in JSON, fit.
SELECT dlock_define(repeat(E'\u0001', 255), notify => true);
\o /dev/null
SELECT dlock_acquire(repeat(E'\u0001', 255), owner => repeat(E'\u0001', 1024)) AS token \gset
SELECT dlock_revoke(:token, 'test');
\o
SELECT outcome FROM dlock_history WHERE token = :token;
SELECT dlock_undefine(repeat(E'\u0001', 255));

-- What was granted with it ends as the definition says by then.
\o | sed -e 's/"token":[0-9][0-9]*/"token":N/' -e 's/ received from server process with PID [0-9]*//'
SELECT dlock_acquire('notify', owner => 'the last one') AS token \gset
\o
SELECT dlock_undefine('notify');
SELECT dlock_release(:token);
UNLISTEN dlock;
