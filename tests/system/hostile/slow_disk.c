// A disk that is slow, or away: preloaded into a worker (LD_PRELOAD), it stands before the C library's calls about files.
// A call on a path at or below SLOW_DISK_PREFIX is written to the file SLOW_DISK_LOG, a line "thread call path", and then
// waits for as long as the file SLOW_DISK_HANG is there and names it ("pread fsync"), or is empty. A pread, pwrite or
// fallocate that the file SLOW_DISK_FAIL names in the same way fails, as those of a broken or a full disk; so do an fsync, an
// fdatasync and a fork, but only where their names stand there. Others pass.

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_below(const char* path) {
  const char* const prefix = getenv("SLOW_DISK_PREFIX");
  const size_t length = prefix == NULL ? 0 : strlen(prefix);
  return length > 0 && strncmp(path, prefix, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

static long raw(long number, long a, long b, long c, long d) { return REAL(syscall)(number, a, b, c, d); }

static int is_named(const char* variable, const char* call) {
  char names[256];
  const char* const path = getenv(variable);
  const int fd = path == NULL ? -1 : (int)raw(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return 0;
  const ssize_t length = raw(SYS_read, fd, (long)names, sizeof(names) - 1, 0);
  raw(SYS_close, fd, 0, 0, 0);
  names[length < 0 ? 0 : length] = '\0';
  return length <= 0 || strstr(names, call) != NULL;
}

// As is_named, and an empty file names none.
static int is_spelled(const char* variable, const char* call) {
  struct stat info;
  const char* const path = getenv(variable);
  return path != NULL && REAL(stat)(path, &info) == 0 && info.st_size > 0 && is_named(variable, call);
}

static void wait_and_log(const char* call, const char* path) {
  const int before = errno;
  char thread[32] = "?", line[PATH_MAX + 128];
  pthread_getname_np(pthread_self(), thread, sizeof(thread));
  const int length = snprintf(line, sizeof(line), "%s %s %s\n", thread, call, path);
  const char* const log = getenv("SLOW_DISK_LOG");
  if (log != NULL) {
    const int fd = (int)raw(SYS_openat, AT_FDCWD, (long)log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0) {
      raw(SYS_write, fd, (long)line, length, 0);
      raw(SYS_close, fd, 0, 0, 0);
    }
  }
  const struct timespec pause = {0, 5 * 1000 * 1000};
  while (is_named("SLOW_DISK_HANG", call)) nanosleep(&pause, NULL);
  errno = before;
}

static void meet_path(const char* call, int folder, const char* path) {
  char whole[2 * PATH_MAX], link[64], base[PATH_MAX];
  if (path == NULL) return;
  if (path[0] == '/' || folder == AT_FDCWD) {
    snprintf(whole, sizeof(whole), "%s", path);
  } else {
    snprintf(link, sizeof(link), "/proc/self/fd/%d", folder);
    const ssize_t length = raw(SYS_readlink, (long)link, (long)base, sizeof(base) - 1, 0);
    if (length < 0) return;
    base[length] = '\0';
    snprintf(whole, sizeof(whole), "%s/%s", base, path);
  }
  if (is_below(whole)) wait_and_log(call, whole);
}

// Whether the call is to fail.
static int meet_fd(const char* call, int fd) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t length = raw(SYS_readlink, (long)link, (long)path, sizeof(path) - 1, 0);
  if (length < 0) return 0;
  path[length] = '\0';
  if (!is_below(path)) return 0;
  wait_and_log(call, path);
  return is_named("SLOW_DISK_FAIL", call);
}
static int fail(int error) {
  errno = error;
  return -1;
}

// openat2 has no wrapper; the worker calls it by its number.
long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  if (number == SYS_openat2) meet_path("openat2", (int)a[0], (const char*)a[1]);
  return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (mode_t)va_arg(list, int);
  va_end(list);
  meet_path("open", AT_FDCWD, path);
  return REAL(open)(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (mode_t)va_arg(list, int);
  va_end(list);
  meet_path("open64", AT_FDCWD, path);
  return REAL(open64)(path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (mode_t)va_arg(list, int);
  va_end(list);
  meet_path("openat", folder, path);
  return REAL(openat)(folder, path, flags, mode);
}
int close(int fd) {
  meet_fd("close", fd);
  return REAL(close)(fd);
}
int fstat(int fd, struct stat* info) {
  meet_fd("fstat", fd);
  return REAL(fstat)(fd, info);
}
int fstatat(int folder, const char* path, struct stat* info, int flags) {
  meet_path("fstatat", folder, path);
  return REAL(fstatat)(folder, path, info, flags);
}
ssize_t pread(int fd, void* to, size_t size, off_t offset) {
  if (meet_fd("pread", fd)) return fail(EIO);
  return REAL(pread)(fd, to, size, offset);
}
ssize_t pread64(int fd, void* to, size_t size, off64_t offset) {
  if (meet_fd("pread", fd)) return fail(EIO);
  return REAL(pread64)(fd, to, size, offset);
}
ssize_t pwrite(int fd, const void* from, size_t size, off_t offset) {
  if (meet_fd("pwrite", fd)) return fail(ENOSPC);
  return REAL(pwrite)(fd, from, size, offset);
}
ssize_t pwrite64(int fd, const void* from, size_t size, off64_t offset) {
  if (meet_fd("pwrite", fd)) return fail(ENOSPC);
  return REAL(pwrite64)(fd, from, size, offset);
}
int fsync(int fd) {
  meet_fd("fsync", fd);
  if (is_spelled("SLOW_DISK_FAIL", "fsync")) return fail(EIO);
  return REAL(fsync)(fd);
}
int fdatasync(int fd) {
  meet_fd("fdatasync", fd);
  if (is_spelled("SLOW_DISK_FAIL", "fdatasync")) return fail(EIO);
  return REAL(fdatasync)(fd);
}
pid_t fork(void) {
  if (is_spelled("SLOW_DISK_FAIL", "fork")) return fail(EAGAIN);
  return REAL(fork)();
}
int syncfs(int fd) {
  meet_fd("syncfs", fd);
  return REAL(syncfs)(fd);
}
int fallocate(int fd, int mode, off_t offset, off_t size) {
  if (meet_fd("fallocate", fd)) return fail(ENOSPC);
  return REAL(fallocate)(fd, mode, offset, size);
}
int ftruncate(int fd, off_t size) {
  meet_fd("ftruncate", fd);
  return REAL(ftruncate)(fd, size);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  meet_path("renameat2", from_folder, from);
  return REAL(renameat2)(from_folder, from, to_folder, to, flags);
}
int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  meet_path("linkat", to_folder, to);
  return REAL(linkat)(from_folder, from, to_folder, to, flags);
}
int unlinkat(int folder, const char* path, int flags) {
  meet_path("unlinkat", folder, path);
  return REAL(unlinkat)(folder, path, flags);
}
int mkdirat(int folder, const char* path, mode_t mode) {
  meet_path("mkdirat", folder, path);
  return REAL(mkdirat)(folder, path, mode);
}
