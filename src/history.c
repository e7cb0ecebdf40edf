/*-------------------------------------------------------------------------
 *
 * history.c
 *	  The rows of dlock.history: one for each lease that has ended.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "catalog/pg_am.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

enum
{
	Anum_history_name = 1,
	Anum_history_token,
	Anum_history_owner,
	Anum_history_role = DLOCK_HISTORY_ROLE,
	Anum_history_share,
	Anum_history_why,
	Anum_history_acquired_at,
	Anum_history_ended_at,
	Anum_history_outcome,
	Anum_history_result,
	Anum_history_waited,
	Anum_history_heartbeats,
	Anum_history_refused,
	Anum_history_last_refused_at,
	Anum_history_ended_by,
	Anum_history_slot,			/* for dlock_verify(): not shown */
	Natts_history = Anum_history_slot
};

StaticAssertDecl(Natts_history == DLOCK_HISTORY_NATTS, "columns of dlock.history");

/* The columns that a lease hands down to its history, from and to. */
static const int inherited[][2] = {
	{Anum_lease_name, Anum_history_name},
	{Anum_lease_token, Anum_history_token},
	{Anum_lease_owner, Anum_history_owner},
	{Anum_lease_role, Anum_history_role},
	{Anum_lease_share, Anum_history_share},
	{Anum_lease_why, Anum_history_why},
	{Anum_lease_acquired_at, Anum_history_acquired_at},
	{Anum_lease_waited, Anum_history_waited},
	{Anum_lease_slot, Anum_history_slot},
};

/* The word for an outcome, as history and log say it. */
const char *
DlockOutcomeText(DlockOutcome outcome)
{
	static const char *const texts[DLOCK_NUM_OUTCOMES] = {
		"released", "expired", "taken over", "revoked", "disconnected"
	};

	return texts[outcome];
}

/*
 * Insert a row through the executor, since operators may have indexes of their
 * own here, on expressions too.  Their triggers are not ours to run.
 */
static void
Insert(Relation rel, HeapTuple tuple)
{
	EState	   *estate = CreateExecutorState();
	ResultRelInfo *result = makeNode(ResultRelInfo);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(rel), &TTSOpsHeapTuple);

	InitResultRelInfo(result, rel, 0, NULL, 0);
	result->ri_TrigDesc = NULL;
	ExecOpenIndices(result, false);
	ExecStoreHeapTuple(tuple, slot, false);
	ExecSimpleRelationInsert(result, estate, slot);
	ExecCloseIndices(result);
	ExecDropSingleTupleTableSlot(slot);
	FreeExecutorState(estate);
}

/*
 * Write the history row of the lease in "row", which is about to be freed.
 * "lease" has its counters, or is NULL when the map knows nothing of it.
 */
void
DlockRecordEnd(Oid history, const DlockRow *row, const DlockLease *lease,
			   DlockOutcome outcome, const char *result, const char *ended_by,
			   TimestampTz ended_at)
{
	Relation	rel;
	Datum		values[Natts_history];
	bool		nulls[Natts_history];

	if (dlock_history_retention == 0)
		return;

	memset(nulls, false, sizeof(nulls));
	for (int i = 0; i < lengthof(inherited); i++)
	{
		values[inherited[i][1] - 1] = DlockRowValue(row, inherited[i][0]);
		nulls[inherited[i][1] - 1] = DlockRowIsNull(row, inherited[i][0]);
	}

	values[Anum_history_ended_at - 1] = TimestampTzGetDatum(ended_at);
	values[Anum_history_outcome - 1] = CStringGetTextDatum(DlockOutcomeText(outcome));
	if (result != NULL)
		values[Anum_history_result - 1] = CStringGetTextDatum(result);
	else
		nulls[Anum_history_result - 1] = true;
	values[Anum_history_heartbeats - 1] = Int64GetDatum(lease ? lease->heartbeats : 0);
	values[Anum_history_refused - 1] = Int64GetDatum(lease ? lease->refused : 0);
	if (lease && lease->last_refused_at != 0)
		values[Anum_history_last_refused_at - 1] = TimestampTzGetDatum(lease->last_refused_at);
	else
		nulls[Anum_history_last_refused_at - 1] = true;
	values[Anum_history_ended_by - 1] = CStringGetTextDatum(ended_by);

	rel = DlockOpenTable(history, RowExclusiveLock, Natts_history);
	Insert(rel, heap_form_tuple(RelationGetDescr(rel), values, nulls));
	table_close(rel, NoLock);
}

/*
 * Delete up to "limit" rows that ended before "before"; returns how many.
 * Not by SQL: a publication for all tables refuses DELETE on a table without
 * replica identity.
 */
int
DlockPruneHistory(Oid history, TimestampTz before, int limit)
{
	Relation	rel = DlockOpenTable(history, RowExclusiveLock, Natts_history);
	Oid			index = InvalidOid;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	int			n = 0;
	ListCell   *lc;

	/* ours on ended_at, whatever its name has become, or one as good */
	foreach(lc, RelationGetIndexList(rel))
	{
		Relation	irel = index_open(lfirst_oid(lc), AccessShareLock);

		if (irel->rd_index->indisvalid &&
			irel->rd_rel->relam == BTREE_AM_OID &&
			irel->rd_index->indkey.values[0] == Anum_history_ended_at &&
			irel->rd_opcintype[0] == TIMESTAMPTZOID &&
			RelationGetIndexPredicate(irel) == NIL)
			index = RelationGetRelid(irel);
		index_close(irel, AccessShareLock);
	}

	ScanKeyInit(&key, Anum_history_ended_at, BTLessStrategyNumber,
				F_TIMESTAMPTZ_LT, TimestampTzGetDatum(before));
	scan = systable_beginscan(rel, index, OidIsValid(index), SnapshotSelf, 1, &key);
	while (n < limit && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		CatalogTupleDelete(rel, &tuple->t_self);
		n++;
	}
	systable_endscan(scan);
	table_close(rel, NoLock);

	return n;
}
