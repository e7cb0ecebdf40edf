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
 *
 * Who owns a lock is a row of dlock.lease: durable.  Whether the owner is
 * still alive is a deadline in shared memory: volatile.  The table is the
 * truth; the map of deadlines is rebuilt from it, with one TTL of grace, by
 * the first call after a start (adoption).
 *
 * How a call travels: api.c takes the arguments and calls rules.c, which
 * alone combines tag.c (heavyweight locks), lease.c and history.c (rows),
 * live.c (the map) and pending.c (what memory is owed at commit).  Every call
 * goes through database.c first.  launcher.c and reaper.c decide when and
 * what to end, and call rules.c to do it.
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
 *	  6. spinlocks
 *
 * Between 5 and its release nothing is allocated, raised or looked up.
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
#include "port/atomics.h"
#include "storage/itemptr.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "storage/spin.h"
#include "utils/dsa.h"
#include "utils/relcache.h"

#define DLOCK_MAX_NAME		255		/* bytes */
#define DLOCK_MAX_TEXT		1024	/* bytes: owner, why, result */
#define DLOCK_MAX_SHARE		63		/* bytes */
#define DLOCK_MIN_TTL		INT64CONST(10000)	/* µs */

#define ERRCODE_DLOCK_LEASE_LOST	MAKE_SQLSTATE('L','K','0','0','1')

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
	int64		id;				/* a token, a hash of a name, or 0 */
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
	pg_atomic_uint64 held;		/* leases now, dead ones too */
	pg_atomic_uint64 counters[DLOCK_NUM_COUNTERS];

	slock_t		mutex;			/* protects the rest */
	TimestampTz worker_last_run;
	TimestampTz worker_last_error_at;
	TimestampTz worker_last_error_logged_at;
	char		worker_last_error[DLOCK_MAX_ERROR];
} DlockDatabase;

/*
 * One lease in shared memory.  "word" is all that decides between alive and
 * dead: a deadline, or one of the values below.  DEAD and ENDED are final.
 */
typedef struct DlockLive
{
	DlockKey	key;			/* id is the token */
	uint64		namehash;
	dsa_pointer self;
	dsa_pointer next;			/* in its lock; under the lock's partition */
	pg_atomic_uint64 word;
	pg_atomic_uint64 rests_until;	/* ns, 0 for no rest */
	pg_atomic_uint64 ttl;		/* ns */
	pg_atomic_uint64 heartbeats;
	pg_atomic_uint64 refused;
	pg_atomic_uint64 last_refused_at;	/* timestamptz, 0 for never */
	pg_atomic_uint32 pins;		/* transactions that still need the entry */
	pg_atomic_uint32 ender;		/* pid of the transaction that is ending it */
	pg_atomic_uint32 by_worker; /* is that one a reaper? */
	pg_atomic_uint32 rest_kind; /* a DlockState, while it rests */
	DlockNanos	min_hold;		/* from the commit of the grant */
	Oid			role;
	int			pid;			/* backend of the grant, 0 when adopted */
	int			slot;
	int			capacity;
	int			namelen;
	char		name[FLEXIBLE_ARRAY_MEMBER];	/* not terminated */
} DlockLive;

#define DLOCK_WORD_DEAD		UINT64CONST(0)
#define DLOCK_WORD_ENDED	UINT64CONST(1)
#define DLOCK_WORD_PENDING	UINT64CONST(2)
#define DLOCK_WORD_REVOKING	(UINT64CONST(1) << 63)	/* flag beside a deadline */

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

/* A copy of a lease's entry, for use outside of any lock. */
typedef struct DlockLease
{
	int64		token;
	DlockState	state;
	int64		remaining;		/* µs until the deadline or the end of the
								 * rest; a pending lease has its TTL */
	int64		ttl;			/* µs */
	int64		since_heartbeat;	/* µs */
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

/* What somebody who asks for a lock finds in the map. */
typedef struct DlockLook
{
	bool		busy;			/* a conflicting lease is alive, or it rests */
	int			slot;			/* else: the slot to take */
	bool		claimed;		/* its dead lease is under a transaction that
								 * may last: a guard, or somebody's end */
} DlockLook;

/* The request of an acquire, with defaults filled in. */
typedef struct DlockRequest
{
	const char *name;
	int			namelen;
	int64		ttl;			/* µs */
	int64		min_hold;		/* µs, 0 for none */
	int			capacity;
	const char *owner;
	const char *why;			/* or NULL */
} DlockRequest;

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
	int			dsa_tranche;
	int			hash_tranche;
	dshash_table_handle leases; /* by token */
	dshash_table_handle locks;	/* by hash of the name */
	dshash_table_handle databases;
	pg_atomic_uint64 entries;	/* leases in the map, over ones too */
	pg_atomic_uint64 over;		/* of these, how many may be freed */
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
extern void DlockCount(DlockDatabase *db, int counter);
extern const char *DlockExtensionVersion(Oid *extension, Oid *owner);

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

extern bool DlockFetchRow(Relation rel, const char *name, int namelen,
						  int slot, DlockRow *row);
extern void DlockDeformRow(Relation rel, HeapTuple tuple, DlockRow *row);
extern void DlockRowSet(DlockRow *row, int att, Datum value);
extern void DlockRowSetNull(DlockRow *row, int att);
extern void DlockRowSetText(DlockRow *row, int att, const char *text);
extern void DlockStoreRow(Relation rel, DlockRow *row);
extern bool DlockRowIsStale(const DlockRow *row);
extern int64 DlockNextToken(Oid token_seq);
extern Datum DlockIntervalDatum(int64 usecs);
extern int64 DlockIntervalMicros(const Interval *interval);
extern bool DlockRowIsIdle(Relation rel, HeapTuple tuple, TimestampTz before);

/* ---- history.c --------------------------------------------------------- */

#define DLOCK_HISTORY_ROLE	4	/* its column of that name */

extern const char *DlockOutcomeText(DlockOutcome outcome);
extern void DlockRecordEnd(Oid history, const DlockRow *row, const DlockLease *lease,
						   DlockOutcome outcome, const char *result,
						   const char *ended_by, TimestampTz ended_at);
extern int	DlockPruneHistory(Oid history, TimestampTz before, int limit);

/* ---- live.c: the map of deadlines; knows no tables --------------------- */

extern Size DlockLiveShmemSize(void);
extern void DlockLiveShmemInit(void *place);
extern DlockNanos DlockNow(void);
extern DlockDatabase *DlockLiveDatabase(Oid relid);
extern bool DlockLiveFind(DlockDatabase *db, int64 token, DlockLease *lease);
extern void DlockLiveLook(DlockDatabase *db, const DlockRequest *request,
						  bool count_refusal, DlockLook *look);
extern int	DlockLiveHolders(DlockDatabase *db, const char *name, int namelen,
							 int64 *tokens, int max);
extern int	DlockLiveTokens(DlockDatabase *db, bool due, int64 *tokens, int max);
extern bool DlockLiveHeartbeat(DlockDatabase *db, int64 token, Oid role,
							   Oid *other_role);
extern DlockLive *DlockLiveInsert(DlockDatabase *db, int64 token,
								  const DlockRequest *request, int slot,
								  Oid role, int pid);
extern DlockLive *DlockLivePin(DlockDatabase *db, int64 token);
extern void DlockLiveUnpin(DlockLive *live);
extern void DlockLiveStart(DlockLive *live, DlockNanos rests_until, DlockNanos deadline);
extern void DlockLiveRenew(DlockLive *live, DlockNanos ttl);
extern void DlockLiveRevoke(DlockLive *live, DlockNanos deadline);
extern void DlockLiveEnd(DlockLive *live, bool rests);
extern void DlockLiveSweep(void);
extern void DlockLivePurge(Oid dboid, Oid keep_relid);
extern int	DlockLiveDues(DlockDue *dues, int max);
extern bool DlockLiveDeadline(const DlockKey *key, DlockNanos *at);
extern DlockDatabase **DlockLiveDatabases(int *n);

/* ---- pending.c: what a transaction owes memory ------------------------- */

typedef struct DlockPending DlockPending;

extern void DlockPendingInit(void);
extern DlockPending *DlockPendingReserve(DlockDatabase *db);
extern void DlockPendingGrant(DlockPending *pending, DlockLive *live);
extern void DlockPendingEnd(DlockPending *pending, int64 token,
							DlockOutcome outcome, bool flush,
							XLogRecPtr wal_before);
extern void DlockPendingGuard(DlockPending *pending, int64 token);
extern void DlockPendingTtl(DlockPending *pending, int64 token, int64 ttl);
extern void DlockPendingRevoke(DlockPending *pending, int64 token,
							   int64 grace);

/* ---- rules.c: grant, end, guard ---------------------------------------- */

extern bool DlockMayUse(Oid role);
extern int64 DlockGrant(const DlockRequest *request);
extern bool DlockEnd(int64 token, DlockOutcome outcome, const char *result);
extern bool DlockRevokeLater(int64 token, const char *why, int64 grace);
extern bool DlockSetTtl(int64 token, int64 ttl);
extern void DlockGuard(int64 token);
extern void DlockAdopt(DlockDatabase *db, const DlockObjects *objects);
extern int	DlockPruneIdle(const DlockObjects *objects, int limit);
extern const char *DlockDescribeMe(void);

/* ---- launcher.c, reaper.c ---------------------------------------------- */

extern void DlockRegisterLauncher(void);
extern void DlockTellLauncher(const DlockKey *key, DlockNanos at);

extern bool DlockIsReaper;		/* this process is one */

#endif							/* DLOCK_H */
