/*-------------------------------------------------------------------------
 *
 * deadlock.c
 *	  Waits that would never end: cycles among the waiters of the queue.
 *
 * A waiter waits for the sessions and transactions whose leases are in its
 * way, and for the earlier waiters that it conflicts with.  If these wait in
 * turn, and so on back to the first, nobody in the cycle will ever be served.
 * The one with the last ticket gives up.
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
	DlockWaiter *waiters;
	int			n;
	bool	   *visited;
	int		   *path;			/* waiters from the first on */
	int			depth;
} Search;

/* Does "waiter" wait for the waiter "other", by these leases or its place? */
static bool
WaitsForWaiter(const DlockWaiter *waiter, const DlockWaiter *other,
			   const DlockBlocker *blockers, int nblockers)
{
	for (int i = 0; i < nblockers; i++)
	{
		if (blockers[i].session != 0 && blockers[i].session == other->session)
			return true;
		if (blockers[i].pending && blockers[i].pid == other->pid)
			return true;
		if (blockers[i].ender != 0 && blockers[i].ender == other->pid)
			return true;
	}
	return other->ticket < waiter->ticket &&
		other->namehash == waiter->namehash &&
		strcmp(other->name, waiter->name) == 0 &&
		DlockWaitersExclude(other, waiter);
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

/* Does any path from this waiter lead back to the first one? */
static bool
LeadsBack(Search *search, int from)
{
	DlockBlocker blockers[MAX_BLOCKERS];
	DlockRequest request;
	int			nblockers;

	search->visited[from] = true;
	search->path[search->depth++] = from;

	DlockWaiterRequest(&search->waiters[from], &request);
	nblockers = DlockLiveBlockers(search->db, &request, blockers, MAX_BLOCKERS);
	for (int i = 0; i < search->n; i++)
	{
		if (i == from ||
			!WaitsForWaiter(&search->waiters[from], &search->waiters[i],
							blockers, nblockers))
			continue;
		if (i == search->path[0])
			return true;
		if (!search->visited[i] && LeadsBack(search, i))
			return true;
	}
	search->depth--;
	return false;
}

/*
 * Raise 40P01 if this backend, which is in the queue, is the last that joined
 * a cycle of waits.
 */
void
DlockCheckDeadlock(DlockDatabase *db)
{
	Search		search;
	int			me = -1;
	StringInfoData detail;

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
