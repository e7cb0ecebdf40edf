/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  When to end what: one process that sleeps until the earliest deadline.
 *
 * It is connected to no database.  Deadlines lie in a heap of its own; a
 * heartbeat does not touch it, so a node that comes up is looked up in the
 * map, and goes back when the lease has been renewed.  What is due in a
 * database goes to a reaper, a short-lived worker that connects there.
 *
 * Nothing depends on it but tidiness: an acquire takes over a dead lease by
 * itself, and all that this process knows can be read from the map again.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
#include "lib/pairingheap.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

/* Deadlines that are closer than this are met together. */
#define LAUNCHER_TICK		(10 * DLOCK_NS_PER_MS)

/* How long to leave a database alone, doubled with each time in a row. */
#define PAUSE_BLOCKED		(100 * DLOCK_NS_PER_MS) /* by a guard or a lock */
#define PAUSE_BLOCKED_MAX	(10000 * DLOCK_NS_PER_MS)
#define PAUSE_FAILED		(1000 * DLOCK_NS_PER_MS)
#define PAUSE_FAILED_MAX	(300000 * DLOCK_NS_PER_MS)

/* Entries to be freed that make a sweep worth while. */
#define SWEEP_MIN			10000

typedef struct HeapNode
{
	pairingheap_node node;
	DlockDue	due;
} HeapNode;

/* What the launcher knows about a database. */
typedef struct Visit
{
	Oid			dboid;			/* hash key */
	bool		due;			/* a reaper should go there */
	bool		listed;			/* pg_database has it, and lets us in */
	int			reaper;			/* slot of the one that is there, or -1 */
	int			in_a_row;		/* visits that were blocked or failed */
	DlockNanos	not_before;
} Visit;

static pairingheap *heap = NULL;
static uint64 heap_size = 0;
static MemoryContext heap_context = NULL;
static HTAB *visits = NULL;
static DlockNanos next_list = 0;	/* when to read the list of databases */
static BackgroundWorkerHandle *handles[DLOCK_MAX_REAPERS];

PGDLLEXPORT void DlockLauncherMain(Datum arg);

/* Register the launcher with the postmaster, in _PG_init(). */
void
DlockRegisterLauncher(void)
{
	BackgroundWorker worker;

	if (IsBinaryUpgrade)
		return;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 1;
	strlcpy(worker.bgw_library_name, "dlock", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "DlockLauncherMain", sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, "dlock launcher", sizeof(worker.bgw_name));
	strlcpy(worker.bgw_type, "dlock launcher", sizeof(worker.bgw_type));
	RegisterBackgroundWorker(&worker);
}

/*
 * Tell the launcher of a deadline.  For commit callbacks: cannot fail, and
 * drops what does not fit, which the launcher notices.
 */
void
DlockTellLauncher(const DlockKey *key, DlockNanos at)
{
	Latch	   *latch = NULL;
	DlockDue   *due;

	SpinLockAcquire(&DlockShared->mutex);
	due = &DlockShared->ring[DlockShared->ring_head++ % DLOCK_RING_SIZE];
	due->key = *key;
	due->at = at;
	if (at < DlockShared->launcher_wakes_at ||
		DlockShared->ring_head - DlockShared->ring_tail >= DLOCK_RING_SIZE / 2)
		latch = DlockShared->launcher;
	SpinLockRelease(&DlockShared->mutex);

	if (latch != NULL)
		SetLatch(latch);
}

/* Have the launcher look at the whole map: there is more than fits. */
void
DlockTellLauncherAll(void)
{
	Latch	   *latch;

	SpinLockAcquire(&DlockShared->mutex);
	DlockShared->ring_head += DLOCK_RING_SIZE + 1;
	latch = DlockShared->launcher;
	SpinLockRelease(&DlockShared->mutex);

	if (latch != NULL)
		SetLatch(latch);
}

/* ----------
 * The heap
 * ----------
 */

static int
LaterFirst(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	DlockNanos	at_a = pairingheap_const_container(HeapNode, node, a)->due.at;
	DlockNanos	at_b = pairingheap_const_container(HeapNode, node, b)->due.at;

	return at_a < at_b ? 1 : at_a > at_b ? -1 : 0;
}

static void
PushDue(const DlockDue *due)
{
	HeapNode   *node = MemoryContextAlloc(heap_context, sizeof(HeapNode));

	node->due = *due;
	pairingheap_add(heap, &node->node);
	heap_size++;
}

/* Fill the heap from the map, instead of what was in it. */
static void
RebuildHeap(void)
{
	MemoryContext old;
	DlockDue   *dues;
	int			n;
	int			max = pg_atomic_read_u64(&DlockShared->entries) + 1000;

	MemoryContextReset(heap_context);
	old = MemoryContextSwitchTo(heap_context);
	heap = pairingheap_allocate(LaterFirst, NULL);
	heap_size = 0;
	dues = palloc_extended(max * sizeof(DlockDue), MCXT_ALLOC_HUGE);
	MemoryContextSwitchTo(old);

	n = DlockLookDues(dues, max);
	for (int i = 0; i < n; i++)
		PushDue(&dues[i]);
	pfree(dues);
}

/* Take over what backends told, or all of the map if that was too much. */
static void
DrainRing(void)
{
	for (;;)
	{
		DlockDue	batch[64];
		int			n = 0;
		bool		overrun;

		SpinLockAcquire(&DlockShared->mutex);
		overrun = DlockShared->ring_head - DlockShared->ring_tail > DLOCK_RING_SIZE;
		if (overrun)
			DlockShared->ring_tail = DlockShared->ring_head;
		while (n < lengthof(batch) && DlockShared->ring_tail != DlockShared->ring_head)
			batch[n++] = DlockShared->ring[DlockShared->ring_tail++ % DLOCK_RING_SIZE];
		SpinLockRelease(&DlockShared->mutex);

		if (overrun)
			RebuildHeap();
		for (int i = 0; i < n; i++)
			PushDue(&batch[i]);
		if (n < lengthof(batch))
			break;
	}

	/* leases that ended early leave nodes behind */
	if (heap_size > 2 * pg_atomic_read_u64(&DlockShared->entries) + SWEEP_MIN)
		RebuildHeap();
}

/* ----------
 * Databases
 * ----------
 */

static Visit *
VisitOf(Oid dboid)
{
	bool		found;
	Visit	   *visit = hash_search(visits, &dboid, HASH_ENTER, &found);

	if (!found)
	{
		visit->due = false;
		visit->listed = false;
		visit->reaper = -1;
		visit->in_a_row = 0;
		visit->not_before = 0;
	}
	return visit;
}

/*
 * Read the list of databases.  Those that are new are due for a visit, which
 * adopts what a crash, or their template, left in them; and so are those that
 * use dlock, for their retention.  What is known of dropped ones is purged.
 */
static void
ListDatabases(void)
{
	HASH_SEQ_STATUS seq;
	Visit	   *visit;
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	tuple;
	DlockDatabase **dbs;
	int			n;

	hash_seq_init(&seq, visits);
	while ((visit = hash_seq_search(&seq)) != NULL)
		visit->listed = false;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	dbs = DlockMapDatabases(&n);
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);
		bool		connectable = form->datallowconn && form->datconnlimit != -2;
		bool		found;

		(void) hash_search(visits, &form->oid, HASH_FIND, &found);
		visit = VisitOf(form->oid);
		visit->listed = connectable;
		if (!found)
			visit->due = true;
		for (int i = 0; i < n; i++)
		{
			if (dbs[i] && dbs[i]->key.dboid == form->oid)
			{
				visit->due = true;
				dbs[i] = NULL;
			}
		}
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);

	for (int i = 0; i < n; i++)
	{
		if (dbs[i])
			DlockMapPurge(dbs[i]);
	}
	CommitTransactionCommand();

	hash_seq_init(&seq, visits);
	while ((visit = hash_seq_search(&seq)) != NULL)
	{
		if (!visit->listed && visit->reaper < 0)
			(void) hash_search(visits, &visit->dboid, HASH_REMOVE, NULL);
	}
}

/* Start a reaper in a database; false when no worker can be had now. */
static bool
StartReaper(Visit *visit, int slot)
{
	BackgroundWorker worker;
	uint32		generation;

	SpinLockAcquire(&DlockShared->mutex);
	generation = ++DlockShared->reapers[slot].generation;
	DlockShared->reapers[slot].dboid = visit->dboid;
	DlockShared->reapers[slot].report = DLOCK_REAPER_FAILED;
	SpinLockRelease(&DlockShared->mutex);

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION |
		BGWORKER_INTERRUPTIBLE;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "dlock", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "DlockReaperMain", sizeof(worker.bgw_function_name));
	snprintf(worker.bgw_name, sizeof(worker.bgw_name), "dlock reaper for database %u",
			 visit->dboid);
	strlcpy(worker.bgw_type, "dlock reaper", sizeof(worker.bgw_type));
	worker.bgw_main_arg = Int32GetDatum(slot);
	memcpy(worker.bgw_extra, &generation, sizeof(generation));
	worker.bgw_notify_pid = MyProcPid;

	if (!RegisterDynamicBackgroundWorker(&worker, &handles[slot]))
		return false;
	visit->reaper = slot;
	visit->due = false;
	return true;
}

/* A reaper has left: is its database to be visited again, and when? */
static void
FinishVisit(Visit *visit, DlockNanos now)
{
	DlockReaperReport report;
	DlockNanos	pause = 0;
	DlockNanos	max = 0;

	SpinLockAcquire(&DlockShared->mutex);
	report = DlockShared->reapers[visit->reaper].report;
	SpinLockRelease(&DlockShared->mutex);

	pfree(handles[visit->reaper]);
	handles[visit->reaper] = NULL;
	visit->reaper = -1;

	switch (report)
	{
		case DLOCK_REAPER_DONE:
			visit->in_a_row = 0;
			return;
		case DLOCK_REAPER_MORE:
			visit->in_a_row = 0;
			break;
		case DLOCK_REAPER_BLOCKED:
			pause = PAUSE_BLOCKED;
			max = PAUSE_BLOCKED_MAX;
			break;
		case DLOCK_REAPER_FAILED:
			pause = PAUSE_FAILED;
			max = PAUSE_FAILED_MAX;
			next_list = 0;		/* perhaps it was dropped */
			break;
	}
	visit->due = true;
	visit->not_before = now + Min(pause << Min(visit->in_a_row, 16), max);
	if (report != DLOCK_REAPER_MORE)
		visit->in_a_row++;
}

/* No worker can be had: say so, but not every time. */
static void
TellFull(DlockNanos now)
{
	static DlockNanos tell_again_at = 0;

	if (now < tell_again_at)
		return;
	tell_again_at = now + PAUSE_FAILED_MAX;
	ereport(LOG,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("out of background worker slots for dlock"),
			 errdetail("Leases that expire are not recorded until somebody takes their locks."),
			 errhint("You might need to increase \"%s\".", "max_worker_processes")));
}

/*
 * See to reapers that have left, and start those that are due; returns when
 * to look again.
 */
static DlockNanos
VisitDatabases(DlockNanos now, DlockNanos wake)
{
	HASH_SEQ_STATUS seq;
	Visit	   *visit;
	bool		full = false;

	hash_seq_init(&seq, visits);
	while ((visit = hash_seq_search(&seq)) != NULL)
	{
		pid_t		pid;

		if (visit->reaper >= 0 &&
			GetBackgroundWorkerPid(handles[visit->reaper], &pid) == BGWH_STOPPED)
			FinishVisit(visit, now);

		if (!visit->due || !visit->listed || visit->reaper >= 0)
			continue;
		if (visit->not_before > now)
		{
			wake = Min(wake, visit->not_before);
			continue;
		}
		for (int slot = 0; slot < DLOCK_MAX_REAPERS && !full; slot++)
		{
			if (handles[slot] != NULL)
				continue;
			if (!StartReaper(visit, slot))
			{
				/* others may leave without telling us */
				TellFull(now);
				full = true;
				wake = Min(wake, now + PAUSE_FAILED);
			}
			break;
		}
	}
	return wake;
}

/* ----------
 * The process
 * ----------
 */

/* Backends find no launcher from now on. */
static void
ForgetLauncher(int code, Datum arg)
{
	SpinLockAcquire(&DlockShared->mutex);
	if (DlockShared->launcher == MyLatch)
		DlockShared->launcher = NULL;
	SpinLockRelease(&DlockShared->mutex);
}

/*
 * Look up what has come due.  A lease that was renewed goes back into the
 * heap; a dead one makes its database due.
 */
static void
PopDue(DlockNanos now)
{
	while (!pairingheap_is_empty(heap))
	{
		HeapNode   *node = pairingheap_container(HeapNode, node, pairingheap_first(heap));
		Visit	   *visit;
		DlockNanos	at;

		if (node->due.at > now)
			break;
		(void) pairingheap_remove_first(heap);
		if (DlockLookDeadline(&node->due.key, &at))
		{
			if (at > now)
			{
				node->due.at = at;
				pairingheap_add(heap, &node->node);
				continue;
			}
			visit = VisitOf(node->due.key.dboid);
			visit->due = true;
			if (!visit->listed)
				next_list = 0;	/* it was made since the last list */
		}
		pfree(node);
		heap_size--;
	}
}

void
DlockLauncherMain(Datum arg)
{
	HASHCTL		ctl;

	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	heap_context = AllocSetContextCreate(TopMemoryContext, "dlock deadlines",
										 ALLOCSET_DEFAULT_SIZES);
	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(Visit);
	visits = hash_create("dlock visits", 64, &ctl, HASH_ELEM | HASH_BLOBS);

	before_shmem_exit(ForgetLauncher, 0);
	SpinLockAcquire(&DlockShared->mutex);
	DlockShared->launcher = MyLatch;
	DlockShared->launcher_wakes_at = 0;
	DlockShared->ring_tail = DlockShared->ring_head;
	SpinLockRelease(&DlockShared->mutex);
	RebuildHeap();

	while (!ShutdownRequestPending)
	{
		DlockNanos	now;
		DlockNanos	wake;
		uint64		over;

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			next_list = 0;
		}

		now = DlockNow();
		if (now >= next_list)
		{
			ListDatabases();
			DlockMapSweep();
			next_list = now + dlock_worker_naptime * DLOCK_NS_PER_MS;
		}
		over = pg_atomic_read_u64(&DlockShared->over);
		if (over > SWEEP_MIN && over > pg_atomic_read_u64(&DlockShared->entries) / 2)
			DlockMapSweep();

		DrainRing();
		PopDue(now);
		wake = VisitDatabases(now, next_list);
		if (!pairingheap_is_empty(heap))
			wake = Min(wake, pairingheap_container(HeapNode, node,
												   pairingheap_first(heap))->due.at);
		wake = Max(wake, now + LAUNCHER_TICK);

		/* who comes with an earlier deadline after this wakes us */
		SpinLockAcquire(&DlockShared->mutex);
		DlockShared->launcher_wakes_at = wake;
		if (DlockShared->ring_head != DlockShared->ring_tail)
			wake = now + LAUNCHER_TICK;
		SpinLockRelease(&DlockShared->mutex);

		pgstat_report_activity(STATE_IDLE, NULL);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 (long) ((wake - now + DLOCK_NS_PER_MS - 1) / DLOCK_NS_PER_MS),
						 DlockWaitEventNew("DlockLauncherMain"));
		ResetLatch(MyLatch);
	}

	/* not 0: the postmaster starts it again unless it is shutting down */
	proc_exit(1);
}
