/*-------------------------------------------------------------------------
 *
 * grant.c
 *	  The grant of a lease to a request that fits.
 *
 * A look at the map and the queue says whether a request fits.  A grant looks
 * again under the name tag, takes the tag of its slot, ends what is dead there,
 * and writes.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

/*
 * How long to try for the tag of a slot that nobody has a claim to: somebody
 * is between the end of a transaction and the release of its locks, or a
 * reaper is recording an end.
 */
#define SETTLE_TRIES	1000
#define SETTLE_PAUSE_MS 1

/* ----------
 * The look
 * ----------
 */

/* Is there room beside these? */
bool
DlockFitsBeside(const DlockRequest *request, const DlockObstacles *obstacles)
{
	int			capacity = request->capacity;

	if (obstacles->count == 0)
		return true;
	if (obstacles->exclusive)
		return false;
	if (!request->defined)
		capacity = Min(capacity, obstacles->min_capacity);
	return obstacles->count < capacity;
}

/*
 * Read the lock's definition, and what follows from it: it may have changed
 * since the last look.  42501 for who may not take the lock.
 */
void
DlockApplyDefinition(DlockTry *try)
{
	DlockRequest *request = try->request;
	DlockDefinition *definition = &try->definition;

	DlockGetDefinition(try->definitions, request->name, request->namelen, definition);
	if (request->must_exist && !definition->exists)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("lock \"%s\" is not defined", request->name),
				 errhint("Define it with dlock_define(), or leave out must_exist.")));
	if (OidIsValid(definition->role) && !DlockMayUse(definition->role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for lock \"%s\"", request->name),
				 errdetail("It is defined for another role.")));

	request->defined = definition->capacity > 0 && request->share == NULL;
	request->capacity = request->defined ? definition->capacity :
		Max(request->own_capacity, 1);
	request->takeover_delay = definition->takeover_delay;
	request->notify = definition->notify;
}

/*
 * Does the request fit, beside what is alive and beside earlier waiters?
 *
 * The map first: a waiter that is granted its lease meanwhile leaves the queue
 * after it has entered the map, and is not to be counted twice.
 */
bool
DlockFits(DlockTry *try)
{
	DlockObstacles all;

	DlockApplyDefinition(try);
	DlockLookAt(try->db, try->request, &try->look);

	/* nothing is allocated during a look: make room, and look again */
	while (try->look.dead.count > try->look.max_dead)
	{
		try->look.max_dead = try->look.dead.count + 16;
		pfree(try->look.dead_leases);
		try->look.dead_leases = palloc_array(DlockDead, try->look.max_dead);
		DlockLookAt(try->db, try->request, &try->look);
	}
	all = try->look.alive;
	try->ahead = DlockQueueAhead(try->db, try->request, &all, &try->look.changes_at);
	return DlockFitsBeside(try->request, &all);
}

/*
 * How many of the dead leases have to be ended first?  All of them if they
 * exclude the request, and else those that take up the room.
 */
static int
DeadInTheWay(const DlockTry *try)
{
	const DlockObstacles *dead = &try->look.dead;
	DlockObstacles all = try->look.alive;
	int			n = 0;

	if (dead->exclusive)
		return dead->count;
	all.min_capacity = Min(all.min_capacity, dead->min_capacity);
	all.count += dead->count;
	while (n < dead->count && !DlockFitsBeside(try->request, &all))
	{
		all.count--;
		n++;
	}
	return n;
}

/*
 * Are these still the dead leases that the look found?  Somebody may have ended
 * one, and committed, between the look and our having its tag.
 */
static bool
AreStillDead(const DlockTry *try, int ndead)
{
	for (int i = 0; i < ndead; i++)
	{
		DlockLease	lease;

		if (!DlockLiveFind(try->db, try->look.dead_leases[i].token, &lease) ||
			lease.state != DLOCK_STATE_EXPIRED || lease.ended_by_me)
			return false;
	}
	return true;
}

/*
 * Take the name tag, and the tags of the slot for the request and of all dead
 * leases that have to be ended: *ndead, of which the slot is the first's when
 * there are any.  False, and no tag, when the request does not fit.
 */
static bool
TakeTags(DlockTry *try, int *slot, int *ndead)
{
	for (int tries = 0; tries < SETTLE_TRIES; tries++)
	{
		int			taken = 0;
		int			wanted;

		DlockLockName(try->namehash);
		if (!DlockFits(try))
		{
			DlockUnlockName(try->namehash);
			return false;
		}

		*ndead = DeadInTheWay(try);
		if (*ndead == 0)
			try->look.dead_leases[0].slot = try->look.free_slot;
		wanted = Max(*ndead, 1);
		*slot = try->look.dead_leases[0].slot;

		while (taken < wanted &&
			   DlockLockSlot(try->namehash, try->look.dead_leases[taken].slot, false, false))
			taken++;
		if (taken == wanted && AreStillDead(try, *ndead))
			return true;

		while (taken > 0)
			DlockUnlockSlot(try->namehash, try->look.dead_leases[--taken].slot, false);
		DlockUnlockName(try->namehash);

		/* no claim, so this passes at once; not in vain is it called busy */
		(void) WaitLatch(MyLatch, WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 SETTLE_PAUSE_MS, PG_WAIT_EXTENSION);
		CHECK_FOR_INTERRUPTS();
	}
	return false;
}

/* ----------
 * The grant
 * ----------
 */

/*
 * Fill in the row of a new lease, which may be that of the slot's last one.
 *
 * The lease begins now, not at now(), which is when the transaction began, and
 * not before that last one ended, whatever the wall clock says.
 */
static void
SetRow(DlockRow *row, const DlockRequest *request, int slot, int64 token)
{
	TimestampTz now = GetCurrentTimestamp();

	if (row->tuple != NULL && !DlockRowIsNull(row, Anum_lease_ended_at))
		now = Max(now, DatumGetTimestampTz(DlockRowValue(row, Anum_lease_ended_at)));

	for (int att = 1; att <= Natts_lease; att++)
		DlockRowSetNull(row, att);
	DlockRowSet(row, Anum_lease_name,
				PointerGetDatum(cstring_to_text_with_len(request->name, request->namelen)));
	DlockRowSet(row, Anum_lease_slot, Int32GetDatum(slot));
	DlockRowSet(row, Anum_lease_token, Int64GetDatum(token));
	DlockRowSet(row, Anum_lease_role, ObjectIdGetDatum(request->role));
	DlockRowSetText(row, Anum_lease_owner, request->owner);
	DlockRowSetText(row, Anum_lease_why, request->why);
	DlockRowSetText(row, Anum_lease_share, request->share);
	DlockRowSet(row, Anum_lease_capacity, Int32GetDatum(request->capacity));
	if (request->session != 0)
	{
		DlockRowSet(row, Anum_lease_session, Int64GetDatum(request->session));
		DlockRowSet(row, Anum_lease_session_ttl, DlockIntervalDatum(request->session_ttl));
		if (request->session_pid != 0)
			DlockRowSet(row, Anum_lease_session_pid, Int32GetDatum(request->session_pid));
	}
	DlockRowSet(row, Anum_lease_holds, Int32GetDatum(1));
	DlockRowSet(row, Anum_lease_ttl, DlockIntervalDatum(request->ttl));
	if (request->min_hold > 0)
		DlockRowSet(row, Anum_lease_min_hold, DlockIntervalDatum(request->min_hold));
	if (request->waited > 0)
		DlockRowSet(row, Anum_lease_waited, DlockIntervalDatum(request->waited));
	DlockRowSet(row, Anum_lease_acquired_at, TimestampTzGetDatum(now));
}

/*
 * End a dead lease whose slot tag we have; its row is read into *row.
 *
 * Its holder worked until it died, and its guards until they ended: a snapshot
 * from before that is stale, though no row has changed.
 */
static void
TakeOver(DlockTry *try, Relation rel, int64 token, int slot, DlockRow *row)
{
	DlockLease	lease;

	if (try->request->keeps_snapshot &&
		DlockLiveFind(try->db, token, &lease) && DlockSnapshotIsOlder(lease.quiet_for))
		DlockStaleSnapshot(try->request->name);
	if (DlockFetchRow(rel, try->request->name, try->request->namelen, slot, row) &&
		DlockRowIsHeld(row) && DlockRowToken(row) == token)
		DlockCloseLease(try->db, &try->objects, row, DLOCK_TAKEN_OVER, NULL);
	else
		elog(ERROR, "lease " INT64_FORMAT " of lock \"%s\" has no row in slot %d",
			 token, try->request->name, slot);
}

/*
 * Has this row only changed because a worker recorded that its lease had died,
 * which was before this transaction began?
 */
static bool
IsOnlyRecorded(const DlockRow *row, void *arg)
{
	DlockTry   *try = arg;
	DlockLease	lease;

	return !DlockRowIsHeld(row) &&
		DlockLiveFind(try->db, DlockRowToken(row), &lease) &&
		!DlockSnapshotIsOlder(lease.quiet_for);
}

/* Raise 40001 if this transaction keeps a snapshot that is too old for the lock. */
void
DlockRequireFreshSnapshot(DlockTry *try, Relation rel)
{
	if (try->request->keeps_snapshot &&
		DlockLockIsStale(rel, try->request->name, try->request->namelen,
						 IsOnlyRecorded, try))
		DlockStaleSnapshot(try->request->name);
}

/*
 * Grant the request if it fits: the token, or 0.  Takes over what is dead.
 *
 * Errors: 40001 with a stale snapshot, 53200 when the map or the lock table is
 * full, LK001 when the session is gone.
 */
int64
DlockGrant(DlockTry *try)
{
	DlockRequest *request = try->request;
	Relation	rel;
	DlockRow	row;
	DlockPending *note;
	DlockLive  *live;
	int64		token;
	int			slot;
	int			ndead;
	bool		takes_over;

	DlockRaiseTokens(try->db, &try->objects);
	rel = DlockOpenTable(try->objects.lease, RowExclusiveLock, Natts_lease);

	/* what is dead will be recorded; locks on tables come before tags */
	takes_over = (try->look.dead.count > 0);
	if (takes_over)
		LockRelationOid(try->objects.history, RowExclusiveLock);
	if (!TakeTags(try, &slot, &ndead))
	{
		if (takes_over)
			UnlockRelationOid(try->objects.history, RowExclusiveLock);
		table_close(rel, RowExclusiveLock);
		return 0;
	}
	DlockRequireFreshSnapshot(try, rel);

	/* from here on it is granted: the first one's row becomes the new lease's */
	row.tuple = NULL;
	for (int i = ndead - 1; i >= 0; i--)
	{
		TakeOver(try, rel, try->look.dead_leases[i].token,
				 try->look.dead_leases[i].slot, &row);
		if (i > 0)
			DlockStoreRow(rel, &row);
	}
	if (ndead == 0 &&
		DlockFetchRow(rel, request->name, request->namelen, slot, &row) &&
		DlockRowIsHeld(&row))
		elog(ERROR, "lease " INT64_FORMAT " of lock \"%s\" is held and not in the map",
			 DlockRowToken(&row), request->name);

	token = DlockNextToken(try->objects.token_seq);
	DlockNoteToken(token);
	SetRow(&row, request, slot, token);
	DlockStoreRow(rel, &row);
	if (request->notify)
		DlockNotify("acquired", &row);

	note = DlockPendingReserve(try->db);
	live = DlockMapInsert(try->db, token, request, slot);
	if (live == NULL)
		DlockSessionIsGone(request->session);
	DlockPendingGrant(note, live);
	CommandCounterIncrement();

	/* nobody who looks under the name tag counts us in both places */
	DlockQueueLeave(request->share != NULL || request->capacity > 1);
	DlockUnlockName(try->namehash);
	table_close(rel, NoLock);
	return token;
}
