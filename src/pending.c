/*-------------------------------------------------------------------------
 *
 * pending.c
 *	  What a transaction owes shared memory when it commits or aborts.
 *
 * A call that changes a row makes a note here of the entry in the map that
 * has to follow.  The note is allocated, and the entry found and pinned, in
 * the call; the callbacks at the end of the transaction only store through
 * the pointer, since an error there would take the server down.
 *
 * Notes carry the subtransaction that made them, so that a savepoint's
 * rollback undoes its own and no others.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

typedef enum PendingKind
{
	PENDING_HOLD,
	PENDING_GRANT,
	PENDING_END,
	PENDING_GUARD,
	PENDING_TTL,
	PENDING_REVOKE,
	PENDING_REST,
	PENDING_SESSION_END,
	PENDING_WAKE
} PendingKind;

struct DlockPending
{
	dlist_node	node;
	PendingKind kind;
	SubTransactionId subid;
	DlockDatabase *db;
	DlockLive  *live;			/* pinned; NULL when the map has no entry */
	DlockKey	key;			/* of the entry, for after it is unpinned */
	uint64		namehash;
	DlockNanos	span;			/* ns: a TTL, a time of grace, a delay */
	DlockOutcome outcome;		/* PENDING_END */
	DlockNanos	rests_until;	/* PENDING_END: as it was */
	bool		flush;			/* the commit must be durable */
	const char *log;			/* what to log about it, or NULL */
};

/* This transaction's notes, oldest first; in TopTransactionContext. */
static dlist_head notes = DLIST_STATIC_INIT(notes);

/*
 * Notes that are done with, but for the waiters that have to be woken when the
 * transaction's locks are free: a waiter takes tags without waiting for them.
 */
static dlist_head wakes = DLIST_STATIC_INIT(wakes);

/*
 * End of the WAL that this transaction has written, as long as it consists of
 * nothing but changes to rows of leases, for which there are notes.
 */
static XLogRecPtr soft_wal_end = InvalidXLogRecPtr;

static void DlockXactCallback(XactEvent event, void *arg);
static void DlockSubXactCallback(SubXactEvent event, SubTransactionId mySubid,
								 SubTransactionId parentSubid, void *arg);
static void DlockReleaseCallback(ResourceReleasePhase phase, bool isCommit,
								 bool isTopLevel, void *arg);

void
DlockPendingInit(void)
{
	RegisterXactCallback(DlockXactCallback, NULL);
	RegisterSubXactCallback(DlockSubXactCallback, NULL);
	RegisterResourceReleaseCallback(DlockReleaseCallback, NULL);
}

/*
 * Allocate a note.  Until it is filled in it means nothing, so the caller may
 * still fail.
 *
 * 25000 in a parallel operation, where a worker's transaction is not the one
 * that will commit: a function that is labeled as safe and is not.
 */
DlockPending *
DlockPendingReserve(DlockDatabase *db)
{
	DlockPending *note;

	if (IsInParallelMode())
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_TRANSACTION_STATE),
				 errmsg("cannot take, guard or end leases during a parallel operation"),
				 errhint("A function that does so must be PARALLEL UNSAFE.")));
	note = MemoryContextAllocZero(TopTransactionContext, sizeof(DlockPending));
	note->db = db;
	note->subid = GetCurrentSubTransactionId();
	return note;
}

/* Fill in a note, with a pinned entry or none. */
static void
AddNote(DlockPending *note, PendingKind kind, DlockLive *live)
{
	note->kind = kind;
	note->live = live;
	if (live != NULL)
	{
		note->key = live->key;
		note->namehash = live->namehash;
	}
	dlist_push_tail(&notes, &note->node);
}

/* A grant was written; "live" comes pinned. */
void
DlockPendingGrant(DlockPending *note, DlockLive *live)
{
	note->flush = true;
	AddNote(note, PENDING_GRANT, live);
}

/*
 * An end was written.  After it the lock rests for "delay" µs.
 *
 * "flush": it must be durable when it is acknowledged.  Without, and if the
 * transaction does nothing else, it may commit without waiting for the disk:
 * all that a crash can do then is to bring the lease back for one TTL.
 */
void
DlockPendingEnd(DlockPending *note, int64 token, DlockOutcome outcome, int64 delay,
				bool flush, const char *log)
{
	DlockLive  *live;

	if (log != NULL)
		note->log = MemoryContextStrdup(TopTransactionContext, log);
	note->outcome = outcome;
	note->span = delay * DLOCK_NS_PER_US;
	note->flush = flush;

	live = DlockLivePin(note->db, token);
	if (live != NULL)
	{
		pg_atomic_write_u32(&live->by_worker, DlockIsReaper ? 1 : 0);

		/* for this transaction the lock rests, or doesn't, already */
		note->rests_until = pg_atomic_read_u64(&live->rests_until);
		if (outcome == DLOCK_REVOKED)
			pg_atomic_write_u64(&live->rests_until, 0);
		if (delay > 0)
			pg_atomic_write_u64(&live->rests_until,
								Max(pg_atomic_read_u64(&live->rests_until),
									DlockNow() + note->span));
		pg_atomic_write_u32(&live->ender, (uint32) MyProcPid);
	}
	AddNote(note, PENDING_END, live);
}

/*
 * A lease's row, and what belongs to it, was written; "wal_before" is where the
 * transaction's WAL had ended.
 */
void
DlockPendingWrote(XLogRecPtr wal_before)
{
	if (wal_before == soft_wal_end)
		soft_wal_end = XactLastRecEnd;
}

/* This transaction guards the lease. */
void
DlockPendingGuard(DlockPending *note, int64 token)
{
	AddNote(note, PENDING_GUARD, DlockLivePin(note->db, token));
}

/* Has this transaction a slot's tag, by what it did to a lease there? */
bool
DlockPendingHasTag(uint64 namehash, int slot)
{
	dlist_iter	iter;

	dlist_foreach(iter, &notes)
	{
		DlockPending *note = dlist_container(DlockPending, node, iter.cur);

		if (note->live != NULL && note->live->key.id > 0 &&
			note->live->namehash == namehash && note->live->slot == slot)
			return true;
	}
	return false;
}

/* Does this transaction hold on to any lease? */
bool
DlockPendingAny(void)
{
	return !dlist_is_empty(&notes);
}

/*
 * Does this transaction guard a lease of that lock, or ("held") one that it has
 * not ended since?
 */
bool
DlockPendingGuards(const char *name, bool held)
{
	int			namelen = strlen(name);
	dlist_iter	iter;

	dlist_foreach(iter, &notes)
	{
		DlockPending *note = dlist_container(DlockPending, node, iter.cur);

		if (note->kind == PENDING_GUARD && note->live != NULL &&
			note->live->namelen == namelen &&
			memcmp(note->live->name, name, namelen) == 0 &&
			!(held && DlockLiveEndedByMe(note->live)))
			return true;
	}
	return false;
}

/* A new TTL, in µs, was written. */
void
DlockPendingTtl(DlockPending *note, int64 token, int64 ttl)
{
	note->span = ttl * DLOCK_NS_PER_US;
	note->flush = true;
	AddNote(note, PENDING_TTL, DlockLivePin(note->db, token));
}

/* A revocation with a time of grace, in µs, was written. */
void
DlockPendingRevoke(DlockPending *note, int64 token, int64 grace)
{
	note->span = grace * DLOCK_NS_PER_US;
	note->flush = true;
	AddNote(note, PENDING_REVOKE, DlockLivePin(note->db, token));
}

/* It was written how many times a lease is held, which memory need not know. */
void
DlockPendingHold(DlockPending *note, int64 token)
{
	note->flush = true;
	AddNote(note, PENDING_HOLD, DlockLivePin(note->db, token));
}

/* It was written that the lock rests no more after that lease. */
void
DlockPendingRest(DlockPending *note, int64 token)
{
	note->flush = true;
	AddNote(note, PENDING_REST, DlockLivePin(note->db, token));
}

/* The waiters of a lock may fit from the commit on. */
void
DlockPendingWake(DlockPending *note, uint64 namehash)
{
	AddNote(note, PENDING_WAKE, NULL);
	note->key = note->db->key;
	note->namehash = namehash;
}

/* A session ends with this transaction. */
void
DlockPendingSessionEnd(DlockPending *note, int64 session)
{
	DlockLive  *live = DlockLivePin(note->db, -session);

	uint32		nobody = 0;

	if (live != NULL)
		(void) pg_atomic_compare_exchange_u32(&live->ender, &nobody, (uint32) MyProcPid);
	note->flush = true;
	AddNote(note, PENDING_SESSION_END, live);
}

/*
 * Set synchronous_commit for the rest of this transaction, as it is about to
 * commit.  Through the setting, as its assign hook has to see the change.
 */
static void
SetSynchronousCommit(const char *value)
{
	(void) set_config_option("synchronous_commit", value,
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_LOCAL,
							 true, 0, false);
}

/* May raise an error, as the last point where that is allowed. */
static void
BeforeCommit(void)
{
	dlist_iter	iter;
	bool		flush = false;

	dlist_foreach(iter, &notes)
	{
		DlockPending *note = dlist_container(DlockPending, node, iter.cur);

		flush |= note->flush;
		if (note->log != NULL)
			ereport(LOG_SERVER_ONLY, (errmsg_internal("%s", note->log)));
	}

	if (DlockIsReaper)
		return;					/* acknowledges nothing, and waits for nobody */
	if (flush)
	{
		/* what is acknowledged must be durable, and replicated if waited for */
		if (synchronous_commit < SYNCHRONOUS_COMMIT_REMOTE_FLUSH)
			SetSynchronousCommit("on");
	}
	else if (soft_wal_end != InvalidXLogRecPtr &&
			 soft_wal_end == XactLastRecEnd &&
			 synchronous_commit > SYNCHRONOUS_COMMIT_OFF)
		SetSynchronousCommit("off");
}

/*
 * Is anything for a waiter in what became of this note's lease?  Then it is
 * kept until the locks are free.
 */
static void
Finish(DlockPending *note, bool changed)
{
	DlockLive  *live = note->live;

	dlist_delete(&note->node);
	if (changed ||
		(live != NULL && live->key.id > 0 &&
		 pg_atomic_read_u64(&live->word) < DLOCK_WORD_PENDING))
		dlist_push_tail(&wakes, &note->node);
	if (live != NULL)
		DlockLiveUnpin(live);
}

/* This transaction ends the session no more, if it was the one. */
static void
ForgetEnder(DlockLive *session)
{
	uint32		me = MyProcPid;

	(void) pg_atomic_compare_exchange_u32(&session->ender, &me, 0);
}

/* Can neither fail nor allocate. */
static void
Commit(DlockPending *note)
{
	DlockLive  *live = note->live;
	DlockNanos	now = DlockNow();
	DlockNanos	deadline = 0;
	bool		changed = false;

	switch (note->kind)
	{
		case PENDING_GRANT:
			deadline = now + pg_atomic_read_u64(&live->ttl);
			DlockLiveStart(live, live->min_hold ? now + live->min_hold : 0, deadline);
			pg_atomic_fetch_add_u64(&note->db->held, 1);
			DlockCount(note->db, DLOCK_COUNT_GRANTED, 1);
			if (DsaPointerIsValid(live->session))
				deadline = 0;
			break;
		case PENDING_END:
			pg_atomic_fetch_sub_u64(&note->db->held, 1);
			DlockCount(note->db, DLOCK_COUNT_ENDED + note->outcome, 1);
			if (live == NULL)
				break;
			if (note->outcome != DLOCK_RELEASED)
				DlockLiveTellSession(live);
			if (note->outcome == DLOCK_REVOKED)
				pg_atomic_write_u64(&live->rests_until, 0); /* no min_hold */
			DlockLiveEnd(live, note->span > 0 ? DLOCK_STATE_DELAYED :
						 DLOCK_STATE_MIN_HOLD, now + note->span);
			pg_atomic_write_u32(&live->ender, 0);
			break;
		case PENDING_TTL:
			if (live == NULL)
				break;
			DlockLiveRenew(live, note->span);
			deadline = now + note->span;
			changed = true;
			break;
		case PENDING_REVOKE:
			if (live == NULL)
				break;
			deadline = now + note->span;
			DlockLiveRevoke(live, deadline);
			changed = true;
			break;
		case PENDING_REST:
			if (live != NULL)
				DlockLiveEnd(live, DLOCK_STATE_OVER, 0);
			changed = true;
			break;
		case PENDING_SESSION_END:
			if (live == NULL)
				break;
			DlockSessionEnd(live, DLOCK_RELEASED);
			ForgetEnder(live);
			break;
		case PENDING_GUARD:
			if (live != NULL)
				DlockLiveUnguard(live);
			break;
		case PENDING_HOLD:
		case PENDING_WAKE:
			changed = true;
			break;
	}
	if (deadline != 0)
		DlockTellLauncher(&note->key, deadline);
	Finish(note, changed);
}

/* Can neither fail nor allocate. */
static void
Abort(DlockPending *note)
{
	DlockLive  *live = note->live;

	if (live != NULL)
	{
		if (note->kind == PENDING_GRANT)
			DlockLiveEnd(live, DLOCK_STATE_OVER, 0);
		else if (note->kind == PENDING_END)
		{
			pg_atomic_write_u64(&live->rests_until, note->rests_until);
			pg_atomic_write_u32(&live->ender, 0);
		}
		else if (note->kind == PENDING_SESSION_END)
			ForgetEnder(live);
	}
	Finish(note, note->kind == PENDING_HOLD);
}

/* The locks are free: now the waiters can have them. */
static void
DlockReleaseCallback(ResourceReleasePhase phase, bool isCommit, bool isTopLevel,
					 void *arg)
{
	if (phase != RESOURCE_RELEASE_AFTER_LOCKS)
		return;
	while (!dlist_is_empty(&wakes))
	{
		DlockPending *note = dlist_container(DlockPending, node,
											 dlist_pop_head_node(&wakes));

		DlockQueueWake(&note->key, note->namehash);
	}
}

static void
DlockXactCallback(XactEvent event, void *arg)
{
	dlist_mutable_iter iter;

	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (!dlist_is_empty(&notes))
				BeforeCommit();
			return;
		case XACT_EVENT_PRE_PREPARE:
			if (!dlist_is_empty(&notes))
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that has taken, ended or guarded a lease"),
						 errhint("Acquire and release leases in transactions of their own.")));
			return;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
			break;
		default:
			return;
	}

	if (event == XACT_EVENT_COMMIT)
	{
		dlist_foreach_modify(iter, &notes)
			Commit(dlist_container(DlockPending, node, iter.cur));
	}
	else
	{
		/* the newest first: an end before the grant that it ended */
		while (!dlist_is_empty(&notes))
		{
			DlockPending *note = dlist_tail_element(DlockPending, node, &notes);

			Abort(note);
		}
	}

	/* the memory goes with the transaction */
	soft_wal_end = InvalidXLogRecPtr;
}

static void
DlockSubXactCallback(SubXactEvent event, SubTransactionId mySubid,
					 SubTransactionId parentSubid, void *arg)
{
	/* this subtransaction's notes are the last ones */
	if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		while (!dlist_is_empty(&notes))
		{
			DlockPending *note = dlist_tail_element(DlockPending, node, &notes);

			if (note->subid != mySubid)
				break;
			Abort(note);
		}
	}
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		dlist_iter	iter;

		dlist_reverse_foreach(iter, &notes)
		{
			DlockPending *note = dlist_container(DlockPending, node, iter.cur);

			if (note->subid != mySubid)
				break;
			note->subid = parentSubid;
		}
	}
}
