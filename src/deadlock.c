/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *	  Waits that would never end: cycles among the waiters of the queue.
 *
 * A waiter waits for the sessions and transactions whose leases are in its
 * way, or in the way of a waiter before it.  If one of these waits in turn, and
 * so on back to the first, nobody in the cycle will ever be served.  The one
 * with the last ticket gives up.
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

/* More leases than this in the way of one waiter are not looked at. */
#define MAX_BLOCKERS	256

/* A waiter, and the leases that it waits for. */
typedef struct WaitNode
{
	DlockBlocker *blockers;
	int			nblockers;
	int			needed;			/* how many of them have to end */
	bool		stuck;
	bool		visited;
} WaitNode;

typedef struct Search
{
	DlockDatabase *db;
	DlockWaiter *waiters;		/* by ticket */
	WaitNode	   *nodes;
	int			n;
	int		   *path;			/* waiters from the first on */
	int			depth;
} Search;

/* Is it this waiter that has the lease? */
static bool
HasLease(const DlockWaiter *waiter, const DlockBlocker *blocker)
{
	return (blocker->session != 0 && blocker->session == waiter->session) ||
		(blocker->pending && blocker->pid == waiter->pid) ||
		(blocker->ender != 0 && blocker->ender == waiter->pid);
}

/* Is an earlier waiter in the way of this one? */
static bool
IsBehindAnother(Search *search, int me)
{
	const DlockWaiter *waiter = &search->waiters[me];

	for (int i = 0; i < me; i++)
	{
		if (search->waiters[i].namehash == waiter->namehash &&
			strcmp(search->waiters[i].name, waiter->name) == 0 &&
			DlockWaitersExclude(&search->waiters[i], waiter))
			return true;
	}
	return false;
}

/*
 * Find what a waiter waits for.  Who stands behind another waits for all that
 * that one may wait for.
 */
static void
FillNode(Search *search, int i)
{
	WaitNode	   *node = &search->nodes[i];
	const DlockWaiter *waiter = &search->waiters[i];
	bool		behind = IsBehindAnother(search, i);
	bool		all = behind || waiter->share[0] != '\0';
	int			capacity = waiter->capacity;
	DlockRequest request;

	node->blockers = palloc_array(DlockBlocker, MAX_BLOCKERS);
	DlockWaiterRequest(waiter, &request);
	node->nblockers = DlockLookBlockers(search->db, &request, behind,
										node->blockers, MAX_BLOCKERS);
	for (int j = 0; j < node->nblockers; j++)
	{
		all |= node->blockers[j].shared;
		if (!waiter->defined)
			capacity = Min(capacity, node->blockers[j].capacity);
	}
	node->needed = all ? node->nblockers : Max(node->nblockers - capacity + 1, 1);
	node->stuck = node->nblockers > 0;
	node->visited = false;
}

/* Has any waiter that is stuck this lease, so that it will not end? */
static bool
IsKept(Search *search, const DlockBlocker *blocker)
{
	for (int i = 0; i < search->n; i++)
	{
		if (search->nodes[i].stuck && HasLease(&search->waiters[i], blocker))
			return true;
	}
	return false;
}

/*
 * Tell those who are stuck from those for whom enough leases can end: whose
 * holder does not wait, or is not stuck itself.
 */
static void
FreeUnstuck(Search *search)
{
	bool		changed = true;

	while (changed)
	{
		CHECK_FOR_INTERRUPTS();
		changed = false;
		for (int i = 0; i < search->n; i++)
		{
			WaitNode	   *node = &search->nodes[i];
			int			can_end = 0;

			if (!node->stuck)
				continue;
			for (int j = 0; j < node->nblockers && can_end < node->needed; j++)
				can_end += !IsKept(search, &node->blockers[j]);
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
	WaitNode	   *node = &search->nodes[from];

	check_stack_depth();
	node->visited = true;
	search->path[search->depth++] = from;
	for (int i = 0; i < node->nblockers; i++)
	{
		for (int j = 0; j < search->n; j++)
		{
			if (!search->nodes[j].stuck ||
				!HasLease(&search->waiters[j], &node->blockers[i]))
				continue;
			if (j == search->path[0] ||
				(!search->nodes[j].visited && LeadsBack(search, j)))
				return true;
		}
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
	int			me = -1;
	StringInfoData detail;

	if (session == 0 && !DlockPendingAny())
		return;

	search.db = db;
	search.waiters = DlockQueueCopy(db, &search.n);
	search.nodes = palloc_array(WaitNode, search.n + 1);
	search.path = palloc_array(int, search.n + 1);
	search.depth = 0;

	for (int i = 0; i < search.n; i++)
	{
		FillNode(&search, i);
		if (search.waiters[i].pid == MyProcPid)
			me = i;
	}
	FreeUnstuck(&search);
	if (me < 0 || !search.nodes[me].stuck || !LeadsBack(&search, me))
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
