/*-------------------------------------------------------------------------
 *
 * views.c
 *	  The functions behind the views, and dlock_holders().
 *
 * Rows are read one at a time by their key with SnapshotSelf, and the map one
 * entry at a time, so that a view takes no predicate locks and stops nobody.
 * What it shows is each lease as of the moment that it came to it.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(dlock_holders);
PG_FUNCTION_INFO_V1(dlock_leases);
PG_FUNCTION_INFO_V1(dlock_waiters);
PG_FUNCTION_INFO_V1(dlock_locks);
PG_FUNCTION_INFO_V1(dlock_history);
PG_FUNCTION_INFO_V1(dlock_stats);
PG_FUNCTION_INFO_V1(dlock_databases);

/* The word for a state, as the views say it. */
static const char *
StateText(DlockState state)
{
	static const char *const texts[] = {
		"pending", "held", "revoking", "expired", "min_hold", "delayed"
	};

	return texts[state];
}

/* May the caller see who has this lease, and why? */
static bool
MaySee(Oid role)
{
	return DlockMayUse(role) ||
		has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
}

/*
 * The lease and its row, for a token that the map had a moment ago.  False
 * when it is over by now.  *has_row is false for a pending lease of another
 * transaction, whose row cannot be seen yet.
 */
static bool
FindLeaseAndRow(DlockDatabase *db, Relation rel, int64 token,
				DlockLease *lease, DlockRow *row, bool *has_row)
{
	if (!DlockLiveFind(db, token, lease) ||
		lease->state == DLOCK_STATE_OVER || lease->ended_by_me)
		return false;

	*has_row = DlockFetchRow(rel, lease->name, strlen(lease->name), lease->slot, row) &&
		DlockRowToken(row) == token;
	return true;
}

/* Columns of a row, or NULL when it cannot be seen. */
static void
SetColumn(Datum *values, bool *nulls, int column, const DlockRow *row,
		  bool has_row, int att)
{
	nulls[column] = !has_row || DlockRowIsNull(row, att);
	values[column] = nulls[column] ? (Datum) 0 : DlockRowValue(row, att);
}

Datum
dlock_holders(PG_FUNCTION_ARGS)
{
	enum
	{
		COL_TOKEN, COL_OWNER, COL_WHY, COL_ACQUIRED_AT, COL_REMAINING,
		COL_STATE, NUM_COLS
	};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	DlockObjects objects;
	DlockDatabase *db = DlockOpenDatabase(&objects);
	int			max = 64;
	int			n = 0;
	int64	   *tokens;
	const char *name = DlockArgName(fcinfo, 0);
	Relation	rel;

	InitMaterializedSRF(fcinfo, 0);
	for (;;)
	{
		tokens = palloc_array(int64, max);
		n = DlockLookHolders(db, name, strlen(name), tokens, max);
		if (n < max)
			break;
		max *= 2;
	}
	if (n == 0)
		return (Datum) 0;

	rel = DlockOpenTable(objects.lease, AccessShareLock, Natts_lease);
	for (int i = 0; i < n; i++)
	{
		DlockLease	lease;
		DlockRow	row;
		bool		has_row;
		Datum		values[NUM_COLS];
		bool		nulls[NUM_COLS];

		if (!FindLeaseAndRow(db, rel, tokens[i], &lease, &row, &has_row))
			continue;
		memset(nulls, false, sizeof(nulls));
		values[COL_TOKEN] = Int64GetDatum(lease.token);
		SetColumn(values, nulls, COL_OWNER, &row, has_row && MaySee(lease.role),
				  Anum_lease_owner);
		SetColumn(values, nulls, COL_WHY, &row, has_row && MaySee(lease.role),
				  Anum_lease_why);
		SetColumn(values, nulls, COL_ACQUIRED_AT, &row, has_row,
				  Anum_lease_acquired_at);
		values[COL_REMAINING] = DlockIntervalDatum(lease.remaining);
		values[COL_STATE] = CStringGetTextDatum(StateText(lease.state));
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}

/* The pids that guard a lease, as an array, or NULL for none. */
static Datum
GuardPids(LockData *locks, const DlockLease *lease, bool *isnull)
{
	uint64		namehash = DlockHashName(lease->name, strlen(lease->name));
	Datum	   *pids = palloc_array(Datum, locks->nelements + 1);
	int			n = 0;

	for (int i = 0; i < locks->nelements; i++)
	{
		if (DlockLockIsOnSlot(&locks->locks[i], namehash, lease->slot))
			pids[n++] = Int32GetDatum(locks->locks[i].pid);
	}
	*isnull = (n == 0);
	if (n == 0)
		return (Datum) 0;
	return PointerGetDatum(construct_array(pids, n, INT4OID, 4, true, TYPALIGN_INT));
}

Datum
dlock_leases(PG_FUNCTION_ARGS)
{
	enum
	{
		COL_NAME, COL_TOKEN, COL_STATE, COL_PID, COL_GUARD_PIDS, COL_OWNER,
		COL_ROLE, COL_SHARE, COL_CAPACITY, COL_SESSION, COL_WHY,
		COL_ACQUIRED_AT, COL_TTL, COL_REMAINING, COL_HEARTBEATS,
		COL_LAST_HEARTBEAT_AT, COL_HOLDS, COL_REFUSED, COL_LAST_REFUSED_AT,
		NUM_COLS
	};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	DlockObjects objects;
	DlockDatabase *db = DlockOpenDatabase(&objects);
	LockData   *locks;
	int64	   *tokens;
	int			max;
	int			n;
	Relation	rel;
	MemoryContext context;

	InitMaterializedSRF(fcinfo, 0);

	/* as many as there are now, and some that may come meanwhile */
	max = pg_atomic_read_u64(&DlockShared->entries) + 1000;
	tokens = palloc_extended(max * sizeof(int64), MCXT_ALLOC_HUGE);
	n = DlockLookTokens(db, false, tokens, max);

	locks = DlockGuardLocks();
	context = AllocSetContextCreate(CurrentMemoryContext, "dlock leases",
									ALLOCSET_DEFAULT_SIZES);
	rel = DlockOpenTable(objects.lease, AccessShareLock, Natts_lease);
	for (int i = 0; i < n; i++)
	{
		DlockLease	lease;
		DlockRow	row;
		bool		has_row;
		Datum		values[NUM_COLS];
		bool		nulls[NUM_COLS];
		MemoryContext old = MemoryContextSwitchTo(context);

		CHECK_FOR_INTERRUPTS();
		if (FindLeaseAndRow(db, rel, tokens[i], &lease, &row, &has_row) &&
			MaySee(lease.role))
		{
			memset(nulls, false, sizeof(nulls));
			values[COL_NAME] = CStringGetTextDatum(lease.name);
			values[COL_TOKEN] = Int64GetDatum(lease.token);
			values[COL_STATE] = CStringGetTextDatum(StateText(lease.state));
			nulls[COL_PID] = (lease.pid == 0);
			values[COL_PID] = Int32GetDatum(lease.pid);
			values[COL_GUARD_PIDS] = GuardPids(locks, &lease, &nulls[COL_GUARD_PIDS]);
			SetColumn(values, nulls, COL_OWNER, &row, has_row, Anum_lease_owner);
			values[COL_ROLE] = ObjectIdGetDatum(lease.role);
			SetColumn(values, nulls, COL_SHARE, &row, has_row, Anum_lease_share);
			values[COL_CAPACITY] = Int32GetDatum(lease.capacity);
			SetColumn(values, nulls, COL_SESSION, &row, has_row, Anum_lease_session);
			SetColumn(values, nulls, COL_WHY, &row, has_row, Anum_lease_why);
			SetColumn(values, nulls, COL_ACQUIRED_AT, &row, has_row,
					  Anum_lease_acquired_at);
			values[COL_TTL] = DlockIntervalDatum(lease.ttl);
			values[COL_REMAINING] = DlockIntervalDatum(lease.remaining);
			values[COL_HEARTBEATS] = Int64GetDatum(lease.heartbeats);
			nulls[COL_LAST_HEARTBEAT_AT] = lease.heartbeats == 0 ||
				lease.state != DLOCK_STATE_HELD;
			values[COL_LAST_HEARTBEAT_AT] =
				TimestampTzGetDatum(GetCurrentTimestamp() - lease.since_heartbeat);
			SetColumn(values, nulls, COL_HOLDS, &row, has_row, Anum_lease_holds);
			values[COL_REFUSED] = Int64GetDatum(lease.refused);
			nulls[COL_LAST_REFUSED_AT] = (lease.last_refused_at == 0);
			values[COL_LAST_REFUSED_AT] = TimestampTzGetDatum(lease.last_refused_at);
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		}
		MemoryContextSwitchTo(old);
		MemoryContextReset(context);
	}
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}

/* Add a pid to an array, unless it is none or there already. */
static void
AddPid(Datum *pids, int *n, int max, int pid)
{
	for (int i = 0; i < *n; i++)
	{
		if (DatumGetInt32(pids[i]) == pid)
			return;
	}
	if (pid != 0 && *n < max)
		pids[(*n)++] = Int32GetDatum(pid);
}

/*
 * The backends that a waiter waits for: those of the leases in its way, of the
 * transactions that hold on to these, and of earlier waiters.
 */
static Datum
BlockedBy(DlockDatabase *db, const DlockWaiter *waiters, int me, LockData *locks)
{
	enum
	{
		MAX_BLOCKERS = 256, MAX_PIDS = 1024
	};
	DlockBlocker blockers[MAX_BLOCKERS];
	Datum		pids[MAX_PIDS];
	DlockRequest request;
	int			nblockers;
	int			n = 0;

	DlockWaiterRequest(&waiters[me], &request);
	nblockers = DlockLookBlockers(db, &request, blockers, MAX_BLOCKERS);
	for (int i = 0; i < nblockers; i++)
	{
		AddPid(pids, &n, MAX_PIDS, blockers[i].pid);
		AddPid(pids, &n, MAX_PIDS, blockers[i].ender);
		for (int j = 0; j < locks->nelements; j++)
		{
			if (DlockLockIsOnSlot(&locks->locks[j], waiters[me].namehash, blockers[i].slot))
				AddPid(pids, &n, MAX_PIDS, locks->locks[j].pid);
		}
	}
	for (int i = 0; i < me; i++)
	{
		if (strcmp(waiters[i].name, waiters[me].name) == 0 &&
			DlockWaitersExclude(&waiters[i], &waiters[me]))
			AddPid(pids, &n, MAX_PIDS, waiters[i].pid);
	}
	return PointerGetDatum(construct_array(pids, n, INT4OID, 4, true, TYPALIGN_INT));
}

Datum
dlock_waiters(PG_FUNCTION_ARGS)
{
	enum
	{
		COL_NAME, COL_PID, COL_OWNER, COL_SHARE, COL_POSITION,
		COL_WAITING_SINCE, COL_GIVES_UP_AT, COL_BLOCKED_BY, NUM_COLS
	};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	DlockObjects objects;
	DlockDatabase *db = DlockOpenDatabase(&objects);
	DlockWaiter *waiters;
	LockData   *locks;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	waiters = DlockQueueCopy(db, &n);
	locks = DlockGuardLocks();
	for (int i = 0; i < n; i++)
	{
		Datum		values[NUM_COLS];
		bool		nulls[NUM_COLS];
		int			position = 1;

		if (!MaySee(waiters[i].role))
			continue;
		for (int j = 0; j < i; j++)
		{
			if (strcmp(waiters[j].name, waiters[i].name) == 0)
				position++;
		}
		memset(nulls, false, sizeof(nulls));
		values[COL_NAME] = CStringGetTextDatum(waiters[i].name);
		values[COL_PID] = Int32GetDatum(waiters[i].pid);
		values[COL_OWNER] = CStringGetTextDatum(waiters[i].owner);
		nulls[COL_SHARE] = (waiters[i].share[0] == '\0');
		values[COL_SHARE] = CStringGetTextDatum(waiters[i].share);
		values[COL_POSITION] = Int32GetDatum(position);
		values[COL_WAITING_SINCE] = TimestampTzGetDatum(waiters[i].since);
		values[COL_GIVES_UP_AT] = TimestampTzGetDatum(waiters[i].gives_up_at);
		values[COL_BLOCKED_BY] = BlockedBy(db, waiters, i, locks);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* Definitions, each beside what is held and waited for now. */
Datum
dlock_locks(PG_FUNCTION_ARGS)
{
	enum
	{
		COL_NAME, COL_CAPACITY, COL_TTL, COL_MIN_HOLD, COL_TAKEOVER_DELAY,
		COL_ROLE, COL_NOTIFY, COL_HISTORY, NUM_DEFINED,
		COL_HELD = NUM_DEFINED, COL_WAITING, NUM_COLS
	};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	DlockObjects objects;
	DlockDatabase *db = DlockOpenDatabase(&objects);
	DlockWaiter *waiters;
	int64	   *tokens;
	int			max;
	int			nwaiters;
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	tuple;

	InitMaterializedSRF(fcinfo, 0);
	waiters = DlockQueueCopy(db, &nwaiters);
	max = pg_atomic_read_u64(&DlockShared->entries) + 1000;
	tokens = palloc_extended(max * sizeof(int64), MCXT_ALLOC_HUGE);

	rel = DlockOpenTable(objects.definition, AccessShareLock, DLOCK_DEFINITION_NATTS);
	scan = systable_beginscan(rel, InvalidOid, false, SnapshotSelf, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		DlockDefinition definition;
		Datum		values[NUM_COLS];
		bool		nulls[NUM_COLS];
		char	   *name;
		int			n;
		int			held = 0;
		int			waiting = 0;

		DlockReadDefinition(rel, tuple, &definition);
		if (OidIsValid(definition.role) && !MaySee(definition.role))
			continue;
		memset(nulls, false, sizeof(nulls));
		heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
		name = TextDatumGetCString(values[COL_NAME]);

		n = DlockLookHolders(db, name, strlen(name), tokens, max);
		for (int i = 0; i < n; i++)
		{
			DlockLease	lease;

			if (DlockLiveFind(db, tokens[i], &lease) && DlockLeaseIsAlive(&lease))
				held++;
		}
		for (int i = 0; i < nwaiters; i++)
			waiting += (strcmp(waiters[i].name, name) == 0);
		values[COL_HELD] = Int32GetDatum(held);
		values[COL_WAITING] = Int32GetDatum(waiting);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}

/* Works on a standby too: history is a table, and nothing else. */
Datum
dlock_history(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	DlockObjects objects;
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	tuple;
	Oid			role = InvalidOid;
	bool		may_see = false;
	Datum		values[DLOCK_HISTORY_NATTS];
	bool		nulls[DLOCK_HISTORY_NATTS];

	DlockRequirePreloaded();
	InitMaterializedSRF(fcinfo, 0);
	if (!DlockFindObjects(&objects))
		return (Datum) 0;

	rel = DlockOpenTable(objects.history, AccessShareLock, DLOCK_HISTORY_NATTS);
	scan = systable_beginscan(rel, InvalidOid, false, SnapshotSelf, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		bool		isnull;
		Oid			of = DatumGetObjectId(heap_getattr(tuple, DLOCK_HISTORY_ROLE,
													   RelationGetDescr(rel), &isnull));

		CHECK_FOR_INTERRUPTS();
		if (of != role)
		{
			role = of;
			may_see = MaySee(role);
		}
		if (may_see)
		{
			/* the view has all columns but the last */
			heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		}
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}

Datum
dlock_stats(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	DlockObjects objects;
	DlockDatabase *db = DlockOpenDatabase(&objects);
	Datum		values[DLOCK_NUM_COUNTERS];
	bool		nulls[DLOCK_NUM_COUNTERS];

	InitMaterializedSRF(fcinfo, 0);
	memset(nulls, false, sizeof(nulls));
	for (int i = 0; i < DLOCK_NUM_COUNTERS; i++)
	{
		uint64		count = pg_atomic_read_u64(&db->counters[i]);

		values[i] = i == DLOCK_COUNT_WAITED_MS ?
			DlockIntervalDatum(count * 1000) : Int64GetDatum(count);
	}
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	return (Datum) 0;
}

/*
 * Is this what its database uses now?  An earlier CREATE EXTENSION leaves its
 * own until a reaper comes by.  Of another database the latest that was
 * adopted must do.
 */
static bool
IsCurrent(DlockDatabase *db, DlockDatabase **dbs, int n)
{
	DlockObjects objects;

	if (db->key.dboid == MyDatabaseId)
		return DlockFindObjects(&objects) && objects.lease == db->key.relid;
	for (int i = 0; i < n; i++)
	{
		if (dbs[i]->key.dboid == db->key.dboid &&
			pg_atomic_read_u64(&dbs[i]->number) > pg_atomic_read_u64(&db->number))
			return false;
	}
	return true;
}

Datum
dlock_databases(PG_FUNCTION_ARGS)
{
	enum
	{
		COL_DATABASE, COL_ADOPTED, COL_HELD, COL_WAITING, COL_LAST_RUN,
		COL_LAST_ERROR, COL_LAST_ERROR_AT, NUM_COLS
	};
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	DlockDatabase **dbs;
	int			n;

	DlockRequirePreloaded();
	InitMaterializedSRF(fcinfo, 0);
	dbs = DlockMapDatabases(&n);
	for (int i = 0; i < n; i++)
	{
		DlockDatabase *db = dbs[i];
		char	   *name = get_database_name(db->key.dboid);
		int			waiting = 0;
		NameData	namedata;
		TimestampTz last_run;
		TimestampTz last_error_at;
		char		last_error[DLOCK_MAX_ERROR];
		Datum		values[NUM_COLS];
		bool		nulls[NUM_COLS];

		if (name == NULL || !IsCurrent(db, dbs, n))
			continue;			/* dropped */
		namestrcpy(&namedata, name);

		SpinLockAcquire(&db->mutex);
		last_run = db->worker_last_run;
		last_error_at = db->worker_last_error_at;
		memcpy(last_error, db->worker_last_error, sizeof(last_error));
		SpinLockRelease(&db->mutex);

		memset(nulls, false, sizeof(nulls));
		values[COL_DATABASE] = NameGetDatum(&namedata);
		values[COL_ADOPTED] = BoolGetDatum(pg_atomic_read_u32(&db->adopted) != 0);
		values[COL_HELD] = Int64GetDatum(pg_atomic_read_u64(&db->held));
		pfree(DlockQueueCopy(db, &waiting));
		values[COL_WAITING] = Int64GetDatum(waiting);
		nulls[COL_LAST_RUN] = (last_run == 0);
		values[COL_LAST_RUN] = TimestampTzGetDatum(last_run);
		/* what an error says is not for everybody */
		nulls[COL_LAST_ERROR] = (last_error_at == 0) ||
			!has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
		values[COL_LAST_ERROR] = CStringGetTextDatum(last_error);
		nulls[COL_LAST_ERROR_AT] = (last_error_at == 0);
		values[COL_LAST_ERROR_AT] = TimestampTzGetDatum(last_error_at);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}
