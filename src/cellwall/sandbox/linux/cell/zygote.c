/* The zygote, inside a template's walls: forks one cell for each request of the supervisor.
 *
 * A request carries descriptors: the cell's plan, the status socket of its init, then those that the
 * plan uses under the numbers from FIRST_SENT_FD on. The child is born in new user, mount, PID, IPC and UTS
 * namespaces, and in a network namespace that is new or as new (networks.c), and becomes the cell's init;
 * the zygote closes its copies and waits.
 */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAMESPACES (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS)

static void copy_touched(void);

/* In the child: returns only in an interpreter that was forked in the finished cell. */
static void become_cell(int control_fd, const int *sent, int count, struct plan plan) {
  report_fd = sent[1];
  syscall(SYS_close_range, FIRST_ZYGOTE_FD, LAST_FD, 0);
  for (int i = 2; i < count; i++) {
    if (sent[i] >= FIRST_SENT_FD || dup3(sent[i], FIRST_SENT_FD + i - 2, O_CLOEXEC) < 0)
      die("zygote-sent");
    close(sent[i]);
  }
  close(control_fd);
  /* PID 1 receives no signal without a handler, and the interpreter has installed handlers. */
  for (int number = 1; number < 32; number++) signal(number, SIG_DFL);
  int status_fd = report_fd = move_down(sent[1], FIRST_OWN_FD);
  static struct cell cell;
  close(sent[0]);
  build_cell(plan, &cell);
  run_cell(&cell, status_fd);
  copy_touched();
}

#define MIN_SETTLED_BYTES (64u * 1024u)
#define MAX_REGIONS 256
#define MAPS_BYTES (256u * 1024u)
#define MAX_TOUCHED 2048
#define LARGE_PAGE (2u * 1024u * 1024u)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct range {
  unsigned long start, end;
};
static struct range settled[MAX_REGIONS], touched[MAX_TOUCHED];
static int settled_count, touched_count;

/* Lets the file consist of large pages. A cell still maps small ones, but the kernel finds, maps and unmaps
 * those of one large page together. Without room for them, or on a kernel before 6.1, nothing changes. */
static void join_pages(int file, size_t size) {
  size = (size + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
  if (ftruncate(file, (off_t)size) != 0) return;
  char *room = mmap(NULL, size + LARGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return;
  char *aligned = room + (LARGE_PAGE - (uintptr_t)room % LARGE_PAGE) % LARGE_PAGE;
  if (mmap(aligned, size, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED)
    (void)!madvise(aligned, size, MADV_COLLAPSE);
  munmap(room, size + LARGE_PAGE);
}

/* Copies the interpreter's memory into a memfd and maps it back, private, at the same addresses. The
 * kernel then copies no page tables at a fork and has few to tear down at exit: cells fault in the
 * pages they touch, which are few. Content and addresses do not change; nothing but the two system
 * calls happens between the copy of a region and its mapping. */
static void settle_regions(char *maps, size_t length) {
  /* Whole lines only: a truncated range would be a different range. */
  while (length > 0 && maps[length - 1] != '\n') length--;
  maps[length] = '\0';
  int file = (int)syscall(SYS_memfd_create, "cellwall-zygote", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return;
  off_t offset = 0;
  for (char *rest = NULL, *line = strtok_r(maps, "\n", &rest); line != NULL;
       line = strtok_r(NULL, "\n", &rest)) {
    unsigned long start, end, inode;
    char access[5] = "", name[32] = "";
    if (sscanf(line, "%lx-%lx %4s %*s %*s %lu %31s", &start, &end, access, &inode, name) < 4) continue;
    int is_heap = strcmp(name, "[heap]") == 0;
    /* Memory of its own, and the variables of the program and its libraries. */
    if (strcmp(access, "rw-p") != 0 || (name[0] == '[' && !is_heap)) continue;
    if (end <= start || settled_count == MAX_REGIONS) continue;
    size_t size = end - start;
    if (size < MIN_SETTLED_BYTES || ftruncate(file, offset + (off_t)size) != 0) continue;
    const char *from = (const char *)start;
    size_t done = 0;
    while (done < size) {
      long put = syscall(SYS_pwrite64, file, from + done, size - done, offset + (off_t)done);
      if (put <= 0) break;
      done += (size_t)put;
    }
    if (done < size) continue;
    syscall(SYS_mmap, start, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, offset);
    settled[settled_count++] = (struct range){start, end};
    offset += (off_t)size;
  }
  join_pages(file, (size_t)offset);
  fcntl(file, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  close(file);
}

static void settle_memory(void) {
  /* Shared memory for the list: it must not be part of a region that is mapped anew. */
  char *maps = mmap(NULL, MAPS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (maps == MAP_FAILED) return;
  int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  size_t length = 0;
  ssize_t got;
  while (fd >= 0 && (got = read(fd, maps + length, MAPS_BYTES - 1 - length)) > 0) length += (size_t)got;
  if (fd >= 0) close(fd);
  settle_regions(maps, length);
  munmap(maps, MAPS_BYTES);
}

/* A write to a page that the cell shares costs the kernel a fault, and another one with a flush of the
 * processors' address caches if it was read before. Every interpreter begins with the same memory and
 * the same first steps: a child of the zygote takes these steps once, for no code, and tells which pages
 * it wrote to. Each cell then copies these pages in a few calls, before its interpreter begins. */
#define REHEARSAL 1
static int rehearsal_fd = -1;

static int is_settled(struct range range) {
  for (int i = 0; i < settled_count; i++)
    if (range.start >= settled[i].start && range.end <= settled[i].end) return range.start < range.end;
  return 0;
}

/* Returns REHEARSAL in the child, which ends in `cellwall_tell_touched`. Without an answer of the child
 * cells begin as before. */
static int rehearse_start(int control_fd) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return 0;
  pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (child == 0) {
    close(control_fd);
    close(ends[0]);
    rehearsal_fd = ends[1];
    return REHEARSAL;
  }
  close(ends[1]);
  struct range next;
  while (child > 0 && touched_count < MAX_TOUCHED &&
         read(ends[0], &next, sizeof next) == (ssize_t)sizeof next)
    if (is_settled(next)) touched[touched_count++] = next;
  close(ends[0]);
  return 0;
}

/* In the child: pages that are private now were written to. */
__attribute__((visibility("default"))) void cellwall_tell_touched(void) {
  uint64_t entries[512]; /* on the stack, which is not copied ahead */
  long page = sysconf(_SC_PAGESIZE);
  /* The file belongs to root while a process is not dumpable; no code of a cell is in this namespace. */
  if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) != 0) _exit(0);
  int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  for (int i = 0; fd >= 0 && i < settled_count; i++) {
    struct range run = {0, 0};
    for (unsigned long at = settled[i].start; at < settled[i].end;) {
      size_t count = (settled[i].end - at) / (unsigned long)page;
      if (count > 512) count = 512;
      ssize_t got = pread(fd, entries, count * 8, (off_t)(at / (unsigned long)page * 8));
      if (got <= 0) break;
      for (size_t k = 0; k < (size_t)got / 8; k++, at += (unsigned long)page) {
        /* Present, and not a page of the file. */
        int is_private = (entries[k] >> 63 & 1) && !(entries[k] >> 61 & 1);
        if (is_private && run.end == at) run.end = at + (unsigned long)page;
        else if (is_private) {
          if (run.end > run.start) (void)!write(rehearsal_fd, &run, sizeof run);
          run = (struct range){at, at + (unsigned long)page};
        }
      }
    }
    if (run.end > run.start) (void)!write(rehearsal_fd, &run, sizeof run);
  }
  _exit(0);
}

static void copy_touched(void) {
  for (int i = 0; i < touched_count; i++)
    if (madvise((void *)touched[i].start, touched[i].end - touched[i].start, MADV_POPULATE_WRITE) != 0)
      return; /* a kernel before 5.14, or the memory limit: the interpreter faults as it goes */
}

/* Returns 1 in a forked interpreter. */
static int fork_cell(int control_fd, const int *sent, int count) {
  struct plan plan = plan_read(sent[0]), rest = plan;
  const char *verb = plan_word(&rest);
  int is_kept = verb != NULL && strcmp(verb, "kept-network") == 0;
  int place = is_kept ? network_enter(rest) : 0;
  pid_t child = -1;
  if (place >= 0)
    child = (pid_t)syscall(SYS_clone, (is_kept ? 0 : CLONE_NEWNET) | NAMESPACES | SIGCHLD, 0, 0, 0, 0);
  if (child == 0) {
    become_cell(control_fd, sent, count, plan);
    return 1;
  }
  int error = errno;
  if (is_kept) network_leave(place, child);
  if (child < 0) report_to(sent[1], "fail %s %d", place < 0 ? "zygote-network" : "zygote-clone", error);
  munmap((void *)(uintptr_t)plan.at, (size_t)(plan.end - plan.at));
  return 0;
}

/* Blocked from here on, also in the cells, whose init waits for its children in the same way. */
static int watch_children(void) {
  sigset_t ended;
  sigemptyset(&ended);
  sigaddset(&ended, SIGCHLD);
  sigprocmask(SIG_BLOCK, &ended, NULL);
  int signals = signalfd(-1, &ended, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0) die("zygote-signalfd");
  return move_down(signals, FIRST_ZYGOTE_FD);
}

__attribute__((visibility("default"))) int cellwall_zygote(int control_fd) {
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return -1;
  signal(SIGCHLD, SIG_IGN);
  report_fd = control_fd;
  settle_memory();
  if (rehearse_start(control_fd) == REHEARSAL) return REHEARSAL;
  networks_begin();
  signal(SIGCHLD, SIG_DFL);
  int signals = watch_children();
  report("zygote");
  struct pollfd waits[2] = {{control_fd, POLLIN, 0}, {signals, POLLIN, 0}};
  for (;;) {
    if (poll(waits, 2, -1) < 0 && errno != EINTR) _exit(0);
    struct signalfd_siginfo ignored;
    while (waits[1].revents && read(signals, &ignored, sizeof ignored) > 0) continue;
    networks_reap();
    if (!waits[0].revents) continue;
    char text[64];
    int sent[MAX_SENT], count;
    if (receive(control_fd, text, sizeof text, sent, &count) == 0) _exit(0);
    if (count >= 2 && fork_cell(control_fd, sent, count)) return 0;
    for (int i = 0; i < count; i++) close(sent[i]);
  }
}
