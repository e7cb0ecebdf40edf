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

typedef struct Search
{
	DlockDatabase *db;
	DlockWaiter *waiters;		/* by ticket */
	int			n;
	bool	   *visited;
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

/* Does any path from this waiter lead back to the first one? */
static bool
LeadsBack(Search *search, int from)
{
	DlockBlocker *blockers = palloc_array(DlockBlocker, MAX_BLOCKERS);
	DlockRequest request;
	int			nblockers;
	bool		found = false;

	check_stack_depth();
	CHECK_FOR_INTERRUPTS();
	search->visited[from] = true;
	search->path[search->depth++] = from;

	/* who stands behind another waits for what that one waits for */
	DlockWaiterRequest(&search->waiters[from], &request);
	nblockers = DlockLookBlockers(search->db, &request, IsBehindAnother(search, from),
								  blockers, MAX_BLOCKERS);
	for (int i = 0; i < nblockers && !found; i++)
	{
		for (int j = 0; j < search->n && !found; j++)
		{
			if (j != from && HasLease(&search->waiters[j], &blockers[i]))
				found = (j == search->path[0]) ||
					(!search->visited[j] && LeadsBack(search, j));
		}
	}
	pfree(blockers);
	if (!found)
		search->depth--;
	return found;
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
	search.visited = palloc0(search.n * sizeof(bool) + 1);
	search.path = palloc_array(int, search.n + 1);
	search.depth = 0;

	for (int i = 0; i < search.n; i++)
	{
		if (search.waiters[i].pid == MyProcPid)
			me = i;
	}
	if (me < 0 || !LeadsBack(&search, me))
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
