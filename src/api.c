/*-------------------------------------------------------------------------
 *
 * api.c
 *	  The SQL-callable functions on leases: arguments in, results out.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(dlock_acquire);
PG_FUNCTION_INFO_V1(dlock_await);
PG_FUNCTION_INFO_V1(dlock_acquire_all);
PG_FUNCTION_INFO_V1(dlock_heartbeat);
PG_FUNCTION_INFO_V1(dlock_heartbeat_all);
PG_FUNCTION_INFO_V1(dlock_set_ttl);
PG_FUNCTION_INFO_V1(dlock_release);
PG_FUNCTION_INFO_V1(dlock_held);
PG_FUNCTION_INFO_V1(dlock_remaining);
PG_FUNCTION_INFO_V1(dlock_guard);
PG_FUNCTION_INFO_V1(dlock_revoke);
PG_FUNCTION_INFO_V1(dlock_session_open);
PG_FUNCTION_INFO_V1(dlock_session_heartbeat);
PG_FUNCTION_INFO_V1(dlock_session_close);
PG_FUNCTION_INFO_V1(dlock_version);
PG_FUNCTION_INFO_V1(dlock_refuse_dml);

/*
 * The arguments that dlock_acquire() and dlock_await() have in common, in the
 * order of their signature.
 */
static void
GetRequest(FunctionCallInfo fcinfo, DlockRequest *request)
{
	memset(request, 0, sizeof(*request));
	request->name = DlockArgName(fcinfo, 0);
	request->namelen = strlen(request->name);
	request->ttl = DlockArgSpan(fcinfo, 1, "ttl", DLOCK_MIN_TTL, DLOCK_MAX_SPAN, 0);
	request->wait = DlockArgSpan(fcinfo, 2, "wait", 0, DLOCK_MAX_WAIT, 0);
	request->owner = DlockArgText(fcinfo, 3, "owner", DLOCK_MAX_TEXT);
	request->why = DlockArgText(fcinfo, 4, "why", DLOCK_MAX_TEXT);
	request->min_hold = DlockArgSpan(fcinfo, 5, "min_hold", 0, DLOCK_MAX_SPAN, -1);
	request->session = DlockArgSession(fcinfo, 6);
	request->own_capacity = DlockArgCapacity(fcinfo, 7);
	request->share = DlockArgShare(fcinfo, 8);
	request->must_exist = DlockArgFlag(fcinfo, 9);
	request->retry = DlockArgFlag(fcinfo, 10);
	request->reentrant = DlockArgFlag(fcinfo, 11);

	if (request->share != NULL && request->own_capacity != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" does not go with \"%s\"", "share", "capacity"),
				 errdetail("A share group has as many leases as ask for one.")));
}

Datum
dlock_acquire(PG_FUNCTION_ARGS)
{
	DlockRequest request;
	int64		token;

	GetRequest(fcinfo, &request);
	token = DlockAcquire(&request, false);
	if (token == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/* The procedure: may end the transaction that it is called in. */
Datum
dlock_await(PG_FUNCTION_ARGS)
{
	DlockRequest request;
	MemoryContext context = CurrentMemoryContext;
	TupleDesc	desc;
	Datum		value;
	bool		isnull;
	int64		token;

	if (fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		castNode(CallContext, fcinfo->context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run inside a transaction block", "dlock_await()"),
				 errdetail("It waits between transactions."),
				 errhint("Use dlock_acquire() to wait inside of one.")));
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()) || DlockPendingAny())
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("%s cannot run in a transaction that has changed or guarded something",
						"dlock_await()"),
				 errdetail("It waits between transactions, and would commit that."),
				 errhint("COMMIT first.")));

	GetRequest(fcinfo, &request);
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	desc = BlessTupleDesc(desc);

	if (SPI_connect_ext(SPI_OPT_NONATOMIC) != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	token = DlockAcquire(&request, true);
	if (SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "SPI_finish failed");

	MemoryContextSwitchTo(context);
	value = Int64GetDatum(token);
	isnull = (token == 0);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(desc, &value, &isnull)));
}

static int
CompareNames(const void *a, const void *b)
{
	return strcmp(*(const char *const *) a, *(const char *const *) b);
}

/* All of an array of names, or none; a name that is there twice counts once. */
Datum
dlock_acquire_all(PG_FUNCTION_ARGS)
{
	DlockRequest request;
	Datum	   *elements;
	bool	   *nulls;
	const char **names;
	const char **sorted;
	int64	   *tokens;
	Datum	   *result;
	int			n = 0;
	int			nsorted = 0;

	memset(&request, 0, sizeof(request));
	request.ttl = DlockArgSpan(fcinfo, 1, "ttl", DLOCK_MIN_TTL, DLOCK_MAX_SPAN, 0);
	request.wait = DlockArgSpan(fcinfo, 2, "wait", 0, DLOCK_MAX_WAIT, 0);
	request.owner = DlockArgText(fcinfo, 3, "owner", DLOCK_MAX_TEXT);
	request.why = DlockArgText(fcinfo, 4, "why", DLOCK_MAX_TEXT);
	request.session = DlockArgSession(fcinfo, 5);
	request.min_hold = -1;

	if (!PG_ARGISNULL(0))
		deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), TEXTOID, -1, false,
						  TYPALIGN_INT, &elements, &nulls, &n);
	if (n == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must not be null or empty", "names")));

	names = palloc_array(const char *, n);
	sorted = palloc_array(const char *, n);
	for (int i = 0; i < n; i++)
	{
		names[i] = nulls[i] ? "" : TextDatumGetCString(elements[i]);
		DlockCheckName(names[i]);
		sorted[i] = names[i];
	}
	qsort(sorted, n, sizeof(char *), CompareNames);
	for (int i = 0; i < n; i++)
	{
		if (nsorted == 0 || strcmp(sorted[i], sorted[nsorted - 1]) != 0)
			sorted[nsorted++] = sorted[i];
	}

	tokens = palloc_array(int64, nsorted);
	if (!DlockAcquireAll(&request, sorted, nsorted, tokens))
		PG_RETURN_NULL();

	result = palloc_array(Datum, n);
	for (int i = 0; i < n; i++)
	{
		const char **found = bsearch(&names[i], sorted, nsorted, sizeof(char *),
									 CompareNames);

		result[i] = Int64GetDatum(tokens[found - sorted]);
	}
	PG_RETURN_ARRAYTYPE_P(construct_array(result, n, INT8OID, 8, FLOAT8PASSBYVAL,
										  TYPALIGN_DOUBLE));
}

/*
 * Renew one lease.  Raises 42501 when it belongs to another role.
 */
static bool
Heartbeat(DlockDatabase *db, int64 token)
{
	Oid			other_role;
	bool		renewed = false;

	/* below zero are sessions */
	if (token > 0)
		renewed = DlockLiveHeartbeat(db, token, GetUserId(), &other_role);
	else
		other_role = InvalidOid;

	if (OidIsValid(other_role))
	{
		if (!DlockMayUse(other_role))
			DlockDenyLease(token);
		renewed = DlockLiveHeartbeat(db, token, other_role, &other_role);
	}
	DlockCount(db, renewed ? DLOCK_COUNT_HEARTBEATS : DLOCK_COUNT_HEARTBEATS_LOST, 1);
	return renewed;
}

Datum
dlock_heartbeat(PG_FUNCTION_ARGS)
{
	DlockObjects objects;

	PG_RETURN_BOOL(Heartbeat(DlockOpenDatabase(&objects), DlockArgId(fcinfo, 0)));
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
	int			nlost = 0;
	int			lbound = 1;

	if (!PG_ARGISNULL(0))
		deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), INT8OID, 8, FLOAT8PASSBYVAL,
						  TYPALIGN_DOUBLE, &tokens, &nulls, &n);

	/* in place: what is lost moves to the front */
	for (int i = 0; i < n; i++)
	{
		if (nulls[i] || !Heartbeat(db, DatumGetInt64(tokens[i])))
		{
			tokens[nlost] = tokens[i];
			nulls[nlost++] = nulls[i];
		}
	}
	if (nlost == 0)
		PG_RETURN_ARRAYTYPE_P(construct_empty_array(INT8OID));
	PG_RETURN_ARRAYTYPE_P(construct_md_array(tokens, nulls, 1, &nlost, &lbound,
											 INT8OID, 8, FLOAT8PASSBYVAL,
											 TYPALIGN_DOUBLE));
}

Datum
dlock_set_ttl(PG_FUNCTION_ARGS)
{
	int64		ttl = DlockArgSpan(fcinfo, 1, "ttl", DLOCK_MIN_TTL, DLOCK_MAX_SPAN,
								   Min((int64) dlock_default_ttl * 1000, DLOCK_MAX_SPAN));

	PG_RETURN_BOOL(DlockSetTtl(DlockArgId(fcinfo, 0), ttl));
}

Datum
dlock_release(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(DlockReleaseOnce(DlockArgId(fcinfo, 0),
									DlockArgText(fcinfo, 1, "result", DLOCK_MAX_TEXT)));
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

	if (!DlockLiveFind(db, token, lease) || !DlockLeaseIsAlive(lease))
		return false;
	if (!DlockMayUse(lease->role))
		DlockDenyLease(token);
	return true;
}

Datum
dlock_held(PG_FUNCTION_ARGS)
{
	DlockLease	lease;

	PG_RETURN_BOOL(GetLiveLease(DlockArgId(fcinfo, 0), &lease));
}

Datum
dlock_remaining(PG_FUNCTION_ARGS)
{
	DlockLease	lease;

	if (!GetLiveLease(DlockArgId(fcinfo, 0), &lease))
		PG_RETURN_NULL();
	PG_RETURN_DATUM(DlockIntervalDatum(lease.remaining));
}

Datum
dlock_guard(PG_FUNCTION_ARGS)
{
	int64		token = DlockArgId(fcinfo, 0);

	DlockGuard(token);
	PG_RETURN_INT64(token);
}

Datum
dlock_revoke(PG_FUNCTION_ARGS)
{
	int64		token = DlockArgId(fcinfo, 0);
	const char *why = DlockArgText(fcinfo, 1, "why", DLOCK_MAX_TEXT);
	int64		grace = DlockArgSpan(fcinfo, 2, "grace", 0, DLOCK_MAX_SPAN, 0);

	if (grace > 0)
		PG_RETURN_BOOL(DlockRevokeLater(token, why, grace));
	PG_RETURN_BOOL(DlockEnd(token, DLOCK_REVOKED, why) || DlockEndRest(token));
}

/* ----------
 * Sessions
 * ----------
 */

Datum
dlock_session_open(PG_FUNCTION_ARGS)
{
	const char *owner = DlockArgText(fcinfo, 0, "owner", DLOCK_MAX_TEXT);
	int64		ttl = DlockArgSpan(fcinfo, 1, "ttl", DLOCK_MIN_TTL, DLOCK_MAX_SPAN,
								   Min((int64) dlock_default_ttl * 1000, DLOCK_MAX_SPAN));
	const char *on_disconnect = DlockArgText(fcinfo, 2, "on_disconnect", DLOCK_MAX_TEXT);

	if (on_disconnect != NULL && strcmp(on_disconnect, "keep") != 0 &&
		strcmp(on_disconnect, "release") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must not be \"%s\"", "on_disconnect", on_disconnect),
				 errdetail("It is \"keep\" or \"release\".")));
	PG_RETURN_INT64(DlockSessionOpen(owner ? owner : DlockDescribeMe(), ttl,
									 on_disconnect && on_disconnect[0] == 'r'));
}

/*
 * Without tokens it tells what the session has lost since the last time; with
 * tokens, which of these it does not have, whatever was told or not before.
 */
Datum
dlock_session_heartbeat(PG_FUNCTION_ARGS)
{
	int64		id = DlockArgId(fcinfo, 0);
	int64	   *lost;
	int			nlost;
	int			n = 0;
	Datum	   *tokens;
	bool	   *nulls;
	ArrayBuildState *result = initArrayResult(INT8OID, CurrentMemoryContext, false);

	if (!DlockSessionHeartbeat(id, PG_ARGISNULL(1) ? &lost : NULL, &nlost))
		PG_RETURN_NULL();
	if (PG_ARGISNULL(1))
	{
		for (int i = 0; i < nlost; i++)
			accumArrayResult(result, Int64GetDatum(lost[i]), false, INT8OID,
							 CurrentMemoryContext);
	}
	else
		deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), INT8OID, 8, FLOAT8PASSBYVAL,
						  TYPALIGN_DOUBLE, &tokens, &nulls, &n);
	for (int i = 0; i < n; i++)
	{
		if (nulls[i] || !DlockSessionHas(id, DatumGetInt64(tokens[i])))
			accumArrayResult(result, tokens[i], nulls[i], INT8OID,
							 CurrentMemoryContext);
	}
	PG_RETURN_DATUM(makeArrayResult(result, CurrentMemoryContext));
}

Datum
dlock_session_close(PG_FUNCTION_ARGS)
{
	int			n = DlockSessionClose(DlockArgId(fcinfo, 0));

	if (n < 0)
		PG_RETURN_NULL();
	PG_RETURN_INT32(n);
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
