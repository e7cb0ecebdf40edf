/*-------------------------------------------------------------------------
 *
 * look.c
 *	  What the map shows: to somebody who asks for a lock, and as lists.
 *
 * Every look runs under the lock of a partition, and copies out what it finds.
 * It may be outdated when it returns: whoever acts on it looks again under a
 * tag.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include <limits.h>

#include "miscadmin.h"
#include "utils/timestamp.h"

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
 * "ended": take it for over, as this transaction has ended it.
 */
static bool
Conflicts(DlockLive *live, const DlockRequest *request, DlockNanos now, bool ended,
		  uint64 *word, DlockNanos *rests_until, bool *dead)
{
	DlockState	kind;
	bool		pending;

	*dead = false;
	*word = DlockLiveWord(live, now);
	pending = (*word == DLOCK_WORD_PENDING);
	if (ended)
		*word = DLOCK_WORD_ENDED;
	*rests_until = DlockWordIsAlive(*word) ? 0 : DlockLiveRestsUntil(live, *word, &kind);

	/* taken and ended by one transaction, it rests from the commit on */
	if (pending && ended && live->min_hold > 0)
		*rests_until = now + live->min_hold;
	if (SharesWith(live, request))
		return false;
	if (DlockWordIsAlive(*word) || *rests_until > now)
		return true;
	if (*word != DLOCK_WORD_DEAD)
		return false;

	/*
	 * What somebody is taking over is in the way until that has committed:
	 * its row is held, and a crash would bring it back to life.
	 */
	*dead = pg_atomic_read_u32(&live->pins) == 0 ||
		pg_atomic_read_u32(&live->by_worker) != 0;
	return true;
}

/*
 * A bit for each of the first slots: set one; false when it was set already.
 * Slots beyond are all different.
 */
#define SLOT_WORDS	16

static bool
SetBit(uint64 *words, int slot)
{
	uint64		bit = UINT64CONST(1) << (slot % 64);

	if (slot >= 64 * SLOT_WORDS)
		return true;
	if (words[slot / 64] & bit)
		return false;
	words[slot / 64] |= bit;
	return true;
}

/*
 * Look at a lock as somebody who asks for it.  Waiters are not looked at.
 */
void
DlockLookAt(DlockDatabase *db, const DlockRequest *request, DlockLook *look)
{
	uint64		used[SLOT_WORDS] = {0};
	uint64		counted[SLOT_WORDS] = {0};	/* those with an obstacle */
	int			max_slot = -1;
	int			only_slot = -1; /* of all obstacles, or -2 */
	int			only_pid = -1;	/* whose transaction decides on all, or -2 */
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
		bool		ended = DlockLiveEndedByMe(live);
		bool		dead;
		bool		own;
		int			pid;

		if (!HasName(live, request->name, request->namelen))
			continue;

		own = request->session != 0 && DsaPointerIsValid(live->session) &&
			DlockMapAt(live->session)->key.id == -request->session;

		if (!Conflicts(live, request, now, ended, &word, &rests_until, &dead))
		{
			if (DlockWordIsAlive(word) && own)
				look->own_token = live->key.id;
		}
		else if (dead)
		{
			if (look->dead.count < look->max_dead)
			{
				look->dead_leases[look->dead.count].token = live->key.id;
				look->dead_leases[look->dead.count].slot = live->slot;
			}
			AddObstacle(&look->dead, live, request);
		}
		else
		{
			/* a slot that is being taken over has two leases, and one place */
			AddObstacle(&look->alive, live, request);
			if (!SetBit(counted, live->slot))
				look->alive.count--;
			only_slot = only_slot == -1 || only_slot == live->slot ? live->slot : -2;

			if (DlockWordIsAlive(word) && own)
				look->own_token = live->key.id;
			if ((DlockWordIsAlive(word) && own) ||
				(word == DLOCK_WORD_PENDING && live->pid == MyProcPid))
				AddObstacle(&look->own, live, request);
			if (DlockWordIsDeadline(word))
				look->changes_at = Min(look->changes_at, DlockWordDeadline(word));
			if (rests_until > now)
				look->changes_at = Min(look->changes_at, rests_until);

			pid = pg_atomic_read_u32(&live->ender);
			if (word == DLOCK_WORD_PENDING && pid == 0)
				pid = live->pid;
			only_pid = only_pid == -1 || only_pid == pid ? pid : -2;
			if (pid != 0 || (word == DLOCK_WORD_DEAD && rests_until <= now))
				look->uncommitted = live->slot;
		}

		/* a slot is free when its lease has ended, and its row says no more */
		if (rests_until > now ||
			(pg_atomic_read_u64(&live->word) != DLOCK_WORD_ENDED && !ended))
		{
			(void) SetBit(used, live->slot);
			max_slot = Max(max_slot, live->slot);
		}
	}
	DlockMapRelease();

	/* one tag is enough, if one transaction decides on all */
	if (only_slot < 0 && only_pid <= 0)
		look->uncommitted = -1;

	while (look->free_slot < 64 * SLOT_WORDS &&
		   (used[look->free_slot / 64] & (UINT64CONST(1) << (look->free_slot % 64))))
		look->free_slot++;
	if (look->free_slot == 64 * SLOT_WORDS)
		look->free_slot = Max(max_slot + 1, look->free_slot);
}

/* The leases in the way of a request count that they were refused to it. */
void
DlockLookCountRefusal(DlockDatabase *db, const DlockRequest *request)
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
			Conflicts(live, request, now, DlockLiveEndedByMe(live), &word, &rests_until, &dead))
		{
			pg_atomic_fetch_add_u64(&live->refused, 1);
			pg_atomic_write_u64(&live->last_refused_at, (uint64) wall);
		}
	}
	DlockMapRelease();
}

/* The pid of the transaction that is ending this, or its session, or 0. */
static int
Ender(DlockLive *live)
{
	DlockLive  *session = DlockMapAt(live->session);
	int			pid = pg_atomic_read_u32(&live->ender);

	return pid == 0 && session != NULL ? (int) pg_atomic_read_u32(&session->ender) : pid;
}

/*
 * How many leases are alive beside this one that were granted before it, and
 * are not in its share group?
 *
 * One that a transaction is ending is not counted: the same transaction may
 * have taken another lease in its place, and only that one is in the way.
 */
int
DlockLookBeside(DlockDatabase *db, const DlockLease *lease)
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
			Ender(live) == 0 && DlockWordIsAlive(DlockLiveWord(live, now)) &&
			!(live->sharelen > 0 && live->sharelen == me->sharelen &&
			  memcmp(live->name + live->namelen, me->name + me->namelen, live->sharelen) == 0))
			n++;
	}
	DlockMapRelease();
	return n;
}

/*
 * The leases in the way of a request, whoever makes it, up to "max"; returns how
 * many.
 */
int
DlockLookBlockers(DlockDatabase *db, const DlockRequest *request,
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
			!Conflicts(live, request, now, false, &word, &rests_until, &dead))
			continue;
		blockers[n].pid = live->pid;
		blockers[n].ender = Ender(live);
		blockers[n].owner = 0;
		if (blockers[n].ender != 0)
			blockers[n].owner = -blockers[n].ender;
		else if (word == DLOCK_WORD_PENDING)
			blockers[n].owner = -live->pid;
		else if (DlockWordIsAlive(word) && session != NULL && !(word & DLOCK_WORD_REVOKING))
			blockers[n].owner = -session->key.id;
		blockers[n].slot = live->slot;
		blockers[n].capacity = live->capacity;
		blockers[n++].shared = live->sharelen > 0;
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
DlockLookHolders(DlockDatabase *db, const char *name, int namelen,
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
DlockLookTokens(DlockDatabase *db, bool due, int64 *tokens, int max)
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

	/* a session that is over stands for its leases */
	if (DlockWordIsDeadline(word) ||
		(word == DLOCK_WORD_DEAD &&
		 (live->key.id > 0 || DsaPointerIsValid(live->session_next))))
	{
		list->dues[list->n].key = live->key;
		list->dues[list->n++].at = DlockWordDeadline(word);
	}
	return list->n < list->max;
}

/*
 * The deadlines of all databases, up to "max", for the launcher; returns how
 * many.
 */
int
DlockLookDues(DlockDue *dues, int max)
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
DlockLookDeadline(const DlockKey *key, DlockNanos *at)
{
	DlockLive  *live = DlockMapFind(key, false);
	uint64		word;

	if (live == NULL)
		return false;
	word = DlockLiveWord(live, DlockNow());
	DlockMapRelease();
	*at = DlockWordDeadline(word);
	return word == DLOCK_WORD_DEAD || DlockWordIsDeadline(word) ||
		(word == DLOCK_WORD_ENDED && key->id < 0);
}
