/*-------------------------------------------------------------------------
 *
 * dlock.h
 *	  Distributed lease locks: the words, the lock order, and what each
 *	  source file offers to the others.
 *
 * A lock is a name.  A lease is one holder's tenure of a lock.  It lives for
 * its TTL, counted from its last heartbeat (at first from the commit of its
 * grant), and then it is dead.  Its token is greater than every earlier one
 * and never changes.
 *
 *	  slot		the place of a lease within its lock; a mutex has slot 0
 *	  grant		the transaction that makes a lease
 *	  end		the transaction that records that a lease is over; its outcome
 *				says how
 *	  pending	a lease whose grant has not committed; everybody sees it held
 *	  dead		past its deadline; final, though not recorded yet
 *	  resting	over, but the lock takes no new lease yet (min_hold)
 *	  revoking	taken away, with a time of grace that no heartbeat extends
 *	  guard		"this transaction may commit only while I own this lease"
 *	  session	an identity with one TTL and one heartbeat for many leases
 *	  share		leases with the same share group don't exclude each other
 *	  capacity	how many leases of a lock may be held at once
 *	  waiter	a backend that sleeps until it is its turn, by its ticket
 *
 * Who owns a lock is a row of dlock.lease: durable.  Whether the owner is
 * still alive is a deadline in shared memory: volatile.  The table is the
 * truth; the map of deadlines is rebuilt from it, with one TTL of grace, by
 * the first call after a start (adoption).
 *
 * How a call travels: api.c takes the arguments (args.c checks them) and calls
 * acquire.c and with it grant.c, to get a lease, or rules.c, to do something
 * with one that it has a token of.  These and adopt.c alone combine tag.c
 * (heavyweight locks), lease.c, history.c and definition.c (rows), look.c and
 * live.c over map.c (who is alive), queue.c (who waits) and pending.c (what
 * memory is owed at commit).
 * Every call goes through database.c first.  launcher.c and reaper.c decide
 * when and what to end, and call rules.c to do it.
 *
 * Lock order, first to last; no one may be taken while a later one is held:
 *
 *	  1. the adoption tag
 *	  2. relation locks on dlock's tables
 *	  3. name tag		one call at a time chooses a slot of a name; never held
 *						over a wait for a slot tag
 *	  4. slot tag		to the end of the transaction; EXCLUSIVE for a grant or
 *						an end, SHARE for a guard
 *	  5. one partition of one shared hash table; never two
 *	  6. the queue's LWLock; never together with 5
 *	  7. spinlocks
 *
 * Between 5 or 6 and its release nothing is allocated, raised or looked up.
 *
 * Units: in shared memory times are nanoseconds of CLOCK_MONOTONIC (type
 * DlockNanos); in rows they are intervals and timestamptz; in between, spans
 * are microseconds, as in the server.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_H
#define DLOCK_H

#include "postgres.h"

#include "access/htup.h"
#include "access/xlogdefs.h"
#include "compat.h"
#include "datatype/timestamp.h"
#include "fmgr.h"
#include "lib/ilist.h"
#include "port/atomics.h"
#include "storage/itemptr.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/dsa.h"
#include "utils/relcache.h"

#define DLOCK_MAX_NAME		255 /* bytes */
#define DLOCK_MAX_TEXT		1024	/* bytes: owner, why, result */
#define DLOCK_MAX_SHARE		63	/* bytes */
#define DLOCK_MIN_TTL		INT64CONST(10000)	/* µs */
#define DLOCK_MAX_WAIT		(INT64CONST(2000000000) * 1000) /* µs, about 23 days */
#define DLOCK_MAX_CAPACITY	1000000

#define ERRCODE_DLOCK_LEASE_LOST	MAKE_SQLSTATE('L','K','0','0','1')
#define ERRCODE_DLOCK_NO_GUARD		MAKE_SQLSTATE('L','K','0','0','2')

/* A moment of CLOCK_MONOTONIC, or a span, in nanoseconds. */
typedef uint64 DlockNanos;

#define DLOCK_NS_PER_US		UINT64CONST(1000)
#define DLOCK_NS_PER_MS		UINT64CONST(1000000)

/* How a lease ended.  The texts are in history.c, in this order. */
typedef enum DlockOutcome
{
	DLOCK_RELEASED,
	DLOCK_EXPIRED,
	DLOCK_TAKEN_OVER,
	DLOCK_REVOKED,
	DLOCK_DISCONNECTED
} DlockOutcome;

#define DLOCK_NUM_OUTCOMES	(DLOCK_DISCONNECTED + 1)

/* What dlock_stats counts, beside the outcomes. */
typedef enum DlockCounter
{
	DLOCK_COUNT_GRANTED,
	DLOCK_COUNT_REFUSED,
	DLOCK_COUNT_HEARTBEATS,
	DLOCK_COUNT_HEARTBEATS_LOST,
	DLOCK_COUNT_GUARDS,
	DLOCK_COUNT_GUARDS_LOST,
	DLOCK_COUNT_WAITS,
	DLOCK_COUNT_WAITS_TIMED_OUT,
	DLOCK_COUNT_WAITED_MS,
	DLOCK_COUNT_ENDED,			/* first of DLOCK_NUM_OUTCOMES */
	DLOCK_NUM_COUNTERS = DLOCK_COUNT_ENDED + DLOCK_NUM_OUTCOMES
} DlockCounter;

/*
 * The key of everything in the map.  The OID of dlock.lease is part of it, so
 * that what an earlier CREATE EXTENSION left is never found.
 */
typedef struct DlockKey
{
	Oid			dboid;
	Oid			relid;
	int64		id;				/* a token, minus a session's id, a hash of a
								 * name, or 0 */
} DlockKey;

#define DLOCK_MAX_ERROR		256

/*
 * What is shared about one database.  Never freed, so that backends may keep
 * a pointer to it.
 */
typedef struct DlockDatabase
{
	DlockKey	key;
	pg_atomic_uint32 adopted;	/* the map has every row that was held */
	pg_atomic_uint32 raised;	/* the sequence was raised since the start */
	pg_atomic_uint32 gone;		/* dropped; nothing will come back to it */
	pg_atomic_uint64 number;	/* later ones are greater */
	pg_atomic_uint64 prune_at;	/* ns, when history and idle rows are due */
	pg_atomic_uint64 held;		/* leases now, dead ones too */
	pg_atomic_uint64 counters[DLOCK_NUM_COUNTERS];

	slock_t		mutex;			/* protects the rest */
	TimestampTz worker_last_run;
	TimestampTz worker_last_error_at;
	TimestampTz worker_last_error_logged_at;
	char		worker_last_error[DLOCK_MAX_ERROR];
} DlockDatabase;

/*
 * One lease, or one session, in shared memory.  "word" is all that decides
 * between alive and dead: a deadline, or one of the values below.  DEAD and
 * ENDED are final.
 */
typedef struct DlockLive
{
	DlockKey	key;
	dsa_pointer self;
	uint64		namehash;
	dsa_pointer next;			/* in its lock; under the lock's partition */
	dsa_pointer session;		/* what it belongs to, if anything */
	dsa_pointer session_next;	/* in its session; under the session's */
	dsa_pointer session_prev;	/* partition.  Of a session: its first lease */
	pg_atomic_uint64 word;
	pg_atomic_uint64 died_at;	/* ns, when DEAD */
	pg_atomic_uint64 guarded_until; /* ns, when a guard's transaction ended */
	pg_atomic_uint64 rests_until;	/* ns, 0 for no rest */
	pg_atomic_uint64 ttl;		/* ns */
	pg_atomic_uint64 heartbeats;
	pg_atomic_uint64 refused;
	pg_atomic_uint64 last_refused_at;	/* timestamptz, 0 for never */
	pg_atomic_uint32 pins;		/* transactions that still need the entry */
	pg_atomic_uint32 ender;		/* pid of the transaction that is ending it */
	pg_atomic_uint32 by_worker; /* is that one a reaper? */
	pg_atomic_uint32 rest_kind; /* a DlockState, while it rests */
	pg_atomic_uint32 revoked;	/* with a time of grace? */
	pg_atomic_uint32 lost;		/* a lease: 1 when its session is to be told;
								 * a session: how many of its leases are */
	pg_atomic_uint32 outcome;	/* a session: how its leases end with it */
	DlockNanos	min_hold;		/* from the commit of the grant */
	DlockNanos	takeover_delay; /* from its death */
	DlockNanos	revoke_grace;	/* of a lease that is being adopted */
	Oid			role;
	int			pid;			/* backend of the grant, 0 when adopted */
	int			slot;
	int			capacity;
	int			namelen;		/* a session: of its owner */
	int			sharelen;
	char		name[FLEXIBLE_ARRAY_MEMBER];	/* and share; not terminated */
} DlockLive;

#define DLOCK_WORD_DEAD			UINT64CONST(0)
#define DLOCK_WORD_ENDED		UINT64CONST(1)
#define DLOCK_WORD_PENDING		UINT64CONST(2)
#define DLOCK_WORD_SESSION		UINT64CONST(3)	/* as its session is */
#define DLOCK_WORD_CONNECTED	UINT64CONST(4)	/* as its connection is */
#define DLOCK_WORD_REVOKING		(UINT64CONST(1) << 63)	/* beside a deadline */

/* Alive: pending, or with a deadline that was not seen to pass. */
static inline bool
DlockWordIsAlive(uint64 word)
{
	return word >= DLOCK_WORD_PENDING;
}

static inline bool
DlockWordIsDeadline(uint64 word)
{
	return word > DLOCK_WORD_CONNECTED;
}

static inline DlockNanos
DlockWordDeadline(uint64 word)
{
	return word & ~DLOCK_WORD_REVOKING;
}

/* What the views call a lease.  The texts are in views.c, in this order. */
typedef enum DlockState
{
	DLOCK_STATE_PENDING,
	DLOCK_STATE_HELD,
	DLOCK_STATE_REVOKING,
	DLOCK_STATE_EXPIRED,
	DLOCK_STATE_MIN_HOLD,
	DLOCK_STATE_DELAYED,
	DLOCK_STATE_OVER			/* ended and at rest no more: not shown */
} DlockState;

/* A copy of an entry, for use outside of any lock. */
typedef struct DlockLease
{
	int64		token;
	DlockState	state;
	int64		remaining;		/* µs until the deadline or the end of the
								 * rest; a pending lease has its TTL */
	int64		ttl;			/* µs */
	int64		since_heartbeat;	/* µs */
	int64		dead_for;		/* µs, when expired */
	int64		quiet_for;		/* µs since it died and no guard was left; 0
								 * when others than a worker have ended it */
	int64		session;		/* id, 0 for none */
	DlockOutcome session_outcome;	/* how it ends when its session is over */
	Oid			role;
	int			pid;
	int			slot;
	int			capacity;
	bool		ended_by_me;	/* this transaction has ended it already */
	int64		heartbeats;
	int64		refused;
	TimestampTz last_refused_at;	/* 0 for never */
	char		name[DLOCK_MAX_NAME + 1];
} DlockLease;

/* Held, revoking or pending, and not ended by this transaction. */
static inline bool
DlockLeaseIsAlive(const DlockLease *lease)
{
	return lease->state <= DLOCK_STATE_REVOKING && !lease->ended_by_me;
}

/* A session as of now. */
typedef struct DlockSession
{
	int64		id;
	int64		ttl;			/* µs */
	Oid			role;
	bool		connected;		/* lives with its connection */
	int			pid;			/* of that connection */
	char		owner[DLOCK_MAX_TEXT + 1];
} DlockSession;

/* A lock's own defaults; how a lock is that has none. */
typedef struct DlockDefinition
{
	bool		exists;
	int			capacity;		/* 0 for none */
	int64		ttl;			/* µs, 0 for none */
	int64		min_hold;		/* µs, 0 for none */
	int64		takeover_delay; /* µs, 0 for none */
	Oid			role;			/* who may take it; invalid for everybody */
	bool		notify;
	bool		history;
} DlockDefinition;

/* The request of an acquire, with defaults filled in. */
typedef struct DlockRequest
{
	const char *name;
	int			namelen;
	int64		ttl;			/* µs, 0 for the default */
	int64		min_hold;		/* µs, -1 for the default */
	int			own_capacity;	/* as asked for, 0 for the default */
	int			capacity;		/* that counts now */
	bool		defined;		/* it is the definition's, and the only one
								 * that counts */
	const char *share;			/* or NULL */
	const char *owner;			/* NULL for the default */
	const char *why;			/* or NULL */
	int64		session;		/* id, 0 for none */
	int64		session_ttl;	/* µs */
	int			session_pid;	/* not 0: it lives with that connection */
	int64		takeover_delay; /* µs */
	int64		wait;			/* µs */
	bool		must_exist;
	bool		retry;
	bool		reentrant;
	Oid			role;			/* whose lease it will be */
	int			pid;			/* 0 for an adopted lease */
	int64		waited;			/* µs so far */
	bool		keeps_snapshot; /* the caller's transaction does */
	bool		notify;
} DlockRequest;

/*
 * What stands in the way of a request, as a sum over leases and earlier
 * waiters.  Those in the same share group count for nothing.
 */
typedef struct DlockObstacles
{
	bool		exclusive;		/* one of them, or the request, is shared */
	int			count;
	int			min_capacity;	/* of them */
} DlockObstacles;

/* One lease, or earlier waiter, that stands in the way of a request. */
typedef struct DlockBlocker
{
	int64		owner;			/* who decides when it goes: a session's id,
								 * or minus a pid; 0 when nobody does */
	int			pid;			/* of its grant, or 0 */
	int			ender;			/* pid of the transaction that is ending it */
	int			slot;
	int			capacity;
	bool		shared;
} DlockBlocker;

/* A dead lease that would have to be ended first. */
typedef struct DlockDead
{
	int64		token;
	int			slot;
} DlockDead;

/* What somebody who asks for a lock finds in the map. */
typedef struct DlockLook
{
	DlockObstacles alive;		/* alive, at rest, or dead under a claim */
	DlockObstacles dead;		/* dead, and nobody holds on to them */
	DlockDead  *dead_leases;	/* the first "max_dead" of these */
	int			max_dead;
	int			free_slot;
	DlockNanos	changes_at;		/* the earliest deadline or end of a rest */
	int			uncommitted;	/* slot of the one obstacle, when all depends
								 * on a transaction; else -1 */
	DlockObstacles own;			/* of "alive": the session's own, and what
								 * this transaction has taken */
	int64		own_token;		/* a live lease of the session, or 0 */
} DlockLook;

/*
 * A row of dlock.lease, deformed.  "values" point into "tuple".
 */
enum
{
	Anum_lease_name = 1,
	Anum_lease_slot,
	Anum_lease_token,
	Anum_lease_role,
	Anum_lease_owner,
	Anum_lease_why,
	Anum_lease_share,
	Anum_lease_capacity,
	Anum_lease_session,
	Anum_lease_session_ttl,
	Anum_lease_session_pid,
	Anum_lease_holds,
	Anum_lease_ttl,
	Anum_lease_min_hold,
	Anum_lease_waited,
	Anum_lease_acquired_at,
	Anum_lease_ended_at,
	Anum_lease_rests_until,
	Anum_lease_rests_for,
	Anum_lease_revoke_grace,
	Anum_lease_revoke_why,
	Anum_lease_revoked_by,
	Natts_lease = Anum_lease_revoked_by
};

typedef struct DlockRow
{
	HeapTuple	tuple;			/* a copy */
	Datum		values[Natts_lease];
	bool		nulls[Natts_lease];
} DlockRow;

#define DlockRowValue(row, att)		((row)->values[(att) - 1])
#define DlockRowIsNull(row, att)	((row)->nulls[(att) - 1])
#define DlockRowToken(row)		DatumGetInt64(DlockRowValue(row, Anum_lease_token))
#define DlockRowIsHeld(row)		DlockRowIsNull(row, Anum_lease_ended_at)

/* The extension's objects in this database, found by name at every call. */
typedef struct DlockObjects
{
	Oid			lease;
	Oid			history;
	Oid			definition;
	Oid			token_seq;
} DlockObjects;

/*
 * The fixed part of shared memory.
 *
 * Backends tell the launcher of a new deadline through a ring of fixed size,
 * since a commit callback can neither allocate nor fail.  When it overruns,
 * the launcher looks at the whole map instead.
 */
#define DLOCK_RING_SIZE		1024

typedef struct DlockDue
{
	DlockKey	key;
	DlockNanos	at;
} DlockDue;

/* A lock, seen by a request. */
typedef struct DlockTry
{
	DlockDatabase *db;
	DlockObjects objects;
	DlockRequest *request;
	uint64		namehash;
	Relation	definitions;	/* open, for as long as the try lasts */
	DlockDefinition definition;
	DlockLook	look;
	bool		ahead;			/* earlier waiters are in the way */
} DlockTry;

/* A backend that waits, or a place for one. */
typedef struct DlockWaiter
{
	dlist_node	node;			/* in the queue, by ticket */
	bool		queued;
	uint64		ticket;
	DlockNanos	turn_since;		/* when it was told that it is its turn */
	bool		on_tag;			/* it sleeps on a tag, and cannot claim it */
	int			pid;
	Latch	   *latch;
	Oid			dboid;
	Oid			relid;
	uint64		namehash;
	int			capacity;
	bool		defined;
	bool		again;			/* content with what its session has */
	int64		session;
	Oid			role;
	TimestampTz since;
	TimestampTz gives_up_at;
	int			namelen;
	char		name[DLOCK_MAX_NAME + 1];
	char		share[DLOCK_MAX_SHARE + 1];
	char		owner[DLOCK_MAX_TEXT + 1];
} DlockWaiter;

/* What a reaper says when it leaves. */
typedef enum DlockReaperReport
{
	DLOCK_REAPER_FAILED,		/* it did not come to say anything */
	DLOCK_REAPER_DONE,
	DLOCK_REAPER_MORE,			/* its time was up */
	DLOCK_REAPER_BLOCKED		/* something is guarded, or locked */
} DlockReaperReport;

#define DLOCK_MAX_REAPERS	2

typedef struct DlockReaperSlot
{
	uint32		generation;		/* tells a reaper from the slot's next one */
	Oid			dboid;
	DlockReaperReport report;
} DlockReaperSlot;

typedef struct DlockControl
{
	void	   *area;			/* of the map, in place */
	int			dsa_tranche;
	int			hash_tranche;
	LWLock	   *queue_lock;		/* protects the waiters and their order */
	dlist_head	queue;			/* by ticket */
	uint64		next_ticket;
	pg_atomic_uint32 waiting;	/* length of the queue */
	DlockWaiter *waiters;		/* one a backend */
	dshash_table_handle leases; /* by token */
	dshash_table_handle locks;	/* by hash of the name */
	dshash_table_handle databases;
	pg_atomic_uint64 entries;	/* leases in the map, over ones too */
	pg_atomic_uint64 over;		/* of these, how many may be freed */
	pg_atomic_uint64 numbers;	/* of databases, given so far */
	pg_atomic_uint64 highest_token; /* of all databases, since the start */

	slock_t		mutex;			/* protects the rest */
	Latch	   *launcher;		/* NULL when it is not running */
	DlockNanos	launcher_wakes_at;
	uint64		ring_head;		/* written */
	uint64		ring_tail;		/* read */
	DlockDue	ring[DLOCK_RING_SIZE];
	DlockReaperSlot reapers[DLOCK_MAX_REAPERS];
} DlockControl;

/* ---- dlock.c: module entry, settings, shared memory -------------------- */

extern int	dlock_default_ttl;	/* ms */
extern int	dlock_max_ttl;		/* s */
extern int	dlock_max_leases;
extern int	dlock_history_retention;	/* s, -1 for ever, 0 none */
extern int	dlock_idle_lock_retention;	/* s */
extern bool dlock_log_lost_leases;
extern int	dlock_worker_naptime;	/* ms */

extern DlockControl *DlockShared;	/* NULL when not preloaded */

/* ---- database.c: what every call establishes first --------------------- */

extern DlockDatabase *DlockOpenDatabase(DlockObjects *objects);
extern bool DlockFindObjects(DlockObjects *objects);
extern void DlockRequirePreloaded(void);
extern void DlockRequireWritable(const char *what);
extern void DlockRaiseTokens(DlockDatabase *db, const DlockObjects *objects);
extern void DlockCount(DlockDatabase *db, int counter, uint64 n);
extern void DlockNoteToken(int64 token);
extern const char *DlockExtensionVersion(Oid *extension, Oid *owner);

/* ---- roles.c: who is calling, and what may they use -------------------- */

extern bool DlockMayUse(Oid role);
pg_noreturn extern void DlockDenyLease(int64 token);
pg_noreturn extern void DlockDenySession(int64 id);
pg_noreturn extern void DlockSessionIsGone(int64 id);
extern const char *DlockDescribeMe(void);

/* ---- tag.c: the heavyweight locks -------------------------------------- */

extern uint64 DlockHashName(const char *name, int namelen);
extern void DlockLockAdoption(void);
extern void DlockUnlockAdoption(void);
extern void DlockLockName(uint64 namehash);
extern void DlockUnlockName(uint64 namehash);
extern bool DlockLockSlot(uint64 namehash, int slot, bool share, bool wait);
extern void DlockUnlockSlot(uint64 namehash, int slot, bool share);
extern LockData *DlockGuardLocks(void);
extern bool DlockLockIsOnSlot(const LockInstanceData *lock, uint64 namehash,
							  int slot);

/* ---- lease.c: rows and tokens; knows no shared memory ------------------ */

extern Relation DlockOpenTable(Oid relid, LOCKMODE mode, int natts);
extern void DlockRequirePlainIndexes(Relation rel);
extern bool DlockFetchRow(Relation rel, const char *name, int namelen,
						  int slot, DlockRow *row);
extern void DlockDeformRow(Relation rel, HeapTuple tuple, DlockRow *row);
extern int64 DlockRowSpan(const DlockRow *row, int att);
extern void DlockRowSet(DlockRow *row, int att, Datum value);
extern void DlockRowSetNull(DlockRow *row, int att);
extern void DlockRowSetText(DlockRow *row, int att, const char *text);
extern void DlockStoreRow(Relation rel, DlockRow *row);
extern bool DlockKeepsSnapshot(void);
extern bool DlockRowIsStale(const DlockRow *row);
extern bool DlockLockIsStale(Relation rel, const char *name, int namelen,
							 bool (*spare) (const DlockRow *row, void *arg),
							 void *arg);
extern bool DlockSnapshotIsOlder(int64 usecs);
extern int64 DlockNextToken(Oid token_seq);
extern Datum DlockIntervalDatum(int64 usecs);
extern int64 DlockIntervalMicros(const Interval *interval);
extern bool DlockRowIsIdle(Relation rel, HeapTuple tuple, TimestampTz before);

/* ---- history.c --------------------------------------------------------- */

#define DLOCK_HISTORY_ROLE	4	/* its column of that name */
#define DLOCK_HISTORY_NATTS	16

extern const char *DlockOutcomeText(DlockOutcome outcome);
extern void DlockRecordEnd(Oid history, const DlockRow *row, const DlockLease *lease,
						   DlockOutcome outcome, const char *result,
						   const char *ended_by, TimestampTz ended_at);
extern int	DlockPruneHistory(Oid history, TimestampTz before, int limit);

/* ---- definition.c: a lock's own defaults ------------------------------- */

#define DLOCK_DEFINITION_NATTS	8

extern void DlockFindDefinition(const DlockObjects *objects, const char *name,
								int namelen, DlockDefinition *definition);
extern Relation DlockOpenDefinitions(const DlockObjects *objects);
extern void DlockGetDefinition(Relation rel, const char *name, int namelen,
							   DlockDefinition *definition);
extern void DlockReadDefinition(Relation rel, HeapTuple tuple,
								DlockDefinition *definition);

/* ---- map.c: the hash tables in shared memory --------------------------- */

extern Size DlockMapShmemSize(void);
extern void DlockMapShmemInit(void *place);
extern void DlockMapKey(DlockKey *key, const DlockDatabase *db, int64 id);
extern DlockLive *DlockMapFind(const DlockKey *key, bool exclusive);
extern DlockLive *DlockMapFirst(const DlockDatabase *db, uint64 namehash);
extern DlockLive *DlockMapNext(DlockLive *live);
extern DlockLive *DlockMapAt(dsa_pointer pointer);
extern void DlockMapRelease(void);
extern void DlockMapScan(bool (*visit) (DlockLive *live, void *arg), void *arg);
extern DlockLive *DlockMapInsert(DlockDatabase *db, int64 id,
								 const DlockRequest *request, int slot);
extern void DlockMapSweep(void);
extern void DlockMapPurge(DlockDatabase *db);
extern DlockDatabase *DlockMapDatabase(Oid relid);
extern DlockDatabase **DlockMapDatabases(int *n);

/* ---- live.c: who is alive; knows no tables ----------------------------- */

extern DlockNanos DlockNow(void);
extern uint64 DlockLiveWord(DlockLive *live, DlockNanos now);
extern DlockNanos DlockLiveRestsUntil(DlockLive *live, uint64 word, DlockState *kind);
extern bool DlockLiveIsGarbage(DlockLive *live, DlockNanos now);
extern bool DlockLiveEndedByMe(DlockLive *live);
extern bool DlockLiveFind(DlockDatabase *db, int64 token, DlockLease *lease);
extern bool DlockLiveHeartbeat(DlockDatabase *db, int64 id, Oid role,
							   Oid *other_role);
extern DlockLive *DlockLivePin(DlockDatabase *db, int64 id);
extern void DlockLiveUnpin(DlockLive *live);
extern void DlockLiveStart(DlockLive *live, DlockNanos rests_until, DlockNanos deadline);
extern void DlockLiveRenew(DlockLive *live, DlockNanos ttl);
extern void DlockLiveRevoke(DlockLive *live, DlockNanos deadline);
extern void DlockLiveEnd(DlockLive *live, DlockState rest, DlockNanos rests_until);
extern void DlockLiveTellSession(DlockLive *live);
extern void DlockLiveUnguard(DlockLive *live);

/* ---- look.c: what the map shows ----------------------------------------- */

extern void DlockLookAt(DlockDatabase *db, const DlockRequest *request,
						DlockLook *look);
extern void DlockLookCountRefusal(DlockDatabase *db, const DlockRequest *request);
extern int	DlockLookBlockers(DlockDatabase *db, const DlockRequest *request,
							  DlockBlocker *blockers, int max);
extern int	DlockLookHolders(DlockDatabase *db, const char *name, int namelen,
							 int64 *tokens, int max);
extern int	DlockLookTokens(DlockDatabase *db, bool due, int64 *tokens, int max);
extern int	DlockLookDues(DlockDue *dues, int max);
extern bool DlockLookDeadline(const DlockKey *key, DlockNanos *at);
extern int	DlockLookBeside(DlockDatabase *db, const DlockLease *lease);

/* ---- session.c --------------------------------------------------------- */

extern int64 DlockSessionOpen(const char *owner, int64 ttl, bool connected);
extern bool DlockSessionHas(int64 id, int64 token);
extern bool DlockSessionHeartbeat(int64 id, int64 **lost, int *nlost);
extern bool DlockSessionFind(DlockDatabase *db, int64 id, DlockSession *session);
extern int	DlockSessionLeases(DlockDatabase *db, int64 id, int64 *tokens, int max,
							   bool lost);
extern void DlockSessionAdopt(DlockDatabase *db, const DlockSession *session);
extern void DlockSessionEnd(DlockLive *session, DlockOutcome outcome);

/* ---- queue.c: who waits ------------------------------------------------ */

extern Size DlockQueueShmemSize(void);
extern void DlockQueueShmemInit(void *place);
extern void DlockQueueJoin(DlockDatabase *db, const DlockRequest *request);
extern void DlockQueueLeave(bool wake);
extern bool DlockQueueAhead(DlockDatabase *db, const DlockRequest *request,
							DlockObstacles *obstacles, DlockNanos *changes_at);
extern void DlockQueueWake(const DlockKey *key, uint64 namehash);
extern void DlockQueueWakeAll(const DlockKey *key);
extern bool DlockQueueHasWaiters(DlockDatabase *db, const char *name);
extern void DlockQueueLooks(const DlockRequest *request, bool on_tag);
extern void DlockQueueSleep(DlockNanos until);
extern DlockWaiter *DlockQueueCopy(DlockDatabase *db, int *n);
extern bool DlockWaitersExclude(const DlockWaiter *earlier, const DlockWaiter *later);
extern void DlockWaiterRequest(const DlockWaiter *waiter, DlockRequest *request);

/* ---- deadlock.c: waits that would never end ---------------------------- */

extern void DlockCheckDeadlock(DlockDatabase *db, int64 session);

/* ---- pending.c: what a transaction owes memory ------------------------- */

typedef struct DlockPending DlockPending;

extern void DlockPendingInit(void);
extern DlockPending *DlockPendingReserve(DlockDatabase *db);
extern void DlockPendingGrant(DlockPending *note, DlockLive *live);
extern void DlockPendingEnd(DlockPending *note, int64 token, DlockOutcome outcome,
							int64 delay, bool flush, const char *log);
extern void DlockPendingWrote(XLogRecPtr wal_before);
extern void DlockPendingGuard(DlockPending *note, int64 token);
extern bool DlockPendingHasTag(uint64 namehash, int slot);
extern bool DlockPendingAny(void);
extern bool DlockPendingGuards(const char *name, bool held);
extern void DlockPendingTtl(DlockPending *note, int64 token, int64 ttl);
extern void DlockPendingRevoke(DlockPending *note, int64 token, int64 grace);
extern void DlockPendingHold(DlockPending *note, int64 token);
extern void DlockPendingRest(DlockPending *note, int64 token);
extern void DlockPendingWake(DlockPending *note, uint64 namehash);
extern void DlockPendingSessionEnd(DlockPending *note, int64 session);

/* ---- grant.c: the grant of a lease to a request that fits --------------- */

extern bool DlockFitsBeside(const DlockRequest *request,
							const DlockObstacles *obstacles);
extern void DlockApplyDefinition(DlockTry *try);
extern bool DlockFits(DlockTry *try);
extern void DlockRequireFreshSnapshot(DlockTry *try, Relation rel);
extern int64 DlockGrant(DlockTry *try);

/* ---- acquire.c: how a lease is got, and waited for ---------------------- */

extern int64 DlockAcquire(DlockRequest *request, bool between);
extern bool DlockAcquireAll(const DlockRequest *request, const char *const *names,
							int n, int64 *tokens);

/* ---- rules.c: what is done to a lease by its token ---------------------- */

pg_noreturn extern void DlockStaleSnapshot(const char *name);
extern void DlockNotify(const char *event, const DlockRow *row);
extern void DlockCloseLease(DlockDatabase *db, const DlockObjects *objects,
							DlockRow *row, DlockOutcome outcome, const char *result);
extern bool DlockHoldAgain(int64 token);
extern bool DlockEnd(int64 token, DlockOutcome outcome, const char *result);
extern bool DlockReleaseOnce(int64 token, const char *result);
extern bool DlockRevokeLater(int64 token, const char *why, int64 grace);
extern bool DlockEndRest(int64 token);
extern bool DlockSetTtl(int64 token, int64 ttl);
extern void DlockGuard(int64 token);
extern int	DlockSessionClose(int64 id);

/* ---- adopt.c: the map from the table, and idle rows out of it ----------- */

extern void DlockAdopt(DlockDatabase *db, const DlockObjects *objects);
extern int	DlockPruneIdle(const DlockObjects *objects, int limit);

/* ---- protect.c ---------------------------------------------------------- */

extern void DlockProtectInit(void);

/* ---- args.c: arguments of SQL-callable functions ------------------------ */

extern const char *DlockArgText(FunctionCallInfo fcinfo, int arg,
								const char *argname, int max);
extern const char *DlockArgName(FunctionCallInfo fcinfo, int arg);
extern int64 DlockArgSpan(FunctionCallInfo fcinfo, int arg, const char *argname,
						  int64 min, int64 max, int64 otherwise);
extern void DlockCheckName(const char *name);
extern int64 DlockArgSession(FunctionCallInfo fcinfo, int arg);
extern int64 DlockArgId(FunctionCallInfo fcinfo, int arg);
extern bool DlockArgFlag(FunctionCallInfo fcinfo, int arg);
extern int	DlockArgCapacity(FunctionCallInfo fcinfo, int arg);
extern const char *DlockArgShare(FunctionCallInfo fcinfo, int arg);

#define DLOCK_MAX_SPAN	((int64) dlock_max_ttl * USECS_PER_SEC)

/* ---- launcher.c, reaper.c ---------------------------------------------- */

extern void DlockRegisterLauncher(void);
extern void DlockTellLauncher(const DlockKey *key, DlockNanos at);
extern void DlockTellLauncherAll(void);

extern bool DlockIsReaper;		/* this process is one */

#endif							/* DLOCK_H */
