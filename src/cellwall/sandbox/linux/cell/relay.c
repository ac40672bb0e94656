/* The host's end of the link to a virtual machine, inside bubblewrap, as its PID 1.
 *
 * (1) start the emulator with one end of a socket pair; (2) wait until the guest has booted, and tell the
 * supervisor; (3) on its "go", send the plans; (4) pass bytes and messages until the cell has ended. The
 * supervisor sees the sockets and pipes of an ordinary cell. Everything from the guest is checked here:
 * code that has taken over the guest's kernel can forge its own output, its exit code and its usage, which
 * it could choose anyway, and nothing else. When the relay ends, the kernel kills the emulator, which is
 * in its PID namespace.
 */
#define _GNU_SOURCE
#include "cell.h"
#include "link.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAIN_STREAM 0
#define EMULATOR_FD 3
#define MAX_ABI 1000u
#define MAX_BLOB_BYTES (1u << 30)
#define MAX_ATTACHED 16
/* Messages of init that no message of the supervisor has asked for: of a task, its start and its end. */
#define MAX_UNASKED 4u

static int status_fd, usage_fd, plan_fds[2], given[MAX_SENT], given_count;
static int is_up, has_started, has_ended;
static unsigned asked; /* messages passed on to init */

static void on_violation(const char *why) {
  report("fail machine-protocol-%s 0", why);
  _exit(125);
}

static int is_number(const char *word, size_t most) {
  size_t length = strlen(word);
  if (length == 0 || length > most) return 0;
  for (; *word; word++)
    if (!isdigit((unsigned char)*word)) return 0;
  return 1;
}

static int is_name(const char *word) {
  if (strlen(word) > 40 || *word == '\0') return 0;
  for (; *word; word++)
    if (!islower((unsigned char)*word) && !isdigit((unsigned char)*word) && *word != '-') return 0;
  return 1;
}

static int is_limit(const char *word) {
  static const char *const known[] = {"-", "memory", "processes", "disk", "file_size", "open_files"};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(word, known[i]) == 0) return 1;
  return 0;
}

/* The messages of init.c, and no others. The supervisor reads them as of init. */
static int is_report(const char *text) {
  char copy[MAX_PACKET_BYTES], *words[8], *rest = NULL;
  int count = 0;
  snprintf(copy, sizeof copy, "%s", text);
  for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
    if (count == 8) return 0;
    words[count++] = word;
  }
  if (count == 0) return 0;
  if (strcmp(words[0], "ready") == 0) return count == 1;
  if (strcmp(words[0], "fail") == 0)
    return count == 3 && is_name(words[1]) && is_number(words[2], 5);
  if (strcmp(words[0], "started") == 0)
    return count == 3 && is_number(words[1], 18) && is_number(words[2], 9);
  if (strcmp(words[0], "noexec") == 0)
    return count == 3 && is_number(words[1], 18) && is_number(words[2], 5);
  if (strcmp(words[0], "rest") == 0) return count == 2 && is_limit(words[1]);
  if (strcmp(words[0], "exit") != 0 || count != 7) return 0;
  int is_code = strcmp(words[2], "code") == 0;
  return (is_code || strcmp(words[2], "signal") == 0) && is_number(words[1], 18) &&
         is_number(words[3], 3) && atoi(words[3]) <= (is_code ? 255 : 64) && is_limit(words[4]) &&
         is_number(words[5], 15) && is_number(words[6], 12);
}

static void on_packet(unsigned number, const char *payload, size_t length) {
  struct stream *stream = &link_state.streams[number];
  char text[MAX_PACKET_BYTES];
  if (stream->kind != STREAM_PACKETS || length >= sizeof text) link_violation("packet");
  memcpy(text, payload, length);
  text[length] = '\0';
  if (strlen(text) != length || !is_report(text)) link_violation("report");
  if (++stream->messages > MAX_UNASKED + asked) link_violation("flood");
  if (stream->fd >= 0) report_to(stream->fd, "%s", text);
}

static void take_failure(const char *payload, size_t length) {
  char text[MAX_PACKET_BYTES] = "";
  if (length < sizeof text) memcpy(text, payload, length);
  if (strncmp(text, "fail ", 5) != 0 || !is_report(text)) link_violation("report");
  report("%s", text);
  _exit(125);
}

static void on_frame(struct frame frame, const char *payload) {
  uint32_t abi;
  struct usage usage;
  switch (frame.kind) {
    case FRAME_UP:
      if (is_up || frame.length != sizeof abi) link_violation("up");
      memcpy(&abi, payload, sizeof abi);
      if (abi > MAX_ABI) link_violation("up");
      is_up = 1;
      report("up %u", abi);
      return;
    case FRAME_USAGE:
      if (frame.length != sizeof usage) link_violation("usage");
      memcpy(&usage, payload, sizeof usage);
      (void)!pwrite(usage_fd, &usage, sizeof usage, 0);
      return;
    case FRAME_FAIL:
      take_failure(payload, frame.length);
      return;
    case FRAME_END:
      if (!has_started) link_violation("end");
      has_ended = link_state.is_over = 1;
      return;
    default:
      link_violation("kind");
  }
}

static unsigned new_stream(enum stream_kind kind, int fd, int is_source) {
  unsigned number = 1;
  while (number < MAX_STREAMS && link_state.streams[number].kind != STREAM_NONE) number++;
  link_open(number, kind, fd, is_source);
  uint8_t word = (uint8_t)kind;
  link_put(FRAME_OPEN, number, &word, sizeof word);
  return number;
}

static int has_free(int count) {
  for (int i = 1; i < MAX_STREAMS && count > 0; i++)
    if (link_state.streams[i].kind == STREAM_NONE) count--;
  return count == 0;
}

static unsigned send_blob(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0 || info.st_size <= 0 || info.st_size > MAX_BLOB_BYTES) die("relay-blob");
  size_t length = (size_t)info.st_size;
  const char *bytes = mmap(NULL, length, PROT_READ, MAP_PRIVATE, fd, 0);
  if (bytes == MAP_FAILED) die("relay-map");
  unsigned number = new_stream(STREAM_BLOB, -1, 0);
  link_put_all(FRAME_DATA, number, bytes, length);
  link_put(FRAME_CLOSE, number, NULL, 0);
  link_state.streams[number].sent_close = 1;
  munmap((void *)(uintptr_t)bytes, length);
  close(fd);
  return number;
}

/* A descriptor of the supervisor becomes a stream by its kind. The guest gets no descriptor. */
static unsigned attach(int fd) {
  struct stat info;
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fstat(fd, &info) != 0) die("relay-stat");
  if (S_ISREG(info.st_mode)) return send_blob(fd);
  if (S_ISSOCK(info.st_mode)) return new_stream(STREAM_PACKETS, fd, 0);
  if (!S_ISFIFO(info.st_mode)) {
    errno = EINVAL;
    die("relay-kind");
  }
  set_nonblocking(fd);
  int is_source = (flags & O_ACCMODE) == O_RDONLY;
  return new_stream(is_source ? STREAM_IN : STREAM_OUT, fd, is_source);
}

static void send_attached(enum frame_kind kind, unsigned number, const int *fds, int count,
                          const char *text, size_t length) {
  char payload[1 + 2 * MAX_ATTACHED + MAX_PACKET_BYTES];
  size_t used = 0;
  payload[used++] = (char)count;
  for (int i = 0; i < count; i++) {
    uint16_t stream = (uint16_t)attach(fds[i]);
    memcpy(payload + used, &stream, sizeof stream);
    used += sizeof stream;
  }
  memcpy(payload + used, text, length);
  link_put(kind, number, payload, used + length);
}

static void start_cell(void) {
  has_started = 1;
  int fds[MAX_ATTACHED] = {plan_fds[0], plan_fds[1]};
  if (given_count > MAX_ATTACHED - 2) die("relay-given");
  memcpy(fds + 2, given, sizeof(int) * (size_t)given_count);
  send_attached(FRAME_START, MAIN_STREAM, fds, 2 + given_count, "", 0);
}

static void on_local(unsigned number) {
  char text[MAX_PACKET_BYTES];
  int sent[MAX_SENT], count;
  ssize_t got = receive(link_state.streams[number].fd, text, sizeof text, sent, &count);
  if (got == 0) { /* the supervisor needs no more of this task, or of the cell */
    if (number == MAIN_STREAM && !has_started) _exit(0);
    link_close_local(number);
    return;
  }
  int is_go = strncmp(text, "go", 3) == 0;
  int is_run = number == MAIN_STREAM && strncmp(text, "run ", 4) == 0;
  if (is_go && number == MAIN_STREAM && is_up && !has_started) start_cell();
  /* What init would answer with a descriptor of the guest's kernel is not passed on: "root", "dial". Closing
   * the socket of a task tells its waiter. */
  if (!has_started || count > MAX_ATTACHED || !has_free(count) || (count > 0 && !is_run)) {
    for (int i = 0; i < count; i++) close(sent[i]);
    return;
  }
  asked++;
  send_attached(FRAME_DATA, number, sent, count, text, (size_t)got);
}

static int start_emulator(char **words) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) die("relay-pair");
  pid_t child = fork();
  if (child < 0) die("relay-fork");
  if (child > 0) {
    close(ends[1]);
    set_nonblocking(ends[0]);
    return ends[0];
  }
  int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  int link = fcntl(ends[1], F_DUPFD_CLOEXEC, EMULATOR_FD + 1);
  if (nothing < 0 || link < 0 || dup2(nothing, 0) < 0 || dup2(nothing, 1) < 0) die("relay-null");
  if (dup2(link, EMULATOR_FD) < 0) die("relay-dup");
  /* The emulator holds no descriptor of the supervisor: a guest that takes it over gets none. */
  if (syscall(SYS_close_range, EMULATOR_FD + 1u, ~0u, 0) != 0) _exit(125);
  char *const no_environment[] = {NULL};
  execve(words[0], words, no_environment);
  _exit(127);
}

static void raise_open_files(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) die("relay-rlimit");
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) die("relay-rlimit");
}

/* STATUS USAGE MACHINE-PLAN INIT-PLAN GIVEN… -- EMULATOR… */
int run_relay(int count, char **words) {
  int at = 0;
  report_fd = status_fd = atoi(words[at++]);
  usage_fd = atoi(words[at++]);
  plan_fds[0] = atoi(words[at++]);
  plan_fds[1] = atoi(words[at++]);
  while (at < count && given_count < MAX_SENT && strcmp(words[at], "--") != 0)
    given[given_count++] = atoi(words[at++]);
  if (at + 1 >= count) return 125;
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) die("relay-dumpable");
  int link = start_emulator(words + at + 1);
  raise_open_files();
  /* A pipe whose reader has gone closes its stream alone. The emulator was started before. */
  signal(SIGPIPE, SIG_IGN);
  link_begin(link);
  link_state.on_frame = on_frame;
  link_state.on_packet = on_packet;
  link_state.on_local = on_local;
  link_state.on_violation = on_violation;
  /* The main stream has no OPEN frame: both ends know it. */
  link_open(MAIN_STREAM, STREAM_PACKETS, status_fd, 0);
  while (!link_state.is_over) link_poll(NULL, 0, -1);
  while (link_has_unwritten()) link_poll(NULL, 0, -1);
  return has_ended ? 0 : 1;
}
