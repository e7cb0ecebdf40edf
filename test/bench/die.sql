-- Take a lease, note its deadline, and never come back to it.  The clock is
-- read last, so that nothing that is too early can look as if it weren't.
\set n :client_id / 2
SELECT dlock_acquire('dies ' || :n || ' ' || :round, ttl => '100 ms', wait => '60 s') AS token \gset
INSERT INTO bench.deadline VALUES (:token, dlock_remaining(:token), clock_timestamp());
