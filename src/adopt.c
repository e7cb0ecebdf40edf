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

/* What is left of a rest that was to last until "until", and "whole" at most. */
static int64
RestLeft(TimestampTz until, int64 whole)
{
	return Max(Min(until - GetCurrentTimestamp(), whole), 0);
}

/*
 * Put one row that is held, or whose lock rests, into the map.  A lease stays
 * pending, and pinned, until StartAdopted(): its time has not begun.
 *
 * A rest is all that is measured by the wall clock, and only here: its whole
 * length is the most that a clock set back can make of it.
 */
static void
AdoptRow(DlockDatabase *db, const DlockObjects *objects, DlockRow *row)
{
	text	   *name = DatumGetTextPP(DlockRowValue(row, Anum_lease_name));
	TimestampTz acquired_at = DatumGetTimestampTz(DlockRowValue(row, Anum_lease_acquired_at));
	bool		held = DlockRowIsHeld(row);
	DlockDefinition definition;
	DlockRequest request;
	DlockLease	lease;
	DlockLive  *live;
	int64		span;

	if (!held && DlockRowIsNull(row, Anum_lease_rests_until))
		return;

	memset(&request, 0, sizeof(request));
	request.name = VARDATA_ANY(name);
	request.namelen = VARSIZE_ANY_EXHDR(name);
	request.ttl = DlockRowSpan(row, Anum_lease_ttl);
	request.capacity = DatumGetInt32(DlockRowValue(row, Anum_lease_capacity));
	request.role = DatumGetObjectId(DlockRowValue(row, Anum_lease_role));
	if (!DlockRowIsNull(row, Anum_lease_share))
		request.share = TextDatumGetCString(DlockRowValue(row, Anum_lease_share));
	DlockFindDefinition(objects, request.name, request.namelen, &definition);
	request.takeover_delay = definition.takeover_delay;

	if (held)
	{
		span = DlockRowSpan(row, Anum_lease_min_hold);
		request.min_hold = RestLeft(acquired_at + span, span);
	}
	else
	{
		TimestampTz until = DatumGetTimestampTz(DlockRowValue(row, Anum_lease_rests_until));

		request.min_hold = RestLeft(until, until -
									DatumGetTimestampTz(DlockRowValue(row, Anum_lease_ended_at)));
		if (request.min_hold == 0)
			return;
	}

	if (held && !DlockRowIsNull(row, Anum_lease_session))
	{
		DlockSession session;

		memset(&session, 0, sizeof(session));
		session.id = request.session =
			DatumGetInt64(DlockRowValue(row, Anum_lease_session));
		session.ttl = DlockRowSpan(row, Anum_lease_session_ttl);
		session.role = request.role;
		session.connected = !DlockRowIsNull(row, Anum_lease_session_pid);
		strlcpy(session.owner, TextDatumGetCString(DlockRowValue(row, Anum_lease_owner)),
				sizeof(session.owner));
		DlockSessionAdopt(db, &session);
	}

	live = DlockMapInsert(db, DlockRowToken(row), &request,
						  DatumGetInt32(DlockRowValue(row, Anum_lease_slot)));
	if (live == NULL)
	{
		/* an adoption that failed had come this far */
		if (!DlockLiveFind(db, DlockRowToken(row), &lease))
			elog(ERROR, "could not adopt lease " INT64_FORMAT, DlockRowToken(row));
		return;
	}

	if (!held)
	{
		bool		delayed = strcmp(TextDatumGetCString(DlockRowValue(row, Anum_lease_rests_for)),
									 "delayed") == 0;

		DlockLiveEnd(live, delayed ? DLOCK_STATE_DELAYED : DLOCK_STATE_MIN_HOLD,
					 DlockNow() + request.min_hold * DLOCK_NS_PER_US);
		DlockLiveUnpin(live);
	}
	else if (!DlockRowIsNull(row, Anum_lease_revoke_grace))
		live->revoke_grace = DlockRowSpan(row, Anum_lease_revoke_grace) * DLOCK_NS_PER_US;
}

/* For DlockMapScan(): start what this adoption, or one before it, put there. */
static bool
StartAdopted(DlockLive *live, void *arg)
{
	DlockDatabase *db = arg;
	DlockNanos	now = DlockNow();

	if (live->key.dboid != db->key.dboid || live->key.relid != db->key.relid ||
		live->pid != 0 || pg_atomic_read_u64(&live->word) != DLOCK_WORD_PENDING)
		return true;

	if (pg_atomic_read_u32(&live->outcome) == DLOCK_DISCONNECTED)
	{
		/* a session whose connection did not live through the restart */
		pg_atomic_write_u64(&live->died_at, now);
		pg_atomic_write_u64(&live->word, DLOCK_WORD_DEAD);
	}
	else
		DlockLiveStart(live, live->min_hold > 0 ? now + live->min_hold : 0,
					   now + pg_atomic_read_u64(&live->ttl));
	if (live->revoke_grace > 0)
		DlockLiveRevoke(live, now + live->revoke_grace);
	if (live->key.id > 0)
		pg_atomic_fetch_add_u64(&db->held, 1);
	DlockLiveUnpin(live);
	return true;
}

/*
 * Rebuild the map of this database from its table: each lease that a start
 * found in it has one full TTL from the end of this on.  Once per database and
 * start; until that is done, every call waits here.
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

		DlockMapScan(StartAdopted, db);
		pg_write_barrier();
		pg_atomic_write_u32(&db->adopted, 1);
		DlockTellLauncherAll();
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
