/*-------------------------------------------------------------------------
 *
 * queue.c
 *	  Who waits: tickets, turns, and the only place where a backend sleeps.
 *
 * A backend that has to wait for a lock takes a ticket, and holds no tag while
 * it sleeps.  An end wakes the first waiter of its lock; that one looks
 * whether it fits, and when it has been granted its lease it wakes the next
 * if that may fit as well.  So each release wakes one.
 *
 * Nobody passes an earlier waiter that it conflicts with, but a waiter that
 * has been told that it is its turn, and does not claim it in time, is passed.
 *
 * A backend leaves the queue when its call is over, by whatever way, and when
 * it exits.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include <limits.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

/* How long a waiter may take to claim its turn. */
#define CLAIM_TIME		(1000 * DLOCK_NS_PER_MS)

static DlockWaiter *MyWaiter = NULL;

Size
DlockQueueShmemSize(void)
{
	return mul_size(sizeof(DlockWaiter), MaxBackends);
}

void
DlockQueueShmemInit(void *place)
{
	DlockShared->waiters = place;
	memset(place, 0, DlockQueueShmemSize());
	dlist_init(&DlockShared->queue);
	DlockShared->next_ticket = 1;
	pg_atomic_init_u32(&DlockShared->waiting, 0);
}

/* Is this waiter one for the lock with this key and name hash? */
static inline bool
WaitsFor(const DlockWaiter *waiter, const DlockKey *key, uint64 namehash)
{
	return waiter->namehash == namehash && waiter->dboid == key->dboid &&
		waiter->relid == key->relid;
}

/* Has it been told long ago that it is its turn? */
static inline bool
HasLetPass(const DlockWaiter *waiter, DlockNanos now)
{
	return waiter->turn_since != 0 && !waiter->on_tag &&
		now > waiter->turn_since + CLAIM_TIME;
}

/* The backend is about to exit, in whatever state. */
static void
LeaveAtExit(int code, Datum arg)
{
	DlockQueueLeave(true);
}

/*
 * Take a ticket for the request, and a place in the queue.
 */
void
DlockQueueJoin(DlockDatabase *db, const DlockRequest *request)
{
	static bool registered = false;
	DlockWaiter *waiter = &DlockShared->waiters[DlockMyProcNumber];
	TimestampTz now = GetCurrentTimestamp();

	if (!registered)
	{
		before_shmem_exit(LeaveAtExit, 0);
		registered = true;
	}

	LWLockAcquire(DlockShared->queue_lock, LW_EXCLUSIVE);
	Assert(!waiter->queued);
	waiter->ticket = DlockShared->next_ticket++;
	waiter->turn_since = 0;
	waiter->on_tag = false;
	waiter->pid = MyProcPid;
	waiter->latch = MyLatch;
	waiter->dboid = db->key.dboid;
	waiter->relid = db->key.relid;
	waiter->namehash = DlockHashName(request->name, request->namelen);
	waiter->capacity = request->capacity;
	waiter->defined = request->defined;
	waiter->again = request->retry || request->reentrant;
	waiter->session = request->session;
	waiter->role = request->role;
	waiter->since = now;
	waiter->gives_up_at = now + request->wait;
	waiter->namelen = request->namelen;
	memcpy(waiter->name, request->name, request->namelen);
	waiter->name[request->namelen] = '\0';
	strlcpy(waiter->share, request->share ? request->share : "", sizeof(waiter->share));
	strlcpy(waiter->owner, request->owner, sizeof(waiter->owner));
	waiter->queued = true;
	dlist_push_tail(&DlockShared->queue, &waiter->node);
	pg_atomic_fetch_add_u32(&DlockShared->waiting, 1);
	LWLockRelease(DlockShared->queue_lock);
	MyWaiter = waiter;
}

/*
 * Give the place back, if this backend has one; may be called at any time.
 * "wake" the next in line, as it may fit now.
 */
void
DlockQueueLeave(bool wake)
{
	DlockWaiter *waiter = MyWaiter;
	DlockKey	key;
	uint64		namehash;

	if (waiter == NULL)
		return;
	MyWaiter = NULL;

	memset(&key, 0, sizeof(key));
	key.dboid = waiter->dboid;
	key.relid = waiter->relid;
	namehash = waiter->namehash;

	LWLockAcquire(DlockShared->queue_lock, LW_EXCLUSIVE);
	waiter->queued = false;
	dlist_delete(&waiter->node);
	pg_atomic_fetch_sub_u32(&DlockShared->waiting, 1);
	LWLockRelease(DlockShared->queue_lock);

	if (wake)
		DlockQueueWake(&key, namehash);
}

/*
 * Tell the first waiter of a lock that it may be its turn.  For callbacks at
 * commit and abort too: cannot fail.
 */
void
DlockQueueWake(const DlockKey *key, uint64 namehash)
{
	Latch	   *latches[8];
	int			n = 0;
	dlist_iter	iter;
	DlockNanos	now;

	pg_memory_barrier();		/* the change first, then the look for waiters */
	if (pg_atomic_read_u32(&DlockShared->waiting) == 0)
		return;

	now = DlockNow();
	LWLockAcquire(DlockShared->queue_lock, LW_EXCLUSIVE);
	dlist_foreach(iter, &DlockShared->queue)
	{
		DlockWaiter *waiter = dlist_container(DlockWaiter, node, iter.cur);

		if (!WaitsFor(waiter, key, namehash))
			continue;
		if (waiter->turn_since == 0)
			waiter->turn_since = now;
		latches[n++] = waiter->latch;
		if (!HasLetPass(waiter, now) || n == lengthof(latches))
			break;
	}
	LWLockRelease(DlockShared->queue_lock);

	/* not under the lock, which it is the first thing that they want */
	for (int i = 0; i < n; i++)
		SetLatch(latches[i]);
}

/* Have every waiter of a database look again: a session is over. */
void
DlockQueueWakeAll(const DlockKey *key)
{
	dlist_iter	iter;

	pg_memory_barrier();
	if (pg_atomic_read_u32(&DlockShared->waiting) == 0)
		return;

	LWLockAcquire(DlockShared->queue_lock, LW_SHARED);
	dlist_foreach(iter, &DlockShared->queue)
	{
		DlockWaiter *waiter = dlist_container(DlockWaiter, node, iter.cur);

		if (waiter->dboid == key->dboid && waiter->relid == key->relid)
			SetLatch(waiter->latch);
	}
	LWLockRelease(DlockShared->queue_lock);
}

/* Do two waiters of one lock exclude each other by their kind alone? */
bool
DlockWaitersExclude(const DlockWaiter *earlier, const DlockWaiter *later)
{
	return earlier->share[0] == '\0' || strcmp(earlier->share, later->share) != 0;
}

/* The request that a waiter stands for, as far as conflicts go. */
void
DlockWaiterRequest(const DlockWaiter *waiter, DlockRequest *request)
{
	memset(request, 0, sizeof(*request));
	request->name = waiter->name;
	request->namelen = waiter->namelen;
	request->share = waiter->share[0] != '\0' ? waiter->share : NULL;
	request->capacity = waiter->capacity;
	request->defined = waiter->defined;
	request->session = waiter->session;
}

/*
 * Add to "obstacles" the waiters that come before this request, which is all
 * of them if this backend has no ticket.  Returns whether there are any; if
 * so, *changes_at is lowered to when the first of them loses its turn.
 */
bool
DlockQueueAhead(DlockDatabase *db, const DlockRequest *request,
				DlockObstacles *obstacles, DlockNanos *changes_at)
{
	uint64		namehash;
	dlist_iter	iter;
	DlockNanos	now;
	bool		any = false;

	if (pg_atomic_read_u32(&DlockShared->waiting) == 0)
		return false;

	namehash = DlockHashName(request->name, request->namelen);
	now = DlockNow();
	LWLockAcquire(DlockShared->queue_lock, LW_SHARED);
	dlist_foreach(iter, &DlockShared->queue)
	{
		DlockWaiter *waiter = dlist_container(DlockWaiter, node, iter.cur);

		if (waiter == MyWaiter)
			break;
		if (!WaitsFor(waiter, &db->key, namehash) ||
			waiter->namelen != request->namelen ||
			memcmp(waiter->name, request->name, request->namelen) != 0 ||
			HasLetPass(waiter, now))
			continue;
		if (request->share != NULL && strcmp(waiter->share, request->share) == 0)
			continue;

		if (request->share != NULL || waiter->share[0] != '\0')
			obstacles->exclusive = true;
		obstacles->count++;
		obstacles->min_capacity = Min(obstacles->min_capacity, waiter->capacity);
		if (!any && waiter->turn_since != 0 && !waiter->on_tag)
			*changes_at = Min(*changes_at, waiter->turn_since + CLAIM_TIME + 1);
		any = true;
	}
	LWLockRelease(DlockShared->queue_lock);
	return any;
}

/* Is anybody waiting for this lock?  Then it is theirs to take over. */
bool
DlockQueueHasWaiters(DlockDatabase *db, const char *name)
{
	uint64		namehash;
	dlist_iter	iter;
	bool		result = false;

	if (pg_atomic_read_u32(&DlockShared->waiting) == 0)
		return false;

	namehash = DlockHashName(name, strlen(name));
	LWLockAcquire(DlockShared->queue_lock, LW_SHARED);
	dlist_foreach(iter, &DlockShared->queue)
	{
		if (WaitsFor(dlist_container(DlockWaiter, node, iter.cur), &db->key, namehash))
		{
			result = true;
			break;
		}
	}
	LWLockRelease(DlockShared->queue_lock);
	return result;
}

/*
 * This waiter is about to look whether it is its turn, or to sleep on a tag.
 * A wake that comes after this is not lost.  Its lock may have been defined anew.
 */
void
DlockQueueLooks(const DlockRequest *request, bool on_tag)
{
	LWLockAcquire(DlockShared->queue_lock, LW_EXCLUSIVE);
	MyWaiter->capacity = request->capacity;
	MyWaiter->defined = request->defined;
	MyWaiter->turn_since = 0;
	MyWaiter->on_tag = on_tag;
	LWLockRelease(DlockShared->queue_lock);
}

/*
 * Sleep until "until", or until woken for whatever reason.
 */
void
DlockQueueSleep(DlockNanos until)
{
	static uint32 event = 0;
	DlockNanos	now = DlockNow();

	if (event == 0)
		event = DlockWaitEventNew("DlockWait");
	if (until > now)
	{
		/* rounded up, so as not to look again before it is time */
		DlockNanos	ms = (until - now + DLOCK_NS_PER_MS - 1) / DLOCK_NS_PER_MS;

		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) Min(ms, INT_MAX), event);
		ResetLatch(MyLatch);
	}
	CHECK_FOR_INTERRUPTS();
}

/*
 * A copy of a database's waiters, by their tickets; palloc'd.
 */
DlockWaiter *
DlockQueueCopy(DlockDatabase *db, int *n)
{
	DlockWaiter *result;
	int			max;
	dlist_iter	iter;

	/* nothing may be allocated under the lock */
	max = pg_atomic_read_u32(&DlockShared->waiting) + 100;
	result = palloc_extended(max * sizeof(DlockWaiter), MCXT_ALLOC_HUGE);
	*n = 0;

	LWLockAcquire(DlockShared->queue_lock, LW_SHARED);
	dlist_foreach(iter, &DlockShared->queue)
	{
		DlockWaiter *waiter = dlist_container(DlockWaiter, node, iter.cur);

		if (*n < max && waiter->dboid == db->key.dboid && waiter->relid == db->key.relid)
			result[(*n)++] = *waiter;
	}
	LWLockRelease(DlockShared->queue_lock);
	return result;
}
