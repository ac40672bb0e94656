/* The shim of a template also makes its single-use cells: their cgroup, their descriptors, the
 * request to the zygote. The supervisor only asks for cells and receives those that are ready; in a
 * busy interpreter, where all threads share one lock, this work would cost more than the cells do.
 *
 * Messages in:  cell NAME (with the cell's plan and the recipe) | remove GROUP clean|used
 * Messages out: cell NAME GROUP (with the supervisor's ends: status, stdout, stderr, stdin, then for an
 *               interpreter reports and requests, else the program's stdin, stdout, stderr) |
 *               nocell NAME ERRNO
 *
 * Making and removing a group costs the kernel more than running a cell. A group in which no limit was
 * hit is reused, empty and with counters reset, where the kernel can reset them (v1).
 */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_BASES 16
#define MAX_LEAVING 4096
#define MAX_NAME 48
#define PATIENCE_S 5
#define MAX_FREE 32
#define MAX_RESETS 8
#define MAX_LIMITED 64
#define MAX_RECIPE_BYTES 1024

static int asking_fd = -1, zygote_fd = -1;
static char bases[MAX_BASES][512];
static int base_count;
static char members[32];
static int has_owner, passes_given;
static uid_t owner;
static struct {
  char name[MAX_NAME];
  time_t since;
  int is_clean;
} leaving[MAX_LEAVING];
static int leaving_count;
static char spare[MAX_FREE][MAX_NAME];
static int spare_count;
/* The recipe by which the limits of a group were written. Nothing else writes them. */
static struct limited {
  char name[MAX_NAME], recipe[MAX_RECIPE_BYTES];
  size_t bytes;
} limited[MAX_LIMITED];
static int next_limited;
static struct {
  int base;
  char file[64], value[16];
} resets[MAX_RESETS];
static int reset_count;

/* The number of a base directory; a plan may name one before it lists them all. */
static int base_of(struct plan *plan) {
  uint64_t number = plan_number(plan);
  if (number >= MAX_BASES) {
    errno = EINVAL;
    die("stock-base");
  }
  return (int)number;
}

/* Sent by the supervisor once: the base directories of the groups, and both sockets. */
void prefork_begin(struct plan plan, const int *sent) {
  const char *verb;
  asking_fd = sent[0];
  zygote_fd = sent[1];
  while ((verb = plan_word(&plan)) != NULL) {
    if (strcmp(verb, "base") == 0 && base_count < MAX_BASES) {
      snprintf(bases[base_count++], sizeof bases[0], "%s", plan_need(&plan));
    } else if (strcmp(verb, "members") == 0) {
      snprintf(members, sizeof members, "%s", plan_need(&plan));
    } else if (strcmp(verb, "reset") == 0 && reset_count < MAX_RESETS) {
      resets[reset_count].base = base_of(&plan);
      snprintf(resets[reset_count].file, sizeof resets[0].file, "%s", plan_need(&plan));
      snprintf(resets[reset_count++].value, sizeof resets[0].value, "%s", plan_need(&plan));
    } else if (strcmp(verb, "owner") == 0) {
      owner = (uid_t)plan_number(&plan);
      has_owner = 1;
    } else if (strcmp(verb, "given") == 0) {
      passes_given = plan_number(&plan) != 0;
    }
  }
}

int prefork_fd(void) { return asking_fd; }
int prefork_pause_ms(void) { return leaving_count > 0 ? 2 : -1; }

static void path_of(char *path, size_t room, int base, const char *name, const char *file) {
  int length = snprintf(path, room, "%s/%s%s%s", bases[base], name, *file ? "/" : "", file);
  if (length < 0 || (size_t)length >= room) {
    errno = ENAMETOOLONG;
    die("stock-path");
  }
}

static int put_value(const char *path, const char *value) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t done = write(fd, value, strlen(value));
  close(fd);
  return done < 0 ? -1 : 0;
}

static int has_limits(const char *group, struct plan recipe) {
  size_t bytes = (size_t)(recipe.end - recipe.at);
  for (int i = 0; i < MAX_LIMITED; i++)
    if (strcmp(limited[i].name, group) == 0)
      return limited[i].bytes == bytes && memcmp(limited[i].recipe, recipe.at, bytes) == 0;
  return 0;
}

/* A group that is not in the list, as the oldest of many, has its limits written again. */
static void note_limits(const char *group, struct plan recipe) {
  int place = next_limited;
  for (int i = 0; i < MAX_LIMITED; i++)
    if (strcmp(limited[i].name, group) == 0) place = i;
  if (place == next_limited) next_limited = (next_limited + 1) % MAX_LIMITED;
  size_t bytes = (size_t)(recipe.end - recipe.at);
  limited[place].bytes = 0;
  snprintf(limited[place].name, MAX_NAME, "%s", group);
  if (bytes > MAX_RECIPE_BYTES) return;
  memcpy(limited[place].recipe, recipe.at, bytes);
  limited[place].bytes = bytes;
}

/* Sets `group` to the name of the group that is used: a spare one, or a new one called `name`. */
static int make_group(const char *name, char *group, struct plan recipe) {
  char path[1024];
  strcpy(group, spare_count > 0 ? spare[--spare_count] : name);
  int is_new = strcmp(group, name) == 0;
  if (!is_new && has_limits(group, recipe)) return 0;
  for (int i = 0; is_new && i < base_count; i++) {
    path_of(path, sizeof path, i, group, "");
    if (mkdir(path, 0755) != 0) return -1;
  }
  /* Twice for a spare group: a limit is refused while another limit that bounds it is still lower. */
  for (int round = is_new; round < 2; round++) {
    struct plan rest = recipe;
    const char *verb;
    while ((verb = plan_word(&rest)) != NULL) {
      if (strcmp(verb, "limit") != 0) break; /* BASE FILE VALUE REQUIRED follow */
      int base = base_of(&rest);
      const char *file = plan_need(&rest), *value = plan_need(&rest);
      int is_required = plan_number(&rest) != 0;
      if (base >= base_count) continue;
      path_of(path, sizeof path, base, group, file);
      if (put_value(path, value) != 0 && is_required && round == 1) return -1;
    }
  }
  note_limits(group, recipe);
  return 0;
}

static void remove_later(const char *name, int is_clean) {
  if (leaving_count == MAX_LEAVING || strlen(name) >= MAX_NAME) return;
  strcpy(leaving[leaving_count].name, name);
  leaving[leaving_count].is_clean = is_clean;
  leaving[leaving_count++].since = time(NULL);
}

static int is_empty(const char *name) {
  char path[1024], byte;
  for (int base = 0; base < base_count; base++) {
    path_of(path, sizeof path, base, name, members);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 1 : read(fd, &byte, 1);
    if (fd >= 0) close(fd);
    if (got != 0) return 0;
  }
  return 1;
}

/* 1: kept for another cell; 0: not yet, a process in it is still dying; -1: cannot be kept. */
static int keep_group(const char *name) {
  char path[1024];
  if (reset_count == 0 || spare_count == MAX_FREE) return -1;
  if (!is_empty(name)) return 0;
  for (int i = 0; i < reset_count; i++) {
    path_of(path, sizeof path, resets[i].base, name, resets[i].file);
    if (put_value(path, resets[i].value) != 0) return -1;
  }
  strcpy(spare[spare_count++], name);
  return 1;
}

/* Removes the groups of ended cells once the kernel has released their last process. */
void prefork_tidy(void) {
  char path[1024];
  for (int i = 0; i < leaving_count;) {
    int is_late = time(NULL) - leaving[i].since > PATIENCE_S;
    int is_kept = leaving[i].is_clean && !is_late ? keep_group(leaving[i].name) : -1;
    int is_gone = is_kept >= 0 ? is_kept : 1;
    for (int base = 0; is_kept < 0 && base < base_count; base++) {
      path_of(path, sizeof path, base, leaving[i].name, "");
      if (rmdir(path) == 0 || errno == ENOENT) continue;
      is_gone = 0;
      if (is_late) empty_group(path);
    }
    if (is_gone)
      leaving[i] = leaving[--leaving_count];
    else
      i++;
  }
}

static int pipe_for(int *ours, int *theirs, int we_read, int is_named) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  *ours = ends[we_read ? 0 : 1];
  *theirs = ends[we_read ? 1 : 0];
  /* The pipe of a root supervisor belongs to root, and `echo > /dev/stderr` reopens it. */
  if (is_named && has_owner && fchown(*theirs, owner, owner) != 0) return -1;
  return fcntl(*ours, F_SETFL, O_NONBLOCK);
}

static int send_many(int fd, const char *text, const int *sent, int count) {
  union {
    char room[CMSG_SPACE(sizeof(int) * MAX_SENT)];
    struct cmsghdr align;
  } control;
  memset(&control, 0, sizeof control);
  struct iovec part = {(void *)(uintptr_t)text, strlen(text)};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room,
                           .msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count)};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
  memcpy(CMSG_DATA(header), sent, sizeof(int) * (size_t)count);
  return sendmsg(fd, &message, MSG_NOSIGNAL) < 0 ? -1 : 0;
}

static void make_cell(const char *name, int plan_fd, int recipe_fd) {
  int status[2] = {-1, -1};
  int reports = -1, reports_theirs = -1, requests = -1, requests_theirs = -1;
  int in = -1, in_theirs = -1, out = -1, out_theirs = -1, err = -1, err_theirs = -1, ok = 0;
  int sent[MAX_SENT], count = 0, member_first, member_count = 0;
  char text[160], path[1024], group[MAX_NAME];
  struct plan recipe = plan_read(recipe_fd);
  if (make_group(name, group, recipe) == 0 &&
      socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, status) == 0 &&
      pipe_for(&in, &in_theirs, 0, 1) == 0 && pipe_for(&out, &out_theirs, 1, 1) == 0 &&
      pipe_for(&err, &err_theirs, 1, 1) == 0 &&
      (!passes_given || (pipe_for(&reports, &reports_theirs, 1, 0) == 0 &&
                         pipe_for(&requests, &requests_theirs, 0, 0) == 0))) {
    sent[count++] = plan_fd;
    sent[count++] = status[1];
    if (passes_given) {
      sent[count++] = in_theirs;
      sent[count++] = out_theirs;
      sent[count++] = err_theirs;
      sent[count++] = reports_theirs;
      sent[count++] = requests_theirs;
    }
    member_first = count;
    for (ok = 1; member_count < base_count && ok; member_count++) {
      path_of(path, sizeof path, member_count, group, members);
      int fd = open(path, O_WRONLY | O_CLOEXEC);
      if (fd < 0) ok = 0;
      else sent[count++] = fd;
    }
    ok = ok && send_many(zygote_fd, "cell", sent, count) == 0;
    for (int i = member_first; i < count; i++) close(sent[i]);
  }
  int error = errno;
  munmap((void *)(uintptr_t)recipe.at, (size_t)(recipe.end - recipe.at));
  if (ok) {
    /* Without a waiting interpreter the supervisor also gets the program's ends, for its start. */
    int waiting[] = {status[0], out, err, in, reports, requests};
    int fresh[] = {status[0], out, err, in, in_theirs, out_theirs, err_theirs};
    snprintf(text, sizeof text, "cell %s %s", name, group);
    if (passes_given) send_many(asking_fd, text, waiting, 6);
    else send_many(asking_fd, text, fresh, 7);
  } else {
    remove_later(group, 0);
    snprintf(text, sizeof text, "nocell %s %d", name, error);
    (void)!send(asking_fd, text, strlen(text), MSG_NOSIGNAL);
  }
  int all[] = {status[0], status[1], in, in_theirs, out, out_theirs, err, err_theirs,
               reports, reports_theirs, requests, requests_theirs};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    if (all[i] >= 0) close(all[i]);
}

/* Handles one message of the supervisor. Returns 0 when the supervisor closed the socket. */
int prefork_serve(void) {
  char text[96], verb[16] = "", name[MAX_NAME] = "", state[8] = "";
  int sent[MAX_SENT], count = 0;
  if (receive(asking_fd, text, sizeof text, sent, &count) == 0) return 0;
  sscanf(text, "%15s %47s %7s", verb, name, state);
  /* The name becomes a directory name: only ids made by Cellwall have this form. */
  int is_id = strncmp(name, "cell_", 5) == 0 && strchr(name, '/') == NULL;
  if (is_id && strcmp(verb, "cell") == 0 && count == 2) make_cell(name, sent[0], sent[1]);
  if (is_id && strcmp(verb, "remove") == 0) remove_later(name, strcmp(state, "clean") == 0);
  for (int i = 0; i < count; i++) close(sent[i]);
  return 1;
}
