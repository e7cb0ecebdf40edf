\set n :client_id * 100 + random(0, 99)
SELECT dlock_acquire(:n) AS token \gset
SELECT dlock_release(:token);
