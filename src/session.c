/*-------------------------------------------------------------------------
 *
 * session.c
 *	  Sessions: one deadline and one heartbeat for many leases.
 *
 * A session is an entry of the map like a lease, with a key that is minus its
 * id, and a chain of its leases.  It has no row: what a crash must not lose of
 * it is in the rows of its leases.
 *
 * A session that is bound to its connection is alive as long as that is; the
 * backend ends it when it exits.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/ipc.h"
#include "utils/memutils.h"

/* This connection's own sessions, pinned. */
static List *connected = NIL;

/*
 * The session is over: with it, its leases are dead, and end with "outcome".
 * For callbacks too: stores through a pinned pointer, and cannot fail.
 */
void
DlockSessionEnd(DlockLive *session, DlockOutcome outcome)
{
	uint64		word = DlockLiveWord(session, DlockNow());

	while (word > DLOCK_WORD_ENDED)
	{
		pg_atomic_write_u64(&session->died_at, DlockNow());
		pg_atomic_write_u32(&session->outcome, outcome);
		if (pg_atomic_compare_exchange_u64(&session->word, &word, DLOCK_WORD_DEAD))
			break;
	}
	DlockTellLauncher(&session->key, DlockNow());
	DlockQueueWakeAll(&session->key);
}

/* The connection is gone, and with it its sessions. */
static void
Disconnect(int code, Datum arg)
{
	ListCell   *lc;

	foreach(lc, connected)
	{
		DlockLive  *session = lfirst(lc);

		DlockSessionEnd(session, DLOCK_DISCONNECTED);
		DlockLiveUnpin(session);
	}
	connected = NIL;
}

/* Forget this connection's sessions that are over: closed, from wherever. */
static void
ForgetEnded(void)
{
	ListCell   *lc;

	foreach(lc, connected)
	{
		DlockLive  *session = lfirst(lc);

		if (DlockLiveWord(session, DlockNow()) <= DLOCK_WORD_ENDED)
		{
			DlockLiveUnpin(session);
			connected = foreach_delete_current(connected, lc);
		}
	}
}

/*
 * Open a session with this TTL (µs): its id.  "bound": it lives as long as this
 * connection.
 *
 * The id is never given again.  It need not be flushed for that: after a crash
 * or a failover the sequence is raised by more than can have been lost.
 */
int64
DlockSessionOpen(const char *owner, int64 ttl, bool bound)
{
	static bool registered = false;
	DlockObjects objects;
	DlockDatabase *db = DlockOpenDatabase(&objects);
	DlockRequest request;
	DlockLive  *live;
	MemoryContext old;
	int64		id;

	DlockRequireWritable("dlock_session_open()");
	DlockRaiseTokens(db, &objects);
	id = DlockNextToken(objects.token_seq);
	DlockNoteToken(id);

	memset(&request, 0, sizeof(request));
	request.owner = owner;
	request.ttl = ttl;
	request.role = GetUserId();
	request.pid = MyProcPid;

	if (!bound)
	{
		live = DlockMapInsert(db, -id, &request, -1);
		DlockLiveStart(live, 0, DlockNow() + ttl * DLOCK_NS_PER_US);
		DlockTellLauncher(&live->key, DlockNow() + ttl * DLOCK_NS_PER_US);
		DlockLiveUnpin(live);
		return id;
	}

	/* the pin is kept until the connection ends, or the session */
	ForgetEnded();
	old = MemoryContextSwitchTo(TopMemoryContext);
	connected = lappend(connected, NULL);
	MemoryContextSwitchTo(old);
	PG_TRY();
	{
		live = DlockMapInsert(db, -id, &request, -1);
	}
	PG_CATCH();
	{
		connected = list_delete_last(connected);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (!registered)
		before_shmem_exit(Disconnect, 0);
	registered = true;
	llast(connected) = live;
	DlockLiveStart(live, 0, DLOCK_WORD_CONNECTED);
	return id;
}

/*
 * A session is in the rows of its leases: make it again from one of them, if
 * it isn't there yet.  It is pending, and pinned, until the adoption is done.
 */
void
DlockSessionAdopt(DlockDatabase *db, const DlockSession *session)
{
	DlockRequest request;
	DlockLive  *live;

	memset(&request, 0, sizeof(request));
	request.owner = session->owner;
	request.ttl = session->ttl;
	request.role = session->role;
	live = DlockMapInsert(db, -session->id, &request, -1);
	if (live != NULL && session->connected)
		pg_atomic_write_u32(&live->outcome, DLOCK_DISCONNECTED);
}

/* Copy out a session; false when it is gone, or this transaction closed it. */
bool
DlockSessionFind(DlockDatabase *db, int64 id, DlockSession *session)
{
	DlockKey	key;
	DlockLive  *live;
	uint64		word;
	bool		ended_by_me;

	if (id <= 0)
		return false;
	DlockMapKey(&key, db, -id);
	live = DlockMapFind(&key, false);
	if (live == NULL)
		return false;
	word = DlockLiveWord(live, DlockNow());
	session->id = id;
	session->ttl = pg_atomic_read_u64(&live->ttl) / DLOCK_NS_PER_US;
	session->role = live->role;
	session->connected = (word == DLOCK_WORD_CONNECTED);
	session->pid = live->pid;
	ended_by_me = pg_atomic_read_u32(&live->ender) == (uint32) MyProcPid;
	memcpy(session->owner, live->name, live->namelen);
	session->owner[live->namelen] = '\0';
	DlockMapRelease();
	return word > DLOCK_WORD_ENDED && !ended_by_me;
}

/*
 * Tokens of a session's leases, up to "max": those that are alive, or ("lost")
 * those of which the session is to be told, which then counts as done.
 * Returns how many.
 */
int
DlockSessionLeases(DlockDatabase *db, int64 id, int64 *tokens, int max, bool lost)
{
	DlockKey	key;
	DlockLive  *session;
	DlockNanos	now = DlockNow();
	int			n = 0;

	DlockMapKey(&key, db, -id);
	session = DlockMapFind(&key, true);
	if (session == NULL)
		return 0;
	for (DlockLive *live = DlockMapAt(session->session_next);
		 live != NULL && n < max;
		 live = DlockMapAt(live->session_next))
	{
		if (lost)
		{
			if (pg_atomic_read_u32(&live->lost) != 1)
				continue;
			pg_atomic_write_u32(&live->lost, 2);
			pg_atomic_fetch_sub_u32(&session->lost, 1);
		}
		else if (DlockLiveWord(live, now) < DLOCK_WORD_PENDING ||
				 pg_atomic_read_u32(&live->ender) == (uint32) MyProcPid)
			continue;
		tokens[n++] = live->key.id;
	}
	DlockMapRelease();
	return n;
}

/*
 * Renew a session; false when it is gone.  *lost, unless NULL, gets the tokens
 * that it has lost since the last time, palloc'd.  42501 when it belongs to
 * another role.
 */
bool
DlockSessionHeartbeat(int64 id, int64 **lost, int *nlost)
{
	DlockObjects objects;
	DlockDatabase *db = DlockOpenDatabase(&objects);
	DlockSession session;
	Oid			other_role;
	DlockKey	key;
	DlockLive  *live;
	int			max;

	*nlost = 0;
	if (!DlockSessionFind(db, id, &session))
		return false;
	if (!DlockMayUse(session.role))
		DlockDenySession(id);
	if (!DlockLiveHeartbeat(db, -id, session.role, &other_role))
		return false;
	if (lost == NULL)
		return true;
	*lost = NULL;

	DlockMapKey(&key, db, -id);
	live = DlockMapFind(&key, false);
	if (live == NULL)
		return false;
	max = pg_atomic_read_u32(&live->lost);
	DlockMapRelease();

	if (max > 0)
	{
		*lost = palloc_extended(max * sizeof(int64), MCXT_ALLOC_HUGE);
		*nlost = DlockSessionLeases(db, id, *lost, max, true);
	}
	return true;
}

/* Is this a lease of the session that heartbeats keep? */
bool
DlockSessionHas(int64 id, int64 token)
{
	DlockObjects objects;
	DlockDatabase *db = DlockOpenDatabase(&objects);
	DlockLease	lease;

	return DlockLiveFind(db, token, &lease) && DlockLeaseIsAlive(&lease) &&
		lease.state != DLOCK_STATE_REVOKING && lease.session == id;
}
