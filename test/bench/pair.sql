-- No more round trips than dlock needs: the second pair of statements is one.
\set n :client_id * 100 + random(0, 99)
UPDATE bench.lease
	SET token = nextval('bench.token'), owner = 'client ' || :client_id,
		acquired_at = clock_timestamp(), until = clock_timestamp() + interval '30 s'
	WHERE name = :n AND (until IS NULL OR until < clock_timestamp())
	RETURNING token \gset
WITH ended AS (
	UPDATE bench.lease SET until = NULL WHERE name = :n AND token = :token
		RETURNING name, token, owner, acquired_at)
INSERT INTO bench.history SELECT *, clock_timestamp(), 'done' FROM ended;
