/*-------------------------------------------------------------------------
 *
 * verify.c
 *	  Are the promises kept?  Leases in the table against those in memory.
 *
 * Rows and map are read while others change them, so a first look only finds
 * suspects.  Each is looked at again under its slot tag, where nothing of it
 * can change; one whose tag somebody has is in the middle of a change, and
 * passed over.  The history part of dlock_verify() is in SQL.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "access/genam.h"
#include "access/table.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(dlock_verify_leases);

/* Add a breach to the result. */
static void
Report(FunctionCallInfo fcinfo, const char *breach, const char *name, int64 token,
	   const char *detail)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Datum		values[4];
	bool		nulls[4] = {false, false, false, false};

	values[0] = CStringGetTextDatum(breach);
	values[1] = CStringGetTextDatum(name);
	values[2] = Int64GetDatum(token);
	values[3] = CStringGetTextDatum(detail);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* Does the map have the lease of this held row? */
static bool
IsInMap(DlockDatabase *db, const DlockRow *row)
{
	DlockLease	lease;

	return DlockLiveFind(db, DlockRowToken(row), &lease) &&
		lease.state < DLOCK_STATE_MIN_HOLD &&
		lease.slot == DatumGetInt32(DlockRowValue(row, Anum_lease_slot)) &&
		strcmp(lease.name, TextDatumGetCString(DlockRowValue(row, Anum_lease_name))) == 0;
}

/* Each row that is held has its entry in the map. */
static void
VerifyRows(FunctionCallInfo fcinfo, DlockDatabase *db, Relation rel)
{
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, SnapshotSelf, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		DlockRow	row;
		const char *name;
		uint64		namehash;
		int			slot;

		CHECK_FOR_INTERRUPTS();
		DlockDeformRow(rel, tuple, &row);
		if (!DlockRowIsHeld(&row) || IsInMap(db, &row))
			continue;

		name = TextDatumGetCString(DlockRowValue(&row, Anum_lease_name));
		slot = DatumGetInt32(DlockRowValue(&row, Anum_lease_slot));
		namehash = DlockHashName(name, strlen(name));
		if (!DlockLockSlot(namehash, slot, true, false))
			continue;
		if (DlockFetchRow(rel, name, strlen(name), slot, &row) &&
			DlockRowIsHeld(&row) && !IsInMap(db, &row))
			Report(fcinfo, "lease without memory", name, DlockRowToken(&row),
				   psprintf("slot %d", slot));
		DlockUnlockSlot(namehash, slot, true);
	}
	systable_endscan(scan);
}

/* Does the row of this live lease say the same? */
static bool
HasRow(Relation rel, const DlockLease *lease)
{
	DlockRow	row;

	return DlockFetchRow(rel, lease->name, strlen(lease->name), lease->slot, &row) &&
		DlockRowIsHeld(&row) && DlockRowToken(&row) == lease->token;
}

/*
 * Each entry of the map has its row, and those of one lock go together: when a
 * lease was granted, earlier ones that are still alive left room for it.
 */
static void
VerifyMap(FunctionCallInfo fcinfo, DlockDatabase *db, Relation rel)
{
	int			max = pg_atomic_read_u64(&DlockShared->entries) + 1000;
	int64	   *tokens = palloc_extended(max * sizeof(int64), MCXT_ALLOC_HUGE);
	int			n = DlockLookTokens(db, false, tokens, max);

	for (int i = 0; i < n; i++)
	{
		DlockLease	lease;
		uint64		namehash;
		int			beside;

		CHECK_FOR_INTERRUPTS();
		if (!DlockLiveFind(db, tokens[i], &lease) || !DlockLeaseIsAlive(&lease) ||
			lease.state == DLOCK_STATE_PENDING)
			continue;

		namehash = DlockHashName(lease.name, strlen(lease.name));
		if (!HasRow(rel, &lease) && DlockLockSlot(namehash, lease.slot, true, false))
		{
			if (DlockLiveFind(db, tokens[i], &lease) && DlockLeaseIsAlive(&lease) &&
				!HasRow(rel, &lease))
				Report(fcinfo, "memory without lease", lease.name, lease.token,
					   psprintf("slot %d", lease.slot));
			DlockUnlockSlot(namehash, lease.slot, true);
		}

		beside = DlockLookBeside(db, &lease);
		if (beside >= lease.capacity)
			Report(fcinfo, "too many leases", lease.name, lease.token,
				   psprintf("%d earlier ones are alive beside it, and its capacity is %d",
							beside, lease.capacity));
	}
}

/* The live part of dlock_verify(). */
Datum
dlock_verify_leases(PG_FUNCTION_ARGS)
{
	DlockObjects objects;
	DlockDatabase *db = DlockOpenDatabase(&objects);
	Relation	rel;

	InitMaterializedSRF(fcinfo, 0);
	rel = DlockOpenTable(objects.lease, AccessShareLock, Natts_lease);
	VerifyRows(fcinfo, db, rel);
	VerifyMap(fcinfo, db, rel);
	table_close(rel, AccessShareLock);
	return (Datum) 0;
}
