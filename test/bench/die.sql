-- Take a lease, note its deadline, and never come back to it.
\set n :client_id / 2
SELECT dlock_acquire('dies ' || :n || ' ' || :round, ttl => '100 ms', wait => '60 s') AS token \gset
INSERT INTO bench.deadline VALUES (:token, clock_timestamp(), dlock_remaining(:token), clock_timestamp());
