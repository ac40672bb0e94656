/* Inside a template's walls: one cell for each request of the supervisor's.
 *
 * A request carries descriptors: the cell's plan, its init's status socket, then what the plan uses
 * under the numbers from FIRST_SENT_FD on. The child is born in fresh user, mount, PID, network, IPC
 * and UTS namespaces and becomes the cell's init; we let go of everything and wait for the next.
 */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAMESPACES \
  (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)

/* The child: returns only in an interpreter that was forked in the finished cell. */
static void live(int control_fd, const int *sent, int count) {
  report_fd = sent[1];
  for (int i = 2; i < count; i++) {
    if (sent[i] >= FIRST_SENT_FD || dup3(sent[i], FIRST_SENT_FD + i - 2, O_CLOEXEC) < 0)
      die("zygote-sent");
    close(sent[i]);
  }
  close(control_fd);
  signal(SIGCHLD, SIG_DFL);
  int status_fd = report_fd = move_down(sent[1], FIRST_OWN_FD);
  static struct cell cell;
  struct plan plan = plan_read(sent[0]);
  close(sent[0]);
  build_cell(plan, &cell);
  run_cell(&cell, status_fd);
}

__attribute__((visibility("default"))) int holdfast_zygote(int control_fd) {
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return -1;
  /* Cells that ended are nobody's business here: their init has told the supervisor. */
  signal(SIGCHLD, SIG_IGN);
  report_fd = control_fd;
  report("zygote");
  for (;;) {
    char text[64];
    int sent[MOST_SENT], count;
    if (receive(control_fd, text, sizeof text, sent, &count) == 0) _exit(0);
    if (count >= 2) {
      pid_t child = (pid_t)syscall(SYS_clone, NAMESPACES | SIGCHLD, 0, 0, 0, 0);
      if (child == 0) {
        live(control_fd, sent, count);
        return 0;
      }
      if (child < 0) {
        report_fd = sent[1];
        report("fail zygote-clone %d", errno);
        report_fd = control_fd;
      }
    }
    for (int i = 0; i < count; i++) close(sent[i]);
  }
}
