/*-------------------------------------------------------------------------
 *
 * tag.c
 *	  The heavyweight locks that serialise calls and fence transactions.
 *
 * They are advisory locks with values of "field4" that the server's own
 * functions (1 and 2) cannot make, so pg_advisory_unlock_all() and poolers do
 * not touch them; pg_locks shows the value as objsubid.  All belong to the
 * transaction.  Names are hashed to 64 bits: a collision costs a wait, never
 * correctness, since what a tag protects is then looked up by the name.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/lock.h"

#define TAG_NAME		0x646C	/* "dl" */
#define TAG_SLOT		0x646D
#define TAG_ADOPTION	0x646E

static void
SetTag(LOCKTAG *tag, uint64 hash, uint16 family)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId,
						 (uint32) (hash >> 32), (uint32) hash, family);
}

static void
SetSlotTag(LOCKTAG *tag, uint64 namehash, int slot)
{
	/* slot 0 need not differ from the name: the family does */
	SetTag(tag, hash_combine64(namehash, (uint64) slot), TAG_SLOT);
}

/* The hash by which the tags and the map know a name. */
uint64
DlockHashName(const char *name, int namelen)
{
	return hash_bytes_extended((const unsigned char *) name, namelen, 0);
}

/*
 * One backend at a time loads a database's rows.  Waits; may be cancelled.
 */
void
DlockLockAdoption(void)
{
	LOCKTAG		tag;

	SetTag(&tag, 0, TAG_ADOPTION);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

void
DlockUnlockAdoption(void)
{
	LOCKTAG		tag;

	SetTag(&tag, 0, TAG_ADOPTION);
	(void) LockRelease(&tag, ExclusiveLock, false);
}

/*
 * Become the one call that chooses a slot of this name.  Waits for others to
 * finish that choice, which never includes a wait of theirs.
 */
void
DlockLockName(uint64 namehash)
{
	LOCKTAG		tag;

	SetTag(&tag, namehash, TAG_NAME);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

/* Must be called in the subtransaction that took it. */
void
DlockUnlockName(uint64 namehash)
{
	LOCKTAG		tag;

	SetTag(&tag, namehash, TAG_NAME);
	(void) LockRelease(&tag, ExclusiveLock, false);
}

/*
 * Take the slot tag to the end of the transaction: shared for a guard,
 * exclusive for a grant or an end.  With "wait", waits for as long as
 * lock_timeout and the deadlock detector let it; else false means that it is
 * taken.
 */
bool
DlockLockSlot(uint64 namehash, int slot, bool share, bool wait)
{
	LOCKTAG		tag;

	SetSlotTag(&tag, namehash, slot);
	return LockAcquire(&tag, share ? ShareLock : ExclusiveLock,
					   false, !wait) != LOCKACQUIRE_NOT_AVAIL;
}

/* Give it back early: what it was taken for is not going to happen. */
void
DlockUnlockSlot(uint64 namehash, int slot, bool share)
{
	LOCKTAG		tag;

	SetSlotTag(&tag, namehash, slot);
	(void) LockRelease(&tag, share ? ShareLock : ExclusiveLock, false);
}

/*
 * The locks on slot tags of this database that guards hold now, for views.
 * A snapshot of the whole lock table: not for anything that is called often.
 */
LockData *
DlockGuardLocks(void)
{
	LockData   *data = GetLockStatusData();
	int			n = 0;

	for (int i = 0; i < data->nelements; i++)
	{
		LockInstanceData *lock = &data->locks[i];

		if (lock->locktag.locktag_type == LOCKTAG_ADVISORY &&
			lock->locktag.locktag_field4 == TAG_SLOT &&
			lock->locktag.locktag_field1 == MyDatabaseId &&
			(lock->holdMask & LOCKBIT_ON(ShareLock)))
			data->locks[n++] = *lock;
	}
	data->nelements = n;
	return data;
}

/* Is this lock, of DlockGuardLocks(), on the slot's tag? */
bool
DlockLockIsOnSlot(const LockInstanceData *lock, uint64 namehash, int slot)
{
	LOCKTAG		tag;

	SetSlotTag(&tag, namehash, slot);
	return memcmp(&lock->locktag, &tag, sizeof(tag)) == 0;
}
