/* clock: a library that shows a process another time of day.
 *
 * The file that CLOCK_AHEAD names has 8 bytes, in the machine's byte order: the seconds that this clock is ahead of the
 * machine's. Whoever writes them sets it. Clocks that nobody sets (CLOCK_MONOTONIC) are as they are.
 *
 *   cc -shared -fPIC -o clock.so clock.c && CLOCK_AHEAD=file LD_PRELOAD=./clock.so program
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead;

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("CLOCK_AHEAD");
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (file < 0)
		return;
	void *shared = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
	close(file);
	if (shared != MAP_FAILED)
		ahead = shared;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
	int status = syscall(SYS_clock_gettime, clock, time);
	if (status == 0 && clock == CLOCK_REALTIME && ahead)
		time->tv_sec += *ahead;
	return status;
}
