/* Checks by init whether a limit of the cell's file systems or descriptors, or of a program, was reached. */
#define _GNU_SOURCE
#include "cell.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_ENTRIES 100000
#define MAX_DEPTH 12 /* one descriptor each, all below the smallest open-files limit */

static int is_full(const char *path) {
  struct statfs info;
  if (statfs(path, &info) != 0) return 0;
  return info.f_bavail == 0 || (info.f_files > 0 && info.f_ffree == 0);
}

static int has_too_many_open(pid_t pid, uint64_t most) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd", pid);
  uint64_t count = 0;
  DIR *table = opendir(path);
  if (table == NULL && act_as_second()) {
    table = opendir(path);
    act_as_first();
  }
  if (table == NULL) return 1; /* cannot be counted: treated as over the limit */
  while (readdir(table) != NULL) count++;
  closedir(table);
  return count >= most + 2; /* "." and ".." are not descriptors */
}

/* The filter reports two things: that a socket is about to be made, where the network namespace may be
 * handed on, and the use of a descriptor number at or above the limit. A high number alone is harmless
 * (bash moves its script near the top), so the table is counted. A call that continues is one that the
 * filter would have allowed. Returns whether the limit was hit. */
int handle_notice(struct cell *cell) {
  struct seccomp_notif notice = {0};
  if (ioctl(cell->listener, SECCOMP_IOCTL_NOTIF_RECV, &notice) != 0) {
    /* The caller was killed before init could ask, or init cannot tell what was reported. */
    cell->has_socket = 1;
    return 0;
  }
  if (notice.data.nr == SYS_socket || notice.data.nr == SYS_socketpair) cell->has_socket = 1;
  else if (has_too_many_open((pid_t)notice.pid, cell->max_open_files)) return 1;
  struct seccomp_notif_resp answer = {.id = notice.id,
                                      .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
  ioctl(cell->listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
  return 0;
}

static int search(int parent, const char *name, uint64_t size, int depth, int *left) {
  int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return 0;
  DIR *dir = fdopendir(fd);
  if (dir == NULL) {
    close(fd);
    return 0;
  }
  int found = 0;
  struct dirent *entry;
  while (!found && --*left > 0 && (entry = readdir(dir)) != NULL) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    struct stat info;
    if (fstatat(fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (S_ISREG(info.st_mode)) found = (uint64_t)info.st_size == size;
    if (S_ISDIR(info.st_mode) && depth < MAX_DEPTH)
      found = search(fd, entry->d_name, size, depth + 1, left);
  }
  closedir(dir);
  return found;
}

/* RLIMIT_FSIZE is one byte above the limit, so a file of exactly that size shows that the limit was
 * hit even when the program survived the refusal. */
static int has_file_of(const char *path, uint64_t size) {
  int left = MAX_ENTRIES;
  return search(AT_FDCWD, path, size, 0, &left);
}

const char *limit_of_mounts(const struct cell *cell) {
  for (int i = 0; i < cell->watched_count; i++)
    if (is_full(cell->watched[i])) return "disk";
  return NULL;
}

/* For a kernel that tells nobody of a refused fork (gVisor's): it allows a few more than the limit, so that
 * more than the limit are seen. Those that have ended count until they are reaped. */
const char *limit_of_tasks(const struct cell *cell) {
  struct sysinfo info;
  if (cell->max_tasks == 0 || sysinfo(&info) != 0) return NULL;
  return info.procs > cell->max_tasks ? "processes" : NULL;
}

/* Searching memory is fast; directories on disk are searched only after a failure. */
static int has_too_large(const struct cell *cell, int status) {
  for (int i = 0; i < cell->watched_count; i++)
    if (has_file_of(cell->watched[i], cell->max_file_bytes + 1)) return 1;
  for (int i = 0; status != 0 && i < cell->searched_count; i++)
    if (has_file_of(cell->searched[i], cell->max_file_bytes + 1)) return 1;
  return 0;
}

const char *limit_after_end(const struct cell *cell, int status) {
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ) return "file_size";
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU) return "cpu";
  const char *limit = limit_of_mounts(cell);
  if (limit != NULL) return limit;
  int found = has_too_large(cell, status);
  if (!found && act_as_second()) { /* directories that are closed to the first user */
    found = has_too_large(cell, status);
    act_as_first();
  }
  return found ? "file_size" : NULL;
}
