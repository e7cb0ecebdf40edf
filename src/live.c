/*-------------------------------------------------------------------------
 *
 * live.c
 *	  Who is alive: deadlines in shared memory.  Knows no tables.
 *
 * A lease is alive or dead by its "word" alone, which only changes by compare
 * and exchange while it is alive: a heartbeat that meets an expiry either
 * renewed before it or finds the lease dead.  Whoever sees that a deadline has
 * passed makes that final before telling anybody.
 *
 * A lease of a session has no deadline of its own: it is alive as long as the
 * session is.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include <time.h>

#include "miscadmin.h"

/* The monotonic clock: no step of the wall clock moves it. */
DlockNanos
DlockNow(void)
{
	struct timespec ts;

	(void) clock_gettime(CLOCK_MONOTONIC, &ts);
	return (DlockNanos) ts.tv_sec * UINT64CONST(1000000000) + ts.tv_nsec;
}

/*
 * The word of a lease or session as of "now": a deadline that has passed is
 * made final first, so that what one process was told no other can undo.  A
 * lease of a session has the session's word, while that is alive.
 */
uint64
DlockLiveWord(DlockLive *live, DlockNanos now)
{
	uint64		word = pg_atomic_read_u64(&live->word);

	for (;;)
	{
		if (word == DLOCK_WORD_SESSION)
		{
			DlockLive  *session = DlockMapAt(live->session);
			uint64		of_session = DlockLiveWord(session, now);

			if (DlockWordIsAlive(of_session))
				return of_session;
			pg_atomic_write_u64(&live->died_at,
								pg_atomic_read_u64(&session->died_at));
		}
		else if (DlockWordIsDeadline(word) && DlockWordDeadline(word) <= now)
			pg_atomic_write_u64(&live->died_at, DlockWordDeadline(word));
		else
			return word;

		if (pg_atomic_compare_exchange_u64(&live->word, &word, DLOCK_WORD_DEAD))
			return DLOCK_WORD_DEAD;
	}
}

/*
 * Until when does a lock rest after this lease, 0 when it does not: for what
 * is left of min_hold, and after a lease that died, for the takeover delay.
 */
DlockNanos
DlockLiveRestsUntil(DlockLive *live, uint64 word, DlockState *kind)
{
	DlockNanos	until = pg_atomic_read_u64(&live->rests_until);

	/* a revocation leaves no min_hold, once it is carried out */
	if (word == DLOCK_WORD_DEAD && pg_atomic_read_u32(&live->revoked) != 0)
		until = 0;

	*kind = pg_atomic_read_u32(&live->rest_kind);
	if (word == DLOCK_WORD_DEAD && live->takeover_delay > 0)
	{
		DlockLive  *session = DlockMapAt(live->session);
		DlockNanos	delayed = pg_atomic_read_u64(&live->died_at) + live->takeover_delay;

		if (delayed > until &&
			(session == NULL || pg_atomic_read_u32(&session->outcome) != DLOCK_RELEASED))
		{
			*kind = DLOCK_STATE_DELAYED;
			return delayed;
		}
	}
	return until;
}

/*
 * Over, at rest no more, and needed by nobody: not by a transaction, nor by a
 * session that has to be told, nor (a session) by its leases.
 */
bool
DlockLiveIsGarbage(DlockLive *live, DlockNanos now)
{
	uint64		word = DlockLiveWord(live, now);
	DlockLive  *session = DlockMapAt(live->session);

	if (pg_atomic_read_u32(&live->pins) > 0)
		return false;
	if (live->key.id < 0)
		return !DlockWordIsAlive(word) && !DsaPointerIsValid(live->session_next);
	return word == DLOCK_WORD_ENDED &&
		pg_atomic_read_u64(&live->rests_until) <= now &&
		(session == NULL || pg_atomic_read_u32(&live->lost) != 1 ||
		 !DlockWordIsAlive(DlockLiveWord(session, now)));
}

/*
 * Has this transaction ended the lease, or the session?  A lease whose session
 * it has closed is ended only when its row is, too.
 */
bool
DlockLiveEndedByMe(DlockLive *live)
{
	return pg_atomic_read_u32(&live->ender) == (uint32) MyProcPid;
}

/* Copy an entry out, under its partition's lock. */
static void
CopyLease(DlockLive *live, DlockNanos now, DlockLease *lease)
{
	uint64		word = DlockLiveWord(live, now);
	DlockNanos	ttl = pg_atomic_read_u64(&live->ttl);
	DlockLive  *session = DlockMapAt(live->session);
	DlockNanos	until = 0;
	DlockState	rest_kind;
	bool		dead;
	DlockNanos	rests_until = DlockLiveRestsUntil(live, word, &rest_kind);

	if (session != NULL && !(word & DLOCK_WORD_REVOKING))
		ttl = pg_atomic_read_u64(&session->ttl);

	if (word == DLOCK_WORD_PENDING || word == DLOCK_WORD_CONNECTED)
	{
		uint64		of_session = word == DLOCK_WORD_PENDING && session != NULL ?
			DlockLiveWord(session, now) : word;

		lease->state = word == DLOCK_WORD_PENDING ?
			DLOCK_STATE_PENDING : DLOCK_STATE_HELD;
		until = DlockWordIsDeadline(of_session) ? DlockWordDeadline(of_session) : now + ttl;
	}
	else if (DlockWordIsDeadline(word))
	{
		lease->state = (word & DLOCK_WORD_REVOKING) ?
			DLOCK_STATE_REVOKING : DLOCK_STATE_HELD;
		until = DlockWordDeadline(word);
	}
	else if (word == DLOCK_WORD_DEAD)
		lease->state = DLOCK_STATE_EXPIRED;
	else if (rests_until > now)
	{
		lease->state = rest_kind;
		until = rests_until;
	}
	else
		lease->state = DLOCK_STATE_OVER;

	/* rounded up: who waits for this long must not come too early */
	lease->remaining = until > now ?
		(until - now + DLOCK_NS_PER_US - 1) / DLOCK_NS_PER_US : 0;
	lease->since_heartbeat = lease->state == DLOCK_STATE_HELD && now + ttl > until ?
		(now + ttl - until) / DLOCK_NS_PER_US : 0;
	dead = word == DLOCK_WORD_DEAD ||
		(word == DLOCK_WORD_ENDED && pg_atomic_read_u32(&live->by_worker) != 0);
	lease->dead_for = dead ?
		(now - Min(now, pg_atomic_read_u64(&live->died_at))) / DLOCK_NS_PER_US : 0;

	lease->quiet_for = dead ?
		Min(lease->dead_for,
			(int64) ((now - Min(now, pg_atomic_read_u64(&live->guarded_until))) / DLOCK_NS_PER_US)) : 0;

	lease->token = live->key.id;
	lease->ttl = ttl / DLOCK_NS_PER_US;
	lease->session = session ? -session->key.id : 0;
	lease->session_outcome = session ?
		pg_atomic_read_u32(&session->outcome) : DLOCK_EXPIRED;
	lease->role = live->role;
	lease->pid = live->pid;
	lease->slot = live->slot;
	lease->capacity = live->capacity;
	lease->ended_by_me = DlockLiveEndedByMe(live);
	lease->heartbeats = pg_atomic_read_u64(session && !(word & DLOCK_WORD_REVOKING) ?
										   &session->heartbeats : &live->heartbeats);
	lease->refused = pg_atomic_read_u64(&live->refused);
	lease->last_refused_at = pg_atomic_read_u64(&live->last_refused_at);
	memcpy(lease->name, live->name, live->namelen);
	lease->name[live->namelen] = '\0';
}

/*
 * Copy out the lease with this token; false when the map does not have it,
 * and so, in an adopted database, it is not held.
 */
bool
DlockLiveFind(DlockDatabase *db, int64 token, DlockLease *lease)
{
	DlockKey	key;
	DlockLive  *live;

	if (token <= 0)
		return false;
	DlockMapKey(&key, db, token);
	live = DlockMapFind(&key, false);
	if (live == NULL)
		return false;
	CopyLease(live, DlockNow(), lease);
	DlockMapRelease();
	return true;
}

/*
 * Renew a lease, or a session, from now on, if it belongs to "role".  When it
 * belongs to another, *other_role says to whom and nothing is done.  A lease
 * of a session renews the session.
 *
 * False: it is lost, or it is being revoked, and no heartbeat will ever renew
 * it again.  True for a pending lease, whose time has not begun, and for one
 * that lives with a connection.
 */
bool
DlockLiveHeartbeat(DlockDatabase *db, int64 id, Oid role, Oid *other_role)
{
	DlockKey	key;
	DlockLive  *live;
	DlockLive  *session;
	DlockLive  *clock;			/* whose word it is that counts */
	bool		result = false;

	*other_role = InvalidOid;
	DlockMapKey(&key, db, id);
	live = DlockMapFind(&key, false);
	if (live == NULL)
		return false;
	session = DlockMapAt(live->session);

	for (;;)
	{
		DlockNanos	now = DlockNow();
		uint64		word = DlockLiveWord(live, now);
		uint64		renewed;

		if (!DlockWordIsAlive(word) || (word & DLOCK_WORD_REVOKING) ||
			DlockLiveEndedByMe(live) || (session != NULL && DlockLiveEndedByMe(session)))
			break;
		if (live->role != role)
		{
			*other_role = live->role;
			break;
		}
		if (!DlockWordIsDeadline(word))
		{
			result = true;
			break;
		}

		clock = pg_atomic_read_u64(&live->word) == DLOCK_WORD_SESSION ?
			DlockMapAt(live->session) : live;
		renewed = now + pg_atomic_read_u64(&clock->ttl);
		if (!pg_atomic_compare_exchange_u64(&clock->word, &word, renewed))
			continue;			/* another heartbeat, or an end */

		/*
		 * We may have slept between the clock and the exchange.  Past the old
		 * deadline it was lost, unless another heartbeat has renewed it since
		 * and said so.
		 */
		if (DlockNow() >= word)
		{
			pg_atomic_write_u64(&clock->died_at, word);
			if (pg_atomic_compare_exchange_u64(&clock->word, &renewed, DLOCK_WORD_DEAD))
				break;
			continue;
		}
		pg_atomic_fetch_add_u64(&clock->heartbeats, 1);
		result = true;
		break;
	}
	DlockMapRelease();
	return result;
}

/*
 * Pin an entry for the rest of the transaction, or NULL when the map does not
 * have it.  Who pins, unpins.
 *
 * What a callback will need of it, its session too, is mapped into this
 * process when this returns.
 */
DlockLive *
DlockLivePin(DlockDatabase *db, int64 id)
{
	DlockKey	key;
	DlockLive  *live;

	DlockMapKey(&key, db, id);
	live = DlockMapFind(&key, false);
	if (live == NULL)
		return NULL;
	(void) DlockMapAt(live->session);
	pg_atomic_fetch_add_u32(&live->pins, 1);
	DlockMapRelease();
	return live;
}

/*
 * The following run in commit and abort callbacks: they store through a
 * pinned pointer and can neither fail nor allocate.
 */

void
DlockLiveUnpin(DlockLive *live)
{
	pg_atomic_fetch_sub_u32(&live->pins, 1);
}

/* The grant has committed: the lease is held, and its time begins. */
void
DlockLiveStart(DlockLive *live, DlockNanos rests_until, DlockNanos deadline)
{
	pg_atomic_write_u64(&live->rests_until, rests_until);
	pg_write_barrier();
	pg_atomic_write_u64(&live->word, DsaPointerIsValid(live->session) ?
						DLOCK_WORD_SESSION : deadline);
}

/* A new TTL has committed; it counts from now, if the lease is not lost. */
void
DlockLiveRenew(DlockLive *live, DlockNanos ttl)
{
	DlockNanos	now = DlockNow();
	uint64		word = DlockLiveWord(live, now);

	pg_atomic_write_u64(&live->ttl, ttl);
	while (DlockWordIsDeadline(word) && !(word & DLOCK_WORD_REVOKING))
	{
		if (pg_atomic_compare_exchange_u64(&live->word, &word, now + ttl))
			break;
	}
}

/* The session of a lease is to be told that it lost it. */
void
DlockLiveTellSession(DlockLive *live)
{
	uint32		no = 0;

	if (DsaPointerIsValid(live->session) &&
		pg_atomic_compare_exchange_u32(&live->lost, &no, 1))
		pg_atomic_fetch_add_u32(&DlockMapAt(live->session)->lost, 1);
}

/* A transaction that guarded the lease has ended. */
void
DlockLiveUnguard(DlockLive *live)
{
	DlockNanos	now = DlockNow();
	uint64		until = pg_atomic_read_u64(&live->guarded_until);

	while (until < now &&
		   !pg_atomic_compare_exchange_u64(&live->guarded_until, &until, now))
		;
}

/* A revocation has committed: the lease has until the deadline, no longer. */
void
DlockLiveRevoke(DlockLive *live, DlockNanos deadline)
{
	uint64		word;

	(void) DlockLiveWord(live, DlockNow());
	word = pg_atomic_read_u64(&live->word);
	while (DlockWordIsAlive(word) && word != DLOCK_WORD_PENDING)
	{
		/* first, as whoever sees it dead will ask */
		pg_atomic_write_u32(&live->revoked, 1);
		if (pg_atomic_compare_exchange_u64(&live->word, &word,
										   deadline | DLOCK_WORD_REVOKING))
		{
			DlockLiveTellSession(live);
			break;
		}
	}
}

/*
 * The lease is over, by a committed end or by the rollback of its grant.  The
 * lock then rests as "rest" says (DLOCK_STATE_OVER: not at all), until what
 * is left of min_hold has passed or, if that is later, "rests_until".
 */
void
DlockLiveEnd(DlockLive *live, DlockState rest, DlockNanos rests_until)
{
	if (rest == DLOCK_STATE_OVER)
		pg_atomic_write_u64(&live->rests_until, 0);
	else if (rests_until > pg_atomic_read_u64(&live->rests_until))
	{
		pg_atomic_write_u64(&live->rests_until, rests_until);
		pg_atomic_write_u32(&live->rest_kind, rest);
	}
	pg_write_barrier();
	if (pg_atomic_exchange_u64(&live->word, DLOCK_WORD_ENDED) != DLOCK_WORD_ENDED)
		pg_atomic_fetch_add_u64(&DlockShared->over, 1);
}
