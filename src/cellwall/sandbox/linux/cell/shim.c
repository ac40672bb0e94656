/* The shim, outside the walls: one for each run.
 *
 * (1) wait for the plan; (2) start a child inside the run's cgroup; the child (3) stages directories
 * that the unprivileged uid could not reach, (4) drops root, (5) becomes bubblewrap. The shim (6) waits
 * for its end, or for the supervisor's request or death, and (7) exits only when the cgroup is removed:
 * the kernel removes a group only if no process is left in it.
 */
#define _GNU_SOURCE
#include "cell.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC 4u
#endif
#define MAX_ARGUMENTS 2048
#define MAX_GROUPS 32

struct job {
  const char *cgroup2;             /* v2 directory the child is born in, or NULL */
  const char *tasks[MAX_GROUPS];  /* v1 `tasks` files to join */
  const char *groups[MAX_GROUPS]; /* directories to remove at the end */
  int task_count, group_count;
  uid_t uid;
  gid_t gid;
  int drop;                        /* started as root: become uid/gid */
  gid_t group;                     /* the only supplementary group, of /dev/kvm, or 0 */
  uid_t second;                    /* a second user of the cell, or 0; its gid has the same number */
  uint64_t stored;                 /* the owner of its files on the disk */
  unsigned inside[2];              /* the uids of both users in the cell */
  unsigned inside_of_none;         /* in the cell, of `stored`: it owns the directories of both */
  int userns_fd;                   /* the number under which bubblewrap gets their user namespace */
  struct plan stages;              /* where the stage steps begin */
  int stage_count;
  const char *overlay;             /* where staged `lower`s and `cow` are merged, or NULL */
  uint64_t lowers;                 /* how many */
  const char *tree;                /* path of the only stage, for the workspace of a cell */
  int view_line;                   /* receives a second mount of the merged layers, or 0 */
  int passed[MAX_GROUPS];
  int passed_count;
  char *argv[MAX_ARGUMENTS];
};

/* A plan comes with descriptors, which get the numbers that the plan uses for them: FIRST_SENT_FD and
 * up. A shim can thus be started before its plan exists. */
static int place_sent(const int *sent, int count) {
  for (int i = 1; i < count; i++) {
    if (sent[i] >= FIRST_SENT_FD || dup3(sent[i], FIRST_SENT_FD + i - 1, O_CLOEXEC) < 0)
      die("keep-sent");
    close(sent[i]);
  }
  return sent[0];
}

static void forget_sent(void) {
  for (int i = 0; i < MAX_SENT; i++) close(FIRST_SENT_FD + i);
}

static int receive_plan(int line_fd) {
  char text[16];
  int sent[MAX_SENT], count;
  if (receive(line_fd, text, sizeof text, sent, &count) == 0)
    _exit(0); /* the supervisor exited before it sent a plan: nothing to do */
  if (count == 0) die("keep-plan");
  return place_sent(sent, count);
}

static void read_job(struct plan plan, struct job *job) {
  const char *verb;
  while ((verb = plan_word(&plan)) != NULL) {
    if (strcmp(verb, "cgroup2") == 0) {
      job->cgroup2 = plan_need(&plan);
    } else if (strcmp(verb, "tasks") == 0 && job->task_count < MAX_GROUPS) {
      job->tasks[job->task_count++] = plan_need(&plan);
    } else if (strcmp(verb, "remove") == 0 && job->group_count < MAX_GROUPS) {
      job->groups[job->group_count++] = plan_need(&plan);
    } else if (strcmp(verb, "user") == 0) {
      job->uid = (uid_t)plan_number(&plan);
      job->gid = (gid_t)plan_number(&plan);
      job->drop = 1;
    } else if (strcmp(verb, "group") == 0) {
      job->group = (gid_t)plan_number(&plan);
    } else if (strcmp(verb, "second") == 0) {
      job->second = (uid_t)plan_number(&plan);
      job->stored = plan_number(&plan);
      job->inside[0] = (unsigned)plan_number(&plan);
      job->inside[1] = (unsigned)plan_number(&plan);
      job->inside_of_none = (unsigned)plan_number(&plan);
      job->userns_fd = (int)plan_number(&plan);
    } else if (strcmp(verb, "pass") == 0 && job->passed_count < MAX_GROUPS) {
      job->passed[job->passed_count++] = (int)plan_number(&plan);
    } else if (strcmp(verb, "stage") == 0 && job->stage_count < MAX_GROUPS) {
      if (job->stage_count++ == 0) job->stages = (struct plan){verb, plan.end};
      for (int i = 0; i < 5; i++) {
        const char *word = plan_need(&plan);
        if (i == 1) job->tree = word;
      }
    } else if (strcmp(verb, "overlay") == 0) {
      job->overlay = plan_need(&plan);
      job->lowers = plan_number(&plan);
    } else if (strcmp(verb, "view") == 0) {
      job->view_line = (int)plan_number(&plan);
    } else if (strcmp(verb, "exec") == 0) {
      int count = 0;
      const char *word;
      while ((word = plan_word(&plan)) != NULL) {
        if (count >= MAX_ARGUMENTS - 1) break;
        job->argv[count++] = (char *)word;
      }
    } else {
      errno = EINVAL;
      die("keep-verb");
    }
  }
}

static void put_text(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, text, strlen(text)) < 0) die("keep-write");
  close(fd);
}

static void put_map(pid_t child, const char *kind, uint64_t owner, unsigned id, const struct job *job,
                    int with_root) {
  char path[64], text[192];
  snprintf(path, sizeof path, "/proc/%d/%s_map", child, kind);
  int length = snprintf(text, sizeof text, "%llu %u 1\n", (unsigned long long)owner, id);
  /* overlayfs makes its own files in the upper layer as root, which must be mapped there. */
  if (with_root)
    length += snprintf(text + length, sizeof text - (size_t)length, "%llu 0 1\n",
                       (unsigned long long)owner + 1);
  if (job->second != 0)
    snprintf(text + length, sizeof text - (size_t)length, "%llu %u 1\n",
             (unsigned long long)job->stored, (unsigned)job->second);
  put_text(path, text);
}

/* The kernel takes the id mapping of a mount only in the form of a user namespace. */
static int mapping_userns(uint64_t owner_uid, uint64_t owner_gid, const struct job *job,
                          int with_root) {
  int gate[2];
  if (pipe2(gate, O_CLOEXEC) != 0) die("map-pipe");
  pid_t child = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
  if (child < 0) die("map-clone");
  if (child == 0) {
    char byte;
    close(gate[1]);
    (void)!read(gate[0], &byte, 1);
    _exit(0);
  }
  put_map(child, "uid", owner_uid, job->uid, job, with_root);
  put_map(child, "gid", owner_gid, job->gid, job, with_root);
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/ns/user", child);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) die("map-open");
  close(gate[0]);
  close(gate[1]);
  waitpid(child, NULL, 0);
  return fd;
}

/* Root only: mounts chosen directories, by descriptor and with ids mapped, below a private /run. */
static void stage_all(const struct job *job) {
  const char *targets[MAX_GROUPS];
  int trees[MAX_GROUPS], is_file[MAX_GROUPS];
  struct stat info;
  struct plan plan = job->stages;
  /* Cloned before leaving the mount namespace in which the descriptors were opened. */
  for (int i = 0; i < job->stage_count; i++) {
    plan_need(&plan); /* the verb */
    int fd = (int)plan_number(&plan);
    targets[i] = plan_need(&plan);
    const char *kind = plan_need(&plan); /* "map", "layer" (map for an upper layer) or "plain" */
    int map = strcmp(kind, "plain") != 0, layer = strcmp(kind, "layer") == 0;
    uint64_t owner_uid = plan_number(&plan);
    uint64_t owner_gid = plan_number(&plan);
    int userns = map ? mapping_userns(owner_uid, owner_gid, job, layer) : -1;
    if (fstat(fd, &info) != 0) die("stage-stat");
    is_file[i] = S_ISREG(info.st_mode); /* a program of the host */
    trees[i] = copy_tree(fd, userns, !map);
    if (userns >= 0) close(userns);
  }
  if (unshare(CLONE_NEWNS) != 0) die("stage-unshare");
  if (mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) die("stage-private");
  if (mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=64k") != 0)
    die("stage-run");
  for (int i = 0; i < job->stage_count; i++) {
    if (is_file[i] ? mknod(targets[i], S_IFREG | 0644, 0) != 0 : mkdir(targets[i], 0755) != 0)
      die("stage-mkdir");
    attach_tree(trees[i], targets[i]);
  }
  /* The kernel takes id-mapped layers only in the namespace they were mapped in: merge them here. */
  if (job->overlay != NULL) {
    if (mkdir(job->overlay, 0755) != 0) die("stage-mkdir");
    mount_overlay("/run", job->overlay, job->lowers);
    if (job->view_line > 0) hand_view(job->view_line, job->overlay);
  }
}

/* For a cell with two users: bubblewrap maps one uid, and an unprivileged process cannot map two. The
 * namespace belongs to the uid that will run bubblewrap, which therefore may join it, and to no other. */
static void make_userns(const struct job *job) {
  int made[2], gate[2];
  char byte = 0, path[64], text[128];
  if (pipe2(made, O_CLOEXEC) != 0 || pipe2(gate, O_CLOEXEC) != 0) die("second-pipe");
  pid_t child = fork();
  if (child < 0) die("second-fork");
  if (child == 0) {
    close(made[0]);
    close(gate[1]);
    if (setgroups(0, NULL) != 0 || setresgid(job->gid, job->gid, job->gid) != 0 ||
        setresuid(job->uid, job->uid, job->uid) != 0 || unshare(CLONE_NEWUSER) != 0)
      die("second-unshare");
    (void)!write(made[1], &byte, 1);
    (void)!read(gate[0], &byte, 1);
    _exit(0);
  }
  close(made[1]);
  close(gate[0]);
  if (read(made[0], &byte, 1) != 1) _exit(125); /* the child has reported why */
  snprintf(path, sizeof path, "/proc/%d/setgroups", child);
  put_text(path, "deny");
  snprintf(text, sizeof text, "%u %u 1\n%u %u 1\n%u %u 1\n", job->inside[0], (unsigned)job->uid,
           job->inside[1], (unsigned)job->second, job->inside_of_none, (unsigned)job->stored);
  snprintf(path, sizeof path, "/proc/%d/uid_map", child);
  put_text(path, text);
  snprintf(path, sizeof path, "/proc/%d/gid_map", child);
  put_text(path, text);
  snprintf(path, sizeof path, "/proc/%d/ns/user", child);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || dup3(fd, job->userns_fd, O_CLOEXEC) < 0) die("second-open");
  close(fd);
  close(made[0]);
  close(gate[1]);
  waitpid(child, NULL, 0);
}

static _Noreturn void become_bubblewrap(const struct job *job, pid_t shim) {
  for (int i = 0; i < job->task_count; i++) put_text(job->tasks[i], "0");
  if (job->stage_count > 0) stage_all(job);
  if (job->second != 0) make_userns(job);
  if (job->drop) {
    if (setgroups(job->group != 0, &job->group) != 0) die("drop-groups");
    if (setresgid(job->gid, job->gid, job->gid) != 0) die("drop-gid");
    if (setresuid(job->uid, job->uid, job->uid) != 0) die("drop-uid");
    /* Ask the kernel again instead of trusting the return code: the walls depend on this. */
    if (setuid(0) == 0 || geteuid() == 0) {
      errno = EPERM;
      die("drop-kept-root");
    }
  }
  /* After the uid change, which clears it. The signal follows the parent thread; the shim has one. */
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) die("keep-pdeathsig");
  if (getppid() != shim) _exit(125);
  /* As init sets it (walls.py), and before: a virtual machine whose emulator crashes has no init on this
   * host, and its memory is not for the host's core collector. */
  set_rlimit(RLIMIT_CORE, 1);
  if (chdir("/") != 0) die("keep-chdir");
  umask(022); /* bubblewrap makes the directories of the cell's root with this mask */
  /* ISO-9: every inherited descriptor closes at exec unless the plan names it. */
  if (syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC) != 0) die("keep-close-range");
  for (int i = 0; i < job->passed_count; i++)
    if (fcntl(job->passed[i], F_SETFD, 0) != 0) die("keep-pass");
  char *const no_environment[] = {NULL};
  execve(job->argv[0], job->argv, no_environment);
  die("exec-bubblewrap");
}

/* In the child of the first process of a virtual machine, where it stands for the shim. */
void start_bubblewrap(struct plan plan, pid_t parent) {
  struct job job = {0};
  read_job(plan, &job);
  become_bubblewrap(&job, parent);
}

static pid_t start(const struct job *job, int *pidfd) {
  struct clone_args how = {.flags = CLONE_PIDFD, .exit_signal = SIGCHLD,
                           .pidfd = (uint64_t)(uintptr_t)pidfd};
  int group = -1;
  if (job->cgroup2 != NULL) {
    /* Born inside: at no time outside the limits, and no slow migration. */
    group = open(job->cgroup2, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (group < 0) die("cgroup-open");
    how.flags |= CLONE_INTO_CGROUP;
    how.cgroup = (uint64_t)group;
  }
  pid_t shim = getpid();
  pid_t child = (pid_t)syscall(SYS_clone3, &how, sizeof how);
  if (child < 0) die("cgroup-clone");
  if (child == 0) become_bubblewrap(job, shim);
  if (group >= 0) close(group);
  return child;
}

/* Only processes between clone and PDEATHSIG can be left; kill until the group is empty. */
void empty_group(const char *group) {
  char path[4200];
  int length = snprintf(path, sizeof path, "%s/cgroup.procs", group);
  if (length > 0 && (size_t)length < sizeof path) kill_listed(path);
}

/* The shim is the subreaper: processes a killed bubblewrap left behind, perhaps before it could set
 * their PDEATHSIG, are its children now. Returns when none is left. */
static void end_children(void) {
  const struct timespec pause = {0, 300 * 1000};
  for (;;) {
    pid_t pid = waitpid(-1, NULL, WNOHANG);
    if (pid > 0) continue;
    if (pid < 0 && errno != EINTR) return;
    kill_listed("/proc/thread-self/children");
    nanosleep(&pause, NULL);
  }
}

static int remove_group(const char *group) {
  const struct timespec pause = {0, 500 * 1000};
  for (int tries = 0; rmdir(group) != 0; tries++) {
    if (errno == ENOENT) break;
    if (errno != EBUSY || tries > 20000) return 1; /* 10 s: a process stuck in the kernel */
    empty_group(group);
    nanosleep(&pause, NULL);
  }
  return 0;
}

/* The group of a template contains those of its cells, one level deep. */
static int remove_groups(const struct job *job) {
  int left = 0;
  for (int i = 0; i < job->group_count; i++) {
    DIR *inside = opendir(job->groups[i]);
    struct dirent *entry;
    while (inside != NULL && (entry = readdir(inside)) != NULL) {
      char path[4200];
      if (entry->d_type != DT_DIR || entry->d_name[0] == '.') continue;
      snprintf(path, sizeof path, "%s/%s", job->groups[i], entry->d_name);
      left += remove_group(path);
    }
    if (inside != NULL) closedir(inside);
    left += remove_group(job->groups[i]);
  }
  return left;
}

/* A workspace for a cell of the template: a detached mount, made with the rights of the shim, which the
 * cell attaches in namespaces of its own. A child makes it, since a failing step ends the process. The
 * answer goes over a socket that came with the request. */
static void serve_tree(const int *sent, int count) {
  pid_t child = fork();
  if (child == 0) {
    struct job job = {0};
    report_fd = sent[0];
    failure_word = "notree";
    read_job(plan_read(place_sent(sent + 1, count - 1)), &job);
    stage_all(&job);
    send_one(report_fd, "tree", clone_mount(job.overlay ? job.overlay : job.tree));
    if (job.overlay != NULL) hand_view(report_fd, job.overlay);
    _exit(0);
  }
  for (int i = 0; i < count; i++) close(sent[i]); /* without a child, the closed socket is the answer */
  if (child > 0) waitpid(child, NULL, 0);
}

int run_shim(int inherited_fd, int life_fd) {
  /* Moved down to 3: in a busy supervisor they have numbers that the sent descriptors will need. The
   * second is the reaper's socket (reaper.c), kept open while the shim lives and never used. */
  int line_fd = fcntl(inherited_fd, F_DUPFD_CLOEXEC, 3);
  if (line_fd < 0 || fcntl(life_fd, F_DUPFD_CLOEXEC, 3) < 0) return 125;
  close(inherited_fd);
  close(life_fd);
  report_fd = line_fd;
  struct job job = {0};
  report("hello");
  read_job(plan_read(receive_plan(line_fd)), &job);
  if (job.argv[0] == NULL) {
    errno = EINVAL;
    die("keep-exec");
  }
  /* Processes of a killed bubblewrap are reparented to the shim, not to PID 1, and are reaped here. */
  if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) die("keep-subreaper");

  int pidfd = -1;
  pid_t child = start(&job, &pidfd);
  /* The shim must not keep the run's pipes or directories open. */
  forget_sent();
  close(0);
  close(1);
  close(2);

  struct pollfd waits[3] = {{line_fd, POLLIN, 0}, {pidfd, POLLIN, 0}, {-1, POLLIN, 0}};
  for (;;) {
    if (poll(waits, 3, prefork_pause_ms()) < 0 && errno != EINTR) break;
    if (waits[1].revents) break;                         /* bubblewrap exited */
    if (waits[2].revents && !prefork_serve()) waits[2].fd = -1;
    prefork_tidy();
    if (waits[0].revents) {
      char text[16];
      int sent[MAX_SENT], count;
      ssize_t got = receive(line_fd, text, sizeof text, sent, &count);
      if (got > 0 && text[0] == 't' && count > 1) {
        serve_tree(sent, count);
        continue;
      }
      if (got > 0 && text[0] == 's' && count == 3) {
        prefork_begin(plan_read(sent[0]), sent + 1);
        close(sent[0]);
        waits[2].fd = prefork_fd();
        continue;
      }
      kill(child, SIGKILL); /* requested, or the supervisor died */
      break;
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  end_children();
  report("ended %d", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  /* The supervisor reads the group's counters now; it sends "d", or dies. */
  char byte;
  while (recv(line_fd, &byte, 1, 0) == 1 && byte != 'd') continue;
  int left = remove_groups(&job);
  report("gone %d", left);
  return left == 0 ? 0 : 1;
}
