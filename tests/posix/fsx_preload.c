/* Gives fsx what it has no switch for: O_DIRECT, FALLOC_FL_ZERO_RANGE, and fallocate without glibc's stand-in.
 *
 * LD_PRELOAD=fsx_preload.so FSX_FILE=PATH fsx ... PATH
 *
 * Every second time that PATH is opened it is opened with O_DIRECT, so that what one way wrote the other way reads. Every
 * second hole is punched as a zeroed range, whose bytes are the same. posix_fallocate fails where fallocate(2) does: glibc would
 * write a byte into each block instead. fsx 0.3.2 never unmaps what it maps to read: of these maps the last 64 are kept, since with
 * tens of thousands each invalidation takes milliseconds, and 65,530 is where Linux ends. At the end it says on standard error
 * how often it did each.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>

static unsigned opens, direct, holes, zeroed, allocated;

static int flags_for(const char *path, int flags) {
  const char *file = getenv("FSX_FILE");
  if (!file || strcmp(path, file) != 0 || opens++ % 2 == 0) return flags;
  direct++;
  return flags | O_DIRECT;
}

#define OPEN(NAME)                                                                   \
  int NAME(const char *path, int flags, ...) {                                       \
    mode_t mode = 0;                                                                 \
    if (flags & (O_CREAT | __O_TMPFILE)) {                                           \
      va_list rest;                                                                  \
      va_start(rest, flags);                                                         \
      mode = va_arg(rest, int);                                                      \
      va_end(rest);                                                                  \
    }                                                                                \
    int (*next)(const char *, int, ...) = dlsym(RTLD_NEXT, #NAME);                   \
    return next(path, flags_for(path, flags), mode);                                 \
  }
OPEN(open)
OPEN(open64)

int fallocate(int fd, int mode, off_t offset, off_t length) {
  int (*next)(int, int, off_t, off_t) = dlsym(RTLD_NEXT, "fallocate");
  if (mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE) && holes++ % 2) {
    zeroed++;
    mode = FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE;
  }
  return next(fd, mode, offset, length);
}

int posix_fallocate(int fd, off_t offset, off_t length) {
  allocated++;
  return fallocate(fd, 0, offset, length) ? errno : 0;
}

enum { KEPT = 64 };
static struct {
  void *start;
  size_t length;
} maps[KEPT];
static unsigned mapped;

static void *remember(void *start, size_t length, int flags) {
  if (start == MAP_FAILED || !(flags & MAP_SHARED)) return start;
  unsigned oldest = mapped++ % KEPT;
  if (maps[oldest].start) munmap(maps[oldest].start, maps[oldest].length);
  maps[oldest].start = start;
  maps[oldest].length = length;
  return start;
}

#define MMAP(NAME)                                                                          \
  void *NAME(void *at, size_t length, int protection, int flags, int fd, off_t offset) {    \
    void *(*next)(void *, size_t, int, int, int, off_t) = dlsym(RTLD_NEXT, #NAME);          \
    return remember(next(at, length, protection, flags, fd, offset), length, flags);        \
  }
MMAP(mmap)
MMAP(mmap64)

int munmap(void *start, size_t length) {
  for (unsigned i = 0; i < KEPT; i++)
    if (maps[i].start == start) maps[i].start = NULL;
  int (*next)(void *, size_t) = dlsym(RTLD_NEXT, "munmap");
  return next(start, length);
}

__attribute__((destructor)) static void report(void) {
  fprintf(stderr, "fsx_preload: %u opens, %u direct, %u holes, %u zeroed, %u allocated, %u mapped\n", opens, direct, holes,
          zeroed, allocated, mapped);
}
