/*-------------------------------------------------------------------------
 *
 * args.c
 *	  Arguments of the SQL-callable functions: checks and defaults.
 *
 * No function is STRICT: a NULL setting means its default, and a NULL token
 * is a lost one.  Errors here are 22023 and name the argument.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

/* A text argument of at most "max" bytes, palloc'd, or NULL. */
const char *
DlockArgText(FunctionCallInfo fcinfo, int arg, const char *argname, int max)
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

/* Is this a name that a lock can have? */
void
DlockCheckName(const char *name)
{
	if (name[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must not be null or empty", "name"),
				 errdetail("The name of a lock has 1 to %d bytes.", DLOCK_MAX_NAME)));
	if (strlen(name) > DLOCK_MAX_NAME)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" is too long", "name"),
				 errdetail("It has %d bytes, and may have %d.",
						   (int) strlen(name), DLOCK_MAX_NAME)));
}

/* The name of a lock: neither NULL nor empty. */
const char *
DlockArgName(FunctionCallInfo fcinfo, int arg)
{
	const char *name = DlockArgText(fcinfo, arg, "name", DLOCK_MAX_NAME);

	DlockCheckName(name ? name : "");
	return name;
}

/* An interval in µs, between "min" and "max"; "otherwise" when it is NULL. */
int64
DlockArgSpan(FunctionCallInfo fcinfo, int arg, const char *argname,
			 int64 min, int64 max, int64 otherwise)
{
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
	if (result < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must not be negative", argname)));
	if (result < min)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" is too short", argname),
				 errdetail("It must be at least %d ms.", (int) (min / 1000))));
	if (result > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" is too long", argname),
				 max == DLOCK_MAX_SPAN ?
				 errdetail("It may be at most %d s, as \"%s\" says.",
						   dlock_max_ttl, "dlock.max_ttl") :
				 errdetail("It may be at most %d s.", (int) (max / USECS_PER_SEC))));
	return result;
}

/* A token or a session; 0, which none is, when it is NULL or negative. */
int64
DlockArgId(FunctionCallInfo fcinfo, int arg)
{
	return PG_ARGISNULL(arg) ? 0 : Max(PG_GETARG_INT64(arg), 0);
}

/*
 * A session, 0 for none.  One that cannot be is as gone as any that was: it
 * must not become a request without a session.
 */
int64
DlockArgSession(FunctionCallInfo fcinfo, int arg)
{
	if (PG_ARGISNULL(arg))
		return 0;
	if (PG_GETARG_INT64(arg) <= 0)
		DlockSessionIsGone(PG_GETARG_INT64(arg));
	return PG_GETARG_INT64(arg);
}

/* A flag that is off by default. */
bool
DlockArgFlag(FunctionCallInfo fcinfo, int arg)
{
	return !PG_ARGISNULL(arg) && PG_GETARG_BOOL(arg);
}

/* A capacity; 0 when it is NULL. */
int
DlockArgCapacity(FunctionCallInfo fcinfo, int arg)
{
	if (PG_ARGISNULL(arg))
		return 0;
	if (PG_GETARG_INT32(arg) < 1 || PG_GETARG_INT32(arg) > DLOCK_MAX_CAPACITY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" is out of range", "capacity"),
				 errdetail("It must be between 1 and %d.", DLOCK_MAX_CAPACITY)));
	return PG_GETARG_INT32(arg);
}

/*
 * A share group, or NULL.  Words that mean the opposite are refused: a writer
 * that gives one would not exclude other writers.
 */
const char *
DlockArgShare(FunctionCallInfo fcinfo, int arg)
{
	static const char *const opposites[] = {
		"write", "writer", "w", "exclusive", "x", "mutex"
	};
	const char *share = DlockArgText(fcinfo, arg, "share", DLOCK_MAX_SHARE);

	if (share == NULL)
		return NULL;
	if (share[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must not be empty", "share"),
				 errdetail("A share group has 1 to %d bytes.", DLOCK_MAX_SHARE)));
	for (int i = 0; i < lengthof(opposites); i++)
	{
		if (pg_strcasecmp(share, opposites[i]) == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("argument \"%s\" must not be \"%s\"", "share", share),
					 errdetail("Leases with the same share group do not exclude each other."),
					 errhint("To exclude everybody, give no share group.")));
	}
	return share;
}
