/*-------------------------------------------------------------------------
 *
 * definition.c
 *	  The rows of dlock.definition: a lock's own defaults.
 *
 * Read with a snapshot of the moment, as catalogs are, so that a caller with an
 * old one counts permits by the definition of now.  Not with SnapshotSelf, as
 * lease rows are under their tag: without one, it can miss a row that is being
 * updated.  In a SERIALIZABLE transaction it therefore takes a predicate lock,
 * which only a dlock_define() of others can come into conflict with.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

PG_FUNCTION_INFO_V1(dlock_define);
PG_FUNCTION_INFO_V1(dlock_undefine);

enum
{
	Anum_definition_name = 1,
	Anum_definition_capacity,
	Anum_definition_ttl,
	Anum_definition_min_hold,
	Anum_definition_takeover_delay,
	Anum_definition_role,
	Anum_definition_notify,
	Anum_definition_history,
	Natts_definition = Anum_definition_history
};

StaticAssertDecl(Natts_definition == DLOCK_DEFINITION_NATTS, "columns of dlock.definition");

/* The slot whose tag serialises changes to a definition. */
#define DEFINITION_SLOT		(-1)

/* A copy of the row of this lock, or NULL. */
static HeapTuple
FetchDefinition(Relation rel, const char *name, int namelen)
{
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;
	text	   *nametext = cstring_to_text_with_len(name, namelen);

	ScanKeyInit(&key, Anum_definition_name, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(nametext));
	scan = systable_beginscan(rel, RelationGetPrimaryKeyIndex(rel, false), true,
							  NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
		tuple = heap_copytuple(tuple);
	systable_endscan(scan);
	pfree(nametext);
	return tuple;
}

/* An interval column in µs, 0 for NULL. */
static int64
SpanOf(Datum *values, bool *nulls, int att)
{
	return nulls[att - 1] ? 0 :
		DlockIntervalMicros(DatumGetIntervalP(values[att - 1]));
}

/* A row of dlock.definition, taken apart. */
void
DlockReadDefinition(Relation rel, HeapTuple tuple, DlockDefinition *definition)
{
	Datum		values[Natts_definition];
	bool		nulls[Natts_definition];

	heap_deform_tuple(tuple, RelationGetDescr(rel), values, nulls);
	definition->exists = true;
	definition->capacity = nulls[Anum_definition_capacity - 1] ? 0 :
		DatumGetInt32(values[Anum_definition_capacity - 1]);
	definition->ttl = SpanOf(values, nulls, Anum_definition_ttl);
	definition->min_hold = SpanOf(values, nulls, Anum_definition_min_hold);
	definition->takeover_delay = SpanOf(values, nulls, Anum_definition_takeover_delay);
	definition->role = nulls[Anum_definition_role - 1] ? InvalidOid :
		DatumGetObjectId(values[Anum_definition_role - 1]);
	definition->notify = DatumGetBool(values[Anum_definition_notify - 1]);
	definition->history = DatumGetBool(values[Anum_definition_history - 1]);
}

/* Open the table, for DlockGetDefinition(). */
Relation
DlockOpenDefinitions(const DlockObjects *objects)
{
	return DlockOpenTable(objects->definition, AccessShareLock, Natts_definition);
}

/* The definition of this lock, or how a lock is that has none. */
void
DlockGetDefinition(Relation rel, const char *name, int namelen,
				   DlockDefinition *definition)
{
	HeapTuple	tuple = NULL;

	memset(definition, 0, sizeof(*definition));
	definition->history = true;

	/* mostly there are none at all, which is cheap to see */
	if (RelationGetNumberOfBlocks(rel) > 0)
		tuple = FetchDefinition(rel, name, namelen);
	if (tuple != NULL)
		DlockReadDefinition(rel, tuple, definition);
}

/* The same by itself.  Leaves no lock behind. */
void
DlockFindDefinition(const DlockObjects *objects, const char *name, int namelen,
					DlockDefinition *definition)
{
	Relation	rel = DlockOpenDefinitions(objects);

	DlockGetDefinition(rel, name, namelen, definition);
	table_close(rel, AccessShareLock);
}

/* Store an interval, or NULL for 0. */
static void
SetSpan(Datum *values, bool *nulls, int att, int64 span)
{
	nulls[att - 1] = (span == 0);
	values[att - 1] = span == 0 ? (Datum) 0 : DlockIntervalDatum(span);
}

/* Define a lock, or define it anew. */
Datum
dlock_define(PG_FUNCTION_ARGS)
{
	const char *name = DlockArgName(fcinfo, 0);
	uint64		namehash = DlockHashName(name, strlen(name));
	DlockObjects objects;
	DlockDatabase *db;
	Datum		values[Natts_definition];
	bool		nulls[Natts_definition];
	Relation	rel;
	HeapTuple	old;
	HeapTuple	tuple;

	db = DlockOpenDatabase(&objects);
	DlockRequireWritable("dlock_define()");

	memset(nulls, false, sizeof(nulls));
	values[Anum_definition_name - 1] = CStringGetTextDatum(name);
	nulls[Anum_definition_capacity - 1] = PG_ARGISNULL(1);
	values[Anum_definition_capacity - 1] = Int32GetDatum(DlockArgCapacity(fcinfo, 1));
	SetSpan(values, nulls, Anum_definition_ttl,
			DlockArgSpan(fcinfo, 2, "ttl", DLOCK_MIN_TTL, DLOCK_MAX_SPAN, 0));
	SetSpan(values, nulls, Anum_definition_min_hold,
			DlockArgSpan(fcinfo, 3, "min_hold", 0, DLOCK_MAX_SPAN, 0));
	SetSpan(values, nulls, Anum_definition_takeover_delay,
			DlockArgSpan(fcinfo, 4, "takeover_delay", 0, DLOCK_MAX_SPAN, 0));
	nulls[Anum_definition_role - 1] = PG_ARGISNULL(5);
	values[Anum_definition_role - 1] = PG_ARGISNULL(5) ? (Datum) 0 : PG_GETARG_DATUM(5);
	if (!PG_ARGISNULL(5) &&
		!SearchSysCacheExists1(AUTHOID, values[Anum_definition_role - 1]))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("role with OID %u does not exist",
						DatumGetObjectId(values[Anum_definition_role - 1]))));
	values[Anum_definition_notify - 1] = BoolGetDatum(DlockArgFlag(fcinfo, 6));
	values[Anum_definition_history - 1] =
		BoolGetDatum(PG_ARGISNULL(7) || PG_GETARG_BOOL(7));

	(void) DlockLockSlot(namehash, DEFINITION_SLOT, false, true);
	rel = DlockOpenTable(objects.definition, RowExclusiveLock, Natts_definition);
	DlockRequirePlainIndexes(rel);
	old = FetchDefinition(rel, name, strlen(name));
	tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	if (old != NULL)
		CatalogTupleUpdate(rel, &old->t_self, tuple);
	else
		CatalogTupleInsert(rel, tuple);
	DlockPendingWake(DlockPendingReserve(db), namehash);
	CommandCounterIncrement();
	table_close(rel, NoLock);
	PG_RETURN_VOID();
}

/* Take a definition back; false when there was none. */
Datum
dlock_undefine(PG_FUNCTION_ARGS)
{
	const char *name = DlockArgName(fcinfo, 0);
	uint64		namehash = DlockHashName(name, strlen(name));
	DlockObjects objects;
	DlockDatabase *db;
	Relation	rel;
	HeapTuple	old;

	db = DlockOpenDatabase(&objects);
	DlockRequireWritable("dlock_undefine()");

	(void) DlockLockSlot(namehash, DEFINITION_SLOT, false, true);
	rel = DlockOpenTable(objects.definition, RowExclusiveLock, Natts_definition);
	DlockRequirePlainIndexes(rel);
	old = FetchDefinition(rel, name, strlen(name));
	if (old != NULL)
	{
		CatalogTupleDelete(rel, &old->t_self);
		DlockPendingWake(DlockPendingReserve(db), namehash);
		CommandCounterIncrement();
	}
	table_close(rel, NoLock);
	PG_RETURN_BOOL(old != NULL);
}
