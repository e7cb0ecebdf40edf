/*-------------------------------------------------------------------------
 *
 * adopt.c
 *	  The map made from the table at a start, and idle rows taken out of it.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/indexing.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

/* Put one row that is held, or whose lock rests, into the map. */
static void
AdoptRow(DlockDatabase *db, const DlockObjects *objects, DlockRow *row)
{
	text	   *name = DatumGetTextPP(DlockRowValue(row, Anum_lease_name));
	TimestampTz wall = GetCurrentTimestamp();
	DlockDefinition definition;
	DlockSession session;
	DlockRequest request;
	DlockNanos	now;
	DlockNanos	rests_until = 0;
	DlockLive  *live;
	DlockLive  *pinned = NULL;
	DlockLease	lease;
	int64		rest = 0;

	memset(&request, 0, sizeof(request));
	request.name = VARDATA_ANY(name);
	request.namelen = VARSIZE_ANY_EXHDR(name);
	request.ttl = DlockIntervalMicros(DatumGetIntervalP(DlockRowValue(row, Anum_lease_ttl)));
	request.capacity = DatumGetInt32(DlockRowValue(row, Anum_lease_capacity));
	request.role = DatumGetObjectId(DlockRowValue(row, Anum_lease_role));
	if (!DlockRowIsNull(row, Anum_lease_share))
		request.share = TextDatumGetCString(DlockRowValue(row, Anum_lease_share));
	DlockFindDefinition(objects, request.name, request.namelen, &definition);
	request.takeover_delay = definition.takeover_delay;

	/*
	 * A rest is all that is measured by the wall clock, and only here: its
	 * whole length is the most that a clock set back can make of it.
	 */
	if (!DlockRowIsHeld(row))
	{
		TimestampTz until;

		if (DlockRowIsNull(row, Anum_lease_rests_until))
			return;
		until = DatumGetTimestampTz(DlockRowValue(row, Anum_lease_rests_until));
		rest = Min(until - wall,
				   until - DatumGetTimestampTz(DlockRowValue(row, Anum_lease_ended_at)));
		if (rest <= 0)
			return;
	}
	else if (!DlockRowIsNull(row, Anum_lease_min_hold))
	{
		int64		min_hold = DlockIntervalMicros(DatumGetIntervalP(DlockRowValue(row, Anum_lease_min_hold)));
		TimestampTz acquired_at = DatumGetTimestampTz(DlockRowValue(row, Anum_lease_acquired_at));

		rest = Min(acquired_at + min_hold - wall, min_hold);
	}

	if (DlockRowIsHeld(row) && !DlockRowIsNull(row, Anum_lease_session))
	{
		memset(&session, 0, sizeof(session));
		session.id = request.session =
			DatumGetInt64(DlockRowValue(row, Anum_lease_session));
		session.ttl = DlockIntervalMicros(DatumGetIntervalP(DlockRowValue(row, Anum_lease_session_ttl)));
		session.role = request.role;
		session.connected = !DlockRowIsNull(row, Anum_lease_session_pid);
		strlcpy(session.owner, TextDatumGetCString(DlockRowValue(row, Anum_lease_owner)),
				sizeof(session.owner));
		pinned = DlockSessionAdopt(db, &session);
	}

	live = DlockMapInsert(db, DlockRowToken(row), &request,
						  DatumGetInt32(DlockRowValue(row, Anum_lease_slot)));
	if (pinned != NULL)
		DlockLiveUnpin(pinned);
	if (live == NULL)
	{
		/* an adoption that failed had come this far */
		if (!DlockLiveFind(db, DlockRowToken(row), &lease))
			elog(ERROR, "could not adopt lease " INT64_FORMAT, DlockRowToken(row));
		return;
	}

	now = DlockNow();
	if (rest > 0)
		rests_until = now + rest * DLOCK_NS_PER_US;
	DlockLiveStart(live, DlockRowIsHeld(row) ? rests_until : 0, now + request.ttl * DLOCK_NS_PER_US);
	if (DlockRowIsHeld(row))
	{
		pg_atomic_fetch_add_u64(&db->held, 1);
		if (!DlockRowIsNull(row, Anum_lease_revoke_grace))
			DlockLiveRevoke(live, now + DLOCK_NS_PER_US *
							DlockIntervalMicros(DatumGetIntervalP(DlockRowValue(row, Anum_lease_revoke_grace))));
		DlockTellLauncher(&live->key, now + request.ttl * DLOCK_NS_PER_US);
	}
	else
		{
		bool		delayed = strcmp(TextDatumGetCString(DlockRowValue(row, Anum_lease_rests_for)),
									 "delayed") == 0;

		DlockLiveEnd(live, delayed ? DLOCK_STATE_DELAYED : DLOCK_STATE_MIN_HOLD,
					 rests_until);
	}
	DlockLiveUnpin(live);
}

/*
 * Rebuild the map of this database from its table: each lease that a start
 * found in it has one full TTL from now on.  Once per database and start;
 * until that is done, every call waits here.
 */
void
DlockAdopt(DlockDatabase *db, const DlockObjects *objects)
{
	DlockLockAdoption();
	if (pg_atomic_read_u32(&db->adopted) == 0)
	{
		Relation	rel = DlockOpenTable(objects->lease, AccessShareLock, Natts_lease);
		SysScanDesc scan = systable_beginscan(rel, InvalidOid, false,
											  SnapshotSelf, 0, NULL);
		MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
													  "dlock adoption",
													  ALLOCSET_SMALL_SIZES);
		HeapTuple	tuple;

		while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		{
			MemoryContext old = MemoryContextSwitchTo(context);
			DlockRow	row;

			CHECK_FOR_INTERRUPTS();
			DlockDeformRow(rel, tuple, &row);
			AdoptRow(db, objects, &row);
			MemoryContextSwitchTo(old);
			MemoryContextReset(context);
		}
		MemoryContextDelete(context);
		systable_endscan(scan);
		table_close(rel, AccessShareLock);

		pg_write_barrier();
		pg_atomic_write_u32(&db->adopted, 1);
	}
	DlockUnlockAdoption();
}

/*
 * Delete up to "limit" rows of locks that nobody has taken for
 * dlock.idle_lock_retention; returns how many.  Waits for nobody.
 */
int
DlockPruneIdle(const DlockObjects *objects, int limit)
{
	TimestampTz before = GetCurrentTimestamp() -
		(int64) dlock_idle_lock_retention * USECS_PER_SEC;
	Relation	rel = DlockOpenTable(objects->lease, RowExclusiveLock, Natts_lease);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false,
										  SnapshotSelf, 0, NULL);
	HeapTuple	tuple;
	int			n = 0;

	while (n < limit && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		DlockRow	row;
		text	   *name;
		uint64		namehash;
		int			slot;

		CHECK_FOR_INTERRUPTS();
		if (!DlockRowIsIdle(rel, tuple, before))
			continue;

		DlockDeformRow(rel, tuple, &row);
		name = DatumGetTextPP(DlockRowValue(&row, Anum_lease_name));
		slot = DatumGetInt32(DlockRowValue(&row, Anum_lease_slot));
		namehash = DlockHashName(VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name));

		/* under the tag, is it still the row that was seen? */
		if (!DlockLockSlot(namehash, slot, false, false))
			continue;
		if (DlockFetchRow(rel, VARDATA_ANY(name), VARSIZE_ANY_EXHDR(name), slot, &row) &&
			DlockRowIsIdle(rel, row.tuple, before))
		{
			CatalogTupleDelete(rel, &row.tuple->t_self);
			n++;
		}
		else
			DlockUnlockSlot(namehash, slot, false);
	}
	systable_endscan(scan);
	table_close(rel, NoLock);
	return n;
}
