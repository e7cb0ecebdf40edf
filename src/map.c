/*-------------------------------------------------------------------------
 *
 * map.c
 *	  The hash tables in shared memory: where entries are, and when they go.
 *
 * Three tables in one dynamic shared area:
 *
 *	  leases		token, or minus a session's id -> DlockLive
 *	  locks			hash of a name -> chain of the DlockLives of that lock
 *	  databases		database -> DlockDatabase, never removed
 *
 * One partition of one table is locked at a time: DlockMapFind() or
 * DlockMapFirst() lock it, DlockMapRelease() releases it.  An entry may be
 * used under its partition's lock, or by a transaction that has pinned it,
 * which it does by its token alone.
 *
 * An entry is freed by whoever takes it out of "leases", when it is garbage,
 * in this order: out of "leases", so that nobody can pin it any more; out of
 * its lock's chain and its session's; freed.
 *
 *-------------------------------------------------------------------------
 */
#include "dlock.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

/* The part of the area that is there from the start. */
#define MAP_AREA_SIZE	((Size) 256 * 1024)

/* How many entries a sweep takes out between two locks. */
#define SWEEP_BATCH		8192

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

/* What DlockMapRelease() has to release. */
static dshash_table *locked_table = NULL;
static void *locked_entry = NULL;

static void
LockedIs(dshash_table *table, void *entry)
{
	locked_table = table;
	locked_entry = entry;
}

Size
DlockMapShmemSize(void)
{
	return MAXALIGN(MAP_AREA_SIZE);
}

/* The parameters of the three tables. */
static dshash_parameters
LeaseParams(void)
{
	dshash_parameters params =
		DLOCK_HASH_PARAMETERS(DlockKey, LeaseEntry, DlockShared->hash_tranche);

	return params;
}

static dshash_parameters
LockParams(void)
{
	dshash_parameters params =
		DLOCK_HASH_PARAMETERS(DlockKey, LockEntry, DlockShared->hash_tranche);

	return params;
}

static dshash_parameters
DatabaseParams(void)
{
	dshash_parameters params =
		DLOCK_HASH_PARAMETERS(DlockKey, DatabaseEntry, DlockShared->hash_tranche);

	return params;
}

static dshash_table_handle
CreateTable(dsa_area *dsa, dshash_parameters params)
{
	dshash_table *table = dshash_create(dsa, &params, NULL);
	dshash_table_handle handle = dshash_get_hash_table_handle(table);

	dshash_detach(table);
	return handle;
}

/*
 * Create the area in place, in the postmaster, as the statistics system does:
 * the postmaster can make no segments, so the empty tables have to fit.
 */
void
DlockMapShmemInit(void *place)
{
	dsa_area   *dsa;

	dsa = dsa_create_in_place(place, MAP_AREA_SIZE, DlockShared->dsa_tranche, NULL);
	dsa_pin(dsa);
	dsa_set_size_limit(dsa, MAP_AREA_SIZE);
	DlockShared->area = place;
	DlockShared->leases = CreateTable(dsa, LeaseParams());
	DlockShared->locks = CreateTable(dsa, LockParams());
	DlockShared->databases = CreateTable(dsa, DatabaseParams());
	dsa_set_size_limit(dsa, (size_t) -1);
	dsa_detach(dsa);
}

/* Attach this process to the area, once. */
static void
Attach(void)
{
	dshash_parameters params;
	MemoryContext old;

	if (databases != NULL)
		return;

	old = MemoryContextSwitchTo(TopMemoryContext);
	if (area == NULL)
	{
		area = dsa_attach_in_place(DlockShared->area, NULL);
		dsa_pin_mapping(area);
	}
	params = LeaseParams();
	if (leases == NULL)
		leases = dshash_attach(area, &params, DlockShared->leases, NULL);
	params = LockParams();
	if (locks == NULL)
		locks = dshash_attach(area, &params, DlockShared->locks, NULL);
	params = DatabaseParams();
	databases = dshash_attach(area, &params, DlockShared->databases, NULL);
	MemoryContextSwitchTo(old);
}

/* The key of something of a database. */
void
DlockMapKey(DlockKey *key, const DlockDatabase *db, int64 id)
{
	memset(key, 0, sizeof(*key));
	key->dboid = db->key.dboid;
	key->relid = db->key.relid;
	key->id = id;
}

/* An entry by its place; NULL for none. */
DlockLive *
DlockMapAt(dsa_pointer pointer)
{
	return DsaPointerIsValid(pointer) ? dsa_get_address(area, pointer) : NULL;
}

/* Find an entry and lock its partition; NULL, and no lock, without one. */
DlockLive *
DlockMapFind(const DlockKey *key, bool exclusive)
{
	LeaseEntry *entry;

	Attach();
	entry = dshash_find(leases, key, exclusive);
	if (entry == NULL)
		return NULL;
	LockedIs(leases, entry);
	return DlockMapAt(entry->live);
}

/*
 * The first entry of a lock, and those of locks whose names have the same
 * hash, with the partition locked; NULL, and no lock, when there is none.
 */
DlockLive *
DlockMapFirst(const DlockDatabase *db, uint64 namehash)
{
	DlockKey	key;
	LockEntry  *lock;

	DlockMapKey(&key, db, (int64) namehash);
	lock = dshash_find(locks, &key, false);
	if (lock == NULL)
		return NULL;
	LockedIs(locks, lock);
	return DlockMapAt(lock->first);
}

/* The next one of that lock. */
DlockLive *
DlockMapNext(DlockLive *live)
{
	return DlockMapAt(live->next);
}

void
DlockMapRelease(void)
{
	dshash_release_lock(locked_table, locked_entry);
	LockedIs(NULL, NULL);
}

/*
 * Visit every entry of every database, until "visit" returns false.  It runs
 * under a partition's lock: it may load and store, and that is all.
 */
void
DlockMapScan(bool (*visit) (DlockLive *live, void *arg), void *arg)
{
	dshash_seq_status status;
	LeaseEntry *entry;

	Attach();
	dshash_seq_init(&status, leases, false);
	while ((entry = dshash_seq_next(&status)) != NULL)
	{
		if (!visit(DlockMapAt(entry->live), arg))
			break;
	}
	dshash_seq_term(&status);
}

/* ----------
 * Databases
 * ----------
 */

/* What is shared about this database, made when it isn't there. */
DlockDatabase *
DlockMapDatabase(Oid relid)
{
	DlockKey	key;
	DatabaseEntry *entry;
	dsa_pointer fresh;
	dsa_pointer pointer;
	DlockDatabase *db;
	bool		found;

	Attach();
	memset(&key, 0, sizeof(key));
	key.dboid = MyDatabaseId;
	key.relid = relid;

	entry = dshash_find(databases, &key, false);
	if (entry != NULL)
	{
		pointer = entry->database;
		dshash_release_lock(databases, entry);
		db = dsa_get_address(area, pointer);
		pg_atomic_write_u32(&db->gone, 0);	/* the OIDs may come again */
		return db;
	}

	/* made whole before anybody can see it */
	fresh = dsa_allocate0(area, sizeof(DlockDatabase));
	db = dsa_get_address(area, fresh);
	db->key = key;
	pg_atomic_init_u32(&db->adopted, 0);
	pg_atomic_init_u32(&db->raised, 0);
	pg_atomic_init_u32(&db->gone, 0);
	pg_atomic_init_u64(&db->number,
					   pg_atomic_fetch_add_u64(&DlockShared->numbers, 1));
	pg_atomic_init_u64(&db->prune_at, 0);
	pg_atomic_init_u64(&db->held, 0);
	for (int i = 0; i < DLOCK_NUM_COUNTERS; i++)
		pg_atomic_init_u64(&db->counters[i], 0);
	SpinLockInit(&db->mutex);

	entry = dshash_find_or_insert(databases, &key, &found);
	if (!found)
		entry->database = fresh;
	pointer = entry->database;
	dshash_release_lock(databases, entry);
	if (found)
		dsa_free(area, fresh);

	return dsa_get_address(area, pointer);
}

/* All of them, gone ones left out; palloc'd. */
DlockDatabase **
DlockMapDatabases(int *n)
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

	result = palloc_array(DlockDatabase *, count + 1);
	*n = 0;
	for (int i = 0; i < count; i++)
	{
		DlockDatabase *db = dsa_get_address(area, pointers[i]);

		if (pg_atomic_read_u32(&db->gone) == 0)
			result[(*n)++] = db;
	}
	pfree(pointers);
	return result;
}

/* ----------
 * Freeing
 * ----------
 */

/* Unlink and free an entry that is no longer among "leases". */
static void
FreeEntry(dsa_pointer pointer)
{
	DlockLive  *live = DlockMapAt(pointer);
	DlockLive  *session = DlockMapAt(live->session);

	if (live->key.id > 0)
	{
		DlockKey	key = live->key;
		LockEntry  *lock;

		key.id = (int64) live->namehash;
		lock = dshash_find(locks, &key, true);
		if (lock != NULL)
		{
			dsa_pointer *link = &lock->first;

			while (DsaPointerIsValid(*link) && *link != pointer)
				link = &DlockMapAt(*link)->next;
			if (DsaPointerIsValid(*link))
				*link = live->next;

			if (DsaPointerIsValid(lock->first))
				dshash_release_lock(locks, lock);
			else
				dshash_delete_entry(locks, lock);
		}
	}

	/* a session stays as long as it has leases, so it is there */
	if (session != NULL && DlockMapFind(&session->key, true) != NULL)
	{
		if (DsaPointerIsValid(live->session_prev))
			DlockMapAt(live->session_prev)->session_next = live->session_next;
		else
			session->session_next = live->session_next;
		if (DsaPointerIsValid(live->session_next))
			DlockMapAt(live->session_next)->session_prev = live->session_prev;
		DlockMapRelease();
	}

	dsa_free(area, pointer);
	pg_atomic_fetch_sub_u64(&DlockShared->entries, 1);
	pg_atomic_fetch_sub_u64(&DlockShared->over, 1);
}

/* Free the entry with this key, if it is garbage. */
static void
FreeIfGarbage(const DlockKey *key)
{
	LeaseEntry *entry = dshash_find(leases, key, true);
	dsa_pointer pointer;

	if (entry == NULL)
		return;
	pointer = entry->live;
	if (!DlockLiveIsGarbage(DlockMapAt(pointer), DlockNow()))
	{
		dshash_release_lock(leases, entry);
		return;
	}
	dshash_delete_entry(leases, entry);
	FreeEntry(pointer);
}

/*
 * Free some of the garbage of one name, so that a name that is taken again
 * and again needs no sweeper.
 */
static void
FreeGarbageOf(const DlockDatabase *db, uint64 namehash)
{
	DlockKey	garbage[4];
	int			n = 0;
	DlockNanos	now = DlockNow();
	DlockLive  *first = DlockMapFirst(db, namehash);

	if (first == NULL)
		return;
	for (DlockLive *live = first; live != NULL && n < lengthof(garbage);
		 live = DlockMapNext(live))
	{
		if (DlockLiveIsGarbage(live, now))
			garbage[n++] = live->key;
	}
	DlockMapRelease();

	for (int i = 0; i < n; i++)
		FreeIfGarbage(&garbage[i]);
}

/*
 * Take entries out of the map: all garbage, or all that belongs to a database
 * that is gone, alive or not.
 */
static void
Sweep(const DlockDatabase *gone)
{
	dsa_pointer *batch = palloc_array(dsa_pointer, SWEEP_BATCH);
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
			DlockLive  *live = DlockMapAt(entry->live);

			if (gone == NULL)
			{
				if (!DlockLiveIsGarbage(live, now))
					continue;
			}
			else if (live->key.dboid != gone->key.dboid ||
					 live->key.relid != gone->key.relid ||
					 pg_atomic_read_u32(&live->pins) > 0 ||
					 (live->key.id < 0 && DsaPointerIsValid(live->session_next)))
				continue;

			if (pg_atomic_exchange_u64(&live->word, DLOCK_WORD_ENDED) != DLOCK_WORD_ENDED)
				pg_atomic_fetch_add_u64(&DlockShared->over, 1);
			batch[n++] = entry->live;
			dshash_delete_current(&status);
		}
		dshash_seq_term(&status);

		for (int i = 0; i < n; i++)
			FreeEntry(batch[i]);
	} while (n == SWEEP_BATCH);
	pfree(batch);
}

void
DlockMapSweep(void)
{
	Sweep(NULL);
}

/* Forget all about a database: it, or its extension, was dropped. */
void
DlockMapPurge(DlockDatabase *db)
{
	pg_atomic_write_u32(&db->gone, 1);
	pg_atomic_write_u32(&db->adopted, 0);
	pg_atomic_write_u32(&db->raised, 0);
	pg_atomic_write_u64(&db->held, 0);
	Sweep(db);					/* the leases */
	Sweep(db);					/* and sessions that had some */
}

/* ----------
 * Adding
 * ----------
 */

/*
 * Count a new entry; 53200 when the map is full.  What a start found in a table
 * has its place ("adopted"), however many there are: how else should it end?
 */
static void
CountEntry(bool adopted)
{
	for (int tries = 0; tries < 2; tries++)
	{
		if (pg_atomic_fetch_add_u64(&DlockShared->entries, 1) < (uint64) dlock_max_leases ||
			adopted)
			return;
		pg_atomic_fetch_sub_u64(&DlockShared->entries, 1);
		if (tries == 0)
			DlockMapSweep();	/* for when the launcher is not there to do it */
	}
	ereport(ERROR,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("too many leases are held"),
			 errdetail("With sessions and locks at rest they are as many as \"%s\" allows, %d.",
					   "dlock.max_leases", dlock_max_leases),
			 errhint("You might need to increase \"%s\".", "dlock.max_leases")));
}

/*
 * Allocate memory of the area; invalid when there is none, or when the system
 * does not give any, and why.
 */
static dsa_pointer
TryAllocate(Size size, const char **why)
{
	volatile dsa_pointer pointer = InvalidDsaPointer;
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;

	*why = NULL;
	PG_TRY();
	{
		pointer = dsa_allocate_extended(area, size, DSA_ALLOC_NO_OOM | DSA_ALLOC_ZERO);
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		*why = CopyErrorData()->message;
		FlushErrorState();
		LWLockReleaseAll();		/* those of the area; we hold no others */
	}
	PG_END_TRY();
	return pointer;
}

/* Allocate an entry that has been counted; 53200 when that cannot be. */
static pg_noinline dsa_pointer
AllocateEntry(Size size)
{
	const char *why;
	dsa_pointer pointer = TryAllocate(size, &why);

	if (!DsaPointerIsValid(pointer))
	{
		DlockMapSweep();		/* for when the launcher has not done it yet */
		pointer = TryAllocate(size, &why);
	}
	if (!DsaPointerIsValid(pointer))
	{
		pg_atomic_fetch_sub_u64(&DlockShared->entries, 1);
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of shared memory"),
				 why ? errdetail_internal("%s", why) : 0,
				 errhint("You might need to decrease \"%s\", or to give the machine more shared memory.",
						 "dlock.max_leases")));
	}
	return pointer;
}

/*
 * Add a pending lease, or a session (its id negative).  NULL, having changed
 * nothing, when it is there already, as in an adoption that is done again, or
 * when the session it belongs to is gone.
 *
 * The entry comes pinned, for whoever has to start it.  Raises 53200 when the
 * map or the memory is full.
 */
DlockLive *
DlockMapInsert(DlockDatabase *db, int64 id, const DlockRequest *request, int slot)
{
	const char *name = id > 0 ? request->name : request->owner;
	int			namelen = id > 0 ? request->namelen : (int) strlen(request->owner);
	int			sharelen = request->share ? (int) strlen(request->share) : 0;
	DlockKey	key;
	LeaseEntry *entry;
	LockEntry  *lock;
	dsa_pointer pointer;
	DlockLive  *live;
	bool		found;

	if (id > 0)
		FreeGarbageOf(db, DlockHashName(name, namelen));
	CountEntry(request->pid == 0);
	pointer = AllocateEntry(offsetof(DlockLive, name) + namelen + sharelen);
	live = DlockMapAt(pointer);
	DlockMapKey(&live->key, db, id);
	live->self = pointer;
	live->namehash = id > 0 ? DlockHashName(name, namelen) : 0;
	pg_atomic_init_u64(&live->word, DLOCK_WORD_PENDING);
	pg_atomic_init_u64(&live->died_at, 0);
	pg_atomic_init_u64(&live->guarded_until, 0);
	pg_atomic_init_u64(&live->rests_until, 0);
	pg_atomic_init_u64(&live->ttl, request->ttl * DLOCK_NS_PER_US);
	pg_atomic_init_u64(&live->heartbeats, 0);
	pg_atomic_init_u64(&live->refused, 0);
	pg_atomic_init_u64(&live->last_refused_at, 0);
	pg_atomic_init_u32(&live->pins, 1);
	pg_atomic_init_u32(&live->ender, 0);
	pg_atomic_init_u32(&live->by_worker, 0);
	pg_atomic_init_u32(&live->rest_kind, DLOCK_STATE_MIN_HOLD);
	pg_atomic_init_u32(&live->revoked, 0);
	pg_atomic_init_u32(&live->lost, 0);
	pg_atomic_init_u32(&live->outcome, DLOCK_EXPIRED);
	live->min_hold = Max(request->min_hold, 0) * DLOCK_NS_PER_US;
	live->takeover_delay = request->takeover_delay * DLOCK_NS_PER_US;
	live->role = request->role;
	live->pid = request->pid;
	live->slot = slot;
	live->capacity = request->capacity;
	live->namelen = namelen;
	live->sharelen = sharelen;
	memcpy(live->name, name, namelen);
	if (sharelen > 0)
		memcpy(live->name + namelen, request->share, sharelen);

	/*
	 * Among the leases first; what follows can then leave to a sweep an entry
	 * that it could not finish.  While the error of a table is on its way,
	 * its partition is still locked, and nothing else can be looked up.
	 */
	PG_TRY();
	{
		entry = dshash_find_or_insert(leases, &live->key, &found);
	}
	PG_CATCH();
	{
		/* the area may be locked still: its memory is lost */
		pg_atomic_fetch_sub_u64(&DlockShared->entries, 1);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (!found)
		entry->live = pointer;
	dshash_release_lock(leases, entry);
	if (found)
	{
		dsa_free(area, pointer);
		pg_atomic_fetch_sub_u64(&DlockShared->entries, 1);
		return NULL;
	}
	if (id < 0)
		return live;

	if (request->session != 0)
	{
		DlockLive  *session;

		DlockMapKey(&key, db, -request->session);
		session = DlockMapFind(&key, true);
		if (session != NULL && pg_atomic_read_u32(&session->ender) != 0)
		{
			/* who is closing it has listed its leases, or will see this one */
			DlockMapRelease();
			session = NULL;
		}
		if (session == NULL)
		{
			DlockLiveEnd(live, DLOCK_STATE_OVER, 0);
			DlockLiveUnpin(live);
			return NULL;
		}
		live->session = session->self;
		live->session_next = session->session_next;
		if (DsaPointerIsValid(session->session_next))
			DlockMapAt(session->session_next)->session_prev = pointer;
		session->session_next = pointer;
		DlockMapRelease();
	}

	DlockMapKey(&key, db, (int64) live->namehash);
	PG_TRY();
	{
		lock = dshash_find_or_insert(locks, &key, &found);
	}
	PG_CATCH();
	{
		DlockLiveEnd(live, DLOCK_STATE_OVER, 0);
		DlockLiveUnpin(live);
		PG_RE_THROW();
	}
	PG_END_TRY();
	if (!found)
		lock->first = InvalidDsaPointer;
	live->next = lock->first;
	lock->first = pointer;
	dshash_release_lock(locks, lock);

	return live;
}
