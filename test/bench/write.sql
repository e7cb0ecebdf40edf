BEGIN;
SELECT dlock_guard(:keeper);
UPDATE bench.work SET n = n + 1 WHERE id = :client_id * 100;
COMMIT;
