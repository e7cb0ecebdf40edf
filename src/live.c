/*-------------------------------------------------------------------------
 *
 * live.c
 *	  The map of deadlines: who is alive.  Knows no tables.
 *
 * Three hash tables in one dynamic shared area:
 *
 *	  leases		token -> DlockLive
 *	  locks			hash of the name -> chain of the DlockLives of that lock
 *	  databases		database -> DlockDatabase, never removed
 *
 * A lease is alive or dead by its "word" alone, which only changes by compare
 * and exchange: a heartbeat that meets an expiry either renewed before it or
 * finds the lease dead.  Whoever sees that a deadline has passed makes that
 * final before telling anybody.
 *
 * An entry may be used under its partition's lock, or by a transaction that
 * has pinned it; it is found by its token alone to be pinned.  It is freed by
 * whoever deletes its token, once it is over and unpinned, in this order: out
 * of "leases", so that nobody can pin it any more; out of its lock's chain;
 * freed.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include <time.h>

#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* The part of the area that is there from the start. */
#define LIVE_AREA_SIZE	((Size) 256 * 1024)

/* Slots that a look for a free one tells apart. */
#define LOOK_SLOTS		1024

/* How many entries a sweep takes out between two locks. */
#define SWEEP_BATCH		256

typedef struct LeaseEntry
{
	DlockKey	key;
	dsa_pointer live;
} LeaseEntry;

typedef struct LockEntry
{
	DlockKey	key;			/* id is the hash of the name */
	dsa_pointer first;
} LockEntry;

typedef struct DatabaseEntry
{
	DlockKey	key;			/* id is 0 */
	dsa_pointer database;
} DatabaseEntry;

/* This backend's view of the area; NULL until the first use. */
static dsa_area *area = NULL;
static dshash_table *leases = NULL;
static dshash_table *locks = NULL;
static dshash_table *databases = NULL;

Size
DlockLiveShmemSize(void)
{
	return MAXALIGN(LIVE_AREA_SIZE);
}

static void *
AreaPlace(void)
{
	return (char *) DlockShared + MAXALIGN(sizeof(DlockControl));
}

/*
 * Create the area in place, in the postmaster, as the statistics system does:
 * the postmaster can make no segments, so the empty tables have to fit.
 */
void
DlockLiveShmemInit(void *place)
{
	const dshash_parameters lease_params =
		DLOCK_HASH_PARAMETERS(DlockKey, LeaseEntry, DlockShared->hash_tranche);
	const dshash_parameters lock_params =
		DLOCK_HASH_PARAMETERS(DlockKey, LockEntry, DlockShared->hash_tranche);
	const dshash_parameters database_params =
		DLOCK_HASH_PARAMETERS(DlockKey, DatabaseEntry, DlockShared->hash_tranche);
	dsa_area   *dsa;
	dshash_table *table;

	dsa = dsa_create_in_place(place, LIVE_AREA_SIZE, DlockShared->dsa_tranche, NULL);
	dsa_pin(dsa);
	dsa_set_size_limit(dsa, LIVE_AREA_SIZE);

	table = dshash_create(dsa, &lease_params, NULL);
	DlockShared->leases = dshash_get_hash_table_handle(table);
	dshash_detach(table);
	table = dshash_create(dsa, &lock_params, NULL);
	DlockShared->locks = dshash_get_hash_table_handle(table);
	dshash_detach(table);
	table = dshash_create(dsa, &database_params, NULL);
	DlockShared->databases = dshash_get_hash_table_handle(table);
	dshash_detach(table);

	dsa_set_size_limit(dsa, (size_t) -1);
	dsa_detach(dsa);
}

/* Attach this process to the area, once. */
static void
Attach(void)
{
	const dshash_parameters lease_params =
		DLOCK_HASH_PARAMETERS(DlockKey, LeaseEntry, DlockShared->hash_tranche);
	const dshash_parameters lock_params =
		DLOCK_HASH_PARAMETERS(DlockKey, LockEntry, DlockShared->hash_tranche);
	const dshash_parameters database_params =
		DLOCK_HASH_PARAMETERS(DlockKey, DatabaseEntry, DlockShared->hash_tranche);
	MemoryContext old;

	if (databases != NULL)
		return;

	old = MemoryContextSwitchTo(TopMemoryContext);
	if (area == NULL)
	{
		area = dsa_attach_in_place(AreaPlace(), NULL);
		dsa_pin_mapping(area);
	}
	if (leases == NULL)
		leases = dshash_attach(area, &lease_params, DlockShared->leases, NULL);
	if (locks == NULL)
		locks = dshash_attach(area, &lock_params, DlockShared->locks, NULL);
	databases = dshash_attach(area, &database_params, DlockShared->databases, NULL);
	MemoryContextSwitchTo(old);
}

/* The monotonic clock: no step of the wall clock moves it. */
DlockNanos
DlockNow(void)
{
	struct timespec ts;

	(void) clock_gettime(CLOCK_MONOTONIC, &ts);
	return (DlockNanos) ts.tv_sec * UINT64CONST(1000000000) + ts.tv_nsec;
}

static void
SetKey(DlockKey *key, Oid dboid, Oid relid, int64 id)
{
	memset(key, 0, sizeof(*key));
	key->dboid = dboid;
	key->relid = relid;
	key->id = id;
}

static inline DlockLive *
LiveAt(dsa_pointer dp)
{
	return dsa_get_address(area, dp);
}

/*
 * What is shared about this database, made when it isn't there.
 */
DlockDatabase *
DlockLiveDatabase(Oid relid)
{
	DlockKey	key;
	DatabaseEntry *entry;
	dsa_pointer fresh;
	dsa_pointer dp;
	DlockDatabase *db;
	bool		found;

	Attach();
	SetKey(&key, MyDatabaseId, relid, 0);

	entry = dshash_find(databases, &key, false);
	if (entry != NULL)
	{
		dp = entry->database;
		dshash_release_lock(databases, entry);
		return dsa_get_address(area, dp);
	}

	/* made whole before anybody can see it */
	fresh = dsa_allocate0(area, sizeof(DlockDatabase));
	db = dsa_get_address(area, fresh);
	db->key = key;
	pg_atomic_init_u32(&db->adopted, 0);
	pg_atomic_init_u32(&db->raised, 0);
	pg_atomic_init_u32(&db->gone, 0);
	pg_atomic_init_u64(&db->held, 0);
	for (int i = 0; i < DLOCK_NUM_COUNTERS; i++)
		pg_atomic_init_u64(&db->counters[i], 0);
	SpinLockInit(&db->mutex);

	entry = dshash_find_or_insert(databases, &key, &found);
	if (!found)
		entry->database = fresh;
	dp = entry->database;
	dshash_release_lock(databases, entry);
	if (found)
		dsa_free(area, fresh);

	return dsa_get_address(area, dp);
}

/* All of them, gone ones left out; palloc'd. */
DlockDatabase **
DlockLiveDatabases(int *n)
{
	dshash_seq_status status;
	DatabaseEntry *entry;
	dsa_pointer *pointers;
	DlockDatabase **result;
	int			max = 64;
	int			count;

	Attach();

	/* nothing may be allocated under a partition's lock: guess, and retry */
	for (;;)
	{
		pointers = palloc_array(dsa_pointer, max);
		count = 0;
		dshash_seq_init(&status, databases, false);
		while ((entry = dshash_seq_next(&status)) != NULL)
		{
			if (count < max)
				pointers[count] = entry->database;
			count++;
		}
		dshash_seq_term(&status);
		if (count <= max)
			break;
		pfree(pointers);
		max = count + 64;
	}

	result = palloc_array(DlockDatabase *, count);
	*n = 0;
	for (int i = 0; i < count; i++)
	{
		DlockDatabase *db = dsa_get_address(area, pointers[i]);

		if (pg_atomic_read_u32(&db->gone) == 0)
			result[(*n)++] = db;
	}
	return result;
}

/*
 * The word of a lease as of "now".  A deadline that has passed is made final
 * first, so that what one process was told no other can undo.
 */
static uint64
LiveWord(DlockLive *live, DlockNanos now)
{
	uint64		word = pg_atomic_read_u64(&live->word);

	while (word > DLOCK_WORD_PENDING &&
		   (word & ~DLOCK_WORD_REVOKING) <= now)
	{
		if (pg_atomic_compare_exchange_u64(&live->word, &word, DLOCK_WORD_DEAD))
			return DLOCK_WORD_DEAD;
	}
	return word;
}

static inline bool
WordIsAlive(uint64 word)
{
	return word >= DLOCK_WORD_PENDING;
}

/* Over, at rest no more, and needed by nobody. */
static bool
LiveIsGarbage(DlockLive *live, DlockNanos now)
{
	return pg_atomic_read_u64(&live->word) == DLOCK_WORD_ENDED &&
		pg_atomic_read_u64(&live->rests_until) <= now &&
		pg_atomic_read_u32(&live->pins) == 0;
}

/* Copy an entry out, under its partition's lock. */
static void
CopyLease(DlockLive *live, DlockNanos now, DlockLease *lease)
{
	uint64		word = LiveWord(live, now);
	DlockNanos	rests_until = pg_atomic_read_u64(&live->rests_until);
	DlockNanos	ttl = pg_atomic_read_u64(&live->ttl);
	DlockNanos	until = 0;

	if (word == DLOCK_WORD_PENDING)
	{
		lease->state = DLOCK_STATE_PENDING;
		until = now + ttl;
	}
	else if (word > DLOCK_WORD_PENDING)
	{
		lease->state = (word & DLOCK_WORD_REVOKING) ?
			DLOCK_STATE_REVOKING : DLOCK_STATE_HELD;
		until = word & ~DLOCK_WORD_REVOKING;
	}
	else if (word == DLOCK_WORD_DEAD)
		lease->state = DLOCK_STATE_EXPIRED;
	else if (rests_until > now)
	{
		lease->state = pg_atomic_read_u32(&live->rest_kind);
		until = rests_until;
	}
	else
		lease->state = DLOCK_STATE_OVER;

	/* rounded up: who waits for this long must not come too early */
	lease->remaining = until > now ?
		(until - now + DLOCK_NS_PER_US - 1) / DLOCK_NS_PER_US : 0;
	lease->since_heartbeat = lease->state == DLOCK_STATE_HELD && now + ttl > until ?
		(now + ttl - until) / DLOCK_NS_PER_US : 0;

	lease->token = live->key.id;
	lease->ttl = ttl / DLOCK_NS_PER_US;
	lease->role = live->role;
	lease->pid = live->pid;
	lease->slot = live->slot;
	lease->capacity = live->capacity;
	lease->ended_by_me = pg_atomic_read_u32(&live->ender) == (uint32) MyProcPid;
	lease->heartbeats = pg_atomic_read_u64(&live->heartbeats);
	lease->refused = pg_atomic_read_u64(&live->refused);
	lease->last_refused_at = pg_atomic_read_u64(&live->last_refused_at);
	memcpy(lease->name, live->name, live->namelen);
	lease->name[live->namelen] = '\0';
}

/*
 * Copy out the lease with this token; false when the map does not have it,
 * and so, in an adopted database, it is not held.
 */
bool
DlockLiveFind(DlockDatabase *db, int64 token, DlockLease *lease)
{
	DlockKey	key;
	LeaseEntry *entry;

	SetKey(&key, db->key.dboid, db->key.relid, token);
	entry = dshash_find(leases, &key, false);
	if (entry == NULL)
		return false;
	CopyLease(LiveAt(entry->live), DlockNow(), lease);
	dshash_release_lock(leases, entry);
	return true;
}

/* Is this entry of the lock with this name, not of one whose hash is equal? */
static inline bool
HasName(const DlockLive *live, const char *name, int namelen)
{
	return live->namelen == namelen && memcmp(live->name, name, namelen) == 0;
}

/*
 * Look at a lock as somebody who asks for it: is a conflicting lease alive,
 * and if not, which slot is to be taken?  With "count_refusal", conflicting
 * leases count that they were refused to somebody.
 *
 * What this transaction itself has ended is over already.
 */
void
DlockLiveLook(DlockDatabase *db, const DlockRequest *request,
			  bool count_refusal, DlockLook *look)
{
	DlockKey	key;
	LockEntry  *lock;
	dsa_pointer dp;
	DlockNanos	now = DlockNow();
	TimestampTz wall = count_refusal ? GetCurrentTimestamp() : 0;

	look->busy = false;
	look->slot = 0;
	look->claimed = false;

	SetKey(&key, db->key.dboid, db->key.relid,
		   (int64) DlockHashName(request->name, request->namelen));
	lock = dshash_find(locks, &key, false);
	if (lock == NULL)
		return;

	for (dp = lock->first; DsaPointerIsValid(dp); dp = LiveAt(dp)->next)
	{
		DlockLive  *live = LiveAt(dp);
		uint64		word;

		if (!HasName(live, request->name, request->namelen))
			continue;

		word = LiveWord(live, now);
		if (pg_atomic_read_u32(&live->ender) == (uint32) MyProcPid)
			word = DLOCK_WORD_ENDED;
		if (WordIsAlive(word) || pg_atomic_read_u64(&live->rests_until) > now)
		{
			look->busy = true;
			if (count_refusal)
			{
				pg_atomic_fetch_add_u64(&live->refused, 1);
				pg_atomic_write_u64(&live->last_refused_at, (uint64) wall);
			}
		}
		else if (word == DLOCK_WORD_DEAD &&
				 pg_atomic_read_u32(&live->pins) > 0 &&
				 pg_atomic_read_u32(&live->by_worker) == 0)
			look->claimed = true;
	}
	dshash_release_lock(locks, lock);
}

/*
 * Tokens of a name's leases that are not over, up to "max"; returns how many.
 */
int
DlockLiveHolders(DlockDatabase *db, const char *name, int namelen,
				 int64 *tokens, int max)
{
	DlockKey	key;
	LockEntry  *lock;
	dsa_pointer dp;
	DlockNanos	now = DlockNow();
	int			n = 0;

	SetKey(&key, db->key.dboid, db->key.relid,
		   (int64) DlockHashName(name, namelen));
	lock = dshash_find(locks, &key, false);
	if (lock == NULL)
		return 0;
	for (dp = lock->first; DsaPointerIsValid(dp); dp = LiveAt(dp)->next)
	{
		DlockLive  *live = LiveAt(dp);

		if (HasName(live, name, namelen) && !LiveIsGarbage(live, now) && n < max)
			tokens[n++] = live->key.id;
	}
	dshash_release_lock(locks, lock);
	return n;
}

/*
 * Tokens of a database's leases, up to "max", in no order: those that are
 * dead and not ended ("due"), or all that are not over.  Returns how many.
 */
int
DlockLiveTokens(DlockDatabase *db, bool due, int64 *tokens, int max)
{
	dshash_seq_status status;
	LeaseEntry *entry;
	DlockNanos	now = DlockNow();
	int			n = 0;

	dshash_seq_init(&status, leases, false);
	while (n < max && (entry = dshash_seq_next(&status)) != NULL)
	{
		DlockLive  *live;

		if (entry->key.dboid != db->key.dboid || entry->key.relid != db->key.relid)
			continue;
		live = LiveAt(entry->live);
		if (due ? LiveWord(live, now) == DLOCK_WORD_DEAD : !LiveIsGarbage(live, now))
			tokens[n++] = live->key.id;
	}
	dshash_seq_term(&status);
	return n;
}

/*
 * The deadlines of all databases, up to "max", for the launcher; returns how
 * many.
 */
int
DlockLiveDues(DlockDue *dues, int max)
{
	dshash_seq_status status;
	LeaseEntry *entry;
	int			n = 0;

	Attach();
	dshash_seq_init(&status, leases, false);
	while (n < max && (entry = dshash_seq_next(&status)) != NULL)
	{
		uint64		word = pg_atomic_read_u64(&LiveAt(entry->live)->word);

		if (word == DLOCK_WORD_ENDED || word == DLOCK_WORD_PENDING)
			continue;
		dues[n].key = entry->key;
		dues[n++].at = word & ~DLOCK_WORD_REVOKING;
	}
	dshash_seq_term(&status);
	return n;
}

/*
 * The deadline of a lease, 0 when it is dead; false when it is over or its
 * grant has not committed, so that there is nothing to wait for.
 */
bool
DlockLiveDeadline(const DlockKey *key, DlockNanos *at)
{
	LeaseEntry *entry;
	uint64		word;

	Attach();
	entry = dshash_find(leases, key, false);
	if (entry == NULL)
		return false;
	word = LiveWord(LiveAt(entry->live), DlockNow());
	dshash_release_lock(leases, entry);
	*at = word & ~DLOCK_WORD_REVOKING;
	return word != DLOCK_WORD_ENDED && word != DLOCK_WORD_PENDING;
}

/*
 * Renew the lease with this token from now on, if it belongs to "role".  When
 * it belongs to another, *other_role says to whom and nothing is done.
 *
 * False: it is lost, or it is being revoked, and no heartbeat will ever renew
 * it again.  True for a pending lease, whose time has not begun.
 */
bool
DlockLiveHeartbeat(DlockDatabase *db, int64 token, Oid role, Oid *other_role)
{
	DlockKey	key;
	LeaseEntry *entry;
	DlockLive  *live;
	uint64		word;
	bool		result = false;

	*other_role = InvalidOid;

	SetKey(&key, db->key.dboid, db->key.relid, token);
	entry = dshash_find(leases, &key, false);
	if (entry == NULL)
		return false;

	live = LiveAt(entry->live);
	if (live->role != role)
	{
		*other_role = live->role;
		dshash_release_lock(leases, entry);
		return false;
	}

	for (;;)
	{
		DlockNanos	now = DlockNow();
		uint64		renewed;

		word = LiveWord(live, now);
		if (word == DLOCK_WORD_PENDING)
		{
			result = true;
			break;
		}
		if (!WordIsAlive(word) || (word & DLOCK_WORD_REVOKING))
			break;

		renewed = now + pg_atomic_read_u64(&live->ttl);
		if (!pg_atomic_compare_exchange_u64(&live->word, &word, renewed))
			continue;			/* another heartbeat, or an end */

		/*
		 * We may have slept between the clock and the exchange.  Past the old
		 * deadline the lease was lost.
		 */
		if (DlockNow() >= word)
		{
			(void) pg_atomic_compare_exchange_u64(&live->word, &renewed,
												  DLOCK_WORD_DEAD);
			break;
		}
		pg_atomic_fetch_add_u64(&live->heartbeats, 1);
		result = true;
		break;
	}
	dshash_release_lock(leases, entry);
	return result;
}

/*
 * Unlink and free an entry that is no longer among "leases".
 */
static void
FreeLive(dsa_pointer dp)
{
	DlockLive  *live = LiveAt(dp);
	DlockKey	key;
	LockEntry  *lock;

	SetKey(&key, live->key.dboid, live->key.relid, (int64) live->namehash);
	lock = dshash_find(locks, &key, true);
	if (lock != NULL)
	{
		dsa_pointer *link = &lock->first;

		while (DsaPointerIsValid(*link) && *link != dp)
			link = &LiveAt(*link)->next;
		if (DsaPointerIsValid(*link))
			*link = live->next;

		if (DsaPointerIsValid(lock->first))
			dshash_release_lock(locks, lock);
		else
			dshash_delete_entry(locks, lock);
	}
	dsa_free(area, dp);
	pg_atomic_fetch_sub_u64(&DlockShared->entries, 1);
	pg_atomic_fetch_sub_u64(&DlockShared->over, 1);
}

/* Free the entry with this key, if it is garbage. */
static void
FreeIfGarbage(const DlockKey *key)
{
	LeaseEntry *entry = dshash_find(leases, key, true);
	dsa_pointer dp;

	if (entry == NULL)
		return;
	dp = entry->live;
	if (!LiveIsGarbage(LiveAt(dp), DlockNow()))
	{
		dshash_release_lock(leases, entry);
		return;
	}
	dshash_delete_entry(leases, entry);
	FreeLive(dp);
}

/*
 * Free the garbage of one name, so that a name that is taken again and again
 * needs no sweeper.
 */
static void
FreeGarbageOf(const DlockKey *lockkey)
{
	DlockKey	garbage[4];
	int			n = 0;
	DlockNanos	now = DlockNow();
	LockEntry  *lock = dshash_find(locks, lockkey, false);
	dsa_pointer dp;

	if (lock == NULL)
		return;
	for (dp = lock->first;
		 DsaPointerIsValid(dp) && n < lengthof(garbage);
		 dp = LiveAt(dp)->next)
	{
		if (LiveIsGarbage(LiveAt(dp), now))
			garbage[n++] = LiveAt(dp)->key;
	}
	dshash_release_lock(locks, lock);

	for (int i = 0; i < n; i++)
		FreeIfGarbage(&garbage[i]);
}

/*
 * Take entries out of the map: all garbage, or (with "dboid") all that belongs
 * to a database but not to the table keep_relid, alive or not, as it was
 * dropped.
 */
static void
SweepEntries(Oid dboid, Oid keep_relid)
{
	dsa_pointer batch[SWEEP_BATCH];
	int			n;

	Attach();
	do
	{
		dshash_seq_status status;
		LeaseEntry *entry;
		DlockNanos	now = DlockNow();

		n = 0;
		dshash_seq_init(&status, leases, true);
		while (n < SWEEP_BATCH && (entry = dshash_seq_next(&status)) != NULL)
		{
			DlockLive  *live = LiveAt(entry->live);
			bool		drop;

			if (OidIsValid(dboid))
				drop = live->key.dboid == dboid &&
					live->key.relid != keep_relid &&
					pg_atomic_read_u32(&live->pins) == 0;
			else
				drop = LiveIsGarbage(live, now);
			if (!drop)
				continue;

			if (pg_atomic_exchange_u64(&live->word, DLOCK_WORD_ENDED) != DLOCK_WORD_ENDED)
				pg_atomic_fetch_add_u64(&DlockShared->over, 1);
			batch[n++] = entry->live;
			dshash_delete_current(&status);
		}
		dshash_seq_term(&status);

		for (int i = 0; i < n; i++)
			FreeLive(batch[i]);
	} while (n == SWEEP_BATCH);
}

void
DlockLiveSweep(void)
{
	SweepEntries(InvalidOid, InvalidOid);
}

/*
 * Forget all about a database but what belongs to the table keep_relid: it or
 * its extension was dropped.
 */
void
DlockLivePurge(Oid dboid, Oid keep_relid)
{
	DlockDatabase **dbs;
	int			n;

	dbs = DlockLiveDatabases(&n);
	for (int i = 0; i < n; i++)
	{
		if (dbs[i]->key.dboid == dboid && dbs[i]->key.relid != keep_relid)
		{
			pg_atomic_write_u32(&dbs[i]->gone, 1);
			SweepEntries(dboid, keep_relid);
		}
	}
	pfree(dbs);
}

/*
 * Add a pending lease.  With "token" there already, as in an adoption that is
 * done again, returns NULL and changes nothing.
 *
 * The entry comes pinned, for the transaction that has to start it.  Raises
 * 53200 when the map is full, having changed nothing.
 */
DlockLive *
DlockLiveInsert(DlockDatabase *db, int64 token, const DlockRequest *request,
				int slot, Oid role, int pid)
{
	DlockKey	lockkey;
	LeaseEntry *entry;
	LockEntry  *lock;
	dsa_pointer dp;
	DlockLive  *live;
	bool		found;

	SetKey(&lockkey, db->key.dboid, db->key.relid,
		   (int64) DlockHashName(request->name, request->namelen));
	FreeGarbageOf(&lockkey);

	if (pg_atomic_fetch_add_u64(&DlockShared->entries, 1) >= (uint64) dlock_max_leases)
	{
		pg_atomic_fetch_sub_u64(&DlockShared->entries, 1);
		if (pg_atomic_read_u64(&DlockShared->over) > 0)
			DlockLiveSweep();	/* for when the launcher is not there to do it */
		if (pg_atomic_fetch_add_u64(&DlockShared->entries, 1) >= (uint64) dlock_max_leases)
		{
			pg_atomic_fetch_sub_u64(&DlockShared->entries, 1);
			ereport(ERROR,
					(errcode(ERRCODE_OUT_OF_MEMORY),
					 errmsg("too many leases are held"),
					 errdetail("The server holds as many as \"%s\" allows, %d.",
							   "dlock.max_leases", dlock_max_leases),
					 errhint("You might need to increase \"%s\".",
							 "dlock.max_leases")));
		}
	}

	dp = dsa_allocate_extended(area, offsetof(DlockLive, name) + request->namelen,
							   DSA_ALLOC_NO_OOM);
	if (!DsaPointerIsValid(dp))
	{
		pg_atomic_fetch_sub_u64(&DlockShared->entries, 1);
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of shared memory"),
				 errhint("You might need to decrease \"%s\", or to give the machine more shared memory.",
						 "dlock.max_leases")));
	}
	live = LiveAt(dp);
	SetKey(&live->key, db->key.dboid, db->key.relid, token);
	live->namehash = (uint64) lockkey.id;
	live->self = dp;
	live->next = InvalidDsaPointer;
	pg_atomic_init_u64(&live->word, DLOCK_WORD_PENDING);
	pg_atomic_init_u64(&live->rests_until, 0);
	pg_atomic_init_u64(&live->ttl, request->ttl * DLOCK_NS_PER_US);
	pg_atomic_init_u64(&live->heartbeats, 0);
	pg_atomic_init_u64(&live->refused, 0);
	pg_atomic_init_u64(&live->last_refused_at, 0);
	pg_atomic_init_u32(&live->pins, 1);
	pg_atomic_init_u32(&live->ender, 0);
	pg_atomic_init_u32(&live->by_worker, 0);
	pg_atomic_init_u32(&live->rest_kind, DLOCK_STATE_MIN_HOLD);
	live->min_hold = request->min_hold * DLOCK_NS_PER_US;
	live->role = role;
	live->pid = pid;
	live->slot = slot;
	live->capacity = request->capacity;
	live->namelen = request->namelen;
	memcpy(live->name, request->name, request->namelen);

	/*
	 * Among the tokens first, then into the chain, where rivals look.  An
	 * entry that didn't get into the chain for want of memory is left to the
	 * sweeper: a table's partition is still locked when its error arrives.
	 */
	PG_TRY();
	{
		entry = dshash_find_or_insert(leases, &live->key, &found);
	}
	PG_CATCH();
	{
		dsa_free(area, dp);
		pg_atomic_fetch_sub_u64(&DlockShared->entries, 1);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (!found)
		entry->live = dp;
	dshash_release_lock(leases, entry);
	if (found)
	{
		dsa_free(area, dp);
		pg_atomic_fetch_sub_u64(&DlockShared->entries, 1);
		return NULL;
	}

	PG_TRY();
	{
		lock = dshash_find_or_insert(locks, &lockkey, &found);
	}
	PG_CATCH();
	{
		DlockLiveEnd(live, false);
		DlockLiveUnpin(live);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (!found)
		lock->first = InvalidDsaPointer;
	live->next = lock->first;
	lock->first = dp;
	dshash_release_lock(locks, lock);

	return live;
}

/*
 * Pin the lease with this token for the rest of the transaction, or NULL when
 * the map does not have it.  pending.c alone pins, and unpins.
 */
DlockLive *
DlockLivePin(DlockDatabase *db, int64 token)
{
	DlockKey	key;
	LeaseEntry *entry;
	DlockLive  *live;

	SetKey(&key, db->key.dboid, db->key.relid, token);
	entry = dshash_find(leases, &key, false);
	if (entry == NULL)
		return NULL;
	live = LiveAt(entry->live);
	pg_atomic_fetch_add_u32(&live->pins, 1);
	dshash_release_lock(leases, entry);
	return live;
}

/*
 * The following run in commit and abort callbacks: they store through a
 * pinned pointer and can neither fail nor allocate.
 */

void
DlockLiveUnpin(DlockLive *live)
{
	pg_atomic_fetch_sub_u32(&live->pins, 1);
}

/* The grant has committed: the lease is held, and its time begins. */
void
DlockLiveStart(DlockLive *live, DlockNanos rests_until, DlockNanos deadline)
{
	pg_atomic_write_u64(&live->rests_until, rests_until);
	pg_write_barrier();
	pg_atomic_write_u64(&live->word, deadline);
}

/* A new TTL has committed; it counts from now, if the lease is not lost. */
void
DlockLiveRenew(DlockLive *live, DlockNanos ttl)
{
	DlockNanos	now = DlockNow();
	uint64		word = LiveWord(live, now);

	pg_atomic_write_u64(&live->ttl, ttl);
	while (word > DLOCK_WORD_PENDING && !(word & DLOCK_WORD_REVOKING))
	{
		if (pg_atomic_compare_exchange_u64(&live->word, &word, now + ttl))
			break;
	}
}

/* A revocation has committed: the lease has until the deadline, no longer. */
void
DlockLiveRevoke(DlockLive *live, DlockNanos deadline)
{
	uint64		word = LiveWord(live, DlockNow());

	while (word > DLOCK_WORD_PENDING)
	{
		if (pg_atomic_compare_exchange_u64(&live->word, &word,
										   deadline | DLOCK_WORD_REVOKING))
			break;
	}
}

/*
 * The lease is over, by a committed end or by the rollback of its grant.  The
 * lock then rests for what is left of min_hold, if it "rests" at all.
 */
void
DlockLiveEnd(DlockLive *live, bool rests)
{
	if (!rests)
		pg_atomic_write_u64(&live->rests_until, 0);
	pg_write_barrier();
	pg_atomic_write_u64(&live->word, DLOCK_WORD_ENDED);
	pg_atomic_fetch_add_u64(&DlockShared->over, 1);
}
