/* A cell in a container of another engine, which passes no descriptors on: they come over a socket. */
#define _GNU_SOURCE
#include "cell.h"

#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FIRST_WORD_BYTES 16

/* PID 1 of the container. No code runs in it yet, and the supervisor removes the socket after this
 * connection, so that no later process can connect. */
int join_cell(const char *path) {
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return 125;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof address.sun_path) return 125;
  strcpy(address.sun_path, path);
  int line = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (line < 0 || connect(line, (struct sockaddr *)&address, sizeof address) != 0) return 125;
  char text[FIRST_WORD_BYTES];
  int sent[MAX_SENT], count;
  if (receive(line, text, sizeof text, sent, &count) == 0 || count < 2) return 125;
  for (int i = 0; i < count; i++) {
    if (sent[i] >= FIRST_SENT_FD || dup3(sent[i], FIRST_SENT_FD + i, O_CLOEXEC) < 0) return 125;
    close(sent[i]);
  }
  close(line);
  return init(FIRST_SENT_FD, FIRST_SENT_FD + 1);
}

/* Holds one end of the socket whose other end init holds: exits after init, and init ends the cell when
 * this process is killed, by the shim or by an emergency stop. */
int attend(int life_fd) {
  char byte;
  while (read(life_fd, &byte, 1) > 0) continue;
  return 0;
}
