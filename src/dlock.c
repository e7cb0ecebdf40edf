/*-------------------------------------------------------------------------
 *
 * dlock.c
 *	  Module entry: settings, shared memory, the launcher's registration.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include <limits.h>

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/guc.h"

DLOCK_MODULE_MAGIC;

/* Settings; their units are in dlock.h. */
int			dlock_default_ttl = 30 * 1000;
int			dlock_max_ttl = 24 * 60 * 60;
int			dlock_max_leases = 1000000;
int			dlock_history_retention = 7 * 24 * 60 * 60;
int			dlock_idle_lock_retention = 24 * 60 * 60;
bool		dlock_log_lost_leases = true;
int			dlock_worker_naptime = 60 * 1000;

DlockControl *DlockShared = NULL;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static void DlockDefineSettings(void);
static void DlockShmemRequest(void);
static void DlockShmemStartup(void);

void		_PG_init(void);

/*
 * Everything but the settings needs the library to be preloaded; without
 * that, DlockShared stays NULL and DlockOpenDatabase() says what to do.
 */
void
_PG_init(void)
{
	DlockDefineSettings();

	if (!process_shared_preload_libraries_in_progress)
		return;

	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = DlockShmemRequest;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = DlockShmemStartup;

	DlockPendingInit();
	DlockProtectInit();
	DlockRegisterLauncher();
}

/* In alphabetical order.  max_leases sizes nothing, but must not change. */
static void
DlockDefineSettings(void)
{
	DefineCustomIntVariable("dlock.default_ttl",
							"Sets how long a lease lives without a heartbeat when the caller does not say.",
							NULL,
							&dlock_default_ttl,
							30 * 1000, 10, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS,
							NULL, NULL, NULL);

	DefineCustomIntVariable("dlock.history_retention",
							"Sets how long ended leases stay in the history.",
							"0 keeps no history, -1 keeps it for ever.",
							&dlock_history_retention,
							7 * 24 * 60 * 60, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S,
							NULL, NULL, NULL);

	DefineCustomIntVariable("dlock.idle_lock_retention",
							"Sets how long the row of a lock that nobody takes is kept.",
							NULL,
							&dlock_idle_lock_retention,
							24 * 60 * 60, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_S,
							NULL, NULL, NULL);

	DefineCustomBoolVariable("dlock.log_lost_leases",
							 "Logs leases that end by expiry, takeover or revocation.",
							 NULL,
							 &dlock_log_lost_leases,
							 true,
							 PGC_SUSET, 0,
							 NULL, NULL, NULL);

	if (process_shared_preload_libraries_in_progress)
		DefineCustomIntVariable("dlock.max_leases",
								"Sets how many leases can be held at once in all databases.",
								"Memory is taken as it is used, about 400 bytes a lease.",
								&dlock_max_leases,
								1000000, 100, INT_MAX,
								PGC_POSTMASTER, 0,
								NULL, NULL, NULL);

	DefineCustomIntVariable("dlock.max_ttl",
							"Sets the longest time to live and the longest rest that a caller can ask for.",
							NULL,
							&dlock_max_ttl,
							24 * 60 * 60, 1, INT_MAX,
							PGC_SUSET, GUC_UNIT_S,
							NULL, NULL, NULL);

	DefineCustomIntVariable("dlock.worker_naptime",
							"Sets the longest sleep of the launcher.",
							NULL,
							&dlock_worker_naptime,
							60 * 1000, 100, INT_MAX / 2,
							PGC_SIGHUP, GUC_UNIT_MS,
							NULL, NULL, NULL);

	MarkGUCPrefixReserved("dlock");
}

/* The fixed part, then the map's, then the queue's. */
static Size
DlockShmemSize(void)
{
	return add_size(add_size(MAXALIGN(sizeof(DlockControl)), DlockMapShmemSize()),
					DlockQueueShmemSize());
}

/*
 * Two tranches are requested for their ids alone: a named one is known in
 * every process, and in every server version.
 */
static void
DlockShmemRequest(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();

	RequestAddinShmemSpace(DlockShmemSize());
	RequestNamedLWLockTranche("dlock dsa", 1);
	RequestNamedLWLockTranche("dlock hash", 1);
	RequestNamedLWLockTranche("dlock queue", 1);
}

static void
DlockShmemStartup(void)
{
	bool		found;
	char	   *place;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	DlockShared = ShmemInitStruct("dlock", DlockShmemSize(), &found);
	if (!found)
	{
		memset(DlockShared, 0, sizeof(DlockControl));
		DlockShared->dsa_tranche = GetNamedLWLockTranche("dlock dsa")->lock.tranche;
		DlockShared->hash_tranche = GetNamedLWLockTranche("dlock hash")->lock.tranche;
		pg_atomic_init_u64(&DlockShared->entries, 0);
		pg_atomic_init_u64(&DlockShared->over, 0);
		pg_atomic_init_u64(&DlockShared->highest_token, 0);
		pg_atomic_init_u64(&DlockShared->numbers, 0);
		DlockShared->queue_lock = &GetNamedLWLockTranche("dlock queue")->lock;
		SpinLockInit(&DlockShared->mutex);
		place = (char *) DlockShared + MAXALIGN(sizeof(DlockControl));
		DlockMapShmemInit(place);
		DlockQueueShmemInit(place + DlockMapShmemSize());
	}
	LWLockRelease(AddinShmemInitLock);
}
