/* PID 1 of a virtual machine that holds one cell.
 *
 * (1) load the drivers; (2) mount the shared root, read-only, and the workspace; (3) report to the relay;
 * (4) on its START, write the limits and start bubblewrap and init as the shim does on a host; (5) pass
 * bytes and messages, and the counters of the cell, until every process of it has ended.
 *
 * Nothing here protects the host: the machine, the relay and the wall around the emulator do. The cell
 * has the inner walls of a native one, so that its code must first leave them to reach this kernel.
 */
#define _GNU_SOURCE
#include "cell.h"
#include "link.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PORT "/dev/vport0p1"
#define PORT_WITHIN_TRIES 5000
#define CELL_GROUP "/sys/fs/cgroup/cell"
#define USAGE_EVERY_MS 100
#define MAIN_STREAM 0
#define MODULE_COMPRESSED 4 /* MODULE_INIT_COMPRESSED_FILE */
#define LANDLOCK_ABI_QUERY 1u
#define NR_landlock_create_ruleset 444

static int theirs[MAX_STREAMS]; /* the program's ends, until they were handed to init */
static pid_t child = -1;
static int has_ended;
static uid_t owner; /* of the pipes */

static _Noreturn void power_off(void) {
  reboot(RB_POWER_OFF);
  _exit(125); /* the kernel panics, and the emulator ends */
}

static void on_violation(const char *why) {
  (void)why;
  power_off();
}

/* The relay and the supervisor are told the step; before there is a link, the machine just ends. */
static _Noreturn void fail(const char *step) {
  char text[MAX_PACKET_BYTES];
  int error = errno;
  if (link_state.fd > 0) {
    int length = snprintf(text, sizeof text, "fail machine-%s %d", step, error);
    link_put(FRAME_FAIL, 0, text, (size_t)length);
    for (int i = 0; i < 100 && !link_state.is_over; i++) link_poll(NULL, 0, 100);
  }
  power_off();
}

static void mount_on(const char *what, const char *where, const char *kind, unsigned long flags,
                     const char *options) {
  mkdir(where, 0755);
  if (mount(what, where, kind, flags, options) != 0) fail(where[0] == '/' ? "mount" : where);
}

static void load_modules(void) {
  char name[160], path[200];
  FILE *order = fopen("/modules/order", "re");
  while (order != NULL && fscanf(order, "%159s", name) == 1) {
    snprintf(path, sizeof path, "/modules/%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t length = strlen(name);
    int is_plain = length > 3 && strcmp(name + length - 3, ".ko") == 0;
    /* A module that does not load shows by the device that is missing. */
    if (fd >= 0) syscall(SYS_finit_module, fd, "", is_plain ? 0 : MODULE_COMPRESSED);
    if (fd >= 0) close(fd);
  }
  if (order != NULL) fclose(order);
}

static int open_port(void) {
  const struct timespec pause = {0, 2 * 1000 * 1000};
  for (int i = 0; i < PORT_WITHIN_TRIES; i++) {
    int fd = open(PORT, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) return fd;
    nanosleep(&pause, NULL);
  }
  power_off();
}

static void enter_root(const char *workspace) {
  static const char shared[] = "trans=virtio,version=9p2000.L,msize=262144";
  char options[128];
  snprintf(options, sizeof options, "%s,cache=loose", shared);
  mkdir("/root", 0755);
  if (mount("root", "/root", "9p", MS_RDONLY | MS_NOSUID | MS_NODEV, options) != 0) fail("root");
  if (workspace != NULL) {
    unsigned long flags = MS_NOSUID | MS_NODEV | (strcmp(workspace, "ro") == 0 ? MS_RDONLY : 0);
    snprintf(options, sizeof options, "%s,cache=mmap", shared);
    if (mount("workspace", "/root/run/workspace", "9p", flags, options) != 0) fail("workspace");
  }
  if (mount("/dev", "/root/dev", NULL, MS_MOVE, NULL) != 0 ||
      mount("/proc", "/root/proc", NULL, MS_MOVE, NULL) != 0 ||
      mount("/sys", "/root/sys", NULL, MS_MOVE, NULL) != 0)
    fail("move");
  /* bubblewrap changes its root, which the kernel refuses for the first one, of the initramfs. */
  if (chdir("/root") != 0 || mount(".", "/", NULL, MS_MOVE, NULL) != 0 || chroot(".") != 0)
    fail("switch");
}

static int put_text(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  int is_written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
  close(fd);
  return is_written;
}

static void make_group(void) {
  if (mount("cgroup2", "/sys/fs/cgroup", "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0)
    fail("cgroup");
  if (!put_text("/sys/fs/cgroup/cgroup.subtree_control", "+memory +pids") ||
      mkdir(CELL_GROUP, 0755) != 0)
    fail("cgroup");
}

/* --- the counters */

static uint64_t read_value(const char *name, const char *key) {
  char path[128], text[4096];
  snprintf(path, sizeof path, CELL_GROUP "/%s", name);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0) return 0;
  text[got] = '\0';
  const char *at = text;
  if (key != NULL && strncmp(text, key, strlen(key)) != 0) {
    at = strstr(text, key);
    while (at != NULL && at[-1] != '\n') at = strstr(at + 1, key);
  }
  return at == NULL ? 0 : strtoull(at + (key == NULL ? 0 : strlen(key)), NULL, 10);
}

static void send_usage(int is_due) {
  static struct usage last;
  struct usage usage = {
      .cpu_us = read_value("cpu.stat", "usage_usec "),
      .memory_peak = read_value("memory.peak", NULL),
      .memory_now = read_value("memory.current", NULL),
      .out_of_memory = read_value("memory.events", "oom_kill "),
      .forks_refused = read_value("pids.events", "max "),
  };
  if (usage.memory_peak == 0) /* kernels before 5.19 */
    usage.memory_peak = usage.memory_now > last.memory_peak ? usage.memory_now : last.memory_peak;
  if (!is_due && memcmp(&usage, &last, sizeof usage) == 0) return;
  last = usage;
  link_put(FRAME_USAGE, 0, &usage, sizeof usage);
}

/* --- streams */

static void open_stream(unsigned number, enum stream_kind kind) {
  int ends[2];
  if (kind == STREAM_BLOB) {
    int fd = memfd_create("plan", MFD_CLOEXEC);
    if (fd < 0) fail("memory");
    link_open(number, kind, fd, 0);
    theirs[number] = fd;
    return;
  }
  if (kind == STREAM_PACKETS) {
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fail("socket");
    link_open(number, kind, ends[0], 0);
    theirs[number] = ends[1];
    return;
  }
  if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe");
  int is_source = kind == STREAM_OUT, ours = is_source ? ends[0] : ends[1];
  theirs[number] = is_source ? ends[1] : ends[0];
  set_nonblocking(ours);
  /* As on a host: `echo > /dev/stderr` opens the pipe again. */
  if (fchown(theirs[number], owner, owner) != 0) fail("pipe");
  link_open(number, kind, ours, is_source);
}

/* Takes the list of attached streams off the front of a payload. */
static int take_attached(const char **payload, size_t *length, uint16_t *numbers) {
  if (*length < 1) return 0;
  int count = (unsigned char)**payload;
  size_t size = 1 + sizeof(uint16_t) * (size_t)count;
  if (count > MAX_SENT || *length < size) link_violation("attached");
  memcpy(numbers, *payload + 1, size - 1);
  *payload += size;
  *length -= size;
  return count;
}

static int their_fd(uint16_t number) {
  if (number >= MAX_STREAMS || link_state.streams[number].kind == STREAM_NONE)
    link_violation("attached");
  return theirs[number];
}

/* Init has its own copies now. */
static void forget_theirs(const uint16_t *numbers, int count) {
  for (int i = 0; i < count; i++) {
    if (link_state.streams[numbers[i]].kind == STREAM_BLOB)
      link_close_local(numbers[i]); /* the same descriptor */
    else
      close(theirs[numbers[i]]);
    theirs[numbers[i]] = -1;
  }
}

static void on_packet(unsigned number, const char *payload, size_t length) {
  struct stream *stream = &link_state.streams[number];
  if (stream->kind == STREAM_BLOB) {
    while (length > 0) {
      ssize_t done = write(stream->fd, payload, length);
      if (done <= 0) fail("memory");
      payload += done;
      length -= (size_t)done;
    }
    return;
  }
  uint16_t numbers[MAX_SENT];
  int fds[MAX_SENT], count = take_attached(&payload, &length, numbers);
  for (int i = 0; i < count; i++) fds[i] = their_fd(numbers[i]);
  if (stream->fd >= 0) send_packet(stream->fd, payload, length, fds, count);
  forget_theirs(numbers, count);
}

/* A message of init. The supervisor gets no descriptor of this kernel. */
static void on_local(unsigned number) {
  char text[MAX_PACKET_BYTES];
  int sent[MAX_SENT], count;
  ssize_t got = receive(link_state.streams[number].fd, text, sizeof text, sent, &count);
  if (got == 0) {
    link_close_local(number);
    return;
  }
  for (int i = 0; i < count; i++) close(sent[i]);
  if (count > 0) return;
  send_usage(1); /* before what the supervisor takes for the end of a run */
  link_put(FRAME_DATA, number, text, (size_t)got);
}

/* --- the cell */

static void write_limits(struct plan *plan) {
  char path[128];
  for (;;) {
    struct plan before = *plan;
    const char *verb = plan_word(plan);
    if (verb != NULL && strcmp(verb, "owner") == 0) {
      owner = (uid_t)plan_number(plan);
    } else if (verb != NULL && strcmp(verb, "limit") == 0) {
      const char *name = plan_need(plan), *value = plan_need(plan);
      int is_required = plan_number(plan) != 0;
      snprintf(path, sizeof path, CELL_GROUP "/%s", name);
      if (!put_text(path, value) && is_required) fail("limit");
    } else {
      *plan = before;
      return;
    }
  }
}

/* START: the plan of the machine, then what init gets: its plan, its status socket, the program's ends. */
static void start_cell(const char *payload, size_t length) {
  uint16_t numbers[MAX_SENT];
  int count = take_attached(&payload, &length, numbers);
  if (child >= 0 || count < 2) link_violation("start");
  struct plan plan = plan_read(their_fd(numbers[0]));
  write_limits(&plan);
  for (int i = 2; i < count; i++)
    if (owner != 0 && fchown(their_fd(numbers[i]), owner, owner) != 0) fail("pipe");
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fail("socket");
  pid_t parent = getpid();
  child = fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    report_fd = ends[1];
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int cell = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int fds[MAX_SENT] = {cell, their_fd(numbers[1]), ends[1]}, used = 3;
    for (int i = 2; i < count && used < MAX_SENT; i++) fds[used++] = their_fd(numbers[i]);
    for (int i = 0; i < used; i++)
      if (fds[i] < 0 || fds[i] >= FIRST_SENT_FD || dup3(fds[i], FIRST_SENT_FD + i, O_CLOEXEC) < 0)
        die("machine-place");
    report_fd = FIRST_SENT_FD + 2;
    start_bubblewrap(plan, parent);
  }
  close(ends[1]);
  forget_theirs(numbers, count);
  link_open(MAIN_STREAM, STREAM_PACKETS, ends[0], 0);
}

static void on_frame(struct frame frame, const char *payload) {
  if (frame.kind == FRAME_OPEN && frame.length == 1)
    open_stream(frame.stream, (enum stream_kind)(unsigned char)*payload);
  else if (frame.kind == FRAME_START)
    start_cell(payload, frame.length);
  else
    link_violation("kind");
}

static void reap(int signals) {
  struct signalfd_siginfo ignored;
  while (read(signals, &ignored, sizeof ignored) > 0) continue;
  pid_t pid;
  while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
    if (pid == child) has_ended = 1;
}

static uint32_t landlock_abi_here(void) {
  long abi = syscall(NR_landlock_create_ruleset, NULL, 0, LANDLOCK_ABI_QUERY);
  return abi < 0 ? 0 : (uint32_t)abi;
}

int run_guest(const char *workspace) {
  umask(022);
  mount_on("devtmpfs", "/dev", "devtmpfs", MS_NOSUID, NULL);
  mount_on("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
  mount_on("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
  load_modules();
  link_begin(open_port());
  link_state.on_frame = on_frame;
  link_state.on_packet = on_packet;
  link_state.on_local = on_local;
  link_state.on_violation = on_violation;
  enter_root(workspace);
  make_group();
  /* Distributions that keep user namespaces from ordinary users: here there is only the cell. */
  put_text("/proc/sys/kernel/unprivileged_userns_clone", "1");
  put_text("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "0");
  /* A program asks for memory that is above its limit: that ends it by its cgroup, and is named, where the
   * kernel of a small machine would refuse. */
  put_text("/proc/sys/vm/overcommit_memory", "1");
  sigset_t child_ended;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child_ended, NULL);
  int signals = signalfd(-1, &child_ended, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0) fail("signals");
  uint32_t abi = landlock_abi_here();
  link_put(FRAME_UP, 0, &abi, sizeof abi);
  int was_told = 0;
  while (!link_state.is_over) {
    struct pollfd also = {signals, POLLIN, 0};
    int ready = link_poll(&also, 1, child >= 0 && !has_ended ? USAGE_EVERY_MS : -1);
    if (also.revents) reap(signals);
    if (ready == 0 && child >= 0) send_usage(0);
    if (has_ended && !was_told && !link_has_sources()) {
      send_usage(1);
      link_put(FRAME_END, 0, NULL, 0);
      was_told = 1;
    }
  }
  power_off();
}
