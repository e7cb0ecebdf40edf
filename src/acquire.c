/*-------------------------------------------------------------------------
 *
 * acquire.c
 *	  How a lease is got: defaults, a try, and the wait for one's turn.
 *
 * Whoever does not fit and has time takes a ticket, and sleeps without any tag
 * until something changes.  Only where all depends on one open transaction
 * does it sleep on that one's tag, where the server's deadlock detector sees
 * it.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "access/table.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/*
 * The longest sleep of a waiter: it looks whether its client is still there,
 * and whether the one before it has let its turn pass.
 */
#define SLEEP_MAX_MS	1000

/* How often to try to hold a lease once more, ms apart. */
#define AGAIN_TRIES		50

/*
 * How long the commit of a grant may take before a waiter sleeps on its tag.
 * No lease is shorter, so no deadline is missed.
 */
#define COMMIT_TIME		(10 * DLOCK_NS_PER_MS)

/* How long the server's deadlock detector may take, after deadlock_timeout. */
#define DETECTOR_TIME	(200 * DLOCK_NS_PER_MS)

/* ----------
 * Defaults
 * ----------
 */

/*
 * Fill in what the caller did not say, from the session, the definition and
 * the settings; and see whether the caller may ask for this at all.
 */
static void
Complete(DlockTry *try)
{
	DlockRequest *request = try->request;
	const DlockDefinition *definition = &try->definition;
	DlockSession session;

	DlockApplyDefinition(try);
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

	if (request->ttl == 0)
		request->ttl = Min(definition->ttl > 0 ? definition->ttl : (int64) dlock_default_ttl * 1000,
						   DLOCK_MAX_SPAN);
	if (request->min_hold < 0)
		request->min_hold = definition->min_hold;
}

/*
 * The session has the lock already: its token, if that is what was asked for,
 * or 0.  A grant that another transaction has not committed is not had yet.
 */
static int64
AskAgain(DlockTry *try)
{
	DlockLease	lease;
	int64		token = try->look.own_token;

	if (token == 0 || !(try->request->retry || try->request->reentrant) ||
		!DlockLiveFind(try->db, token, &lease) || !DlockLeaseIsAlive(&lease) ||
		(lease.state == DLOCK_STATE_REVOKING && try->request->reentrant) ||
		(lease.state == DLOCK_STATE_PENDING && lease.pid != MyProcPid))
		return 0;
	if (try->request->reentrant)
	{
		/* another call of the session may be about to commit */
		for (int tries = 0; !DlockHoldAgain(token); tries++)
		{
			if (tries == AGAIN_TRIES)
				return 0;
			pg_usleep(1000L);
			CHECK_FOR_INTERRUPTS();
		}
	}
	if (try->request->retry && try->request->keeps_snapshot)
	{
		Relation	rel = DlockOpenTable(try->objects.lease, AccessShareLock, Natts_lease);

		DlockRequireFreshSnapshot(try, rel);
		table_close(rel, AccessShareLock);
	}
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
		CHECK_FOR_INTERRUPTS(); /* the time may have been over just then */
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

/* Call something that writes; "between" transactions it needs a snapshot. */
static int64
WithSnapshot(int64 (*call) (DlockTry *), DlockTry *try, bool between)
{
	int64		token;

	if (between)
		PushActiveSnapshot(GetTransactionSnapshot());
	token = call(try);
	if (between)
		PopActiveSnapshot();
	return token;
}

/* Begin a new transaction, so that nothing is held over a sleep. */
static void
NextTransaction(DlockTry *try)
{
	table_close(try->definitions, AccessShareLock);
	SPI_commit();
}

/*
 * Wait for the request's turn, and grant it: the token, or 0 when the time is
 * over.  "between": in transactions of its own, of a procedure.
 *
 * Errors: 40P01 for a deadlock, 55P03 for lock_timeout, and DlockGrant()'s.
 */
static int64
Wait(DlockTry *try, bool between)
{
	DlockRequest *request = try->request;
	DlockNanos	started = DlockNow();
	DlockNanos	ends = started + request->wait * DLOCK_NS_PER_US;
	DlockNanos	check_after = DeadlockTimeout * DLOCK_NS_PER_MS;
	DlockNanos	check_at = started + check_after;
	DlockNanos	timeout_at = PG_UINT64_MAX;
	DlockNanos	uncommitted_since = 0;
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
			DlockNanos	now;
			DlockNanos	until;
			DlockSession session;
			bool		fits;

			DlockQueueLooks(request, false);
			fits = DlockFits(try);
			if (request->session != 0 &&
				!DlockSessionFind(try->db, request->session, &session))
				DlockSessionIsGone(request->session);
			if (fits)
			{
				RequireClient();
				request->waited = Max((DlockNow() - started) / DLOCK_NS_PER_US, 1);
				token = WithSnapshot(DlockGrant, try, between);
				if (token != 0)
					break;
			}
			else if (DlockFitsBeside(request, &try->look.alive))
				DlockQueueWake(&try->db->key, try->namehash);	/* another's turn */
			if (try->look.own_token != 0)
				token = WithSnapshot(AskAgain, try, between);
			if (token != 0)
				break;
			if (!DlockFitsBeside(request, &try->look.own) &&
				!request->retry && !request->reentrant)
				WaitsForItself(request);
			if (!fits && (request->capacity == 1 || try->look.alive.exclusive) &&
				DlockPendingGuards(request->name, true))
				WaitsForItself(request);	/* a guarded lease cannot end */

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
				if (check_after < 8 * DeadlockTimeout * DLOCK_NS_PER_MS)
					check_after *= 2;
				check_at = now + check_after;
			}
			until = Min(ends, timeout_at);

			if (between)
				NextTransaction(try);
			if (fits || try->ahead || try->look.uncommitted < 0 ||
				DlockPendingHasTag(try->namehash, try->look.uncommitted))
				uncommitted_since = 0;
			else if (uncommitted_since == 0)
				uncommitted_since = now;
			if (uncommitted_since != 0 && now >= uncommitted_since + COMMIT_TIME)
			{
				/*
				 * long enough for the server's deadlock detector to look, no
				 * longer
				 */
				until = Min(until, now + DeadlockTimeout * DLOCK_NS_PER_MS + DETECTOR_TIME);
				DlockQueueLooks(request, true);
				SleepOnTag(try->namehash, try->look.uncommitted,
						   Max((until - now) / DLOCK_NS_PER_MS, 1));
			}
			else
			{
				until = Min(Min(until, now + SLEEP_MAX_MS * DLOCK_NS_PER_MS),
							Min(check_at, try->look.changes_at));
				if (uncommitted_since != 0)
					until = Min(until, uncommitted_since + COMMIT_TIME);
				DlockQueueSleep(until);
			}
			RequireClient();
			if (between)
				try->definitions = DlockOpenDefinitions(&try->objects);
		}
	}
	PG_CATCH();
	{
		DlockQueueLeave(true);
		PG_RE_THROW();
	}
	PG_END_TRY();
	DlockQueueLeave(true);

	DlockCount(try->db, DLOCK_COUNT_WAITED_MS, (DlockNow() - started) / DLOCK_NS_PER_MS);
	if (token == 0)
		DlockCount(try->db, DLOCK_COUNT_WAITS_TIMED_OUT, 1);
	return token;
}

/* Open the database, and see to the request's defaults. */
static void
Begin(DlockTry *try, DlockRequest *request)
{
	try->request = request;
	try->db = DlockOpenDatabase(&try->objects);
	DlockRequireWritable("dlock_acquire()");
	try->namehash = DlockHashName(request->name, request->namelen);
	try->definitions = DlockOpenDefinitions(&try->objects);
	try->look.max_dead = 1;
	try->look.dead_leases = palloc_array(DlockDead, try->look.max_dead);
	Complete(try);
}

/* DlockAcquire(), in a transaction that keeps its snapshot, or does not. */
static int64
Acquire(DlockRequest *request, bool keeps_snapshot, bool between)
{
	DlockTry	try;
	int64		token = 0;
	bool		fits;

	request->keeps_snapshot = keeps_snapshot;
	Begin(&try, request);

	/* a refusal without a wait has looked at memory alone */
	fits = DlockFits(&try);
	if (request->owner == NULL && (fits || request->wait > 0))
		request->owner = DlockDescribeMe();
	if (try.look.own_token != 0)
		token = AskAgain(&try);
	if (token == 0 && fits)
		token = DlockGrant(&try);
	if (token == 0 && request->wait > 0)
		token = Wait(&try, between);

	table_close(try.definitions, AccessShareLock);

	if (token == 0)
	{
		DlockLookCountRefusal(try.db, request);
		DlockCount(try.db, DLOCK_COUNT_REFUSED, 1);
	}
	return token;
}

/*
 * Acquire a lease: its token, or 0 when the lock is busy, and stays so for the
 * time that the request gives it.  "between": sleep between transactions.
 *
 * Errors: those of DlockOpenDatabase(), Complete(), DlockGrant() and Wait(); 25006
 * in a read-only transaction.
 */
int64
DlockAcquire(DlockRequest *request, bool between)
{
	return Acquire(request, DlockKeepsSnapshot(), between);
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
	bool		keeps_snapshot;
	volatile bool all = true;

	/* most often one look at memory tells that it is in vain */
	for (int i = 0; i < n && request->wait == 0; i++)
	{
		DlockRequest one = *request;
		DlockTry	try;
		bool		fits;

		one.name = names[i];
		one.namelen = strlen(names[i]);
		Begin(&try, &one);
		fits = DlockFits(&try);
		table_close(try.definitions, AccessShareLock);
		if (!fits)
		{
			DlockLookCountRefusal(try.db, &one);
			DlockCount(try.db, DLOCK_COUNT_REFUSED, 1);
			return false;
		}
	}

	/* before there is a subtransaction, in which it is a guess */
	keeps_snapshot = DlockKeepsSnapshot();
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
			tokens[i] = Acquire(&one, keeps_snapshot, false);
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
