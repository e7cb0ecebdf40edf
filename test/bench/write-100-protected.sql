BEGIN;
SELECT dlock_guard(:keeper);
UPDATE bench.protected SET n = n + 1 WHERE id BETWEEN :client_id * 100 AND :client_id * 100 + 99;
COMMIT;
