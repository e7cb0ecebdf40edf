/*
 * wallclock.c
 *	  A wall clock that a test can set: preloaded into a server, it adds to the
 *	  time of day as many seconds as stand in the file that WALLCLOCK names.
 *
 * The monotonic clock stays as it is.  Signal handlers ask for the time too, so
 * this does nothing but load a number and make a system call.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t *offset;

/* Map the file, or give up: without it a test would test nothing. */
__attribute__((constructor)) static void
Init(void)
{
	const char *name = getenv("WALLCLOCK");
	int			fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	void	   *map;

	if (fd < 0)
	{
		perror("WALLCLOCK");
		abort();
	}
	map = mmap(NULL, sizeof(*offset), PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
	{
		perror(name);
		abort();
	}
	offset = map;
	close(fd);
}

int
clock_gettime(clockid_t clock, struct timespec *ts)
{
	int			result = syscall(SYS_clock_gettime, clock, ts);

	if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		ts->tv_sec += __atomic_load_n(offset, __ATOMIC_RELAXED);
	return result;
}

int
gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	struct timespec ts;

	(void) tz;
	if (clock_gettime(CLOCK_REALTIME, &ts) != 0)
		return -1;
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *result)
{
	struct timespec ts;

	if (clock_gettime(CLOCK_REALTIME, &ts) != 0)
		return -1;
	if (result)
		*result = ts.tv_sec;
	return ts.tv_sec;
}
