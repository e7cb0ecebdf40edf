-- The settings: units, ranges, who may change them.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS dlock;
RESET client_min_messages;

SELECT name, boot_val, unit, vartype, context, min_val, max_val
FROM pg_settings WHERE name LIKE 'dlock.%' ORDER BY name COLLATE "C";
SELECT name AS undescribed FROM pg_settings WHERE name LIKE 'dlock.%' AND (short_desc IS NULL OR short_desc NOT LIKE '%.');

SHOW dlock.default_ttl;
SHOW dlock.max_ttl;
SHOW dlock.history_retention;
SHOW dlock.idle_lock_retention;

-- The prefix is reserved, so that a typing error is one.
SET dlock.defaultttl = '1 min';

-- A default TTL is under the same limits as any.
\set VERBOSITY sqlstate
SET dlock.default_ttl = '9 ms';
\set VERBOSITY default
SET dlock.default_ttl = '10 ms';
SHOW dlock.default_ttl;
RESET dlock.default_ttl;
SET dlock.max_leases = 10;
