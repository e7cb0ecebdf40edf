SELECT dlock_heartbeat(:mine);
