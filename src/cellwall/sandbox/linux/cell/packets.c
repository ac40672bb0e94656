/* Packets with descriptors, exchanged only between processes of Cellwall. */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Receives one packet, NUL-terminated, and its descriptors in `sent`. Returns 0 when the peer closed. */
ssize_t receive(int socket_fd, char *text, size_t room, int *sent, int *sent_count) {
  union {
    char room[CMSG_SPACE(sizeof(int) * MAX_SENT)];
    struct cmsghdr align;
  } control;
  struct iovec part = {text, room - 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room,
                           .msg_controllen = sizeof control.room};
  ssize_t got;
  do got = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  *sent_count = 0;
  if (got <= 0) return 0;
  text[got] = '\0';
  for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header != NULL;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    if (count > MAX_SENT) count = MAX_SENT;
    memcpy(sent, CMSG_DATA(header), count * sizeof(int));
    *sent_count = (int)count;
  }
  return got;
}

void send_packet(int socket_fd, const char *text, size_t length, const int *fds, int count) {
  union {
    char room[CMSG_SPACE(sizeof(int) * MAX_SENT)];
    struct cmsghdr align;
  } control;
  memset(&control, 0, sizeof control);
  size_t size = sizeof(int) * (size_t)count;
  struct iovec part = {(void *)(uintptr_t)text, length};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (count > 0) {
    message.msg_control = control.room;
    message.msg_controllen = CMSG_SPACE(size);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(size);
    memcpy(CMSG_DATA(header), fds, size);
  }
  (void)!sendmsg(socket_fd, &message, MSG_NOSIGNAL);
}

void send_one(int socket_fd, const char *text, int fd) {
  send_packet(socket_fd, text, strlen(text), &fd, 1);
}
