/*-------------------------------------------------------------------------
 *
 * rules.c
 *	  The rules of leases: grant, end, guard, and what follows from them.
 *
 * The only file that combines tags, rows, history, the map and the notes for
 * commit.  A call that changes nothing leaves no lock and no transaction id
 * behind.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/*
 * How long to try for the tag of a slot that nobody has a claim to: somebody
 * is between the end of a transaction and the release of its locks, or a
 * reaper is recording an end.
 */
#define SETTLE_TRIES	1000
#define SETTLE_PAUSE_MS 1

/* A lease whose slot tag this call has, and whose row it may write. */
typedef struct Claim
{
	DlockDatabase *db;
	DlockObjects objects;
	Relation	rel;
	uint64		namehash;
	DlockLease	lease;
	DlockRow	row;
} Claim;

/*
 * May the current user act for this role?  As everywhere in the server, by
 * having its privileges: superusers, the role itself, and its members.
 */
bool
DlockMayUse(Oid role)
{
	return has_privs_of_role(GetUserId(), role);
}

/* Who is calling: the default owner, and what history says of who ended. */
const char *
DlockDescribeMe(void)
{
	LOCAL_FCINFO(fcinfo, 0);
	Datum		address;

	if (MyBgworkerEntry != NULL)
		return psprintf("%s %d", MyBgworkerEntry->bgw_type, MyProcPid);

	InitFunctionCallInfoData(*fcinfo, NULL, 0, InvalidOid, NULL, NULL);
	address = inet_client_addr(fcinfo);
	return psprintf("%s %s %d",
					application_name && application_name[0] ? application_name : "unknown",
					fcinfo->isnull ? "[local]" :
					DatumGetCString(DirectFunctionCall1(inet_out, address)),
					MyProcPid);
}

/*
 * Find a lease by its token, take its slot tag, and read its row: the tag is
 * shared for a guard, and else exclusive.  A dead lease is claimed if "dead",
 * and a live one if not.  "wait" for transactions that have the tag.
 *
 * Returns false, and holds nothing, when there is no such lease any more.
 * Raises 42501 when it belongs to another role, unless "any_role".
 */
static bool
ClaimLease(Claim *claim, int64 token, bool share, bool dead, bool wait, bool any_role)
{
	LOCKMODE	mode = share ? AccessShareLock : RowExclusiveLock;
	DlockLease *lease = &claim->lease;

	claim->db = DlockOpenDatabase(&claim->objects);

	if (!DlockLiveFind(claim->db, token, lease))
		return false;
	if (!any_role && !DlockMayUse(lease->role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for lease " INT64_FORMAT, token),
				 errdetail("It belongs to another role.")));
	if (dead ? lease->state != DLOCK_STATE_EXPIRED : !DlockLeaseIsAlive(lease))
		return false;

	claim->namehash = DlockHashName(lease->name, strlen(lease->name));
	claim->rel = table_open(claim->objects.lease, mode);
	if (DlockLockSlot(claim->namehash, lease->slot, share, wait))
	{
		/* look again: time has passed, and somebody may have ended it */
		if (DlockLiveFind(claim->db, token, lease) &&
			(dead ? lease->state == DLOCK_STATE_EXPIRED : DlockLeaseIsAlive(lease)) &&
			DlockFetchRow(claim->rel, lease->name, strlen(lease->name),
						  lease->slot, &claim->row) &&
			DlockRowIsHeld(&claim->row) &&
			DlockRowToken(&claim->row) == token)
			return true;
		DlockUnlockSlot(claim->namehash, lease->slot, share);
	}
	table_close(claim->rel, mode);
	return false;
}

/*
 * Write the claimed row, make it visible to the rest of this transaction, and
 * close the table.  The tag stays to the end of the transaction.
 */
static void
StoreClaim(Claim *claim)
{
	DlockStoreRow(claim->rel, &claim->row);
	CommandCounterIncrement();
	table_close(claim->rel, NoLock);
}

/*
 * A row's lease is over: its history, its note for commit, its line in the
 * log.  The caller changes the row, in the same transaction.
 *
 * "result" is that of a release, or why it was revoked.  What ends after
 * the grace of a revocation was revoked.
 */
static void
CloseLease(DlockDatabase *db, const DlockObjects *objects, DlockRow *row,
		   DlockOutcome outcome, const char *result)
{
	XLogRecPtr	wal_before = XactLastRecEnd;
	int64		token = DlockRowToken(row);
	const char *ended_by = DlockDescribeMe();
	DlockPending *note = DlockPendingReserve(db);
	TimestampTz now = GetCurrentTimestamp();
	DlockLease	lease;
	bool		known = DlockLiveFind(db, token, &lease);

	if (!DlockRowIsNull(row, Anum_lease_revoke_grace) &&
		(outcome == DLOCK_EXPIRED || outcome == DLOCK_TAKEN_OVER))
	{
		outcome = DLOCK_REVOKED;
		result = DlockRowIsNull(row, Anum_lease_revoke_why) ? NULL :
			TextDatumGetCString(DlockRowValue(row, Anum_lease_revoke_why));
		ended_by = TextDatumGetCString(DlockRowValue(row, Anum_lease_revoked_by));
	}

	DlockRecordEnd(objects->history, row, known ? &lease : NULL, outcome, result,
				   ended_by, now);

	/* the row of a free slot says since when, and for how long it rests */
	DlockRowSet(row, Anum_lease_ended_at, TimestampTzGetDatum(now));
	DlockRowSetNull(row, Anum_lease_rests_until);
	DlockRowSetNull(row, Anum_lease_rests_for);
	if (!DlockRowIsNull(row, Anum_lease_min_hold) && outcome != DLOCK_REVOKED)
	{
		TimestampTz until = DatumGetTimestampTz(DlockRowValue(row, Anum_lease_acquired_at)) +
			DlockIntervalMicros(DatumGetIntervalP(DlockRowValue(row, Anum_lease_min_hold)));

		if (until > now)
		{
			DlockRowSet(row, Anum_lease_rests_until, TimestampTzGetDatum(until));
			DlockRowSetText(row, Anum_lease_rests_for, "min_hold");
		}
	}

	if (outcome != DLOCK_RELEASED && dlock_log_lost_leases)
		ereport(LOG,
				(errmsg("lease " INT64_FORMAT " of lock \"%s\" has ended: %s",
						token,
						TextDatumGetCString(DlockRowValue(row, Anum_lease_name)),
						DlockOutcomeText(outcome)),
				 errdetail("Its owner was \"%s\".",
						   TextDatumGetCString(DlockRowValue(row, Anum_lease_owner)))));

	DlockPendingEnd(note, token, outcome,
					result != NULL || outcome == DLOCK_REVOKED, wal_before);
}

/*
 * The caller's snapshot is from before the lock's last change: it would work
 * on the data of before its turn.
 */
static void
RequireFreshSnapshot(const DlockRow *row, const char *name)
{
	if (DlockRowIsStale(row))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not use lock \"%s\" with a snapshot from before its last change",
						name),
				 errdetail("This transaction would not see what the previous holder did."),
				 errhint("Acquire the lock in an earlier transaction, commit, and retry.")));
}

/* Remember the highest token of all databases, for DlockRaiseTokens(). */
static void
NoteToken(int64 token)
{
	uint64		highest = pg_atomic_read_u64(&DlockShared->highest_token);

	while ((uint64) token > highest &&
		   !pg_atomic_compare_exchange_u64(&DlockShared->highest_token,
										   &highest, (uint64) token))
		;
}

/*
 * Take the name tag and the tag of a slot that is free or dead.  False, and
 * neither of them, when the lock is busy.
 */
static bool
ChooseSlot(DlockDatabase *db, const DlockRequest *request, uint64 namehash,
		   DlockLook *look)
{
	for (int tries = 0; tries < SETTLE_TRIES; tries++)
	{
		DlockLockName(namehash);
		DlockLiveLook(db, request, false, look);
		if (look->busy || look->claimed)
		{
			DlockUnlockName(namehash);
			return false;
		}
		if (DlockLockSlot(namehash, look->slot, false, false))
			return true;
		DlockUnlockName(namehash);

		/* no claim, so this passes at once; not in vain is it called busy */
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 SETTLE_PAUSE_MS, DlockWaitEventNew("DlockSettle"));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	return false;
}

/* Fill in the row of a new lease. */
static void
SetRow(DlockRow *row, const DlockRequest *request, int slot, int64 token)
{
	for (int att = 1; att <= Natts_lease; att++)
		DlockRowSetNull(row, att);
	DlockRowSet(row, Anum_lease_name,
				PointerGetDatum(cstring_to_text_with_len(request->name, request->namelen)));
	DlockRowSet(row, Anum_lease_slot, Int32GetDatum(slot));
	DlockRowSet(row, Anum_lease_token, Int64GetDatum(token));
	DlockRowSet(row, Anum_lease_role, ObjectIdGetDatum(GetUserId()));
	DlockRowSetText(row, Anum_lease_owner, request->owner);
	DlockRowSetText(row, Anum_lease_why, request->why);
	DlockRowSet(row, Anum_lease_capacity, Int32GetDatum(request->capacity));
	DlockRowSet(row, Anum_lease_holds, Int32GetDatum(1));
	DlockRowSet(row, Anum_lease_ttl, DlockIntervalDatum(request->ttl));
	if (request->min_hold > 0)
		DlockRowSet(row, Anum_lease_min_hold, DlockIntervalDatum(request->min_hold));

	/* not now(), which is when the transaction began */
	DlockRowSet(row, Anum_lease_acquired_at,
				TimestampTzGetDatum(GetCurrentTimestamp()));
}

/*
 * Grant a lease: its token, or 0 when the lock is busy.  Takes over a dead
 * lease at once.
 *
 * Errors: those of DlockOpenDatabase(), 25006 when read-only, 40001 with a
 * stale snapshot, 53200 when the map or the lock table is full.
 */
int64
DlockGrant(const DlockRequest *request)
{
	DlockObjects objects;
	DlockDatabase *db = DlockOpenDatabase(&objects);
	uint64		namehash = DlockHashName(request->name, request->namelen);
	DlockLook	look;
	Relation	rel;
	DlockRow	row;
	int64		token;
	DlockPending *note;

	DlockRequireWritable("dlock_acquire()");

	DlockLiveLook(db, request, true, &look);
	if (look.busy || look.claimed)
	{
		DlockCount(db, DLOCK_COUNT_REFUSED);
		return 0;
	}

	DlockRaiseTokens(db, &objects);
	rel = table_open(objects.lease, RowExclusiveLock);
	if (!ChooseSlot(db, request, namehash, &look))
	{
		table_close(rel, RowExclusiveLock);
		DlockLiveLook(db, request, true, &look);
		DlockCount(db, DLOCK_COUNT_REFUSED);
		return 0;
	}

	row.tuple = NULL;
	if (DlockFetchRow(rel, request->name, request->namelen, look.slot, &row))
	{
		RequireFreshSnapshot(&row, request->name);
		if (DlockRowIsHeld(&row))
			CloseLease(db, &objects, &row, DLOCK_TAKEN_OVER, NULL);
	}

	token = DlockNextToken(objects.token_seq);
	NoteToken(token);
	SetRow(&row, request, look.slot, token);
	DlockStoreRow(rel, &row);

	note = DlockPendingReserve(db);
	DlockPendingGrant(note, DlockLiveInsert(db, token, request, look.slot,
											GetUserId(), MyProcPid));
	CommandCounterIncrement();
	DlockUnlockName(namehash);
	table_close(rel, NoLock);

	return token;
}

/*
 * End a lease: the one way in which leases end, but for the takeover in a
 * grant.  False, having changed nothing, when it is not there to be ended: a
 * release and a revocation want it alive, an expiry wants it dead.
 *
 * Waits for guards; a worker does not.
 */
bool
DlockEnd(int64 token, DlockOutcome outcome, const char *result)
{
	Claim		claim;

	DlockRequireWritable(outcome == DLOCK_REVOKED ? "dlock_revoke()" : "dlock_release()");
	if (!ClaimLease(&claim, token, false, outcome == DLOCK_EXPIRED,
					outcome != DLOCK_EXPIRED, outcome != DLOCK_RELEASED))
		return false;

	CloseLease(claim.db, &claim.objects, &claim.row, outcome, result);
	StoreClaim(&claim);
	return true;
}

/*
 * Give a lease "grace" µs to stop; it cannot be renewed in that time and is
 * over after it.  False when it has ended.
 */
bool
DlockRevokeLater(int64 token, const char *why, int64 grace)
{
	Claim		claim;

	DlockRequireWritable("dlock_revoke()");
	if (!ClaimLease(&claim, token, false, false, true, true))
		return false;

	DlockRowSet(&claim.row, Anum_lease_revoke_grace, DlockIntervalDatum(grace));
	DlockRowSetText(&claim.row, Anum_lease_revoke_why, why);
	DlockRowSetText(&claim.row, Anum_lease_revoked_by, DlockDescribeMe());
	DlockPendingRevoke(DlockPendingReserve(claim.db), token, grace);
	StoreClaim(&claim);
	return true;
}

/*
 * Change the TTL of a lease, in µs, for good; it counts from the commit.
 * False when the lease is lost.
 */
bool
DlockSetTtl(int64 token, int64 ttl)
{
	Claim		claim;

	DlockRequireWritable("dlock_set_ttl()");
	if (!ClaimLease(&claim, token, false, false, true, false))
		return false;

	DlockRowSet(&claim.row, Anum_lease_ttl, DlockIntervalDatum(ttl));
	DlockPendingTtl(DlockPendingReserve(claim.db), token, ttl);
	StoreClaim(&claim);
	return true;
}

/*
 * Let this transaction commit only while the lease is owned: until it ends,
 * nobody can be granted the slot.  Raises LK001 when the lease is lost.
 */
void
DlockGuard(int64 token)
{
	Claim		claim;
	DlockObjects objects;

	if (!ClaimLease(&claim, token, true, false, true, false))
	{
		DlockCount(DlockOpenDatabase(&objects), DLOCK_COUNT_GUARDS_LOST);
		ereport(ERROR,
				(errcode(ERRCODE_DLOCK_LEASE_LOST),
				 errmsg("lease " INT64_FORMAT " is lost", token),
				 errhint("Stop the work that it was for; acquire the lock anew to do it again.")));
	}

	RequireFreshSnapshot(&claim.row, claim.lease.name);
	DlockPendingGuard(DlockPendingReserve(claim.db), token);
	DlockCount(claim.db, DLOCK_COUNT_GUARDS);
	table_close(claim.rel, NoLock);
}

/* Put one row that is held, or whose lock rests, into the map. */
static void
AdoptRow(DlockDatabase *db, DlockRow *row)
{
	text	   *name = DatumGetTextPP(DlockRowValue(row, Anum_lease_name));
	TimestampTz wall = GetCurrentTimestamp();
	DlockRequest request;
	DlockNanos	now;
	DlockNanos	rests_until = 0;
	DlockLive  *live;
	int64		rest = 0;

	memset(&request, 0, sizeof(request));
	request.name = VARDATA_ANY(name);
	request.namelen = VARSIZE_ANY_EXHDR(name);
	request.ttl = DlockIntervalMicros(DatumGetIntervalP(DlockRowValue(row, Anum_lease_ttl)));
	request.capacity = DatumGetInt32(DlockRowValue(row, Anum_lease_capacity));

	/*
	 * A rest is all that is measured by the wall clock, and only here: its
	 * whole length is the most that a clock set back can make of it.
	 */
	if (!DlockRowIsHeld(row))
	{
		TimestampTz until;

		if (DlockRowIsNull(row, Anum_lease_rests_until))
			return;
		until = DatumGetTimestampTz(DlockRowValue(row, Anum_lease_rests_until));
		rest = Min(until - wall,
				   until - DatumGetTimestampTz(DlockRowValue(row, Anum_lease_ended_at)));
		if (rest <= 0)
			return;
	}
	else if (!DlockRowIsNull(row, Anum_lease_min_hold))
	{
		int64		min_hold = DlockIntervalMicros(DatumGetIntervalP(DlockRowValue(row, Anum_lease_min_hold)));
		TimestampTz acquired_at = DatumGetTimestampTz(DlockRowValue(row, Anum_lease_acquired_at));

		rest = Min(acquired_at + min_hold - wall, min_hold);
	}

	live = DlockLiveInsert(db, DlockRowToken(row), &request,
						   DatumGetInt32(DlockRowValue(row, Anum_lease_slot)),
						   DatumGetObjectId(DlockRowValue(row, Anum_lease_role)), 0);
	if (live == NULL)
		return;					/* an adoption that failed had come this far */

	now = DlockNow();
	if (rest > 0)
		rests_until = now + rest * DLOCK_NS_PER_US;
	DlockLiveStart(live, rests_until, now + request.ttl * DLOCK_NS_PER_US);
	if (DlockRowIsHeld(row))
	{
		pg_atomic_fetch_add_u64(&db->held, 1);
		if (!DlockRowIsNull(row, Anum_lease_revoke_grace))
			DlockLiveRevoke(live, now + DLOCK_NS_PER_US *
							DlockIntervalMicros(DatumGetIntervalP(DlockRowValue(row, Anum_lease_revoke_grace))));
		DlockTellLauncher(&live->key, now + request.ttl * DLOCK_NS_PER_US);
	}
	else
		DlockLiveEnd(live, true);
	DlockLiveUnpin(live);
}

/*
 * Rebuild the map of this database from its table: each lease that a start
 * found in it has one full TTL from now on.  Once per database and start;
 * until that is done, every call waits here.
 */
void
DlockAdopt(DlockDatabase *db, const DlockObjects *objects)
{
	DlockLockAdoption();
	if (pg_atomic_read_u32(&db->adopted) == 0)
	{
		Relation	rel = table_open(objects->lease, AccessShareLock);
		SysScanDesc scan = systable_beginscan(rel, InvalidOid, false,
											  SnapshotSelf, 0, NULL);
		MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
													  "dlock adoption",
													  ALLOCSET_SMALL_SIZES);
		HeapTuple	tuple;

		while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		{
			MemoryContext old = MemoryContextSwitchTo(context);
			DlockRow	row;

			CHECK_FOR_INTERRUPTS();
			DlockDeformRow(rel, tuple, &row);
			AdoptRow(db, &row);
			MemoryContextSwitchTo(old);
			MemoryContextReset(context);
		}
		MemoryContextDelete(context);
		systable_endscan(scan);
		table_close(rel, AccessShareLock);

		pg_write_barrier();
		pg_atomic_write_u32(&db->adopted, 1);
	}
	DlockUnlockAdoption();
}

/*
 * Delete up to "limit" rows of locks that nobody has taken for
 * dlock.idle_lock_retention; returns how many.  Waits for nobody.
 */
int
DlockPruneIdle(const DlockObjects *objects, int limit)
{
	TimestampTz before = GetCurrentTimestamp() -
		(int64) dlock_idle_lock_retention * USECS_PER_SEC;
	Relation	rel = table_open(objects->lease, RowExclusiveLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false,
										  SnapshotSelf, 0, NULL);
	HeapTuple	tuple;
	int			n = 0;

	while (n < limit && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		DlockRow	row;
		text	   *name;
		uint64		namehash;
		int			slot;

		CHECK_FOR_INTERRUPTS();
		if (!DlockRowIsIdle(rel, tuple, before))
			continue;

		DlockDeformRow(rel, tuple, &row);
		name = DatumGetTextPP(DlockRowValue(&row, Anum_lease_name));
		slot = DatumGetInt32(DlockRowValue(&row, Anum_lease_slot));
		namehash = DlockHashName(VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name));

		/* under the tag, is it still the row that was seen? */
		if (!DlockLockSlot(namehash, slot, false, false))
			continue;
		if (DlockFetchRow(rel, VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name), slot, &row) &&
			DlockRowIsIdle(rel, row.tuple, before))
		{
			CatalogTupleDelete(rel, &row.tuple->t_self);
			n++;
		}
		else
			DlockUnlockSlot(namehash, slot, false);
	}
	systable_endscan(scan);
	table_close(rel, NoLock);
	return n;
}
