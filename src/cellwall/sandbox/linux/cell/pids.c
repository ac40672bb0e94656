/* Lists of processes, as the kernel writes them: numbers with a newline or a blank behind each. */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#define MAX_READ_BYTES 4096
#define MAX_PID 4194304 /* PID_MAX_LIMIT of the kernel */

/* Kills each process of a list. A number counts only once the byte behind it is there: a read ends
 * anywhere, and the first digits of 12345 are the number of somebody else's process. The list is read
 * to its end; the kernel goes on where it was, and what it leaves out is in the next call's list. */
void kill_listed(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  const pid_t self = getpid();
  char text[MAX_READ_BYTES];
  long pid = 0;
  int is_number = 1, digits = 0; /* of the word that is being read */
  for (;;) {
    ssize_t got = read(fd, text, sizeof text);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break; /* a last number without an end is not believed */
    for (ssize_t i = 0; i < got; i++) {
      if (text[i] >= '0' && text[i] <= '9') {
        pid = pid * 10 + (text[i] - '0');
        digits++;
        if (pid > MAX_PID) is_number = 0, pid = 0;
      } else if (text[i] == '\n' || text[i] == ' ') {
        /* 0 is a process outside our PID namespace, and "my own group" to kill(). */
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
