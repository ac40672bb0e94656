/* Starts a program in the cell with no descriptor but those it is given (ISO-9), and ends it. */
#define _GNU_SOURCE
#include "cell.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef TIOCGPTPEER
#define TIOCGPTPEER _IO('T', 0x41)
#endif

int move_down(int fd, int lowest) {
  int moved = fcntl(fd, F_DUPFD_CLOEXEC, lowest);
  if (moved < 0) die("move-down");
  close(fd);
  return moved;
}

static const char *search_path(const struct program *program) {
  for (int i = 0; i < program->environment_count; i++)
    if (strncmp(program->environment[i], "PATH=", 5) == 0) return program->environment[i] + 5;
  return "/usr/bin:/bin";
}

/* execvpe, but with the search path of the environment that is given, not of ours. */
static int execute(struct program *program) {
  const char *name = program->arguments[0];
  if (strchr(name, '/') != NULL) {
    execve(name, program->arguments, program->environment);
    return errno;
  }
  int error = ENOENT;
  for (const char *at = search_path(program); *at != '\0';) {
    size_t length = strcspn(at, ":");
    char path[4096];
    if (length > 0 &&
        snprintf(path, sizeof path, "%.*s/%s", (int)length, at, name) < (int)sizeof path) {
      execve(path, program->arguments, program->environment);
      if (errno != ENOENT && errno != ENOTDIR) error = errno;
    }
    at += length + (at[length] == ':');
  }
  return error;
}

/* Added to the errno of chdir, to distinguish it from the errno of exec. */
#define NO_DIRECTORY 10000

/* A new session, the directory and the given descriptors at their numbers; every other descriptor but
 * `kept_fd` is closed. Returns an errno. */
static int enter(struct program *program, int terminal, int kept_fd) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  /* A new session has no controlling terminal: TIOCSTI cannot inject input (ISO-6). */
  if (setsid() < 0) return errno;
  int error = become_one(program->is_second);
  if (error != 0) return error;
  if (chdir(program->directory) != 0) return NO_DIRECTORY + errno;
  if (terminal >= 0 && ioctl(terminal, TIOCSCTTY, 0) != 0) return errno;
  unsigned first_closed = 3;
  for (int number = 0; number <= LAST_GIVEN_FD; number++) {
    int from = number < 3 && terminal >= 0 ? terminal : program->given[number];
    if (from < 0) {
      if (number < 3) close(number);
      continue;
    }
    if (dup2(from, number) < 0) return errno;
    if (number >= 3) first_closed = (unsigned)number + 1;
  }
  if (kept_fd < 0) return syscall(SYS_close_range, first_closed, LAST_FD, 0) != 0 ? errno : 0;
  if (kept_fd > (int)first_closed &&
      syscall(SYS_close_range, first_closed, kept_fd - 1, 0) != 0)
    return errno;
  return syscall(SYS_close_range, kept_fd + 1, LAST_FD, 0) != 0 ? errno : 0;
}

static int open_pair(const struct program *program, int *master) {
  *master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (*master < 0) return -1;
  *master = move_down(*master, FIRST_PARKED_FD); /* not one of the program's numbers */
  int unlock = 0;
  if (ioctl(*master, TIOCSPTLCK, &unlock) != 0) return -1;
  struct winsize size = {.ws_row = program->rows, .ws_col = program->columns};
  ioctl(*master, TIOCSWINSZ, &size);
  int slave = ioctl(*master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
  return slave < 0 ? -1 : move_down(slave, FIRST_PARKED_FD);
}

/* A pseudo-terminal of the cell's own devpts; the master goes to the supervisor. It belongs to the user who
 * opens it. */
static int open_terminal(const struct program *program, int *master) {
  int is_second = program->is_second && act_as_second();
  int slave = open_pair(program, master);
  int error = errno;
  if (is_second) act_as_first();
  errno = error;
  return slave;
}

static void close_given(struct program *program) {
  for (int number = 0; number < MAX_GIVEN; number++) {
    if (program->given[number] >= 0) close(program->given[number]);
    program->given[number] = -1;
  }
}

/* Returns the process, or -1 with errno. `error_fd` delivers the errno of a failed exec, or end of file
 * on success. It is not waited for here: processes of the cell can stop the child before its exec, and
 * init must go on. `terminal` gets the master of its terminal, or -1. */
pid_t spawn(struct program *program, int *error_fd, int *terminal) {
  int slave = -1, ends[2];
  pid_t child = -1;
  *terminal = *error_fd = -1;
  if (program->argument_count == 0) {
    errno = EINVAL;
  } else if (!program->wants_terminal || (slave = open_terminal(program, terminal)) >= 0) {
    if (pipe2(ends, O_CLOEXEC) == 0) {
      for (int end = 0; end < 2; end++) ends[end] = move_down(ends[end], FIRST_PARKED_FD);
      begin_fork(program->is_second);
      child = fork();
      if (child == 0) {
        int error = enter(program, slave, ends[1]);
        if (error == 0) error = execute(program);
        (void)!write(ends[1], &error, sizeof error);
        _exit(127);
      }
      int error = errno;
      end_fork();
      close(ends[1]);
      if (child > 0) *error_fd = ends[0];
      else close(ends[0]);
      errno = error;
    }
  }
  int error = errno;
  if (slave >= 0) close(slave);
  close_given(program);
  errno = error;
  return child;
}

/* Makes a fork of the waiting interpreter a process like a started program. */
void into_session(struct program *program) {
  int error = enter(program, -1, -1);
  if (error != 0) _exit(125);
  /* Only init stays out of reach of its own cell. */
  prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

/* Parent and session of a process, from its stat line; the command name may contain any byte. A
 * zombie counts as gone, unless only its first thread has ended. */
static int read_stat(const char *name, long *parent, long *session) {
  char path[64], text[512];
  snprintf(path, sizeof path, "/proc/%.20s/stat", name);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0) return -1;
  text[got] = '\0';
  const char *rest = strrchr(text, ')');
  char state;
  long threads;
  const char *fields = " %c %ld %*s %ld %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld";
  if (rest == NULL || sscanf(rest + 1, fields, &state, parent, session, &threads) != 4) return -1;
  return state == 'Z' && threads <= 1 ? -1 : 0;
}

#define MAX_DEATH_CHECKS 1000
/* Waits until a killed process is gone. A process that the kernel cannot end at once (it waits for
 * a device) is not waited for longer than a second: it would keep the whole cell from ending. */
static void wait_for_death(pid_t pid) {
  char name[24];
  long parent, session;
  snprintf(name, sizeof name, "%d", pid);
  for (int check = 0; check < MAX_DEATH_CHECKS && read_stat(name, &parent, &session) == 0; check++)
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

#define MAX_KILLED 4096
/* Kills every process of a task: its session, and all descendants. A process that left both (setsid
 * and a dead parent) stays in the cell and ends with it. */
void kill_task(pid_t leader) {
  static pid_t killed[MAX_KILLED];
  int count = 0, found = 1;
  killed[count++] = leader;
  kill(leader, SIGSTOP); /* so that it starts no more processes during the search */
  for (int round = 0; found && round < 64; round++) {
    found = 0;
    DIR *table = opendir("/proc");
    if (table == NULL) break;
    struct dirent *entry;
    while ((entry = readdir(table)) != NULL && count < MAX_KILLED) {
      long parent, session, pid = strtol(entry->d_name, NULL, 10);
      if (pid <= 1 || read_stat(entry->d_name, &parent, &session) != 0) continue;
      int known = 0, related = session == leader;
      for (int i = 0; i < count; i++) {
        known |= killed[i] == pid;
        related |= killed[i] == parent;
      }
      if (known || !related) continue;
      kill((pid_t)pid, SIGSTOP);
      killed[count++] = (pid_t)pid;
      found = 1;
    }
    closedir(table);
  }
  for (int i = 1; i < count; i++) kill(killed[i], SIGKILL);
  for (int i = 1; i < count; i++) wait_for_death(killed[i]);
  /* The leader last: its end is reported, and the caller takes the task for ended. */
  kill(leader, SIGKILL);
}
