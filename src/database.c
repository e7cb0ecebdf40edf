/*-------------------------------------------------------------------------
 *
 * database.c
 *	  What every call establishes first: the library is preloaded, this is a
 *	  primary, the versions fit, and the map has been adopted.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/timeline.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_extension.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

/* 2025-01-01, from which the time in tokens counts, as a timestamptz in s */
#define TOKEN_EPOCH_SECS \
	((int64) (2460677 - POSTGRES_EPOCH_JDATE) * SECS_PER_DAY)

/* low bits of a token that count */
#define TOKEN_COUNTER_BITS	20

/* what a promotion adds to the time: more than a primary can restart ahead */
#define PROMOTION_SECS		SECS_PER_DAY

/* The table that this backend has opened before, and what belongs to it. */
static Oid	opened_relid = InvalidOid;
static DlockDatabase *opened_db = NULL;

/*
 * The version of the extension in this database, palloc'd, or NULL when there
 * is none; *owner is its owner.
 */
const char *
DlockExtensionVersion(Oid *extension, Oid *owner)
{
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	const char *result = NULL;

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum("dlock"));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		Form_pg_extension form = (Form_pg_extension) GETSTRUCT(tuple);
		bool		isnull;
		Datum		version = heap_getattr(tuple, Anum_pg_extension_extversion,
										   RelationGetDescr(rel), &isnull);

		*extension = form->oid;
		*owner = form->extowner;
		result = TextDatumGetCString(version);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

/*
 * Find the extension's objects by their names; false when there are none.
 * Schema dlock is the extension's own, and whoever could put something else
 * there owns the extension.
 */
bool
DlockFindObjects(DlockObjects *objects)
{
	Oid			schema = get_namespace_oid("dlock", true);

	if (!OidIsValid(schema))
		return false;
	objects->lease = get_relname_relid("lease", schema);
	objects->history = get_relname_relid("history", schema);
	objects->definition = get_relname_relid("definition", schema);
	objects->token_seq = get_relname_relid("token_seq", schema);
	return OidIsValid(objects->lease) && OidIsValid(objects->history) &&
		OidIsValid(objects->definition) && OidIsValid(objects->token_seq);
}

/* Raise 55000 when there is no shared memory of ours. */
void
DlockRequirePreloaded(void)
{
	if (DlockShared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("dlock must be loaded via \"%s\"", "shared_preload_libraries"),
				 errhint("Add dlock to \"%s\" in postgresql.conf and restart the server.",
						 "shared_preload_libraries")));
}

/*
 * Every call begins here.  Finds the extension's objects, and what shared
 * memory has of this database, which is adopted when this returns: what is
 * not in the map is not held.
 *
 * Errors: 55000 when the library is not preloaded, or does not fit the
 * extension's version, or the extension's tables are not there; 25006 on a
 * standby.
 */
DlockDatabase *
DlockOpenDatabase(DlockObjects *objects)
{
	const char *version;
	Oid			extension;
	Oid			owner;
	DlockDatabase *db;

	DlockRequirePreloaded();
	if (RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot use leases during recovery"),
				 errdetail("This server is a standby."),
				 errhint("Connect to the primary.")));
	if (!DlockFindObjects(objects))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the tables of extension \"%s\" are missing", "dlock"),
				 errhint("Drop the extension and create it again.")));

	if (objects->lease == opened_relid)
		return opened_db;

	version = DlockExtensionVersion(&extension, &owner);
	if (version == NULL || strcmp(version, DLOCK_VERSION) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("library version %s of dlock does not fit extension version %s",
						DLOCK_VERSION, version ? version : "(none)"),
				 errhint("Restart the server if the library was installed since it started, then run \"ALTER EXTENSION dlock UPDATE\".")));

	db = DlockMapDatabase(objects->lease);
	if (pg_atomic_read_u32(&db->adopted) == 0)
		DlockAdopt(db, objects);

	opened_db = db;
	opened_relid = objects->lease;
	return db;
}

/*
 * Raise 25006 in a read-only transaction.  "what" names the function.
 */
void
DlockRequireWritable(const char *what)
{
	if (XactReadOnly)
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot execute %s in a read-only transaction", what),
				 errhint("Call it in a transaction that is READ WRITE.")));
}

/*
 * Was the sequence last changed before a promotion?  Then the old primary may
 * have raised it since, any number of times.
 */
static bool
IsFromEarlierTimeline(Oid token_seq)
{
	TimeLineID	tli = GetWALInsertionTimeLine();
	Relation	rel = relation_open(token_seq, AccessShareLock);
	Buffer		buffer = ReadBuffer(rel, 0);
	XLogRecPtr	lsn;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	lsn = PageGetLSN(BufferGetPage(buffer));
	UnlockReleaseBuffer(buffer);
	relation_close(rel, AccessShareLock);

	return tliOfPointInHistory(lsn, readTimeLineHistory(tli)) != tli;
}

/* The owner of a relation that is there. */
static Oid
OwnerOf(Oid relid)
{
	Relation	rel = relation_open(relid, AccessShareLock);
	Oid			owner = rel->rd_rel->relowner;

	relation_close(rel, AccessShareLock);
	return owner;
}

/*
 * Before a database's first grant since the server started: raise its
 * sequence above every token that can have been given, also by tokens that
 * were not replicated, not restored, or not flushed.  The clock helps, and
 * alone never lowers.
 *
 * Takes the adoption tag for the length of the call.
 */
void
DlockRaiseTokens(DlockDatabase *db, const DlockObjects *objects)
{
	int64		now = GetCurrentTimestamp() / USECS_PER_SEC - TOKEN_EPOCH_SECS;

	if (pg_atomic_read_u32(&db->raised) != 0)
		return;

	DlockLockAdoption();
	if (pg_atomic_read_u32(&db->raised) == 0)
	{
		bool		promoted = IsFromEarlierTimeline(objects->token_seq);
		int64		high = DlockNextToken(objects->token_seq);
		Oid			userid;
		int			context;

		high = Max(high, (int64) pg_atomic_read_u64(&DlockShared->highest_token));
		high = Max((high >> TOKEN_COUNTER_BITS) + (promoted ? PROMOTION_SECS : 2), now)
			<< TOKEN_COUNTER_BITS;

		/* setval() looks at privileges, and the caller need not have them */
		GetUserIdAndSecContext(&userid, &context);
		SetUserIdAndSecContext(OwnerOf(objects->token_seq),
							   context | SECURITY_LOCAL_USERID_CHANGE |
							   SECURITY_NOFORCE_RLS);
		(void) DirectFunctionCall2(setval_oid,
								   ObjectIdGetDatum(objects->token_seq),
								   Int64GetDatum(high));
		SetUserIdAndSecContext(userid, context);

		/* before any token of it is seen, also one that is rolled back */
		XLogFlush(XactLastRecEnd);
		pg_atomic_write_u32(&db->raised, 1);
	}
	DlockUnlockAdoption();
}

/* Count something for dlock_stats; may be called in a commit callback. */
void
DlockCount(DlockDatabase *db, int counter, uint64 n)
{
	pg_atomic_fetch_add_u64(&db->counters[counter], n);
}

/* Remember the highest token of all databases, for DlockRaiseTokens(). */
void
DlockNoteToken(int64 token)
{
	uint64		highest = pg_atomic_read_u64(&DlockShared->highest_token);

	while ((uint64) token > highest &&
		   !pg_atomic_compare_exchange_u64(&DlockShared->highest_token,
										   &highest, (uint64) token))
		;
}
