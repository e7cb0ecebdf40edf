/*-------------------------------------------------------------------------
 *
 * grant.c
 *	  How a lease is got: defaults, the look, the grant, and the wait for it.
 *
 * A look at the map and the queue says whether a request fits.  A grant looks
 * again under the name tag, takes the tag of its slot, and writes.  Whoever
 * does not fit and has time takes a ticket, and sleeps without any tag until
 * something changes; only where all depends on one open transaction does it
 * sleep on that one's tag, where the server's deadlock detector sees it.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include <limits.h>

#include "access/table.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/*
 * How long to try for the tag of a slot that nobody has a claim to: somebody
 * is between the end of a transaction and the release of its locks, or a
 * reaper is recording an end.
 */
#define SETTLE_TRIES	1000
#define SETTLE_PAUSE_MS 1

/*
 * The longest sleep of a waiter: it looks whether its client is still there,
 * and whether the one before it has let its turn pass.
 */
#define SLEEP_MAX_MS	1000

/* A lock, seen by a request. */
typedef struct Try
{
	DlockDatabase *db;
	DlockObjects objects;
	DlockRequest *request;
	uint64		namehash;
	DlockLook	look;
	bool		ahead;			/* earlier waiters are in the way */
} Try;

/* ----------
 * Defaults
 * ----------
 */

/*
 * Fill in what the caller did not say, from the session, the definition and
 * the settings; and see whether the caller may ask for this at all.
 */
static void
Complete(Try *try)
{
	DlockRequest *request = try->request;
	DlockDefinition definition;
	DlockSession session;

	DlockFindDefinition(&try->objects, request->name, request->namelen, &definition);
	if (request->must_exist && !definition.exists)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("lock \"%s\" is not defined", request->name),
				 errhint("Define it with dlock_define(), or leave out must_exist.")));
	if (OidIsValid(definition.role) && !DlockMayUse(definition.role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for lock \"%s\"", request->name),
				 errdetail("It is defined for another role.")));

	request->role = GetUserId();
	request->pid = MyProcPid;
	if (request->session != 0)
	{
		if (!DlockSessionFind(try->db, request->session, &session))
			DlockSessionIsGone(request->session);
		if (!DlockMayUse(session.role))
			DlockDenySession(request->session);
		if (request->ttl > session.ttl)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("argument \"%s\" is longer than that of the session", "ttl"),
					 errdetail("All leases of a session share its TTL, which is " INT64_FORMAT " ms.",
							   session.ttl / 1000)));
		request->ttl = request->session_ttl = session.ttl;
		request->session_pid = session.connected ? session.pid : 0;
		request->role = session.role;
		if (request->owner == NULL)
			request->owner = pstrdup(session.owner);
	}
	else if (request->retry || request->reentrant)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" needs a session",
						request->retry ? "retry" : "reentrant"),
				 errdetail("Without one, nothing tells who has asked before.")));

	if (request->owner == NULL)
		request->owner = DlockDescribeMe();
	if (request->ttl == 0)
		request->ttl = Min(definition.ttl > 0 ? definition.ttl : (int64) dlock_default_ttl * 1000,
						   DLOCK_MAX_SPAN);
	if (request->min_hold < 0)
		request->min_hold = definition.min_hold;
	request->takeover_delay = definition.takeover_delay;
	request->notify = definition.notify;

	request->defined = definition.capacity > 0 && request->share == NULL;
	if (request->defined)
		request->capacity = definition.capacity;
	else if (request->capacity == 0)
		request->capacity = 1;
}

/* ----------
 * The look
 * ----------
 */

/* Is there room beside these? */
static bool
FitsBeside(const DlockRequest *request, const DlockObstacles *obstacles)
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
 * Does the request fit, beside what is alive and beside earlier waiters?
 *
 * The map first: a waiter that is granted its lease meanwhile leaves the queue
 * after it has entered the map, and is not to be counted twice.
 */
static bool
Fits(Try *try)
{
	DlockObstacles all;

	DlockLiveLook(try->db, try->request, &try->look);
	all = try->look.alive;
	try->ahead = DlockQueueAhead(try->db, try->request, &all, &try->look.changes_at);
	return FitsBeside(try->request, &all);
}

/*
 * How many of the dead leases have to be ended first?  All of them if they
 * exclude the request, and else those that take up the room.
 */
static int
DeadInTheWay(const Try *try)
{
	const DlockObstacles *dead = &try->look.dead;
	DlockObstacles all = try->look.alive;
	int			n = 0;

	if (dead->exclusive)
		return dead->count;
	all.min_capacity = Min(all.min_capacity, dead->min_capacity);
	all.count += dead->count;
	while (n < dead->count && !FitsBeside(try->request, &all))
	{
		all.count--;
		n++;
	}
	return n;
}

/*
 * Take the name tag, and the tags of the slot for the request and of all dead
 * leases that have to be ended: *ndead, of which the slot is the first's when
 * there are any.  False, and no tag, when the request does not fit.
 */
static bool
TakeTags(Try *try, int *slot, int *ndead)
{
	for (int tries = 0; tries < SETTLE_TRIES; tries++)
	{
		int			taken = 0;
		int			wanted;

		DlockLockName(try->namehash);
		if (!Fits(try))
		{
			DlockUnlockName(try->namehash);
			return false;
		}

		*ndead = Min(DeadInTheWay(try), DLOCK_LOOK_DEAD);
		if (*ndead == 0)
			try->look.dead_slots[0] = try->look.free_slot;
		wanted = Max(*ndead, 1);
		*slot = try->look.dead_slots[0];

		while (taken < wanted &&
			   DlockLockSlot(try->namehash, try->look.dead_slots[taken], false, false))
			taken++;
		if (taken == wanted)
			return true;

		while (taken > 0)
			DlockUnlockSlot(try->namehash, try->look.dead_slots[--taken], false);
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

	/* not now(), which is when the transaction began */
	DlockRowSet(row, Anum_lease_acquired_at,
				TimestampTzGetDatum(GetCurrentTimestamp()));
}

/*
 * End a dead lease whose slot tag we have; its row is read into *row.
 *
 * Its holder worked until it died, and its guards until they ended: a snapshot
 * from before that is stale, though no row has changed.
 */
static void
TakeOver(Try *try, Relation rel, int64 token, int slot, DlockRow *row)
{
	DlockLease	lease;

	if (!DlockLiveFind(try->db, token, &lease) || DlockSnapshotIsOlder(lease.quiet_for))
		DlockStaleSnapshot(try->request->name);
	if (DlockFetchRow(rel, try->request->name, try->request->namelen, slot, row) &&
		DlockRowIsHeld(row) && DlockRowToken(row) == token)
		DlockCloseLease(try->db, &try->objects, row, DLOCK_TAKEN_OVER, NULL);
	else
		elog(ERROR, "lease " INT64_FORMAT " of lock \"%s\" has no row in slot %d",
			 token, try->request->name, slot);
}

/*
 * Grant the request if it fits: the token, or 0.  Takes over what is dead.
 *
 * Errors: 40001 with a stale snapshot, 53200 when the map or the lock table is
 * full, LK001 when the session is gone.
 */
static int64
Grant(Try *try)
{
	DlockRequest *request = try->request;
	Relation	rel;
	DlockRow	row;
	DlockPending *note;
	DlockLive  *live;
	int64		token;
	int			slot;
	int			ndead;

	DlockRaiseTokens(try->db, &try->objects);
	rel = table_open(try->objects.lease, RowExclusiveLock);
	for (;;)
	{
		if (!TakeTags(try, &slot, &ndead))
		{
			table_close(rel, RowExclusiveLock);
			return 0;
		}
		if (DlockLockIsStale(rel, request->name, request->namelen))
			DlockStaleSnapshot(request->name);

		row.tuple = NULL;
		for (int i = ndead - 1; i >= 0; i--)
		{
			TakeOver(try, rel, try->look.dead_tokens[i], try->look.dead_slots[i], &row);
			if (i > 0)
				DlockStoreRow(rel, &row);
		}
		if (ndead < DLOCK_LOOK_DEAD)
			break;

		/* there may be more of them */
		DlockStoreRow(rel, &row);
		CommandCounterIncrement();
		DlockUnlockName(try->namehash);
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
	DlockUnlockName(try->namehash);
	table_close(rel, NoLock);
	return token;
}

/*
 * The session has the lock already: its token, if that is what was asked for,
 * or 0.  A grant that another transaction has not committed is not had yet.
 */
static int64
AskAgain(Try *try)
{
	DlockLease	lease;
	int64		token = try->look.own_token;

	if (token == 0 || !(try->request->retry || try->request->reentrant) ||
		!DlockLiveFind(try->db, token, &lease) || !DlockLeaseIsAlive(&lease) ||
		(lease.state == DLOCK_STATE_PENDING && lease.pid != MyProcPid))
		return 0;
	if (try->request->reentrant && !DlockHoldAgain(token))
		return 0;
	return token;
}

/* ----------
 * The wait
 * ----------
 */

/* Nobody is left to be granted anything: ends the backend. */
static void
RequireClient(void)
{
	if (MyProcPort != NULL && !pq_check_connection())
	{
		ClientConnectionLost = true;
		InterruptPending = true;
		CHECK_FOR_INTERRUPTS();
	}
}

/* Raise 40P01: what is in the way is the caller's own. */
static void
WaitsForItself(const DlockRequest *request)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected"),
			 request->session != 0 ?
			 errdetail("Session " INT64_FORMAT " waits for lock \"%s\", which it holds itself.",
					   request->session, request->name) :
			 errdetail("This transaction waits for lock \"%s\", which it has taken itself.",
					   request->name),
			 errhint("Use retry or reentrant to ask again for what a session holds.")));
}

/* What has to be as before when an internal subtransaction is over. */
typedef struct Subtransaction
{
	MemoryContext context;
	ResourceOwner owner;
} Subtransaction;

static void
BeginSub(Subtransaction *sub)
{
	sub->context = CurrentMemoryContext;
	sub->owner = CurrentResourceOwner;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(sub->context);
}

static void
EndSub(Subtransaction *sub, bool commit)
{
	if (commit)
		ReleaseCurrentSubTransaction();
	else
		RollbackAndReleaseCurrentSubTransaction();
	MemoryContextSwitchTo(sub->context);
	CurrentResourceOwner = sub->owner;
}

/* An error has come up in it: roll back, and go on with the error. */
static ErrorData *
FailSub(Subtransaction *sub)
{
	ErrorData  *error;

	MemoryContextSwitchTo(sub->context);
	error = CopyErrorData();
	FlushErrorState();
	EndSub(sub, false);
	return error;
}

/*
 * Sleep for up to "ms" on the tag of a slot that an open transaction has,
 * where the server finds deadlocks.  In a subtransaction, to come back from
 * the error that the end of the time is.
 */
static void
SleepOnTag(uint64 namehash, int slot, int ms)
{
	Subtransaction sub;
	int			lock_timeout = LockTimeout;

	BeginSub(&sub);
	PG_TRY();
	{
		LockTimeout = ms;
		(void) DlockLockSlot(namehash, slot, false, true);
		LockTimeout = lock_timeout;
		DlockUnlockSlot(namehash, slot, false);
		EndSub(&sub, true);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		LockTimeout = lock_timeout;
		error = FailSub(&sub);
		if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			ReThrowError(error);
		FreeErrorData(error);
	}
	PG_END_TRY();
}

/* Begin a new transaction, so that no snapshot is held over a sleep. */
static void
NextTransaction(void)
{
	SPI_commit();
}

/*
 * Wait for the request's turn, and grant it: the token, or 0 when the time is
 * over.  "between": in transactions of its own, of a procedure.
 *
 * Errors: 40P01 for a deadlock, 55P03 for lock_timeout, and Grant()'s.
 */
static int64
Wait(Try *try, bool between)
{
	DlockRequest *request = try->request;
	DlockNanos	started = DlockNow();
	DlockNanos	ends = started + request->wait * DLOCK_NS_PER_US;
	DlockNanos	check_at = started + DeadlockTimeout * DLOCK_NS_PER_MS;
	DlockNanos	timeout_at = PG_UINT64_MAX;
	DlockNanos	now = started;
	MemoryContext context;
	volatile int64 token = 0;

	if (LockTimeout > 0)
		timeout_at = started + LockTimeout * DLOCK_NS_PER_MS;

	/* what a round leaves behind; a wait may have many */
	context = AllocSetContextCreate(CurrentMemoryContext, "dlock wait",
									ALLOCSET_SMALL_SIZES);

	DlockCount(try->db, DLOCK_COUNT_WAITS, 1);
	DlockQueueJoin(try->db, request);
	PG_TRY();
	{
		for (;;)
		{
			DlockNanos	until;
			bool		fits;

			DlockQueueLooks();
			fits = Fits(try);
			if (fits)
			{
				DlockSession session;

				RequireClient();
				if (request->session != 0 &&
					!DlockSessionFind(try->db, request->session, &session))
					DlockSessionIsGone(request->session);
				request->waited = Max((DlockNow() - started) / DLOCK_NS_PER_US, 1);
				if (between)
					PushActiveSnapshot(GetTransactionSnapshot());
				token = Grant(try);
				if (between)
					PopActiveSnapshot();
				if (token != 0)
					break;
			}
			else if (FitsBeside(request, &try->look.alive))
				DlockQueueWake(&try->db->key, try->namehash);	/* another's turn */
			if (try->look.own_token != 0)
				token = AskAgain(try);
			if (token != 0)
				break;
			if (!FitsBeside(request, &try->look.own) &&
				!request->retry && !request->reentrant)
				WaitsForItself(request);

			now = DlockNow();
			if (now >= ends)
				break;
			if (now >= timeout_at)
				ereport(ERROR,
						(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
						 errmsg("canceling statement due to lock timeout")));
			if (now >= check_at)
			{
				MemoryContext old = MemoryContextSwitchTo(context);

				DlockCheckDeadlock(try->db, request->session);
				MemoryContextSwitchTo(old);
				MemoryContextReset(context);
				check_at = now + DeadlockTimeout * DLOCK_NS_PER_MS;
			}
			until = Min(ends, timeout_at);

			if (between)
				NextTransaction();
			if (try->look.uncommitted >= 0 && !try->ahead && !fits)
			{
				/* long enough for the server's deadlock detector to look */
				until = Min(until, now + 2 * (DeadlockTimeout + SLEEP_MAX_MS) * DLOCK_NS_PER_MS);
				SleepOnTag(try->namehash, try->look.uncommitted,
						   Max((until - now) / DLOCK_NS_PER_MS, 1));
			}
			else
				DlockQueueSleep(Min(Min(until, now + SLEEP_MAX_MS * DLOCK_NS_PER_MS),
									Min(check_at, try->look.changes_at)));
			RequireClient();
		}
	}
	PG_CATCH();
	{
		DlockQueueLeave(false);
		PG_RE_THROW();
	}
	PG_END_TRY();
	DlockQueueLeave(token != 0);

	DlockCount(try->db, DLOCK_COUNT_WAITED_MS, (DlockNow() - started) / DLOCK_NS_PER_MS);
	if (token == 0)
		DlockCount(try->db, DLOCK_COUNT_WAITS_TIMED_OUT, 1);
	return token;
}

/* Open the database, and see to the request's defaults. */
static void
Begin(Try *try, DlockRequest *request)
{
	try->request = request;
	try->db = DlockOpenDatabase(&try->objects);
	DlockRequireWritable("dlock_acquire()");
	try->namehash = DlockHashName(request->name, request->namelen);
	Complete(try);
}

/*
 * Acquire a lease: its token, or 0 when the lock is busy, and stays so for the
 * time that the request gives it.  "between": sleep between transactions.
 *
 * Errors: those of DlockOpenDatabase(), Complete(), Grant() and Wait(); 25006
 * in a read-only transaction.
 */
int64
DlockAcquire(DlockRequest *request, bool between)
{
	Try			try;
	int64		token = 0;

	bool		fits;

	Begin(&try, request);

	/* a refusal without a wait has looked at memory alone */
	fits = Fits(&try);
	if (try.look.own_token != 0)
		token = AskAgain(&try);
	if (token == 0 && fits)
		token = Grant(&try);
	if (token == 0 && request->wait > 0)
		token = Wait(&try, between);

	if (token == 0)
	{
		DlockLiveCountRefusal(try.db, request);
		DlockCount(try.db, DLOCK_COUNT_REFUSED, 1);
	}
	return token;
}

/*
 * Acquire all of "n" different names, in the order given, which must be that
 * of their bytes so that two callers cannot wait for each other; or none of
 * them.  Tokens go to "tokens".
 */
bool
DlockAcquireAll(const DlockRequest *request, const char *const *names, int n,
				int64 *tokens)
{
	Subtransaction sub;
	DlockNanos	ends = DlockNow() + request->wait * DLOCK_NS_PER_US;
	volatile bool all = true;

	/* most often one look at memory tells that it is in vain */
	for (int i = 0; i < n && request->wait == 0; i++)
	{
		DlockRequest one = *request;
		Try			try;

		one.name = names[i];
		one.namelen = strlen(names[i]);
		Begin(&try, &one);
		if (!Fits(&try))
		{
			DlockLiveCountRefusal(try.db, &one);
			DlockCount(try.db, DLOCK_COUNT_REFUSED, 1);
			return false;
		}
	}

	BeginSub(&sub);
	PG_TRY();
	{
		for (int i = 0; i < n && all; i++)
		{
			DlockRequest one = *request;
			DlockNanos	now = DlockNow();

			one.name = names[i];
			one.namelen = strlen(names[i]);
			one.wait = ends > now && request->wait > 0 ? (ends - now) / DLOCK_NS_PER_US : 0;
			tokens[i] = DlockAcquire(&one, false);
			all = (tokens[i] != 0);
		}
		EndSub(&sub, all);
	}
	PG_CATCH();
	{
		ReThrowError(FailSub(&sub));
	}
	PG_END_TRY();
	return all;
}
