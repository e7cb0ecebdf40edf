-- Did the scripts do what they were measured for?
DO $$
BEGIN
	IF EXISTS (SELECT FROM dlock_stats WHERE heartbeats_lost > 0 OR guards_lost > 0) OR
		EXISTS (SELECT FROM dlock.history WHERE name NOT LIKE 'dies %' AND outcome <> 'released') THEN
		RAISE 'leases were lost, so that these figures mean nothing';
	END IF;
END
$$;
