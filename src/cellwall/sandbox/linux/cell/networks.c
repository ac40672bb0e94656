/* Network namespaces that single-use cells without egress have, one after the other.
 *
 * The kernel needs as long for a network namespace as for everything else of a clone, and again as long
 * to bury it. The zygote makes them itself, and a cell is born in one of them:
 *
 * (1) They belong to a user namespace of the zygote's, in which it holds two capabilities, and which owns
 *     nothing else. The cell's own user namespace lies below it: no process of the cell has a capability
 *     over its network at any time, so no device, address, route, rule or setting of it can change.
 * (2) All else that a network namespace can hold comes from sockets. The filter of such a cell reports
 *     every call that makes one to init, which answers before the kernel makes it (init.c, SOCKETS).
 * (3) Init exits with STATUS_NO_SOCKET only if there was no such call. The kernel gives its status to the
 *     zygote, its parent, and only after every process of the cell's PID namespace is dead.
 * (4) Before such a namespace is handed on its counters are compared with those of a new one.
 *
 * In any other case the namespace is dropped and never entered again.
 */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_NETWORKS 32
#define STATE_BYTES 16384
#define NO_NETWORK MAX_NETWORKS /* made for one cell, since the list is full */

/* Files of the kernel about one namespace, which stay open: its sockets, packets and errors. */
static const char *const counters[] = {"/proc/self/net/sockstat", "/proc/self/net/dev",
                                       "/proc/self/net/snmp", "/proc/self/net/snmp6"};
#define COUNTERS (sizeof counters / sizeof *counters)
#define NEEDED_COUNTERS 3 /* without them nothing is handed on; the last is of IPv6 */

static struct network {
  int fd;     /* -1: none here */
  pid_t cell; /* the init of the cell that is in it; 0: none since it was made or found unused */
  int files[COUNTERS];
} networks[MAX_NETWORKS];
static int home_fd = -1;
static char state_of_new[STATE_BYTES];
static size_t state_of_new_bytes;

/* Of the namespace in which the process is. Not in a cell: see FIRST_ZYGOTE_FD. */
static int open_here(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  int moved = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_ZYGOTE_FD);
  close(fd);
  return moved;
}

/* Once, before the first cell. The process may make such a user namespace at any time, and gains no right
 * over anything that exists by it. */
void networks_begin(void) {
  uint64_t uid = geteuid(), gid = getegid();
  /* With a network namespace to which it can return; its loopback device stays down. */
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) die("networks-user");
  map_ids(uid, gid);
  const unsigned kept = 1u << CAP_SYS_ADMIN | 1u << CAP_NET_ADMIN;
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[2] = {{.effective = kept, .permitted = kept}};
  if (syscall(SYS_capset, &header, data) != 0) die("networks-capabilities");
  home_fd = open_here("/proc/self/ns/net");
  if (home_fd < 0) die("networks-home");
  for (int i = 0; i < MAX_NETWORKS; i++) networks[i].fd = -1;
}

/* At most STATE_BYTES; that many are not the whole state. */
static size_t read_state(const struct network *network, char *text) {
  size_t length = 0;
  for (size_t i = 0; i < COUNTERS; i++) {
    if (network->files[i] < 0) continue; /* a kernel without IPv6 */
    size_t start = length;
    ssize_t got;
    while (length < STATE_BYTES && (got = pread(network->files[i], text + length, STATE_BYTES - length,
                                                (off_t)(length - start))) != 0) {
      if (got < 0) return STATE_BYTES;
      length += (size_t)got;
    }
    /* The first line of the first file is of this namespace; the others count pages of the whole host. */
    const char *end = i == 0 ? memchr(text, '\n', length) : NULL;
    if (end != NULL) length = (size_t)(end - text);
  }
  return length;
}

static int is_as_new(const struct network *network) {
  static char state[STATE_BYTES];
  size_t length = read_state(network, state);
  return length < STATE_BYTES && length == state_of_new_bytes && memcmp(state, state_of_new, length) == 0;
}

static int make(struct plan settings) {
  if (unshare(CLONE_NEWNET) != 0 || raise_loopback() != 0) return -1;
  const char *verb;
  while ((verb = plan_word(&settings)) != NULL && strcmp(verb, "network-setting") == 0) {
    const char *path = plan_need(&settings);
    if (write_setting(path, plan_need(&settings)) != 0) return -1;
  }
  return 0;
}

static void drop(struct network *network) {
  close(network->fd);
  for (size_t i = 0; i < COUNTERS; i++)
    if (network->files[i] >= 0) close(network->files[i]);
  network->fd = -1;
}

/* Into the list, the namespace in which the process is. Returns whether it can be. */
static int keep(struct network *network) {
  *network = (struct network){.fd = open_here("/proc/self/ns/net")};
  if (network->fd < 0) return 0;
  for (size_t i = 0; i < COUNTERS; i++) network->files[i] = open_here(counters[i]);
  for (size_t i = 0; i < NEEDED_COUNTERS; i++) {
    if (network->files[i] >= 0) continue;
    drop(network);
    return 0;
  }
  if (state_of_new_bytes == 0) state_of_new_bytes = read_state(network, state_of_new);
  return 1;
}

/* Moves the process into a network namespace as new, and says in which place of the list it is; -1 with
 * errno. `settings`: the steps after "kept-network". `network_leave` follows, whatever is returned. */
int network_enter(struct plan settings) {
  int place = NO_NETWORK;
  for (int i = 0; i < MAX_NETWORKS; i++) {
    if (networks[i].fd < 0) {
      place = i;
      continue;
    }
    if (networks[i].cell != 0) continue;
    if (is_as_new(&networks[i]) && setns(networks[i].fd, CLONE_NEWNET) == 0) return i;
    drop(&networks[i]);
    place = i;
  }
  if (make(settings) != 0) return -1;
  return place != NO_NETWORK && keep(&networks[place]) ? place : NO_NETWORK;
}

/* Back. The cell, if there is one, stays in the namespace in which it was born. */
void network_leave(int place, pid_t cell) {
  if (setns(home_fd, CLONE_NEWNET) != 0) die("networks-leave");
  if (place >= 0 && place < MAX_NETWORKS && cell > 0) networks[place].cell = cell;
}

/* Reaps ended cells. */
void networks_reap(void) {
  int status;
  pid_t pid;
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
    for (int i = 0; i < MAX_NETWORKS; i++) {
      if (networks[i].fd < 0 || networks[i].cell != pid) continue;
      networks[i].cell = 0;
      if (!WIFEXITED(status) || WEXITSTATUS(status) != STATUS_NO_SOCKET) drop(&networks[i]);
    }
  }
}
