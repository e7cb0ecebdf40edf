BEGIN;
SELECT dlock_guard(:mine);
UPDATE bench.work SET n = n + 1 WHERE id = :client_id * 100;
COMMIT;
