/*-------------------------------------------------------------------------
 *
 * roles.c
 *	  Who is calling, and what may they use?
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"

/*
 * May the current user act for this role?  As everywhere in the server, by
 * having its privileges: superusers, the role itself, and its members.
 */
bool
DlockMayUse(Oid role)
{
	return has_privs_of_role(GetUserId(), role);
}

void
DlockDenyLease(int64 token)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for lease " INT64_FORMAT, token),
			 errdetail("It belongs to another role.")));
}

void
DlockDenySession(int64 id)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied for session " INT64_FORMAT, id),
			 errdetail("It belongs to another role.")));
}

/* Who is calling: the default owner, and what history says of who ended. */
const char *
DlockDescribeMe(void)
{
	LOCAL_FCINFO(fcinfo, 0);
	Datum		address;

	if (MyBgworkerEntry != NULL)
		return psprintf("%s %d", MyBgworkerEntry->bgw_type, MyProcPid);

	InitFunctionCallInfoData(*fcinfo, NULL, 0, InvalidOid, NULL, NULL);
	address = inet_client_addr(fcinfo);
	return psprintf("%s %s %d",
					application_name && application_name[0] ? application_name : "unknown",
					fcinfo->isnull ? "[local]" :
					DatumGetCString(DirectFunctionCall1(inet_out, address)),
					MyProcPid);
}

/* Raise LK001: what this session held is lost, and it gets nothing more. */
void
DlockSessionIsGone(int64 id)
{
	ereport(ERROR,
			(errcode(ERRCODE_DLOCK_LEASE_LOST),
			 errmsg("session " INT64_FORMAT " is gone", id),
			 errhint("Open a new session, and acquire its locks anew.")));
}
