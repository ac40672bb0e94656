/* What bubblewrap does for a cold cell, done by a cell that was forked inside a template: it is in
 * namespaces of its own already and holds every capability over them, and over nothing else. */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void put(const char *path, const char *text, const char *step) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, text, strlen(text)) < 0) die(step);
  close(fd);
}

void map_ids(uint64_t uid, uint64_t gid) {
  char text[64];
  /* The maps belong to root as long as we cannot be dumped; nothing else is in our namespaces yet. */
  if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) != 0) die("ids-dumpable");
  put("/proc/self/setgroups", "deny", "ids-groups");
  snprintf(text, sizeof text, "%llu %llu 1", (unsigned long long)uid, (unsigned long long)uid);
  put("/proc/self/uid_map", text, "ids-uid");
  snprintf(text, sizeof text, "%llu %llu 1", (unsigned long long)gid, (unsigned long long)gid);
  put("/proc/self/gid_map", text, "ids-gid");
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) die("ids-dumpable");
}

/* The file was opened outside, with the right to write to it: the kernel counts the opener's. */
void join_group(int fd) {
  if (write(fd, "0", 1) != 1) die("join-group");
  close(fd);
}

void own_namespaces(void) {
  /* Only now, when we are in the cell's group: its root is what the cell sees as "/". */
  if (unshare(CLONE_NEWCGROUP) != 0) die("unshare-cgroup");
  if (mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) die("mounts-private");
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) die("loopback-socket");
  struct ifreq request = {.ifr_flags = IFF_UP | IFF_RUNNING};
  strcpy(request.ifr_name, "lo");
  if (ioctl(fd, SIOCSIFFLAGS, &request) != 0) die("loopback-up");
  close(fd);
}

void mount_proc(void) {
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0)
    die("mount-proc");
}

/* The kernel counts some things for a whole uid, which cells of a template share: one cell's part. A
 * courtesy to neighbours, not a wall; a kernel without the setting has none. */
void put_share(const char *path, const char *value) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  (void)!write(fd, value, strlen(value));
  close(fd);
}
