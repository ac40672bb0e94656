/* Process lists as the kernel writes them: pids, each followed by a newline or a space. */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#define MAX_READ_BYTES 4096
#define MAX_PID 4194304 /* PID_MAX_LIMIT of the kernel */

/* Kills each process of a list. A number counts only once the byte after it was read: a read may end
 * anywhere, and the first digits of 12345 are the pid of an unrelated process. The list is read to its
 * end; a process that appears meanwhile is in the list of the next call. */
void kill_listed(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  const pid_t self = getpid();
  char text[MAX_READ_BYTES];
  long pid = 0;
  int is_number = 1, digits = 0; /* of the current word */
  for (;;) {
    ssize_t got = read(fd, text, sizeof text);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break; /* an unterminated last number is ignored */
    for (ssize_t i = 0; i < got; i++) {
      if (text[i] >= '0' && text[i] <= '9') {
        pid = pid * 10 + (text[i] - '0');
        digits++;
        if (pid > MAX_PID) is_number = 0, pid = 0;
      } else if (text[i] == '\n' || text[i] == ' ') {
        /* 0 stands for a process outside our PID namespace, and for our own process group in kill(). */
        if (is_number && digits > 0 && pid > 1 && pid != self) kill((pid_t)pid, SIGKILL);
        pid = 0;
        digits = 0;
        is_number = 1;
      } else {
        is_number = 0;
      }
    }
  }
  close(fd);
}
