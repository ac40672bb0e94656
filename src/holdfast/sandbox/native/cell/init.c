/* Inside the walls, PID 1 of the cell.
 *
 * (0) wait for the word; (1) mounts; (2) rlimits; (3) no capability; (4) Landlock; (5) seccomp; (6) start the program;
 * (7) wait for its end, a limit, or the supervisor's death; (8) kill and reap every process;
 * (9) report. Only init holds the status socket, so the code cannot forge its own end. As PID 1 it
 * takes no signal from inside, and not being dumpable it can be neither traced nor read.
 */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_WORDS 4096
#define MOST_WATCHED 8
#define WATCH_EVERY_MS 20
/* Descriptors by number, all below the smallest open-files limit (32): the filter reports the use of
 * higher ones to init itself, which must not be waiting for its own answer. 0 to 3 are the program's. */
#define LAST_GIVEN_FD 3
#define FIRST_OWN_FD 4
#define FIRST_PARKED_FD 8
#define MOST_GIVEN 4

static char *environment[MOST_WORDS], *arguments[MOST_WORDS];
static int environment_count, argument_count;
static const char *watched[MOST_WATCHED];  /* file systems of the cell's own: full is a limit */
static const char *searched[MOST_WATCHED]; /* directories in which a file too large may lie */
static int watched_count, searched_count;
static uint64_t most_file_bytes, most_open_files;
static const char *working_directory = "/";
static struct {
  int from, to;
} given[MOST_GIVEN];
static int given_count;

static int move_down(int fd, int lowest) {
  int moved = fcntl(fd, F_DUPFD_CLOEXEC, lowest);
  if (moved < 0) die("init-move-down");
  close(fd);
  return moved;
}

static char **next_slot(char **list, int *count) {
  if (*count >= MOST_WORDS - 1) {
    errno = E2BIG;
    die("init-too-many-words");
  }
  return &list[(*count)++];
}

/* Carries out the plan up to the walls; returns the seccomp listener. */
static int build(struct plan plan) {
  int workspace_fd = -1, listener = -1;
  const char *verb;
  while ((verb = plan_word(&plan)) != NULL) {
    if (strcmp(verb, "dir") == 0) {
      if (mkdir(plan_need(&plan), 0755) != 0) die("dir-make");
    } else if (strcmp(verb, "link") == 0) {
      const char *target = plan_need(&plan);
      if (symlink(target, plan_need(&plan)) != 0) die("link-make");
    } else if (strcmp(verb, "file") == 0) {
      const char *path = plan_need(&plan);
      uint64_t mode = plan_number(&plan);
      size_t length = (size_t)plan_number(&plan);
      make_file(path, mode, plan_bytes(&plan, length), length);
    } else if (strcmp(verb, "take") == 0) {
      const char *kind = plan_need(&plan);
      const char *from = plan_need(&plan);
      take(from, plan_need(&plan), kind);
    } else if (strcmp(verb, "leave") == 0) {
      leave(plan_need(&plan));
    } else if (strcmp(verb, "seal") == 0) {
      seal_root();
    } else if (strcmp(verb, "tmpfs") == 0) {
      const char *path = plan_need(&plan);
      mount_tmpfs(path, plan_need(&plan));
    } else if (strcmp(verb, "devpts") == 0) {
      mount_devpts(plan_need(&plan));
    } else if (strcmp(verb, "overlay") == 0) {
      const char *base = plan_need(&plan);
      mount_overlay(base, plan_need(&plan));
    } else if (strcmp(verb, "expect") == 0) {
      const char *path = plan_need(&plan);
      uint64_t device = plan_number(&plan);
      expect_same(path, device, plan_number(&plan));
    } else if (strcmp(verb, "workspace") == 0) {
      workspace_fd = open(plan_need(&plan), O_PATH | O_DIRECTORY | O_CLOEXEC);
      if (workspace_fd < 0) die("workspace-open");
    } else if (strcmp(verb, "protect") == 0) {
      const char *treatment = plan_need(&plan);
      cover(workspace_fd, plan_need(&plan), treatment, 1);
    } else if (strcmp(verb, "cover") == 0) {
      const char *treatment = plan_need(&plan);
      cover(AT_FDCWD, plan_need(&plan), treatment, 0);
    } else if (strcmp(verb, "watch") == 0 && watched_count < MOST_WATCHED) {
      watched[watched_count++] = plan_need(&plan);
    } else if (strcmp(verb, "search") == 0 && searched_count < MOST_WATCHED) {
      searched[searched_count++] = plan_need(&plan);
    } else if (strcmp(verb, "file-size") == 0) {
      most_file_bytes = plan_number(&plan);
    } else if (strcmp(verb, "open-files") == 0) {
      most_open_files = plan_number(&plan);
    } else if (strcmp(verb, "rlimit") == 0) {
      uint64_t resource = plan_number(&plan);
      set_rlimit(resource, plan_number(&plan));
    } else if (strcmp(verb, "drop") == 0) {
      drop_capabilities();
    } else if (strcmp(verb, "landlock") == 0) {
      uint64_t handled = plan_number(&plan);
      landlock_begin(handled, plan_number(&plan));
    } else if (strcmp(verb, "allow") == 0) {
      const char *path = plan_need(&plan);
      landlock_allow(path, plan_number(&plan));
    } else if (strcmp(verb, "enforce") == 0) {
      landlock_enforce();
    } else if (strcmp(verb, "seccomp") == 0) {
      int want_listener = plan_number(&plan) != 0;
      size_t length = (size_t)plan_number(&plan);
      listener = seccomp_enforce(plan_bytes(&plan, length), length, want_listener);
    } else if (strcmp(verb, "env") == 0) {
      *next_slot(environment, &environment_count) = (char *)plan_need(&plan);
    } else if (strcmp(verb, "arg") == 0) {
      *next_slot(arguments, &argument_count) = (char *)plan_need(&plan);
    } else if (strcmp(verb, "cwd") == 0) {
      working_directory = plan_need(&plan);
    } else if (strcmp(verb, "give") == 0 && given_count < MOST_GIVEN) {
      given[given_count].from = move_down((int)plan_number(&plan), FIRST_PARKED_FD);
      given[given_count].to = (int)plan_number(&plan);
      if (given[given_count++].to > LAST_GIVEN_FD) {
        errno = EINVAL;
        die("init-give");
      }
    } else {
      errno = EINVAL;
      die("init-verb");
    }
  }
  if (argument_count == 0) {
    errno = EINVAL;
    die("init-no-program");
  }
  if (workspace_fd >= 0) close(workspace_fd);
  return listener;
}

static const char *search_path(void) {
  for (int i = 0; i < environment_count; i++)
    if (strncmp(environment[i], "PATH=", 5) == 0) return environment[i] + 5;
  return "/usr/bin:/bin";
}

/* execvpe, but with the search path of the environment that is given, not of ours. */
static int execute(void) {
  const char *name = arguments[0];
  if (strchr(name, '/') != NULL) {
    execve(name, arguments, environment);
    return errno;
  }
  int error = ENOENT;
  for (const char *at = search_path(); *at != '\0';) {
    size_t length = strcspn(at, ":");
    char path[4096];
    if (length > 0 && snprintf(path, sizeof path, "%.*s/%s", (int)length, at, name) < (int)sizeof path) {
      execve(path, arguments, environment);
      if (errno != ENOENT && errno != ENOTDIR) error = errno;
    }
    at += length + (at[length] == ':');
  }
  return error;
}

static _Noreturn void run_program(int error_fd) {
  int error = 0;
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  /* No terminal of anybody's is ours: TIOCSTI has nothing to type into (ISO-6). */
  if (setsid() < 0) error = errno;
  if (!error && chdir(working_directory) != 0) error = errno;
  for (int i = 0; !error && i < given_count; i++)
    if (dup2(given[i].from, given[i].to) < 0) error = errno;
  /* ISO-9: nothing else goes along; the error pipe closes at exec by itself. */
  int keep_last = 0;
  for (int i = 0; i < given_count; i++) keep_last |= given[i].to == LAST_GIVEN_FD;
  if (!keep_last) close(LAST_GIVEN_FD);
  if (!error && error_fd > FIRST_OWN_FD &&
      syscall(SYS_close_range, FIRST_OWN_FD, error_fd - 1, 0) != 0)
    error = errno;
  if (!error && syscall(SYS_close_range, error_fd + 1, ~0u, 0) != 0) error = errno;
  if (!error) error = execute();
  (void)!write(error_fd, &error, sizeof error);
  _exit(127);
}

static pid_t start(void) {
  int error_pipe[2];
  if (pipe2(error_pipe, O_CLOEXEC) != 0) die("start-pipe");
  for (int end = 0; end < 2; end++)
    if (error_pipe[end] < FIRST_OWN_FD) error_pipe[end] = move_down(error_pipe[end], FIRST_OWN_FD);
  pid_t child = fork();
  if (child < 0) die("start-fork");
  if (child == 0) run_program(error_pipe[1]);
  close(error_pipe[1]);
  for (int i = 0; i < given_count; i++) close(given[i].from);
  int error = 0;
  ssize_t got = read(error_pipe[0], &error, sizeof error);
  close(error_pipe[0]);
  if (got == sizeof error) {
    report("noexec %d", error);
    _exit(125);
  }
  return child;
}

static const char *limit_of_mounts(void) {
  for (int i = 0; i < watched_count; i++)
    if (is_full(watched[i])) return "disk";
  return NULL;
}

static const char *limit_after_end(int status) {
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ) return "file_size";
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU) return "cpu";
  const char *limit = limit_of_mounts();
  if (limit != NULL) return limit;
  /* What lies in memory is quickly searched; on disk only after a failure. */
  for (int i = 0; i < watched_count; i++)
    if (has_file_of(watched[i], most_file_bytes + 1)) return "file_size";
  for (int i = 0; status != 0 && i < searched_count; i++)
    if (has_file_of(searched[i], most_file_bytes + 1)) return "file_size";
  return NULL;
}

/* Reaps until the program has ended; returns 1 with its status, or 0 if it still runs. */
static int reap(pid_t program, int *status) {
  int found = 0, each;
  pid_t pid;
  while ((pid = waitpid(-1, &each, WNOHANG)) > 0)
    if (pid == program) {
      *status = each;
      found = 1;
    }
  return found;
}

int init(int plan_fd, int status_fd) {
  report_fd = status_fd;
  /* Before anything else: from here on nothing inside can read or trace this process. */
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) die("init-dumpable");
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) die("init-no-new-privs");
  report_fd = status_fd = move_down(status_fd, FIRST_OWN_FD);
  fcntl(plan_fd, F_SETFD, FD_CLOEXEC);
  umask(022);

  sigset_t child_ended;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child_ended, NULL);
  int signals = signalfd(-1, &child_ended, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0) die("init-signalfd");

  /* An ignored SIGXFSZ would be inherited, and the filter lets nobody change it later. */
  signal(SIGXFSZ, SIG_DFL);
  signal(SIGPIPE, SIG_DFL);
  /* The supervisor writes limits and plan while bubblewrap works; nothing is done before its word. */
  char word;
  if (recv(status_fd, &word, 1, 0) != 1) _exit(0);
  int listener = build(plan_read(plan_fd));
  close(plan_fd);
  pid_t program = start();
  for (int fd = 0; fd < 3; fd++) close(fd);

  struct pollfd waits[3] = {{signals, POLLIN, 0}, {status_fd, POLLIN, 0}, {listener, POLLIN, 0}};
  const char *limit = NULL;
  int status = 0, ended = 0;
  while (!ended && limit == NULL) {
    int ready = poll(waits, 3, watched_count > 0 ? WATCH_EVERY_MS : -1);
    if (ready < 0 && errno != EINTR) die("init-poll");
    if (waits[1].revents) break; /* the supervisor is gone or wants the end */
    if (waits[2].revents & POLLIN && has_too_many_open(listener, most_open_files))
      limit = "open_files";
    struct signalfd_siginfo ignored;
    while (read(signals, &ignored, sizeof ignored) > 0) continue;
    ended = reap(program, &status);
    if (!ended && limit == NULL) limit = limit_of_mounts();
  }
  /* The kernel delivers this to every process of the namespace but us. */
  kill(-1, SIGKILL);
  int each;
  pid_t pid;
  while ((pid = waitpid(-1, &each, 0)) > 0 || (pid < 0 && errno == EINTR))
    if (pid == program && !ended) {
      status = each;
      ended = 1;
    }
  if (limit == NULL) limit = limit_after_end(status);
  struct rusage used;
  getrusage(RUSAGE_CHILDREN, &used);
  report("exit %s %d %s %lld %ld", WIFEXITED(status) ? "code" : "signal",
         WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), limit ? limit : "-",
         (long long)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000 + used.ru_utime.tv_usec +
             used.ru_stime.tv_usec,
         used.ru_maxrss);
  return 0;
}
