-- As with a lease, it is the client that has the row, and passes it on.
BEGIN;
UPDATE bench.hot SET n = n + 1;
COMMIT;
