\set n :client_id * 100
BEGIN;
SELECT token FROM bench.lease WHERE name = :n FOR SHARE;
UPDATE bench.work SET n = n + 1 WHERE id = :client_id * 100;
COMMIT;
