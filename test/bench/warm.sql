-- Before every script, once a connection: what each of them needs in its
-- caches, so that a short run does not measure who has more to load.
\set mine :first + :client_id
\set keeper :mine + 32
\if :cold
\set cold 0
\set n :client_id * 100
SELECT dlock_heartbeat(:mine), dlock_acquire('held');
SELECT dlock_release(dlock_acquire(:n));
UPDATE bench.lease SET until = until WHERE name = :n;
INSERT INTO bench.history SELECT :n, 0, '', now(), now();
BEGIN;
SELECT dlock_guard(:mine);
SELECT FROM bench.lease WHERE name = :n FOR SHARE;
UPDATE bench.work SET n = n WHERE id = :client_id * 100;
SELECT dlock_guard(:keeper);
UPDATE bench.protected SET n = n WHERE id = :client_id * 100;
COMMIT;
\endif
