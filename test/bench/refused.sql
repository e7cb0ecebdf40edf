SELECT dlock_acquire('held');
