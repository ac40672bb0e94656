/* Inside the walls: PID 1 of the cell.
 *
 * Init builds the walls, starts programs on request, waits for exits, limits and messages of the
 * supervisor, and at the end kills and reaps every process before it reports. Only init holds the
 * status socket, so code cannot forge its own exit. As PID 1 init receives no signal from inside, and
 * since it is not dumpable it can be neither traced nor read.
 *
 * Messages in:  go | rest T | run T | fork T | signal T N | end T | stop     (T: the number of a task)
 *               root N | dial PORT FAMILY: a descriptor for the supervisor, on a socket of its own
 * Messages out: view | ready | fail …; for a task, on its own socket if it has one: started T PID |
 *               noexec T ERRNO | terminal | exit T … | rest LIMIT
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
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define WATCH_EVERY_MS 20
#define MAX_TASKS 512
#define MAX_WORD_BYTES 256
#define NO_LIMIT "-"
#define FIRST_TASK 4 /* in the list of descriptors that init waits for */

static struct task {
  unsigned long tag;
  pid_t pid;
  int line;     /* its messages go here: a socket of its own, or the status socket */
  int error_fd; /* open until exec; carries the errno of a failed exec */
} tasks[MAX_TASKS];
static int task_count;

static struct task *task_of(unsigned long tag) {
  for (int i = 0; i < task_count; i++)
    if (tasks[i].tag == tag) return &tasks[i];
  return NULL;
}

static void add_task(unsigned long tag, pid_t pid, int line, int error_fd) {
  tasks[task_count++] = (struct task){tag, pid, line, error_fd};
}

static void report_end(int line, unsigned long tag, int status, const char *limit,
                     const struct rusage *used) {
  report_to(line, "exit %lu %s %d %s %lld %ld", tag, WIFEXITED(status) ? "code" : "signal",
         WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), limit ? limit : NO_LIMIT,
         (long long)(used->ru_utime.tv_sec + used->ru_stime.tv_sec) * 1000000 +
             used->ru_utime.tv_usec + used->ru_stime.tv_usec,
         used->ru_maxrss);
}

/* The engine removes the cgroup of a container together with its first process: the supervisor reads the
 * counters before it closes the status socket. */
static void await_release(const struct cell *cell) {
  /* The supervisor waits for the end of file of pipes that no program was given, too. */
  unsigned low = (unsigned)(report_fd < cell->life ? report_fd : cell->life);
  unsigned high = (unsigned)(report_fd < cell->life ? cell->life : report_fd);
  if (low > 0) syscall(SYS_close_range, 0, low - 1, 0);
  if (high > low + 1) syscall(SYS_close_range, low + 1, high - 1, 0);
  syscall(SYS_close_range, high + 1, LAST_FD, 0);
  struct pollfd waits[2] = {{report_fd, POLLIN, 0}, {cell->life, POLLIN, 0}};
  char text[MAX_WORD_BYTES];
  while (poll(waits, 2, -1) >= 0 || errno == EINTR) {
    if (waits[1].revents) return;
    if (waits[0].revents && recv(report_fd, text, sizeof text, 0) <= 0) return;
  }
}

/* Ends the cell: the kernel delivers the signal to every process of the namespace but init. It looks at
 * every process of the host for that, so it is only asked if one of the cell is left. Each of them descends
 * from init: while there is one, init has a child. In a container, the engine can put others beside them. */
static _Noreturn void end_cell(struct cell *cell, unsigned long tag, int status, int ended,
                               const char *limit) {
  int each, is_killed = cell->life >= 0;
  if (is_killed) kill(-1, SIGKILL);
  pid_t pid, main_pid = task_of(tag) ? task_of(tag)->pid : -1;
  while ((pid = waitpid(-1, &each, is_killed ? 0 : WNOHANG)) >= 0 || errno == EINTR) {
    if (pid == main_pid && !ended) status = each;
    if (pid != 0) continue;
    kill(-1, SIGKILL);
    is_killed = 1;
  }
  if (limit == NULL) limit = limit_after_end(cell, status);
  struct rusage used;
  getrusage(RUSAGE_CHILDREN, &used);
  report_end(report_fd, tag, status, limit, &used);
  if (cell->life >= 0) await_release(cell);
  _exit(cell->keeps_network && cell->listener >= 0 && !cell->has_socket ? STATUS_NO_SOCKET : 0);
}

static void handle_exec_result(struct cell *cell, struct task *task);

/* Reaps every ended process; the cell ends with the only task of a one-shot cell. */
static void reap(struct cell *cell, const char *limit) {
  int status;
  pid_t pid;
  struct rusage used;
  while ((pid = wait4(-1, &status, WNOHANG, &used)) > 0) {
    for (int i = 0; i < task_count; i++) {
      if (tasks[i].pid != pid) continue;
      if (tasks[i].error_fd >= 0) {
        handle_exec_result(cell, &tasks[i]);
        if (i >= task_count || tasks[i].pid != pid) break; /* its exec failed */
      }
      struct task task = tasks[i];
      if (cell->is_once && task.tag == 0) end_cell(cell, task.tag, status, 1, limit);
      tasks[i] = tasks[--task_count];
      report_end(task.line, task.tag, status, limit ? limit : limit_after_end(cell, status), &used);
      if (task.line != report_fd) close(task.line);
      break;
    }
  }
}

/* Every task has a socket of its own, so that its waiter receives no message of another task. */
static int line_of(const int *sent, int sent_count, int at) {
  return sent_count > at ? move_down(sent[at], FIRST_PARKED_FD) : report_fd;
}

static void report_no_exec(int line, unsigned long tag, int error) {
  report_to(line, "noexec %lu %d", tag, error);
  if (line != report_fd) close(line);
}

static void give(struct program *program, const int *sent, int sent_count, int first) {
  clear_program(program);
  for (int i = first; i < sent_count; i++) {
    if (i - first <= LAST_GIVEN_FD)
      program->given[i - first] = move_down(sent[i], FIRST_PARKED_FD);
    else
      close(sent[i]);
  }
}

/* Descriptors sent: the socket of the task, then the program's. Returns 1 in the forked interpreter. */
static int fork_task(struct cell *cell, unsigned long tag, const int *sent, int sent_count) {
  struct program *program = &cell->program;
  int line = line_of(sent, sent_count, 0);
  give(program, sent, sent_count, 1);
  program->directory = "/workspace";
  pid_t child = fork();
  if (child == 0) {
    into_session(program);
    return 1;
  }
  int error = errno;
  for (int i = 0; i < MAX_GIVEN; i++)
    if (program->given[i] >= 0) close(program->given[i]);
  if (child < 0) {
    report_no_exec(line, tag, error);
    return 0;
  }
  add_task(tag, child, line, -1);
  report_to(line, "started %lu %d", tag, child);
  return 0;
}

/* Descriptors sent: the plan, the socket of the task, then the program's. */
static void start_task(struct cell *cell, unsigned long tag, const int *sent, int sent_count) {
  struct program *program = &cell->program;
  int error_fd, terminal, line = line_of(sent, cell->is_once ? 0 : sent_count, 1);
  give(program, sent, sent_count, cell->is_once ? 1 : 2);
  struct plan plan = plan_read(sent[0]);
  close(sent[0]);
  read_program(plan, program);
  pid_t child = spawn(program, &error_fd, &terminal);
  int error = errno;
  munmap((void *)(uintptr_t)plan.at, (size_t)(plan.end - plan.at));
  if (terminal >= 0) {
    send_one(line, "terminal", terminal);
    close(terminal);
  }
  if (child < 0)
    report_no_exec(line, tag, error);
  else
    add_task(tag, child, line, error_fd);
}

/* The exec succeeded, or its errno was sent. */
static void handle_exec_result(struct cell *cell, struct task *task) {
  int error = 0;
  ssize_t got = read(task->error_fd, &error, sizeof error);
  close(task->error_fd);
  task->error_fd = -1;
  if (got != sizeof error) {
    report_to(task->line, "started %lu %d", task->tag, task->pid);
    return;
  }
  if (cell->is_once && task->tag == 0) {
    report("noexec 0 %d", error);
    _exit(125);
  }
  report_no_exec(task->line, task->tag, error);
  *task = tasks[--task_count];
}

/* Handles one message of the supervisor. Returns 1 in a forked interpreter. */
static int handle_message(struct cell *cell, int *is_watching) {
  char text[MAX_WORD_BYTES], verb[16] = "";
  int sent[MAX_SENT], sent_count = 0, number = 0;
  unsigned long tag = 0;
  if (receive(report_fd, text, sizeof text, sent, &sent_count) == 0)
    end_cell(cell, 0, 0, 0, NULL); /* the supervisor has died or closed the socket */
  sscanf(text, "%15s %lu %d", verb, &tag, &number);
  const struct task *task = task_of(tag);
  /* The filter would report descriptors above the limit to init itself. */
  int has_numbers = 2 * task_count + FIRST_PARKED_FD + MAX_GIVEN + 6 < (int)cell->max_open_files;
  int has_room = has_numbers && task_count < MAX_TASKS && task == NULL;
  if (has_room && strcmp(verb, "fork") == 0) return fork_task(cell, tag, sent, sent_count);
  if (has_room && strcmp(verb, "run") == 0 && sent_count > 0) {
    start_task(cell, tag, sent, sent_count);
    return 0;
  }
  if (has_numbers && sent_count > 0 && strcmp(verb, "root") == 0) hand_root(sent[0], tag);
  /* Of init, a socket would be reported to init itself. */
  int may_dial = has_numbers && sent_count > 0 && !cell->keeps_network;
  if (may_dial && strcmp(verb, "dial") == 0) hand_connection(sent[0], tag, number);
  /* Closing the socket of a task that was not accepted tells its waiter. */
  for (int i = 0; i < sent_count; i++) close(sent[i]);
  if (strcmp(verb, "go") == 0) {
    *is_watching = 1;
  } else if (strcmp(verb, "rest") == 0) {
    const char *limit = limit_of_mounts(cell);
    *is_watching = 0;
    report_to(task ? task->line : report_fd, "rest %s", limit ? limit : NO_LIMIT);
  } else if (strcmp(verb, "signal") == 0 && task != NULL) {
    kill(-task->pid, number);
  } else if (strcmp(verb, "end") == 0 && task != NULL) {
    kill_task(task->pid);
  } else if (strcmp(verb, "stop") == 0) {
    kill(-1, SIGKILL);
  }
  return 0;
}

static void start_first(struct cell *cell) {
  int error_fd, terminal;
  pid_t program = spawn(&cell->program, &error_fd, &terminal);
  if (program < 0) {
    report("noexec 0 %d", errno);
    _exit(125);
  }
  add_task(0, program, report_fd, error_fd);
}

/* Faults in the pages that the end will use, while no caller waits. */
static void rehearse(const struct cell *cell) {
  struct rusage used;
  limit_after_end(cell, 0);
  getrusage(RUSAGE_CHILDREN, &used);
}

void run_cell(struct cell *cell, int status_fd) {
  sigset_t child_ended;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child_ended, NULL);
  int signals = signalfd(-1, &child_ended, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0) die("init-signalfd");
  int is_watching = 0;
  task_count = 0;
  if (cell->forks_interpreter) {
    cell->program.directory = "/workspace";
    pid_t child = fork();
    if (child < 0) die("init-fork");
    if (child == 0) {
      into_session(&cell->program);
      return;
    }
    for (int i = 0; i < MAX_GIVEN; i++)
      if (cell->program.given[i] >= 0) close(cell->program.given[i]);
    add_task(0, child, report_fd, -1);
    rehearse(cell);
    report("ready");
  } else if (cell->program.argument_count > 0) {
    start_first(cell);
    is_watching = 1;
  } else {
    rehearse(cell);
    report("ready");
  }
  for (int fd = 0; fd < 3; fd++) close(fd);

  static struct pollfd waits[FIRST_TASK + MAX_TASKS];
  waits[0] = (struct pollfd){signals, POLLIN, 0};
  waits[1] = (struct pollfd){status_fd, POLLIN, 0};
  waits[2] = (struct pollfd){cell->listener, POLLIN, 0};
  waits[3] = (struct pollfd){cell->life, POLLIN, 0};
  for (;;) {
    for (int i = 0; i < task_count; i++)
      waits[FIRST_TASK + i] = (struct pollfd){tasks[i].error_fd, POLLIN, 0};
    /* An idle cell sleeps without a timer: hundreds of them must not use a core. */
    int is_timed = is_watching && (cell->watched_count > 0 || cell->max_tasks > 0);
    int ready = poll(waits, FIRST_TASK + (nfds_t)task_count, is_timed ? WATCH_EVERY_MS : -1);
    if (ready < 0 && errno != EINTR) die("init-poll");
    for (int i = task_count - 1; i >= 0; i--)
      if (tasks[i].error_fd >= 0 && waits[FIRST_TASK + i].revents) handle_exec_result(cell, &tasks[i]);
    if (waits[3].revents) end_cell(cell, 0, 0, 0, NULL); /* its keeper was killed */
    if (waits[1].revents && handle_message(cell, &is_watching)) return;
    /* Before any is reaped: what has ended still shows how many there were. */
    const char *crowded = is_watching ? limit_of_tasks(cell) : NULL, *limit = crowded;
    if (waits[2].revents & POLLIN && handle_notice(cell)) limit = "open_files";
    struct signalfd_siginfo ignored;
    while (read(signals, &ignored, sizeof ignored) > 0) continue;
    reap(cell, crowded);
    if (limit == NULL && is_watching) limit = limit_of_mounts(cell);
    if (limit == NULL) continue;
    if (cell->is_once) end_cell(cell, 0, 0, 0, limit);
    kill(-1, SIGKILL);
    while (task_count > 0) {
      struct pollfd one = {signals, POLLIN, 0};
      poll(&one, 1, WATCH_EVERY_MS);
      while (read(signals, &ignored, sizeof ignored) > 0) continue;
      reap(cell, limit);
    }
    is_watching = 0; /* the mount stays full; the next "go" checks again */
  }
}

int init(int plan_fd, int status_fd) {
  report_fd = status_fd;
  /* First: from here on no process inside can read or trace init. */
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) die("init-dumpable");
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) die("init-no-new-privs");
  report_fd = status_fd = move_down(status_fd, FIRST_OWN_FD);
  fcntl(plan_fd, F_SETFD, FD_CLOEXEC);
  umask(022);
  /* Ignored signals are inherited across exec (a shell's background job ignores SIGINT): reset all. */
  for (int number = 1; number < 32; number++) signal(number, SIG_DFL);
  /* The supervisor writes limits and plan while bubblewrap works: wait for its message. */
  char word[8];
  if (recv(status_fd, word, sizeof word, 0) <= 0) _exit(0);
  static struct cell cell;
  build_cell(plan_read(plan_fd), &cell);
  close(plan_fd);
  if (cell.is_zygote) return cellwall_zygote(status_fd);
  run_cell(&cell, status_fd);
  return 0;
}
