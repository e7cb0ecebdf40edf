/*-------------------------------------------------------------------------
 *
 * api.c
 *	  The SQL-callable functions on leases: arguments in, results out.
 *
 * No function is STRICT: a NULL setting means its default, and a NULL token
 * is a lost one.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(dlock_acquire);
PG_FUNCTION_INFO_V1(dlock_heartbeat);
PG_FUNCTION_INFO_V1(dlock_heartbeat_all);
PG_FUNCTION_INFO_V1(dlock_set_ttl);
PG_FUNCTION_INFO_V1(dlock_release);
PG_FUNCTION_INFO_V1(dlock_held);
PG_FUNCTION_INFO_V1(dlock_remaining);
PG_FUNCTION_INFO_V1(dlock_guard);
PG_FUNCTION_INFO_V1(dlock_revoke);
PG_FUNCTION_INFO_V1(dlock_version);
PG_FUNCTION_INFO_V1(dlock_refuse_dml);

/* ----------
 * Arguments
 * ----------
 */

/*
 * A text argument of at most "max" bytes, palloc'd, or NULL.  22023 when it
 * is longer.
 */
static const char *
GetText(FunctionCallInfo fcinfo, int arg, const char *argname, int max)
{
	text	   *value;

	if (PG_ARGISNULL(arg))
		return NULL;
	value = PG_GETARG_TEXT_PP(arg);
	if (VARSIZE_ANY_EXHDR(value) > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" is too long", argname),
				 errdetail("It has %d bytes, and may have %d.",
						   (int) VARSIZE_ANY_EXHDR(value), max)));
	return text_to_cstring(value);
}

/* The name of a lock: 22023 when it is NULL, empty or too long. */
static const char *
GetName(FunctionCallInfo fcinfo, int arg)
{
	const char *name = GetText(fcinfo, arg, "name", DLOCK_MAX_NAME);

	if (name == NULL || name[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must not be null or empty", "name"),
				 errdetail("The name of a lock has 1 to %d bytes.", DLOCK_MAX_NAME)));
	return name;
}

/*
 * An interval argument in µs, between "min" and dlock.max_ttl; "otherwise"
 * when it is NULL.  22023 when it is out of range or has months.
 */
static int64
GetSpan(FunctionCallInfo fcinfo, int arg, const char *argname,
		int64 min, int64 otherwise)
{
	int64		max = (int64) dlock_max_ttl * USECS_PER_SEC;
	Interval   *value;
	int64		result;

	if (PG_ARGISNULL(arg))
		return otherwise;

	value = PG_GETARG_INTERVAL_P(arg);
	if (value->month != 0 && !INTERVAL_NOT_FINITE(value))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must not have months", argname),
				 errdetail("A month has no fixed length.")));

	result = DlockIntervalMicros(value);
	if (result < min)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" is too short", argname),
				 errdetail("It must be at least %d ms.", (int) (min / 1000))));
	if (result > max || INTERVAL_NOT_FINITE(value))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" is too long", argname),
				 errdetail("It may be %d s, as \"%s\" says.",
						   dlock_max_ttl, "dlock.max_ttl")));
	return result;
}

/* A token; 0, which no lease has, when it is NULL. */
static int64
GetToken(FunctionCallInfo fcinfo, int arg)
{
	return PG_ARGISNULL(arg) ? 0 : PG_GETARG_INT64(arg);
}

static bool
GetFlag(FunctionCallInfo fcinfo, int arg)
{
	return !PG_ARGISNULL(arg) && PG_GETARG_BOOL(arg);
}

/* ----------
 * Functions
 * ----------
 */

static void
NotSupportedYet(bool given, const char *argname)
{
	if (given)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("argument \"%s\" is not supported yet", argname)));
}

Datum
dlock_acquire(PG_FUNCTION_ARGS)
{
	DlockRequest request;
	int64		token;

	memset(&request, 0, sizeof(request));
	request.name = GetName(fcinfo, 0);
	request.namelen = strlen(request.name);
	request.ttl = GetSpan(fcinfo, 1, "ttl", DLOCK_MIN_TTL,
						  Min((int64) dlock_default_ttl * 1000,
							  (int64) dlock_max_ttl * USECS_PER_SEC));
	NotSupportedYet(GetSpan(fcinfo, 2, "wait", 0, 0) > 0, "wait");
	request.owner = GetText(fcinfo, 3, "owner", DLOCK_MAX_TEXT);
	if (request.owner == NULL)
		request.owner = DlockDescribeMe();
	request.why = GetText(fcinfo, 4, "why", DLOCK_MAX_TEXT);
	request.min_hold = GetSpan(fcinfo, 5, "min_hold", 0, 0);
	NotSupportedYet(!PG_ARGISNULL(6), "session");
	NotSupportedYet(!PG_ARGISNULL(7), "capacity");
	NotSupportedYet(!PG_ARGISNULL(8), "share");
	NotSupportedYet(GetFlag(fcinfo, 9), "must_exist");
	NotSupportedYet(GetFlag(fcinfo, 10), "retry");
	NotSupportedYet(GetFlag(fcinfo, 11), "reentrant");
	request.capacity = 1;

	token = DlockGrant(&request);
	if (token == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/*
 * Renew one lease.  Raises 42501 when it belongs to another role.
 */
static bool
Heartbeat(DlockDatabase *db, int64 token)
{
	Oid			other_role;
	bool		renewed = DlockLiveHeartbeat(db, token, GetUserId(), &other_role);

	if (OidIsValid(other_role))
	{
		if (!DlockMayUse(other_role))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied for lease " INT64_FORMAT, token),
					 errdetail("It belongs to another role.")));
		renewed = DlockLiveHeartbeat(db, token, other_role, &other_role);
	}
	DlockCount(db, renewed ? DLOCK_COUNT_HEARTBEATS : DLOCK_COUNT_HEARTBEATS_LOST);
	return renewed;
}

Datum
dlock_heartbeat(PG_FUNCTION_ARGS)
{
	DlockObjects objects;

	PG_RETURN_BOOL(Heartbeat(DlockOpenDatabase(&objects), GetToken(fcinfo, 0)));
}

/* A NULL among the tokens is lost, and reported as such. */
Datum
dlock_heartbeat_all(PG_FUNCTION_ARGS)
{
	DlockObjects objects;
	DlockDatabase *db = DlockOpenDatabase(&objects);
	Datum	   *tokens;
	bool	   *nulls;
	int			n = 0;
	Datum	   *lost;
	bool	   *lost_nulls;
	int			nlost = 0;
	int			lbound = 1;

	if (!PG_ARGISNULL(0))
		deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), INT8OID, 8, FLOAT8PASSBYVAL,
						  TYPALIGN_DOUBLE, &tokens, &nulls, &n);

	lost = palloc_array(Datum, n + 1);
	lost_nulls = palloc_array(bool, n + 1);
	for (int i = 0; i < n; i++)
	{
		if (nulls[i] || !Heartbeat(db, DatumGetInt64(tokens[i])))
		{
			lost[nlost] = tokens[i];
			lost_nulls[nlost++] = nulls[i];
		}
	}
	if (nlost == 0)
		PG_RETURN_ARRAYTYPE_P(construct_empty_array(INT8OID));
	PG_RETURN_ARRAYTYPE_P(construct_md_array(lost, lost_nulls, 1, &nlost, &lbound,
											 INT8OID, 8, FLOAT8PASSBYVAL,
											 TYPALIGN_DOUBLE));
}

Datum
dlock_set_ttl(PG_FUNCTION_ARGS)
{
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must not be null", "ttl")));
	PG_RETURN_BOOL(DlockSetTtl(GetToken(fcinfo, 0),
							   GetSpan(fcinfo, 1, "ttl", DLOCK_MIN_TTL, 0)));
}

Datum
dlock_release(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(DlockEnd(GetToken(fcinfo, 0), DLOCK_RELEASED,
							GetText(fcinfo, 1, "result", DLOCK_MAX_TEXT)));
}

/*
 * Copy out a lease that is alive, and that the caller may use; false when it
 * is lost.
 */
static bool
GetLiveLease(int64 token, DlockLease *lease)
{
	DlockObjects objects;
	DlockDatabase *db = DlockOpenDatabase(&objects);

	if (!DlockLiveFind(db, token, lease))
		return false;
	if (!DlockMayUse(lease->role))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for lease " INT64_FORMAT, token),
				 errdetail("It belongs to another role.")));
	return DlockLeaseIsAlive(lease);
}

Datum
dlock_held(PG_FUNCTION_ARGS)
{
	DlockLease	lease;

	PG_RETURN_BOOL(GetLiveLease(GetToken(fcinfo, 0), &lease));
}

Datum
dlock_remaining(PG_FUNCTION_ARGS)
{
	DlockLease	lease;

	if (!GetLiveLease(GetToken(fcinfo, 0), &lease))
		PG_RETURN_NULL();
	PG_RETURN_DATUM(DlockIntervalDatum(lease.remaining));
}

Datum
dlock_guard(PG_FUNCTION_ARGS)
{
	int64		token = GetToken(fcinfo, 0);

	DlockGuard(token);
	PG_RETURN_INT64(token);
}

Datum
dlock_revoke(PG_FUNCTION_ARGS)
{
	int64		token = GetToken(fcinfo, 0);
	const char *why = GetText(fcinfo, 1, "why", DLOCK_MAX_TEXT);
	int64		grace = GetSpan(fcinfo, 2, "grace", 0, 0);

	if (grace > 0)
		PG_RETURN_BOOL(DlockRevokeLater(token, why, grace));
	PG_RETURN_BOOL(DlockEnd(token, DLOCK_REVOKED, why));
}

/* Works without preload and on a standby, as it is what one asks then. */
Datum
dlock_version(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[2];
	bool		nulls[2] = {false, false};
	Oid			extension;
	Oid			owner;
	const char *version = DlockExtensionVersion(&extension, &owner);

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	values[0] = CStringGetTextDatum(DLOCK_VERSION);
	nulls[1] = (version == NULL);
	values[1] = version ? CStringGetTextDatum(version) : (Datum) 0;
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, nulls)));
}

/* The trigger that keeps everybody's DML off dlock.lease. */
Datum
dlock_refuse_dml(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		elog(ERROR, "dlock_refuse_dml: not called by trigger manager");
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("table \"%s\" cannot be changed by a query", "dlock.lease"),
			 errhint("Use dlock_release() or dlock_revoke() to end a lease.")));
	PG_RETURN_NULL();
}
