SELECT dlock_acquire('hot', wait => '60 s') AS token \gset
SELECT dlock_release(:token);
