// Preloaded into a program: reads of one file fail as on a broken disk.
//
//   READ_FAILS=x.npy READ_FAILS_AFTER=1000 LD_PRELOAD=read_fails.so halfnote run …
//
// Files whose path ends so give that many bytes, then EIO; they cannot be mapped, as on a file
// system that does not map files.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int is_broken(int file) {
  const char* end = getenv("READ_FAILS");
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = end == NULL ? -1 : readlink(link, path, sizeof path);
  if (length < 0 || (size_t)length < strlen(end)) return 0;
  return memcmp(path + length - strlen(end), end, strlen(end)) == 0;
}

ssize_t read(int file, void* to, size_t count) {
  static ssize_t (*next)(int, void*, size_t);
  static size_t given;
  if (next == NULL) next = (ssize_t(*)(int, void*, size_t))dlsym(RTLD_NEXT, "read");
  if (!is_broken(file)) return next(file, to, count);
  const size_t left = strtoull(getenv("READ_FAILS_AFTER"), NULL, 10) - given;
  if (left == 0) {
    errno = EIO;
    return -1;
  }
  const ssize_t got = next(file, to, count < left ? count : left);
  if (got > 0) given += (size_t)got;
  return got;
}

void* mmap(void* at, size_t size, int protection, int flags, int file, off_t offset) {
  static void* (*next)(void*, size_t, int, int, int, off_t);
  if (next == NULL) {
    next = (void* (*)(void*, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
  }
  if (file < 0 || !is_broken(file)) return next(at, size, protection, flags, file, offset);
  errno = ENODEV;
  return MAP_FAILED;
}
