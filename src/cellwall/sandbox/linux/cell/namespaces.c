/* A cell forked inside a template does here what bubblewrap does for a cold cell: it is already in
 * namespaces of its own and holds every capability over them, and over no other. */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void put(const char *path, const char *text, const char *step) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, text, strlen(text)) < 0) die(step);
  close(fd);
}

void map_ids(uint64_t uid, uint64_t gid) {
  char text[64];
  /* The map files belong to root while a process is not dumpable; no other process is here yet. */
  if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) != 0) die("ids-dumpable");
  put("/proc/self/setgroups", "deny", "ids-groups");
  snprintf(text, sizeof text, "%llu %llu 1", (unsigned long long)uid, (unsigned long long)uid);
  put("/proc/self/uid_map", text, "ids-uid");
  snprintf(text, sizeof text, "%llu %llu 1", (unsigned long long)gid, (unsigned long long)gid);
  put("/proc/self/gid_map", text, "ids-gid");
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) die("ids-dumpable");
}

/* The file was opened outside: the kernel checks the credentials of the opener. */
void join_group(int fd) {
  if (write(fd, "0", 1) != 1) die("join-group");
  close(fd);
}

void own_namespaces(void) {
  /* Only after joining the cell's group, which becomes "/" of the cgroup namespace. */
  if (unshare(CLONE_NEWCGROUP) != 0) die("unshare-cgroup");
  if (mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) die("mounts-private");
}

void mount_proc(void) {
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0)
    die("mount-proc");
}

/* The kernel counts some resources per uid, which the cells of a template share: this is the share of
 * one cell. Fairness between cells, not a wall; a kernel without the setting is accepted. */
void put_share(const char *path, const char *value) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  (void)!write(fd, value, strlen(value));
  close(fd);
}
