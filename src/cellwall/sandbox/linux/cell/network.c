/* The network namespace of a cell, and its egress: sockets made in the namespace before any code runs,
 * and sent to the supervisor. There is no other egress, and the code holds none of these sockets. */
#define _GNU_SOURCE
#include "cell.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 1024

int raise_loopback(void) {
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  struct ifreq request = {.ifr_flags = IFF_UP | IFF_RUNNING};
  strcpy(request.ifr_name, "lo");
  int result = ioctl(fd, SIOCSIFFLAGS, &request);
  close(fd);
  return result;
}

/* A setting of a network or user namespace that is part of a wall: a setting that exists but cannot be
 * written is a failure. An older kernel has it only for the whole host and does not show it. */
int write_setting(const char *path, const char *value) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? 0 : -1;
  ssize_t done = write(fd, value, strlen(value));
  close(fd);
  return done < 0 ? -1 : 0;
}

void put_setting(const char *path, const char *value) {
  if (write_setting(path, value) != 0) die("put-setting");
}

static struct sockaddr_in address_of(const char *text, uint64_t port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  if (port > 65535 || inet_pton(AF_INET, text, &address.sin_addr) != 1) {
    errno = EINVAL;
    die("way-address");
  }
  return address;
}

/* On a loopback device every address of the prefix is local: all connections to it end here. */
void own_prefix(const char *address, const char *mask) {
  struct ifreq request = {0};
  struct sockaddr_in value = address_of(address, 0);
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) die("way-socket");
  strcpy(request.ifr_name, "lo:1");
  memcpy(&request.ifr_addr, &value, sizeof value);
  if (ioctl(fd, SIOCSIFADDR, &request) != 0) die("way-prefix");
  value = address_of(mask, 0);
  memcpy(&request.ifr_addr, &value, sizeof value);
  if (ioctl(fd, SIOCSIFNETMASK, &request) != 0) die("way-mask");
  close(fd);
}

void hand_out(int line_fd, const char *name, int kind, const char *text, uint64_t port) {
  struct sockaddr_in address = address_of(text, port);
  int fd = socket(AF_INET, kind | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) die("way-socket");
  if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0) die("way-bind");
  if (kind == SOCK_STREAM && listen(fd, BACKLOG) != 0) die("way-listen");
  send_one(line_fd, name, fd);
  close(fd);
}

/* A connection to a server inside, for the supervisor: the caller of the sandbox reaches what its code
 * serves, and no program inside takes part. It is not waited for here: code can fill the queue of a
 * listening socket, and init must go on. */
void hand_connection(int line_fd, unsigned long port, int family) {
  if (port == 0 || port > 65535) return; /* closing the socket tells the supervisor */
  struct sockaddr_in v4 = {.sin_family = AF_INET,
                           .sin_port = htons((uint16_t)port),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct sockaddr_in6 v6 = {.sin6_family = AF_INET6,
                            .sin6_port = htons((uint16_t)port),
                            .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  int is_v6 = family == 6;
  int fd = socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  int result = is_v6 ? connect(fd, (struct sockaddr *)&v6, sizeof v6)
                     : connect(fd, (struct sockaddr *)&v4, sizeof v4);
  if (result == 0 || errno == EINPROGRESS) send_one(line_fd, "connection", fd);
  close(fd);
}
