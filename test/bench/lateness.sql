-- From the deadline of a lease to the moment when its lock's first waiter
-- took it over, by the server's clock, and to the moment when that had been
-- committed, which is when the next lease's time began.
--
-- The deadline is taken at its latest, so that nothing early looks on time;
-- and those that are not known to 50 microseconds are left out, so that
-- nothing looks early because a process had to wait for its processor.
\echo
WITH lease AS (
	SELECT name, token, acquired_at, later + remaining AS deadline,
		later - earlier < interval '50 us' AS known
	FROM dlock.history LEFT JOIN bench.deadline USING (token)
	WHERE name LIKE 'dies %'
), takeover AS (
	SELECT extract(epoch FROM lead(acquired_at) OVER next - deadline) * 1000 AS decided,
		extract(epoch FROM lead(deadline) OVER next - interval '100 ms' - deadline) * 1000 AS committed,
		known AND lead(known) OVER next AS known
	FROM lease WINDOW next AS (PARTITION BY name ORDER BY token)
)
SELECT format('Takeover after a deadline, ms (%s times): earliest %s, median %s, p99 %s; committed: median %s, p99 %s',
	count(decided), round(min(decided), 2),
	round(percentile_disc(0.5) WITHIN GROUP (ORDER BY decided), 2),
	round(percentile_disc(0.99) WITHIN GROUP (ORDER BY decided), 2),
	round(percentile_disc(0.5) WITHIN GROUP (ORDER BY committed), 2),
	round(percentile_disc(0.99) WITHIN GROUP (ORDER BY committed), 2))
FROM takeover WHERE known;
