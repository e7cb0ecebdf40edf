-- What test/bench/run measures: leases, and their hand-written rivals.

CREATE EXTENSION IF NOT EXISTS dlock;

CREATE SCHEMA bench;

-- As one would write it by hand: a row a lock, a fencing token, a history.
CREATE TABLE bench.lease (
	name text COLLATE "C" PRIMARY KEY,
	token bigint,
	owner text,
	acquired_at timestamptz,
	until timestamptz			-- NULL: free
) WITH (fillfactor = 60);

CREATE TABLE bench.history (
	name text COLLATE "C" NOT NULL,
	token bigint NOT NULL,
	owner text NOT NULL,
	acquired_at timestamptz NOT NULL,
	ended_at timestamptz NOT NULL,
	result text
);
CREATE INDEX ON bench.history (name, acquired_at);

CREATE SEQUENCE bench.token;

-- 100 names for each of 32 clients, and as many locks.
INSERT INTO bench.lease SELECT n FROM generate_series(0, 3199) n;

DO $$
BEGIN
	FOR n IN 0 .. 3199 LOOP
		PERFORM dlock_release(dlock_acquire(n::text));
		COMMIT;
	END LOOP;
END
$$;

-- Work under a lease: 100 rows a client, in pages of its own.  And the same in
-- a table that is protected.
CREATE TABLE bench.work (id int PRIMARY KEY, n int) WITH (fillfactor = 10);
INSERT INTO bench.work SELECT id, 0 FROM generate_series(0, 3199) id;
CREATE TABLE bench.protected (id int PRIMARY KEY, n int) WITH (fillfactor = 10);
INSERT INTO bench.protected SELECT id, 0 FROM generate_series(0, 3199) id;
SELECT dlock_protect('bench.protected', 'protected') AS ok \gset

-- One row that everybody wants.
CREATE TABLE bench.hot (n int) WITH (fillfactor = 10);
INSERT INTO bench.hot VALUES (0);

-- How long leases that are left to die had, at a moment between two.
CREATE TABLE bench.deadline (token bigint, earlier timestamptz, remaining interval, later timestamptz);

VACUUM ANALYZE bench.lease, bench.work, bench.protected, bench.hot, dlock.lease;

-- Leases that are held throughout: one that is refused to everybody, a lock and
-- a permit to write for each of 32 clients.  Tokens are consecutive; the result is
-- the first.
SELECT dlock_acquire('held', ttl => '1 day') > 0 AS held \gset
SELECT min(CASE WHEN n < 32 THEN dlock_acquire('mine ' || n, ttl => '1 day')
	ELSE dlock_acquire('protected', capacity => 32, ttl => '1 day') END)
FROM generate_series(0, 63) n;
