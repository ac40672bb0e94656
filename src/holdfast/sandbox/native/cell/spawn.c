/* Starts a program in the cell: nothing goes along but what it is given (ISO-9). */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
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

/* A session, a directory and descriptors of its own; what was given is at its number, all else is
 * closed. Returns an error number. */
static int enter(struct program *program, int terminal) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  /* No terminal of anybody's is ours: TIOCSTI has nothing to type into (ISO-6). */
  if (setsid() < 0) return errno;
  if (chdir(program->directory) != 0) return errno;
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
  return syscall(SYS_close_range, first_closed, ~0u, 0) != 0 ? errno : 0;
}

/* A pseudo-terminal of the cell's own instance; the master goes to the supervisor. */
static int open_terminal(const struct program *program, int *master) {
  *master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (*master < 0) return -1;
  *master = move_down(*master, FIRST_PARKED_FD); /* not a number the program will have */
  int unlock = 0;
  if (ioctl(*master, TIOCSPTLCK, &unlock) != 0) return -1;
  struct winsize size = {.ws_row = program->rows, .ws_col = program->columns};
  ioctl(*master, TIOCSWINSZ, &size);
  int slave = ioctl(*master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
  return slave < 0 ? -1 : move_down(slave, FIRST_PARKED_FD);
}

static void close_given(struct program *program) {
  for (int number = 0; number < MOST_GIVEN; number++) {
    if (program->given[number] >= 0) close(program->given[number]);
    program->given[number] = -1;
  }
}

/* vfork: copying the page tables of a warm interpreter would cost more than the program itself.
 * The child shares our memory until it has become the program, and only reads it. */
static __attribute__((noinline)) pid_t start(struct program *program, int terminal,
                                             volatile int *error) {
  pid_t child = vfork();
  if (child == 0) {
    *error = enter(program, terminal);
    if (*error == 0) *error = execute(program);
    _exit(127);
  }
  return child;
}

/* Returns the process, or -1 with `error` set. `terminal` gets the master of its terminal or -1. */
pid_t spawn(struct program *program, int *error, int *terminal) {
  volatile int failed = 0;
  int slave = -1;
  *terminal = -1;
  if (program->argument_count == 0) {
    *error = EINVAL;
    close_given(program);
    return -1;
  }
  if (program->wants_terminal && (slave = open_terminal(program, terminal)) < 0) {
    *error = errno;
    close_given(program);
    return -1;
  }
  pid_t child = start(program, slave, &failed);
  if (child < 0) failed = errno;
  if (slave >= 0) close(slave);
  close_given(program);
  *error = failed;
  return failed ? -1 : child;
}

/* A fork of the waiting interpreter becomes a process of its own, as a started program would. */
void into_session(struct program *program) {
  int error = enter(program, -1);
  if (error != 0) _exit(125);
  /* Only init is out of reach of its own cell. */
  prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}
