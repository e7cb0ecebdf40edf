/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  What differs between the supported server versions, 15 to 19.
 *
 * The only file that may look at PG_VERSION_NUM.  Wrappers have the newest
 * version's signature.
 *
 *-------------------------------------------------------------------------
 */
#ifndef DLOCK_COMPAT_H
#define DLOCK_COMPAT_H

#include "datatype/timestamp.h"
#include "lib/dshash.h"
#include "postmaster/bgworker.h"
#include "utils/palloc.h"
#include "utils/relcache.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM < 150000
#error "dlock needs PostgreSQL 15 or newer"
#endif

/* 18 (9324c8c) has a magic block that names the module */
#if PG_VERSION_NUM >= 180000
#define DLOCK_MODULE_MAGIC PG_MODULE_MAGIC_EXT(.name = "dlock", .version = DLOCK_VERSION)
#else
#define DLOCK_MODULE_MAGIC PG_MODULE_MAGIC
#endif

/* 18 (1db6897) asks whether a deferrable key will do */
#if PG_VERSION_NUM < 180000
#define RelationGetPrimaryKeyIndex(rel, deferrable_ok) RelationGetPrimaryKeyIndex(rel)
#endif

/*
 * 17 (c9af054) lets extensions name their wait events; before, all that
 * pg_stat_activity can say is "Extension".
 */
#if PG_VERSION_NUM >= 170000
#define DlockWaitEventNew(name) WaitEventExtensionNew(name)
#else
#define DlockWaitEventNew(name) ((uint32) PG_WAIT_EXTENSION)
#endif

/* 18 (d78ed6b) writes it before the declaration */
#ifndef pg_noreturn
#define pg_noreturn pg_attribute_noreturn()
#endif

/* 16 (d952373) moved the macros on varlenas out of postgres.h */
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

/* 16 (2016055), and later minor releases of 15, allocate by type */
#ifndef palloc_array
#define palloc_array(type, count) ((type *) palloc(sizeof(type) * (count)))
#endif

/* 19 can end a worker for DROP DATABASE and the like */
#ifndef BGWORKER_INTERRUPTIBLE
#define BGWORKER_INTERRUPTIBLE 0
#endif

/* 17 (024c521) numbers processes from 0 under this name */
#if PG_VERSION_NUM >= 170000
#define DlockMyProcNumber MyProcNumber
#else
#define DlockMyProcNumber (MyProc->pgprocno)
#endif

/* its header wants those of Kerberos, which a machine need not have */
extern bool pq_check_connection(void);

/* 17 (fe05b6b) has infinite intervals */
#ifndef INTERVAL_NOT_FINITE
#define INTERVAL_NOT_FINITE(i) (false)
#endif

/* 17 (e85662d) gave workers a limit on the whole transaction */
#if PG_VERSION_NUM >= 170000
#define DLOCK_HAS_TRANSACTION_TIMEOUT 1
#else
#define DLOCK_HAS_TRANSACTION_TIMEOUT 0
#endif

/* 17 (a0ed19e) added a member to the middle of dshash_parameters */
#if PG_VERSION_NUM >= 170000
#define DLOCK_HASH_PARAMETERS(key, entry, tranche) \
	{ \
		.key_size = sizeof(key), .entry_size = sizeof(entry), \
		.compare_function = dshash_memcmp, .hash_function = dshash_memhash, \
		.copy_function = dshash_memcpy, .tranche_id = (tranche) \
	}
#else
#define DLOCK_HASH_PARAMETERS(key, entry, tranche) \
	{ \
		.key_size = sizeof(key), .entry_size = sizeof(entry), \
		.compare_function = dshash_memcmp, .hash_function = dshash_memhash, \
		.tranche_id = (tranche) \
	}
#endif

#endif							/* DLOCK_COMPAT_H */
