/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *	  Waits that would never end: cycles among the waiters of the queue.
 *
 * A waiter waits for the sessions and transactions whose leases are in its
 * way, and for the waiters before it.  If one of these waits in turn, and so on
 * back to the first, nobody in the cycle will ever be served.  The one with the
 * last ticket gives up.
 *
 * Cycles through locks of the server are its own detector's: where all depends
 * on one transaction, a waiter sleeps on that one's tag.  A cycle through both
 * is not found, and ends with the first "wait" in it that runs out.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"

/* A waiter with so many in its way is taken for one that will be served. */
#define MAX_BLOCKERS	256

/* What a waiter waits for; all zero before it is reached. */
typedef struct WaitNode
{
	DlockBlocker *blockers;
	int			nblockers;
	int			needed;			/* how many of them have to end */
	bool		stuck;
	bool		visited;
} WaitNode;

/* Who an owner of a blocker is, among the waiters. */
typedef struct Owner
{
	int64		id;				/* a session's, or minus a pid */
	int			waiter;
} Owner;

typedef struct Search
{
	DlockDatabase *db;
	DlockWaiter *waiters;		/* by ticket */
	WaitNode   *nodes;
	int			n;
	DlockBlocker *found;		/* room for MAX_BLOCKERS */
	Owner	   *owners;			/* by id */
	int			nowners;
	int		   *reached;		/* waiters that the first one may wait for */
	int			nreached;
	int		   *path;			/* waiters from the first on */
	int			depth;
} Search;

static int
CompareOwners(const void *a, const void *b)
{
	int64		one = ((const Owner *) a)->id;
	int64		other = ((const Owner *) b)->id;

	return (one > other) - (one < other);
}

/* Add a waiter to the list of owners, by this id unless it is 0. */
static void
AddOwner(Search *search, int64 id, int waiter)
{
	Owner	   *owner = &search->owners[search->nowners];

	owner->id = id;
	owner->waiter = waiter;
	search->nowners += (id != 0);
}

/* Make the list of owners. */
static void
FillOwners(Search *search)
{
	search->owners = palloc_array(Owner, 2 * search->n + 1);
	search->nowners = 0;
	for (int i = 0; i < search->n; i++)
	{
		AddOwner(search, search->waiters[i].session, i);
		AddOwner(search, -search->waiters[i].pid, i);
	}
	qsort(search->owners, search->nowners, sizeof(Owner), CompareOwners);
}

/* The first owner with this id or a greater one. */
static int
FirstOwner(const Search *search, int64 id)
{
	int			low = 0;
	int			high = search->nowners;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (search->owners[middle].id < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Is this so of any waiter that decides on the blocker? */
static bool
AnyOwner(Search *search, const DlockBlocker *blocker, bool (*test) (Search *, int))
{
	if (blocker->owner == 0)
		return false;
	for (int o = FirstOwner(search, blocker->owner);
		 o < search->nowners && search->owners[o].id == blocker->owner; o++)
	{
		if (test(search, search->owners[o].waiter))
			return true;
	}
	return false;
}

/*
 * Add the earlier waiters that are in the way of this one to the "n" blockers
 * that were found; returns how many there are then.  Where one place is all
 * that there is, the nearest stands for those before it.
 */
static int
AddAhead(Search *search, int me, int n)
{
	const DlockWaiter *waiter = &search->waiters[me];

	for (int i = me - 1; i >= 0 && n < MAX_BLOCKERS; i--)
	{
		const DlockWaiter *other = &search->waiters[i];

		if (other->namehash != waiter->namehash ||
			strcmp(other->name, waiter->name) != 0 ||
			!DlockWaitersExclude(other, waiter))
			continue;
		search->found[n].owner = -other->pid;
		search->found[n].ender = 0;
		search->found[n].capacity = other->capacity;
		search->found[n++].shared = other->share[0] != '\0';
		if (waiter->capacity == 1 || waiter->share[0] != '\0')
			break;
	}
	return n;
}

/*
 * Find what a waiter waits for, and how many of these have to go.  What it
 * decides on itself cannot go while it waits, so it counts and is not listed.
 */
static void
FillNode(Search *search, int i)
{
	WaitNode   *node = &search->nodes[i];
	const DlockWaiter *waiter = &search->waiters[i];
	bool		all = waiter->share[0] != '\0';
	int			capacity = waiter->capacity;
	int			count = 0;
	int			n;
	DlockRequest request;

	DlockWaiterRequest(waiter, &request);
	n = DlockLookBlockers(search->db, &request, search->found, MAX_BLOCKERS);
	n = AddAhead(search, i, n);

	node->blockers = palloc_array(DlockBlocker, n + 1);
	for (int j = 0; j < n; j++)
	{
		const DlockBlocker *blocker = &search->found[j];

		if (blocker->ender == waiter->pid)
			continue;			/* for its own transaction it is over */
		if (waiter->again && blocker->owner == waiter->session)
			return;				/* it waits for a guard of that, at most */
		count++;
		all |= blocker->shared;
		if (!waiter->defined)
			capacity = Min(capacity, blocker->capacity);
		if (blocker->owner != -waiter->pid &&
			(blocker->owner == 0 || blocker->owner != waiter->session))
			node->blockers[node->nblockers++] = *blocker;
	}
	node->needed = all ? count : Max(count - capacity + 1, 1);
	node->stuck = count > 0 && n < MAX_BLOCKERS;
}

/* Reach a waiter, if that is new.  Always false: go on with the others. */
static bool
Reach(Search *search, int i)
{
	if (search->nodes[i].blockers == NULL)
	{
		FillNode(search, i);
		search->reached[search->nreached++] = i;
	}
	return false;
}

/* Reach all that the waiter may wait for, and what they may wait for. */
static void
ReachAll(Search *search, int from)
{
	(void) Reach(search, from);
	for (int i = 0; i < search->nreached; i++)
	{
		WaitNode   *node = &search->nodes[search->reached[i]];

		CHECK_FOR_INTERRUPTS();
		for (int j = 0; j < node->nblockers; j++)
			(void) AnyOwner(search, &node->blockers[j], Reach);
	}
}

static bool
IsStuck(Search *search, int i)
{
	return search->nodes[i].stuck;
}

/*
 * Tell those who are stuck from those for whom enough leases can end: whose
 * holder does not wait, or is not stuck itself.  The last ones first, as the
 * others wait for these.
 */
static void
FreeUnstuck(Search *search)
{
	bool		changed = true;

	while (changed)
	{
		changed = false;
		for (int i = search->nreached - 1; i >= 0; i--)
		{
			WaitNode   *node = &search->nodes[search->reached[i]];
			int			can_end = 0;

			CHECK_FOR_INTERRUPTS();
			if (!node->stuck)
				continue;
			for (int j = 0; j < node->nblockers && can_end < node->needed; j++)
				can_end += !AnyOwner(search, &node->blockers[j], IsStuck);
			if (can_end >= node->needed)
			{
				node->stuck = false;
				changed = true;
			}
		}
	}
}

/* Does any path over those who are stuck lead back to the first waiter? */
static bool
LeadsBack(Search *search, int from)
{
	WaitNode   *node = &search->nodes[from];

	if (!node->stuck)
		return false;
	if (node->visited)
		return from == search->path[0];

	check_stack_depth();
	node->visited = true;
	search->path[search->depth++] = from;
	for (int i = 0; i < node->nblockers; i++)
	{
		if (AnyOwner(search, &node->blockers[i], LeadsBack))
			return true;
	}
	search->depth--;
	return false;
}

/*
 * Raise 40P01 if this backend, which is in the queue, is the last that joined
 * a cycle of waits.  Leaves garbage in the current memory context.
 *
 * A waiter without a session and without a lease of its transaction has
 * nothing that anybody waits for.
 */
void
DlockCheckDeadlock(DlockDatabase *db, int64 session)
{
	Search		search;
	int			me = 0;
	StringInfoData detail;

	if (session == 0 && !DlockPendingAny())
		return;

	search.db = db;
	search.waiters = DlockQueueCopy(db, &search.n);
	while (me < search.n && search.waiters[me].pid != MyProcPid)
		me++;
	if (me == search.n)
		return;

	search.found = palloc_array(DlockBlocker, MAX_BLOCKERS);
	search.nodes = palloc0_array(WaitNode, search.n);
	search.reached = palloc_array(int, search.n);
	search.path = palloc_array(int, search.n);
	search.nreached = search.depth = 0;
	FillOwners(&search);
	ReachAll(&search, me);
	FreeUnstuck(&search);
	if (!LeadsBack(&search, me))
		return;

	for (int i = 0; i < search.depth; i++)
	{
		if (search.waiters[search.path[i]].ticket > search.waiters[me].ticket)
			return;
	}

	initStringInfo(&detail);
	for (int i = 0; i < search.depth; i++)
	{
		DlockWaiter *waiter = &search.waiters[search.path[i]];
		DlockWaiter *next = &search.waiters[search.path[(i + 1) % search.depth]];

		if (i > 0)
			appendStringInfoChar(&detail, '\n');
		if (DlockMayUse(waiter->role))
			appendStringInfo(&detail, "Process %d waits for lock \"%s\"; blocked by process %d.",
							 waiter->pid, waiter->name, next->pid);
		else
			appendStringInfo(&detail, "Process %d waits for a lock; blocked by process %d.",
							 waiter->pid, next->pid);
	}
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected"),
			 errdetail_internal("%s", detail.data)));
}
