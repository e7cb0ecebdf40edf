/*-------------------------------------------------------------------------
 *
 * protect.c
 *	  Protected tables: no write without a guard on a lock.
 *
 * A row-level trigger that always fires, with the lock's name as its argument,
 * is put on the table and on each inheritance child; the server clones it to
 * partitions, to later ones too.  TRUNCATE has a statement-level trigger on
 * each table, and is looked at by a hook as well, because statement-level
 * triggers are not cloned to later partitions.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/objectaddress.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "parser/parse_func.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(dlock_protect);
PG_FUNCTION_INFO_V1(dlock_unprotect);
PG_FUNCTION_INFO_V1(dlock_protected);

#define ROW_TRIGGER			"dlock_protect"
#define TRUNCATE_TRIGGER	"dlock_protect_truncate"

static object_access_hook_type prev_object_access_hook = NULL;

/* Raise LK002 unless this transaction guards a lease of that lock. */
static void
RequireGuard(Relation rel, const char *lock)
{
	if (!DlockPendingGuards(lock, false))
		ereport(ERROR,
				(errcode(ERRCODE_DLOCK_NO_GUARD),
				 errmsg("cannot write to table \"%s\" without a guard on lock \"%s\"",
						RelationGetRelationName(rel), lock),
				 errhint("Call dlock_guard() with the token of your lease first, in the same transaction.")));
}

/* The trigger of protected tables; its argument is the name of the lock. */
Datum
dlock_protected(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) || data->tg_trigger->tgnargs != 1)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" was not called by a trigger of dlock_protect()",
						"dlock_protected")));
	DlockRequirePreloaded();
	RequireGuard(data->tg_relation, data->tg_trigger->tgargs[0]);

	if (!TRIGGER_FIRED_FOR_ROW(data->tg_event))
		return PointerGetDatum(NULL);
	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(data->tg_event) ?
						   data->tg_newtuple : data->tg_trigtuple);
}

/*
 * TRUNCATE of a table that has the row-level trigger needs the guard too.  The
 * table may not be locked yet.
 */
static void
DlockObjectAccess(ObjectAccessType access, Oid classId, Oid objectId, int subId,
				  void *arg)
{
	if (prev_object_access_hook)
		prev_object_access_hook(access, classId, objectId, subId, arg);

	if (access == OAT_TRUNCATE && classId == RelationRelationId)
	{
		Relation	rel = try_table_open(objectId, AccessShareLock);
		TriggerDesc *triggers = rel ? rel->trigdesc : NULL;

		for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
		{
			Trigger    *trigger = &triggers->triggers[i];

			if (strcmp(trigger->tgname, ROW_TRIGGER) == 0 && trigger->tgnargs == 1 &&
				trigger->tgenabled != TRIGGER_DISABLED)
			{
				char	   *function = get_func_name(trigger->tgfoid);

				if (function != NULL && strcmp(function, "dlock_protected") == 0)
					RequireGuard(rel, trigger->tgargs[0]);
			}
		}
		if (rel != NULL)
			table_close(rel, AccessShareLock);
	}
}

/* Install the hook, in _PG_init(). */
void
DlockProtectInit(void)
{
	prev_object_access_hook = object_access_hook;
	object_access_hook = DlockObjectAccess;
}

/* 42501 for who does not own the relation, 42P01 when there is none. */
static void
RequireOwner(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Form_pg_class form;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	form = (Form_pg_class) GETSTRUCT(tuple);
	if (!DlockMayUse(form->relowner))
		aclcheck_error(ACLCHECK_NOT_OWNER, get_relkind_objtype(form->relkind),
					   NameStr(form->relname));
	ReleaseSysCache(tuple);
}

/*
 * The table, locked like for CREATE TRIGGER, and all that inherit from it.
 * 42501 for who does not own it, 42809 for what is no table or is dlock's, 42P01
 * when there is none.
 */
static List *
OpenFamily(FunctionCallInfo fcinfo)
{
	DlockObjects objects;
	Oid			relid;
	Relation	rel;

	(void) DlockOpenDatabase(&objects);
	DlockRequireWritable("dlock_protect()");
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must not be null", "relation")));
	relid = PG_GETARG_OID(0);
	RequireOwner(relid);		/* before its lock, which may disturb others */
	if (relid == objects.lease || relid == objects.history || relid == objects.definition)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("cannot protect table \"%s\"", get_rel_name(relid)),
				 errdetail("It is one of dlock's own.")));
	rel = try_relation_open(relid, ShareRowExclusiveLock);
	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	if (rel->rd_rel->relkind != RELKIND_RELATION &&
		rel->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("\"%s\" is not a table", RelationGetRelationName(rel))));
	relation_close(rel, NoLock);

	return find_all_inheritors(relid, ShareRowExclusiveLock, NULL);
}

/* The function of the triggers, which is where dlock_protect() is. */
static Oid
TriggerFunction(FunctionCallInfo fcinfo)
{
	char	   *schema = get_namespace_name(get_func_namespace(fcinfo->flinfo->fn_oid));

	return LookupFuncName(list_make2(makeString(schema), makeString("dlock_protected")),
						  0, NULL, false);
}

static void
CreateOne(Oid relid, Oid function, const char *name, const char *lock,
		  bool row, int16 events)
{
	CreateTrigStmt *stmt = makeNode(CreateTrigStmt);

	stmt->trigname = pstrdup(name);
	stmt->args = list_make1(makeString(pstrdup(lock)));
	stmt->row = row;
	stmt->timing = TRIGGER_TYPE_BEFORE;
	stmt->events = events;
	(void) CreateTriggerFiringOn(stmt, NULL, relid, InvalidOid, InvalidOid, InvalidOid,
								 function, InvalidOid, NULL, false, false,
								 TRIGGER_FIRES_ALWAYS);
}

/*
 * The lock of a table's trigger with this name, palloc'd, and its OID; NULL
 * when there is none, or when it is somebody's own.
 */
static const char *
LockOf(Oid relid, Oid function, const char *name, Oid *trigger)
{
	Relation	rel = relation_open(relid, NoLock);
	TriggerDesc *triggers = rel->trigdesc;
	const char *lock = NULL;

	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		Trigger    *candidate = &triggers->triggers[i];

		if (strcmp(candidate->tgname, name) == 0 &&
			candidate->tgfoid == function && candidate->tgnargs == 1)
		{
			lock = pstrdup(candidate->tgargs[0]);
			*trigger = candidate->tgoid;
		}
	}
	relation_close(rel, NoLock);
	return lock;
}

/*
 * Drop the trigger with this name that protects the table by that lock; false
 * when there is none.  A clone goes with what it is a clone of: 2BP01.
 * 42501 for who does not own the table.
 */
static bool
DropOne(Oid relid, Oid function, const char *name, const char *lock)
{
	ObjectAddress trigger;
	const char *found = LockOf(relid, function, name, &trigger.objectId);

	if (found == NULL || strcmp(found, lock) != 0)
		return false;
	RequireOwner(relid);
	trigger.classId = TriggerRelationId;
	trigger.objectSubId = 0;
	performDeletion(&trigger, DROP_RESTRICT, 0);
	return true;
}

/* Does the server clone the table's row-level trigger from the family's head? */
static bool
HasClone(const List *family, Oid relid)
{
	return relid != linitial_oid(family) && get_rel_relispartition(relid);
}

/*
 * Protect a table and all that inherits from it.  Again with the same lock, it
 * makes whole what has become of the triggers; with another one it is 42710.
 */
Datum
dlock_protect(PG_FUNCTION_ARGS)
{
	const char *lock = DlockArgName(fcinfo, 1);
	List	   *family = OpenFamily(fcinfo);
	Oid			function = TriggerFunction(fcinfo);
	ListCell   *lc;

	foreach(lc, family)
	{
		Oid			relid = lfirst_oid(lc);
		Oid			trigger;
		const char *leftover;

		if (!HasClone(family, relid))
		{
			(void) DropOne(relid, function, ROW_TRIGGER, lock);
			CreateOne(relid, function, ROW_TRIGGER, lock, true,
					  TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE | TRIGGER_TYPE_DELETE);
		}
		if (get_rel_relkind(relid) == RELKIND_FOREIGN_TABLE)
			continue;
		/* a partition that was detached has kept this one alone */
		leftover = LockOf(relid, function, TRUNCATE_TRIGGER, &trigger);
		if (leftover != NULL)
			(void) DropOne(relid, function, TRUNCATE_TRIGGER, leftover);
		CreateOne(relid, function, TRUNCATE_TRIGGER, lock, false,
				  TRIGGER_TYPE_TRUNCATE);
	}
	PG_RETURN_VOID();
}

/* Take the protection off again; false when there was none. */
Datum
dlock_unprotect(PG_FUNCTION_ARGS)
{
	List	   *family = OpenFamily(fcinfo);
	Oid			function = TriggerFunction(fcinfo);
	Oid			trigger;
	const char *lock = LockOf(linitial_oid(family), function, ROW_TRIGGER, &trigger);
	ListCell   *lc;

	if (lock == NULL)
		lock = LockOf(linitial_oid(family), function, TRUNCATE_TRIGGER, &trigger);
	if (lock == NULL)
		PG_RETURN_BOOL(false);

	foreach(lc, family)
	{
		Oid			relid = lfirst_oid(lc);

		if (!HasClone(family, relid))
			(void) DropOne(relid, function, ROW_TRIGGER, lock);
		(void) DropOne(relid, function, TRUNCATE_TRIGGER, lock);
	}
	PG_RETURN_BOOL(true);
}
