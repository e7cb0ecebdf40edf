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

#include <limits.h>
#include <time.h>

#include "miscadmin.h"
#include "utils/timestamp.h"

/* The monotonic clock: no step of the wall clock moves it. */
DlockNanos
DlockNow(void)
{
	struct timespec ts;

	(void) clock_gettime(CLOCK_MONOTONIC, &ts);
	return (DlockNanos) ts.tv_sec * UINT64CONST(1000000000) + ts.tv_nsec;
}

static inline bool
WordIsAlive(uint64 word)
{
	return word >= DLOCK_WORD_PENDING;
}

static inline bool
WordIsDeadline(uint64 word)
{
	return word > DLOCK_WORD_CONNECTED;
}

static inline DlockNanos
Deadline(uint64 word)
{
	return word & ~DLOCK_WORD_REVOKING;
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

			if (WordIsAlive(of_session))
				return of_session;
			pg_atomic_write_u64(&live->died_at,
								pg_atomic_read_u64(&session->died_at));
		}
		else if (WordIsDeadline(word) && Deadline(word) <= now)
			pg_atomic_write_u64(&live->died_at, Deadline(word));
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
static DlockNanos
RestsUntil(DlockLive *live, uint64 word, DlockState *kind)
{
	DlockNanos	until = pg_atomic_read_u64(&live->rests_until);

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
		return !WordIsAlive(word) && !DsaPointerIsValid(live->session_next);
	return word == DLOCK_WORD_ENDED &&
		pg_atomic_read_u64(&live->rests_until) <= now &&
		(session == NULL || pg_atomic_read_u32(&live->lost) != 1 ||
		 !WordIsAlive(DlockLiveWord(session, now)));
}

/* Has this transaction ended the lease, or the session, or its session? */
static bool
EndedByMe(DlockLive *live)
{
	DlockLive  *session = DlockMapAt(live->session);

	return pg_atomic_read_u32(&live->ender) == (uint32) MyProcPid ||
		(session != NULL && pg_atomic_read_u32(&session->ender) == (uint32) MyProcPid);
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
	DlockNanos	rests_until = RestsUntil(live, word, &rest_kind);

	if (session != NULL && !(word & DLOCK_WORD_REVOKING))
		ttl = pg_atomic_read_u64(&session->ttl);

	if (word == DLOCK_WORD_PENDING || word == DLOCK_WORD_CONNECTED)
	{
		lease->state = word == DLOCK_WORD_PENDING ?
			DLOCK_STATE_PENDING : DLOCK_STATE_HELD;
		until = now + ttl;
	}
	else if (WordIsDeadline(word))
	{
		lease->state = (word & DLOCK_WORD_REVOKING) ?
			DLOCK_STATE_REVOKING : DLOCK_STATE_HELD;
		until = Deadline(word);
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
	lease->dead_for = word == DLOCK_WORD_DEAD ?
		(now - Min(now, pg_atomic_read_u64(&live->died_at))) / DLOCK_NS_PER_US : 0;

	lease->quiet_for = word == DLOCK_WORD_DEAD ?
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
	lease->ended_by_me = EndedByMe(live);
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

/* ----------
 * Looking at a lock
 * ----------
 */

/* Is this entry of the lock with this name, not of one whose hash is equal? */
static inline bool
HasName(const DlockLive *live, const char *name, int namelen)
{
	return live->namelen == namelen && memcmp(live->name, name, namelen) == 0;
}

/* Are both in the same share group? */
static inline bool
SharesWith(const DlockLive *live, const DlockRequest *request)
{
	return request->share != NULL &&
		live->sharelen == strlen(request->share) &&
		memcmp(live->name + live->namelen, request->share, live->sharelen) == 0;
}

static void
AddObstacle(DlockObstacles *obstacles, const DlockLive *live,
			const DlockRequest *request)
{
	if (live->sharelen > 0 || request->share != NULL)
		obstacles->exclusive = true;
	obstacles->count++;
	obstacles->min_capacity = Min(obstacles->min_capacity, live->capacity);
}

/*
 * Does anything here conflict with the request: is it alive, at rest, or dead
 * under a claim (*dead is false), or dead and to be ended first (true)?
 *
 * What this transaction itself has ended is over already.
 */
static bool
Conflicts(DlockLive *live, const DlockRequest *request, DlockNanos now,
		  uint64 *word, DlockNanos *rests_until, bool *dead)
{
	DlockState	kind;

	*dead = false;
	*word = DlockLiveWord(live, now);
	if (EndedByMe(live))
		*word = DLOCK_WORD_ENDED;
	*rests_until = WordIsAlive(*word) ? 0 : RestsUntil(live, *word, &kind);
	if (SharesWith(live, request))
		return false;
	if (WordIsAlive(*word) || *rests_until > now)
		return true;
	if (*word != DLOCK_WORD_DEAD)
		return false;
	*dead = pg_atomic_read_u32(&live->pins) == 0 ||
		pg_atomic_read_u32(&live->by_worker) != 0;
	return true;
}

/*
 * Look at a lock as somebody who asks for it.  Waiters are not looked at.
 */
void
DlockLiveLook(DlockDatabase *db, const DlockRequest *request, DlockLook *look)
{
	uint64		used[16] = {0}; /* a bit for each of the first slots */
	int			max_slot = -1;
	DlockNanos	now = DlockNow();
	DlockLive  *first;

	memset(&look->alive, 0, sizeof(look->alive));
	memset(&look->dead, 0, sizeof(look->dead));
	memset(&look->own, 0, sizeof(look->own));
	look->alive.min_capacity = INT_MAX;
	look->dead.min_capacity = INT_MAX;
	look->own.min_capacity = INT_MAX;
	look->changes_at = PG_UINT64_MAX;
	look->free_slot = 0;
	look->uncommitted = -1;
	look->own_token = 0;

	first = DlockMapFirst(db, DlockHashName(request->name, request->namelen));
	if (first == NULL)
		return;
	for (DlockLive *live = first; live != NULL; live = DlockMapNext(live))
	{
		uint64		word;
		DlockNanos	rests_until;
		bool		dead;
		bool		own;
		uint32		ender;

		if (!HasName(live, request->name, request->namelen))
			continue;

		own = request->session != 0 && DsaPointerIsValid(live->session) &&
			DlockMapAt(live->session)->key.id == -request->session;

		if (!Conflicts(live, request, now, &word, &rests_until, &dead))
		{
			if (WordIsAlive(word) && own)
				look->own_token = live->key.id;
		}
		else if (dead)
		{
			if (look->dead.count < DLOCK_LOOK_DEAD)
			{
				look->dead_tokens[look->dead.count] = live->key.id;
				look->dead_slots[look->dead.count] = live->slot;
			}
			AddObstacle(&look->dead, live, request);
		}
		else
		{
			AddObstacle(&look->alive, live, request);
			if (WordIsAlive(word) && own)
				look->own_token = live->key.id;
			if ((WordIsAlive(word) && own) ||
				(word == DLOCK_WORD_PENDING && live->pid == MyProcPid))
				AddObstacle(&look->own, live, request);
			if (WordIsDeadline(word))
				look->changes_at = Min(look->changes_at, Deadline(word));
			if (rests_until > now)
				look->changes_at = Min(look->changes_at, rests_until);

			ender = pg_atomic_read_u32(&live->ender);
			if (word == DLOCK_WORD_PENDING || ender != 0 ||
				(word == DLOCK_WORD_DEAD && rests_until <= now))
				look->uncommitted = live->slot;
		}

		/* a slot is free when its lease has ended for everybody */
		if (pg_atomic_read_u64(&live->word) != DLOCK_WORD_ENDED && !EndedByMe(live))
		{
			if (live->slot < 64 * lengthof(used))
				used[live->slot / 64] |= UINT64CONST(1) << (live->slot % 64);
			max_slot = Max(max_slot, live->slot);
		}
	}
	DlockMapRelease();

	if (look->alive.count != 1)
		look->uncommitted = -1;

	while (look->free_slot < 64 * lengthof(used) &&
		   (used[look->free_slot / 64] & (UINT64CONST(1) << (look->free_slot % 64))))
		look->free_slot++;
	if (look->free_slot == 64 * lengthof(used))
		look->free_slot = Max(max_slot + 1, look->free_slot);
}

/* The leases in the way of a request count that they were refused to it. */
void
DlockLiveCountRefusal(DlockDatabase *db, const DlockRequest *request)
{
	DlockNanos	now = DlockNow();
	TimestampTz wall = GetCurrentTimestamp();
	DlockLive  *first = DlockMapFirst(db, DlockHashName(request->name, request->namelen));

	if (first == NULL)
		return;
	for (DlockLive *live = first; live != NULL; live = DlockMapNext(live))
	{
		uint64		word;
		DlockNanos	rests_until;
		bool		dead;

		if (HasName(live, request->name, request->namelen) &&
			Conflicts(live, request, now, &word, &rests_until, &dead))
		{
			pg_atomic_fetch_add_u64(&live->refused, 1);
			pg_atomic_write_u64(&live->last_refused_at, (uint64) wall);
		}
	}
	DlockMapRelease();
}

/*
 * How many leases are alive beside this one that were granted before it, and
 * are not in its share group?
 */
int
DlockLiveBeside(DlockDatabase *db, const DlockLease *lease)
{
	DlockNanos	now = DlockNow();
	int			n = 0;
	DlockLive  *me = NULL;
	DlockLive  *first = DlockMapFirst(db, DlockHashName(lease->name, strlen(lease->name)));

	if (first == NULL)
		return 0;
	for (DlockLive *live = first; live != NULL; live = DlockMapNext(live))
	{
		if (live->key.id == lease->token)
			me = live;
	}
	for (DlockLive *live = first; me != NULL && live != NULL; live = DlockMapNext(live))
	{
		if (live->key.id < lease->token &&
			HasName(live, lease->name, strlen(lease->name)) &&
			WordIsAlive(DlockLiveWord(live, now)) &&
			!(live->sharelen > 0 && live->sharelen == me->sharelen &&
			  memcmp(live->name + live->namelen, me->name + me->namelen, live->sharelen) == 0))
			n++;
	}
	DlockMapRelease();
	return n;
}

/*
 * The leases in the way of a request, or all of its lock, dead ones too, up to
 * "max"; returns how many.
 */
int
DlockLiveBlockers(DlockDatabase *db, const DlockRequest *request, bool all,
				  DlockBlocker *blockers, int max)
{
	DlockNanos	now = DlockNow();
	int			n = 0;
	DlockLive  *first = DlockMapFirst(db, DlockHashName(request->name, request->namelen));

	if (first == NULL)
		return 0;
	for (DlockLive *live = first; live != NULL && n < max; live = DlockMapNext(live))
	{
		DlockLive  *session = DlockMapAt(live->session);
		uint64		word;
		DlockNanos	rests_until;
		bool		dead;

		if (!HasName(live, request->name, request->namelen) ||
			(!Conflicts(live, request, now, &word, &rests_until, &dead) &&
			 (!all || word == DLOCK_WORD_ENDED)))
			continue;
		blockers[n].token = live->key.id;
		blockers[n].session = session ? -session->key.id : 0;
		blockers[n].pid = live->pid;
		blockers[n].ender = (int) pg_atomic_read_u32(&live->ender);
		blockers[n].slot = live->slot;
		blockers[n++].pending = (word == DLOCK_WORD_PENDING);
	}
	DlockMapRelease();
	return n;
}

/* ----------
 * Lists of tokens and deadlines
 * ----------
 */

/*
 * Tokens of a name's leases that are not over, up to "max"; returns how many.
 */
int
DlockLiveHolders(DlockDatabase *db, const char *name, int namelen,
				 int64 *tokens, int max)
{
	DlockNanos	now = DlockNow();
	int			n = 0;
	DlockLive  *first = DlockMapFirst(db, DlockHashName(name, namelen));

	if (first == NULL)
		return 0;
	for (DlockLive *live = first; live != NULL && n < max; live = DlockMapNext(live))
	{
		if (HasName(live, name, namelen) && !DlockLiveIsGarbage(live, now))
			tokens[n++] = live->key.id;
	}
	DlockMapRelease();
	return n;
}

typedef struct TokenList
{
	DlockDatabase *db;
	bool		due;
	DlockNanos	now;
	int64	   *tokens;
	int			max;
	int			n;
} TokenList;

static bool
AddToken(DlockLive *live, void *arg)
{
	TokenList  *list = arg;

	if (live->key.id > 0 && live->key.dboid == list->db->key.dboid &&
		live->key.relid == list->db->key.relid &&
		(list->due ? DlockLiveWord(live, list->now) == DLOCK_WORD_DEAD :
		 !DlockLiveIsGarbage(live, list->now)))
		list->tokens[list->n++] = live->key.id;
	return list->n < list->max;
}

/*
 * Tokens of a database's leases, up to "max", in no order: those that are
 * dead and not ended ("due"), or all that are not over.  Returns how many.
 */
int
DlockLiveTokens(DlockDatabase *db, bool due, int64 *tokens, int max)
{
	TokenList	list = {db, due, DlockNow(), tokens, max, 0};

	if (max > 0)
		DlockMapScan(AddToken, &list);
	return list.n;
}

typedef struct DueList
{
	DlockDue   *dues;
	int			max;
	int			n;
} DueList;

static bool
AddDue(DlockLive *live, void *arg)
{
	DueList    *list = arg;
	uint64		word = pg_atomic_read_u64(&live->word);

	if (WordIsDeadline(word) || (word == DLOCK_WORD_DEAD && live->key.id > 0))
	{
		list->dues[list->n].key = live->key;
		list->dues[list->n++].at = Deadline(word);
	}
	return list->n < list->max;
}

/*
 * The deadlines of all databases, up to "max", for the launcher; returns how
 * many.
 */
int
DlockLiveDues(DlockDue *dues, int max)
{
	DueList		list = {dues, max, 0};

	DlockMapScan(AddDue, &list);
	return list.n;
}

/*
 * The deadline of a lease or session, 0 when it is dead; false when there is
 * nothing to wait for: it is over, or its grant has not committed.
 */
bool
DlockLiveDeadline(const DlockKey *key, DlockNanos *at)
{
	DlockLive  *live = DlockMapFind(key, false);
	uint64		word;

	if (live == NULL)
		return false;
	word = DlockLiveWord(live, DlockNow());
	DlockMapRelease();
	*at = Deadline(word);
	return word == DLOCK_WORD_DEAD || WordIsDeadline(word) ||
		(word == DLOCK_WORD_ENDED && key->id < 0);
}

/* ----------
 * Changes
 * ----------
 */

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
	DlockLive  *clock;			/* whose word it is that counts */
	bool		result = false;

	*other_role = InvalidOid;
	DlockMapKey(&key, db, id);
	live = DlockMapFind(&key, false);
	if (live == NULL)
		return false;

	for (;;)
	{
		DlockNanos	now = DlockNow();
		uint64		word = DlockLiveWord(live, now);
		uint64		renewed;

		if (!WordIsAlive(word) || (word & DLOCK_WORD_REVOKING) || EndedByMe(live))
			break;
		if (live->role != role)
		{
			*other_role = live->role;
			break;
		}
		if (!WordIsDeadline(word))
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
	while (WordIsDeadline(word) && !(word & DLOCK_WORD_REVOKING))
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
	while (WordIsAlive(word) && word != DLOCK_WORD_PENDING)
	{
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
