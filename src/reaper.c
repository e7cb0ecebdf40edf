/*-------------------------------------------------------------------------
 *
 * reaper.c
 *	  What to end: a worker that visits one database, tidies up, and leaves.
 *
 * It ends dead leases, one a transaction, and deletes old history and idle
 * rows.  It waits for no lock, and stays for a second at the most, so that
 * DROP DATABASE, which waits for five, does not fail because of it.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "access/xact.h"
#include "libpq/pqsignal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#define STAY_MAX			UINT64CONST(1000000000) /* ns */
#define HISTORY_PER_XACT	1000
#define IDLE_PER_XACT		100 /* each takes a place in the lock table */

/* The same error is logged again after this, in µs. */
#define LOG_AGAIN_AFTER		(5 * 60 * USECS_PER_SEC)

bool		DlockIsReaper = false;

/* The database that this reaper has come to know; NULL until then. */
static DlockDatabase *visited = NULL;

PGDLLEXPORT void DlockReaperMain(Datum arg);

/*
 * Settings of a database or role must not change what we do, as autovacuum
 * has it.
 */
static void
OverrideSettings(void)
{
	static const struct
	{
		const char *name;
		const char *value;
	}			settings[] = {
		{"statement_timeout", "0"},
		{"lock_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"default_transaction_read_only", "false"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_deferrable", "false"},
		{"synchronous_commit", "off"},
		{"search_path", ""},
	};

	for (int i = 0; i < lengthof(settings); i++)
		SetConfigOption(settings[i].name, settings[i].value, PGC_SUSET, PGC_S_OVERRIDE);
	if (DLOCK_HAS_TRANSACTION_TIMEOUT)
		SetConfigOption("transaction_timeout", "0", PGC_SUSET, PGC_S_OVERRIDE);
}

/*
 * Begin a transaction with all the locks on our tables that it will need.
 * False, with the transaction still open: the extension is not here (then
 * objects->lease is invalid), or somebody has it locked.
 */
static bool
Begin(DlockObjects *objects)
{
	DlockObjects again;

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (!DlockFindObjects(objects))
	{
		objects->lease = InvalidOid;
		return false;
	}
	if (!ConditionalLockRelationOid(objects->lease, RowExclusiveLock) ||
		!ConditionalLockRelationOid(objects->history, RowExclusiveLock) ||
		!ConditionalLockRelationOid(objects->definition, AccessShareLock))
		return false;

	/* with the locks: have they been dropped, and perhaps created again? */
	return DlockFindObjects(&again) && again.lease == objects->lease &&
		again.history == objects->history;
}

static void
End(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
	(void) pgstat_report_stat(false);
	CHECK_FOR_INTERRUPTS();
}

/* End one dead lease.  Where somebody waits, it is theirs to take over. */
static bool
ReapOne(int64 token)
{
	DlockLease	lease;

	return DlockLiveFind(visited, token, &lease) &&
		!DlockQueueHasWaiters(visited, lease.name) &&
		DlockEnd(token, DLOCK_EXPIRED, NULL);
}

/*
 * Free what the map has of tables of this database that were dropped, or whose
 * creation was rolled back.  What an open transaction creates it has locked.
 */
static void
PurgeDropped(void)
{
	DlockDatabase **dbs;
	int			n;

	dbs = DlockMapDatabases(&n);
	for (int i = 0; i < n; i++)
	{
		Oid			relid = dbs[i]->key.relid;

		if (dbs[i]->key.dboid != MyDatabaseId ||
			!ConditionalLockRelationOid(relid, AccessShareLock))
			continue;
		if (!SearchSysCacheExists1(RELOID, ObjectIdGetDatum(relid)))
			DlockMapPurge(dbs[i]);
		UnlockRelationOid(relid, AccessShareLock);
	}
}

/* End what is dead, delete what is old. */
static DlockReaperReport
Reap(DlockNanos until)
{
	DlockObjects objects;
	int64	   *tokens;
	int			max;
	DlockReaperReport report = DLOCK_REAPER_DONE;
	int			n;
	bool		more;
	bool		here;

	here = Begin(&objects);
	PurgeDropped();
	if (here)
	{
		/* not behind our locks: another may adopt, and wait for somebody */
		UnlockRelationOid(objects.lease, RowExclusiveLock);
		UnlockRelationOid(objects.history, RowExclusiveLock);
		visited = DlockMapDatabase(objects.lease);
		(void) DlockOpenDatabase(&objects);
	}
	End();
	if (!here)
		return OidIsValid(objects.lease) ? DLOCK_REAPER_BLOCKED : DLOCK_REAPER_DONE;

	max = pg_atomic_read_u64(&DlockShared->entries) + 1000;
	tokens = palloc_extended(max * sizeof(int64), MCXT_ALLOC_HUGE);
	n = DlockLookTokens(visited, true, tokens, max);
	for (int i = 0; i < n; i++)
	{
		if (!Begin(&objects) || !ReapOne(tokens[i]))
			report = DLOCK_REAPER_BLOCKED;
		End();
		if (DlockNow() >= until)
			return DLOCK_REAPER_MORE;
	}

	if (DlockNow() < pg_atomic_read_u64(&visited->prune_at))
		return report;
	pg_atomic_write_u64(&visited->prune_at,
						DlockNow() + dlock_worker_naptime * DLOCK_NS_PER_MS);
	do
	{
		more = false;
		if (Begin(&objects) && dlock_history_retention >= 0)
			more = DlockPruneHistory(objects.history,
									 GetCurrentTimestamp() -
									 (int64) dlock_history_retention * USECS_PER_SEC,
									 HISTORY_PER_XACT) == HISTORY_PER_XACT;
		End();
	} while (more && DlockNow() < until);

	do
	{
		more = Begin(&objects) &&
			DlockPruneIdle(&objects, IDLE_PER_XACT) == IDLE_PER_XACT;
		End();
	} while (more && DlockNow() < until);

	if (more)
		pg_atomic_write_u64(&visited->prune_at, 0);
	return more ? DLOCK_REAPER_MORE : report;
}

/* Keep an error for dlock_databases, and log it, but not every time. */
static void
KeepError(const ErrorData *error)
{
	DlockDatabase *db = visited;
	TimestampTz now = GetCurrentTimestamp();
	char		message[DLOCK_MAX_ERROR];
	bool		news = true;

	strlcpy(message, error->message ? error->message : "unknown error", sizeof(message));
	if (db != NULL)
	{
		SpinLockAcquire(&db->mutex);
		news = strcmp(message, db->worker_last_error) != 0 ||
			now - db->worker_last_error_logged_at > LOG_AGAIN_AFTER;
		if (news)
			db->worker_last_error_logged_at = now;
		memcpy(db->worker_last_error, message, sizeof(message));
		db->worker_last_error_at = now;
		SpinLockRelease(&db->mutex);
	}
	if (news)
		EmitErrorReport();
}

void
DlockReaperMain(Datum arg)
{
	DlockReaperSlot *slot = &DlockShared->reapers[DatumGetInt32(arg)];
	uint32		generation;
	Oid			dboid;
	MemoryContext context = CurrentMemoryContext;
	volatile DlockReaperReport report = DLOCK_REAPER_FAILED;

	memcpy(&generation, MyBgworkerEntry->bgw_extra, sizeof(generation));
	SpinLockAcquire(&DlockShared->mutex);
	dboid = slot->dboid;
	if (slot->generation != generation)
		dboid = InvalidOid;
	SpinLockRelease(&DlockShared->mutex);
	if (!OidIsValid(dboid))
		proc_exit(0);			/* a launcher that is gone had asked */

	DlockIsReaper = true;
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	OverrideSettings();
	BackgroundWorkerInitializeConnectionByOid(dboid, InvalidOid, 0);
	pgstat_report_activity(STATE_RUNNING, "dlock: ending dead leases");

	PG_TRY();
	{
		report = Reap(DlockNow() + STAY_MAX);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		KeepError(error);
		FlushErrorState();
		AbortOutOfAnyTransaction();
		RESUME_INTERRUPTS();
	}
	PG_END_TRY();

	if (visited != NULL && report != DLOCK_REAPER_FAILED)
	{
		SpinLockAcquire(&visited->mutex);
		visited->worker_last_run = GetCurrentTimestamp();
		SpinLockRelease(&visited->mutex);
	}
	SpinLockAcquire(&DlockShared->mutex);
	if (slot->generation == generation)
		slot->report = report;
	SpinLockRelease(&DlockShared->mutex);
	proc_exit(0);
}
