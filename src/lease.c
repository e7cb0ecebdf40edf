/*-------------------------------------------------------------------------
 *
 * lease.c
 *	  The rows of dlock.lease, and tokens.  Knows no shared memory.
 *
 * Rows are read with SnapshotSelf and written by direct heap access.  The
 * caller holds the slot tag of a row that it reads in order to write, so no
 * two transactions ever write one row at the same time, and what SnapshotSelf
 * sees cannot change before the write.  The caller's own snapshot, which may
 * be old, decides nothing, and nothing here can raise a serialization failure
 * or take a predicate lock.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "commands/sequence.h"
#include "common/int.h"
#include "storage/procarray.h"
#include "tcop/pquery.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/*
 * Open one of dlock's tables, which must have "natts" columns: 55000 when
 * somebody has changed or dropped it.
 */
Relation
DlockOpenTable(Oid relid, LOCKMODE mode, int natts)
{
	Relation	rel = try_table_open(relid, mode);

	if (rel == NULL)			/* while the caller waited */
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"%s\" has been dropped", "dlock")));
	if (RelationGetDescr(rel)->natts != natts)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("columns of table \"dlock.%s\" have been added or dropped",
						RelationGetRelationName(rel)),
				 errhint("Drop the extension and create it again.")));
	return rel;
}

/*
 * The row of this slot, or false when there is none.  The row is a copy in
 * the current memory context.
 */
bool
DlockFetchRow(Relation rel, const char *name, int namelen, int slot,
			  DlockRow *row)
{
	Oid			pkey = RelationGetPrimaryKeyIndex(rel, false);
	SysScanDesc scan;
	ScanKeyData key[2];
	HeapTuple	tuple;
	text	   *nametext = cstring_to_text_with_len(name, namelen);

	/* the index is looked up each time: REINDEX CONCURRENTLY replaces it */
	if (!OidIsValid(pkey))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has no primary key", "dlock.lease")));

	ScanKeyInit(&key[0], Anum_lease_name, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(nametext));
	ScanKeyInit(&key[1], Anum_lease_slot, BTEqualStrategyNumber, F_INT4EQ,
				Int32GetDatum(slot));

	scan = systable_beginscan(rel, pkey, true, SnapshotSelf, 2, key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		DlockDeformRow(rel, tuple, row);
	systable_endscan(scan);
	pfree(nametext);

	return HeapTupleIsValid(tuple);
}

/* Copy and deform a tuple of dlock.lease. */
void
DlockDeformRow(Relation rel, HeapTuple tuple, DlockRow *row)
{
	row->tuple = heap_copytuple(tuple);
	heap_deform_tuple(row->tuple, RelationGetDescr(rel), row->values, row->nulls);
}

/* An interval column in µs, 0 for NULL. */
int64
DlockRowSpan(const DlockRow *row, int att)
{
	return DlockRowIsNull(row, att) ? 0 :
		DlockIntervalMicros(DatumGetIntervalP(DlockRowValue(row, att)));
}

/* Change columns of a row in memory; DlockStoreRow() writes it. */
void
DlockRowSet(DlockRow *row, int att, Datum value)
{
	row->values[att - 1] = value;
	row->nulls[att - 1] = false;
}

void
DlockRowSetNull(DlockRow *row, int att)
{
	row->values[att - 1] = (Datum) 0;
	row->nulls[att - 1] = true;
}

/* NULL for a NULL pointer. */
void
DlockRowSetText(DlockRow *row, int att, const char *text)
{
	if (text == NULL)
		DlockRowSetNull(row, att);
	else
		DlockRowSet(row, att, CStringGetTextDatum(text));
}

/*
 * The direct way of writing a row knows only plain indexes.  Another one is
 * there while ours is rebuilt, and is plain; but an operator may have made one
 * that is not: raise 55000.
 */
void
DlockRequirePlainIndexes(Relation rel)
{
	List	   *indexes = RelationGetIndexList(rel);
	ListCell   *lc;

	if (list_length(indexes) == 1)
		return;
	foreach(lc, indexes)
	{
		Relation	irel = index_open(lfirst_oid(lc), AccessShareLock);

		if (RelationGetIndexExpressions(irel) != NIL ||
			RelationGetIndexPredicate(irel) != NIL)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("index \"%s\" must not be on table \"dlock.%s\"",
							RelationGetRelationName(irel), RelationGetRelationName(rel)),
					 errhint("Drop the index.")));
		index_close(irel, AccessShareLock);
	}
}

/*
 * Write a row back, or a new one when row->tuple is NULL.  The caller holds
 * the slot tag EXCLUSIVE and RowExclusiveLock on the table, and sees to
 * CommandCounterIncrement().
 */
void
DlockStoreRow(Relation rel, DlockRow *row)
{
	HeapTuple	tuple = heap_form_tuple(RelationGetDescr(rel),
										row->values, row->nulls);

	DlockRequirePlainIndexes(rel);
	if (row->tuple == NULL)
		CatalogTupleInsert(rel, tuple);
	else
		CatalogTupleUpdate(rel, &row->tuple->t_self, tuple);
	heap_freetuple(tuple);
}

/*
 * Does this transaction keep one snapshot over many statements?
 *
 * In a subtransaction, which may be a function's within a single statement,
 * the server does not say.  Then a block is known by its savepoint, or by a
 * statement that began after its transaction.
 */
bool
DlockKeepsSnapshot(void)
{
	if (!IsolationUsesXactSnapshot())
		return false;
	if (!IsSubTransaction())
		return IsTransactionBlock();
	return (ActivePortal != NULL && ActivePortal->createSubid != TopSubTransactionId) ||
		GetCurrentStatementStartTimestamp() != GetCurrentTransactionStartTimestamp();
}

/* Is the snapshot that it keeps older than this version of a row? */
static bool
TupleIsStale(HeapTuple tuple)
{
	TransactionId xmin = HeapTupleHeaderGetXmin(tuple->t_data);

	return TransactionIdIsNormal(xmin) &&
		!TransactionIdIsCurrentTransactionId(xmin) &&
		XidInMVCCSnapshot(xmin, GetTransactionSnapshot());
}

/*
 * Is this transaction's snapshot older than the lease's last change, so that
 * it would work on the data of before its turn?
 */
bool
DlockRowIsStale(const DlockRow *row)
{
	return DlockKeepsSnapshot() && TupleIsStale(row->tuple);
}

/*
 * The same for a lock, in a transaction that keeps its snapshot; its last
 * change is that of any of its leases.  Of those that have changed since,
 * "spare" may know better.
 */
bool
DlockLockIsStale(Relation rel, const char *name, int namelen,
				 bool (*spare) (const DlockRow *row, void *arg), void *arg)
{
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	bool		result = false;

	ScanKeyInit(&key, Anum_lease_name, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(cstring_to_text_with_len(name, namelen)));
	scan = systable_beginscan(rel, RelationGetPrimaryKeyIndex(rel, false), true,
							  SnapshotSelf, 1, &key);
	while (!result && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		DlockRow	row;

		if (!TupleIsStale(tuple))
			continue;
		DlockDeformRow(rel, tuple, &row);
		result = !spare(&row, arg);
	}
	systable_endscan(scan);
	return result;
}

/*
 * Is the snapshot of a transaction that keeps one perhaps older than something
 * that happened "usecs" ago?  It is no older than the transaction, and all
 * that is known of that is its start by the wall clock.
 */
bool
DlockSnapshotIsOlder(int64 usecs)
{
	int64		open_for = GetCurrentTimestamp() - GetCurrentTransactionStartTimestamp();

	return open_for < 0 || open_for >= usecs;
}

/*
 * A token that is greater than every earlier one of this database.  The
 * sequence has been raised since the start of the server.  Its WAL becomes
 * durable with the commit of the caller's transaction at the latest.
 */
int64
DlockNextToken(Oid token_seq)
{
	return nextval_internal(token_seq, false);
}

/* A span of microseconds as an interval without days. */
Datum
DlockIntervalDatum(int64 usecs)
{
	Interval   *result = palloc0(sizeof(Interval));

	result->time = usecs;
	return IntervalPGetDatum(result);
}

/*
 * Microseconds of an interval without months; PG_INT64_MAX or PG_INT64_MIN
 * when they don't fit.
 */
int64
DlockIntervalMicros(const Interval *interval)
{
	int64		result;

	if (pg_mul_s64_overflow(interval->day, USECS_PER_DAY, &result) ||
		pg_add_s64_overflow(result, interval->time, &result))
		return interval->day > 0 ? PG_INT64_MAX : PG_INT64_MIN;
	return result;
}

/*
 * Has this row been free, and its lock at rest no more, since "before"?
 *
 * A row whose last change some snapshot does not see must stay: it is what
 * tells the owner of that snapshot that it is stale.
 */
bool
DlockRowIsIdle(Relation rel, HeapTuple tuple, TimestampTz before)
{
	bool		isnull;
	Datum		ended_at;
	Datum		rests_until;

	ended_at = heap_getattr(tuple, Anum_lease_ended_at, RelationGetDescr(rel),
							&isnull);
	if (isnull || DatumGetTimestampTz(ended_at) >= before)
		return false;
	rests_until = heap_getattr(tuple, Anum_lease_rests_until,
							   RelationGetDescr(rel), &isnull);
	if (!isnull && DatumGetTimestampTz(rests_until) >= before)
		return false;

	return TransactionIdPrecedes(HeapTupleHeaderGetXmin(tuple->t_data),
								 GetOldestNonRemovableTransactionId(rel)) ||
		!TransactionIdIsNormal(HeapTupleHeaderGetXmin(tuple->t_data));
}
