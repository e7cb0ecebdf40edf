/*-------------------------------------------------------------------------
 *
 * rules.c
 *	  What is done to a lease by its token: end, revoke, guard, and so on.
 *
 * Each is the same steps: find the lease in the map, take its slot tag, look
 * again, read its row, change that, and make a note for commit.  A call that
 * changes nothing leaves no lock and no transaction id behind.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "commands/async.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

/* How many leases a session ends in the transaction that closes it. */
#define CLOSE_AT_ONCE	1000

/*
 * Does a claim compare tokens?  Built without, and without the tag of a guard,
 * dlock breaks its promises: for test/torture/teeth, which shows that the
 * torture notices.
 */
#ifdef DLOCK_BREAK_TOKEN
#define TOKENS_COUNT(share)	(share)
#else
#define TOKENS_COUNT(share)	true
#endif

/* A lease whose slot tag this call has, and whose row it may write. */
typedef struct Claim
{
	DlockDatabase *db;
	DlockObjects objects;
	Relation	rel;
	uint64		namehash;
	XLogRecPtr	wal_before;		/* where this transaction's WAL ended */
	DlockLease	lease;
	DlockRow	row;
} Claim;

/*
 * The caller's snapshot is from before the lock's last change: it would work
 * on the data of before its turn.
 */
void
DlockStaleSnapshot(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not use lock \"%s\" with a snapshot from before its last change",
					name),
			 errdetail("This transaction may not see what was done under the lock since."),
			 errhint("Start the transaction again; to acquire the lock, do so in an earlier one, and commit.")));
}

/*
 * Tell those who listen to channel "dlock", at commit, what happened to a
 * lock that is defined to do so.
 */
void
DlockNotify(const char *event, const DlockRow *row)
{
	StringInfoData payload;

	initStringInfo(&payload);
	appendStringInfo(&payload, "{\"event\":\"%s\",\"name\":", event);
	escape_json(&payload, TextDatumGetCString(DlockRowValue(row, Anum_lease_name)));
	appendStringInfo(&payload, ",\"token\":" INT64_FORMAT ",\"owner\":", DlockRowToken(row));
	escape_json(&payload, TextDatumGetCString(DlockRowValue(row, Anum_lease_owner)));
	appendStringInfoChar(&payload, '}');
	Async_Notify("dlock", payload.data);
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
ClaimLease(Claim *claim, int64 token, const char *what, bool share, bool dead,
		   bool wait, bool any_role)
{
	LOCKMODE	mode = share ? AccessShareLock : RowExclusiveLock;
	DlockLease *lease = &claim->lease;

	claim->wal_before = XactLastRecEnd;
	claim->db = DlockOpenDatabase(&claim->objects);
	if (!share)
		DlockRequireWritable(what);

	if (!DlockLiveFind(claim->db, token, lease) ||
		(dead ? lease->state != DLOCK_STATE_EXPIRED :
		 TOKENS_COUNT(share) && !DlockLeaseIsAlive(lease)))
		return false;
	if (!any_role && !DlockMayUse(lease->role))
		DlockDenyLease(token);

	claim->namehash = DlockHashName(lease->name, strlen(lease->name));
	claim->rel = DlockOpenTable(claim->objects.lease, mode, Natts_lease);
#ifdef DLOCK_BREAK_GUARD
	if (share)
		return DlockFetchRow(claim->rel, lease->name, strlen(lease->name),
							 lease->slot, &claim->row);
#endif
	if (DlockLockSlot(claim->namehash, lease->slot, share, wait))
	{
		/* look again: time has passed, and somebody may have ended it */
		if (DlockLiveFind(claim->db, token, lease) &&
			(dead ? lease->state == DLOCK_STATE_EXPIRED :
			 !TOKENS_COUNT(share) || DlockLeaseIsAlive(lease)) &&
			DlockFetchRow(claim->rel, lease->name, strlen(lease->name),
						  lease->slot, &claim->row) &&
			DlockRowIsHeld(&claim->row) &&
			(!TOKENS_COUNT(share) || DlockRowToken(&claim->row) == token))
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
	DlockPendingWrote(claim->wal_before);
	CommandCounterIncrement();
	table_close(claim->rel, NoLock);
}

/*
 * A row's lease is over: its history, its note for commit, its line in the
 * log.  The caller, who has its slot tag, writes the row.
 *
 * "result" is that of a release, or why it was revoked.  What ends after the
 * grace of a revocation was revoked; what ends after its session, ended as
 * the session says.
 */
void
DlockCloseLease(DlockDatabase *db, const DlockObjects *objects, DlockRow *row,
				DlockOutcome outcome, const char *result)
{
	int64		token = DlockRowToken(row);
	const char *name = TextDatumGetCString(DlockRowValue(row, Anum_lease_name));
	const char *ended_by = DlockDescribeMe();
	const char *log = NULL;
	DlockPending *note = DlockPendingReserve(db);
	TimestampTz acquired_at = DatumGetTimestampTz(DlockRowValue(row, Anum_lease_acquired_at));
	TimestampTz now = Max(GetCurrentTimestamp(), acquired_at);	/* never backwards */
	TimestampTz rests_until = 0;
	int64		delay = 0;
	bool		by_grant = (outcome == DLOCK_TAKEN_OVER);
	DlockLease	lease;
	bool		known = DlockLiveFind(db, token, &lease);
	DlockDefinition definition;

	DlockFindDefinition(objects, name, strlen(name), &definition);

	if (outcome == DLOCK_EXPIRED || outcome == DLOCK_TAKEN_OVER)
	{
		if (!DlockRowIsNull(row, Anum_lease_revoke_grace))
		{
			outcome = DLOCK_REVOKED;
			result = DlockRowIsNull(row, Anum_lease_revoke_why) ? NULL :
				TextDatumGetCString(DlockRowValue(row, Anum_lease_revoke_why));
			ended_by = TextDatumGetCString(DlockRowValue(row, Anum_lease_revoked_by));
		}
		else if (known && lease.session_outcome != DLOCK_EXPIRED)
			outcome = lease.session_outcome;
	}

	if (definition.history)
		DlockRecordEnd(objects->history, row, known ? &lease : NULL, outcome,
					   result, ended_by, now);
	if (definition.notify)
		DlockNotify(DlockOutcomeText(outcome), row);

	/* the row of a free slot says since when, and for how long it rests */
	DlockRowSet(row, Anum_lease_ended_at, TimestampTzGetDatum(now));
	DlockRowSetNull(row, Anum_lease_rests_until);
	DlockRowSetNull(row, Anum_lease_rests_for);
	if (!DlockRowIsNull(row, Anum_lease_min_hold) && outcome != DLOCK_REVOKED)
	{
		rests_until = acquired_at + DlockRowSpan(row, Anum_lease_min_hold);
		if (rests_until > now)
			DlockRowSetText(row, Anum_lease_rests_for, "min_hold");
	}
	if (outcome != DLOCK_RELEASED && !by_grant && definition.takeover_delay > 0)
	{
		delay = Max(definition.takeover_delay - (known ? lease.dead_for : 0), 0);
		if (now + delay > rests_until)
		{
			rests_until = now + delay;
			DlockRowSetText(row, Anum_lease_rests_for, "delayed");
		}
	}
	if (rests_until > now)
		DlockRowSet(row, Anum_lease_rests_until, TimestampTzGetDatum(rests_until));

	if (outcome != DLOCK_RELEASED && dlock_log_lost_leases)
		log = psprintf("lease " INT64_FORMAT " of lock \"%s\" has ended: %s, owner \"%s\"",
					   token, name, DlockOutcomeText(outcome),
					   TextDatumGetCString(DlockRowValue(row, Anum_lease_owner)));

	DlockPendingEnd(note, token, outcome, delay,
					result != NULL || outcome == DLOCK_REVOKED || definition.notify,
					log);
}

/*
 * DlockEnd(), or (with "one_hold") the release of a lease that may be held
 * more than once.
 */
static bool
EndLease(int64 token, DlockOutcome outcome, const char *result, bool one_hold)
{
	Claim		claim;
	int			holds;

	if (!ClaimLease(&claim, token,
					outcome == DLOCK_REVOKED ? "dlock_revoke()" : "dlock_release()",
					false, outcome == DLOCK_EXPIRED,
					outcome != DLOCK_EXPIRED, outcome != DLOCK_RELEASED))
		return false;

	holds = DatumGetInt32(DlockRowValue(&claim.row, Anum_lease_holds));
	if (one_hold && holds > 1)
	{
		DlockRowSet(&claim.row, Anum_lease_holds, Int32GetDatum(holds - 1));
		DlockPendingHold(DlockPendingReserve(claim.db), token);
	}
	else
		DlockCloseLease(claim.db, &claim.objects, &claim.row, outcome, result);
	StoreClaim(&claim);
	return true;
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
	return EndLease(token, outcome, result, false);
}

/* Take one hold off a lease, and end it when that was the last. */
bool
DlockReleaseOnce(int64 token, const char *result)
{
	return EndLease(token, DLOCK_RELEASED, result, true);
}

/*
 * A re-entrant acquire of a lease that its session holds: one more release is
 * needed.  False when it is lost, or when it is guarded, which only a caller
 * that has time can wait for.
 */
bool
DlockHoldAgain(int64 token)
{
	Claim		claim;
	int			holds;

	if (!ClaimLease(&claim, token, "dlock_acquire()", false, false, false, false))
		return false;

	if (DlockRowIsStale(&claim.row))
		DlockStaleSnapshot(claim.lease.name);
	holds = DatumGetInt32(DlockRowValue(&claim.row, Anum_lease_holds));
	DlockRowSet(&claim.row, Anum_lease_holds, Int32GetDatum(holds + 1));
	DlockPendingHold(DlockPendingReserve(claim.db), token);
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

	if (!ClaimLease(&claim, token, "dlock_revoke()", false, false, true, true))
		return false;

	DlockRowSet(&claim.row, Anum_lease_revoke_grace, DlockIntervalDatum(grace));
	DlockRowSetText(&claim.row, Anum_lease_revoke_why, why);
	DlockRowSetText(&claim.row, Anum_lease_revoked_by, DlockDescribeMe());
	DlockPendingRevoke(DlockPendingReserve(claim.db), token, grace);
	StoreClaim(&claim);
	return true;
}

/*
 * End the rest of a lock, after the lease with this token.  False when it does
 * not rest.
 */
bool
DlockEndRest(int64 token)
{
	Claim		claim;
	DlockLease *lease = &claim.lease;

	claim.wal_before = XactLastRecEnd;
	claim.db = DlockOpenDatabase(&claim.objects);
	if (!DlockLiveFind(claim.db, token, lease) ||
		(lease->state != DLOCK_STATE_MIN_HOLD && lease->state != DLOCK_STATE_DELAYED))
		return false;

	claim.namehash = DlockHashName(lease->name, strlen(lease->name));
	claim.rel = DlockOpenTable(claim.objects.lease, RowExclusiveLock, Natts_lease);
	(void) DlockLockSlot(claim.namehash, lease->slot, false, true);
	if (!DlockFetchRow(claim.rel, lease->name, strlen(lease->name), lease->slot, &claim.row) ||
		DlockRowToken(&claim.row) != token ||
		DlockRowIsNull(&claim.row, Anum_lease_rests_until))
	{
		DlockUnlockSlot(claim.namehash, lease->slot, false);
		table_close(claim.rel, RowExclusiveLock);
		return false;
	}
	DlockRowSetNull(&claim.row, Anum_lease_rests_until);
	DlockRowSetNull(&claim.row, Anum_lease_rests_for);
	DlockPendingRest(DlockPendingReserve(claim.db), token);
	StoreClaim(&claim);
	return true;
}

/*
 * Change the TTL of a lease, in µs, for good; it counts from the commit.
 * False when the lease is lost.  22023 when it has none of its own.
 */
bool
DlockSetTtl(int64 token, int64 ttl)
{
	Claim		claim;

	if (!ClaimLease(&claim, token, "dlock_set_ttl()", false, false, true, false))
		return false;
	if (claim.lease.state == DLOCK_STATE_REVOKING)
	{
		/* like a heartbeat: it is to stop */
		DlockUnlockSlot(claim.namehash, claim.lease.slot, false);
		table_close(claim.rel, RowExclusiveLock);
		return false;
	}
	if (claim.lease.session != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" cannot be set for a lease of a session", "ttl"),
				 errdetail("All leases of session " INT64_FORMAT " share its TTL.",
						   claim.lease.session)));

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

	if (!ClaimLease(&claim, token, "dlock_guard()", true, false, true, false))
	{
		DlockCount(DlockOpenDatabase(&objects), DLOCK_COUNT_GUARDS_LOST, 1);
		ereport(ERROR,
				(errcode(ERRCODE_DLOCK_LEASE_LOST),
				 token == 0 ? errmsg("lease is lost: it has no token") :
				 errmsg("lease " INT64_FORMAT " is lost", token),
				 errhint("Stop the work that it was for; acquire the lock anew to do it again.")));
	}

	if (DlockRowIsStale(&claim.row))
		DlockStaleSnapshot(claim.lease.name);
	DlockPendingGuard(DlockPendingReserve(claim.db), token);
	DlockCount(claim.db, DLOCK_COUNT_GUARDS, 1);
	table_close(claim.rel, NoLock);
}

/*
 * Close a session: how many leases end with it, -1 when it was gone.  Some end
 * in this transaction; all are dead from its commit on, and the rest is
 * recorded by the worker, or by who comes next.
 */
int
DlockSessionClose(int64 id)
{
	DlockObjects objects;
	DlockDatabase *db = DlockOpenDatabase(&objects);
	DlockSession session;
	DlockPending *note;
	int64	   *tokens;
	int			max;
	int			n;

	DlockRequireWritable("dlock_session_close()");
	if (!DlockSessionFind(db, id, &session))
		return -1;
	if (!DlockMayUse(session.role))
		DlockDenySession(id);

	/* first, so that no lease joins it that is not among those listed */
	note = DlockPendingReserve(db);
	DlockPendingSessionEnd(note, id);

	max = pg_atomic_read_u64(&DlockShared->entries) + 1;
	tokens = palloc_extended(max * sizeof(int64), MCXT_ALLOC_HUGE);
	n = DlockSessionLeases(db, id, tokens, max, false);
	for (int i = 0; i < Min(n, CLOSE_AT_ONCE); i++)
		(void) DlockEnd(tokens[i], DLOCK_RELEASED, NULL);
	pfree(tokens);
	return n;
}
