/* The relay of a virtual machine: the bytes of a hostile guest, in pieces.
 *
 * The first byte chooses what the relay has done before, the second the size of the pieces.
 * Invariants: the relay stays within its memory (AddressSanitizer), has no undefined behaviour (UBSan),
 * and goes on or ends by a violation; a stream's reader gets the first bytes of what the guest sent on
 * that stream, in order, and nothing else; the supervisor gets only messages that init sends. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static jmp_buf after_exit;

_Noreturn static void end_run(int code) { longjmp(after_exit, code + 1); }

#define _exit(code) end_run(code)
#include "link.c"
#include "relay.c"
#undef _exit

int report_fd = -1;
#define SINK 2
#define MAX_SHOWN (1u << 17)

static void check_message(const char *format, va_list values) {
  char text[512];
  int length = vsnprintf(text, sizeof text, format, values);
  static const char *const first[] = {"ready", "up ", "fail ", "started ", "noexec ", "rest ", "exit "};
  int is_known = 0;
  for (size_t i = 0; i < sizeof first / sizeof *first; i++)
    if (strncmp(text, first[i], strlen(first[i])) == 0) is_known = 1;
  if (!is_known || length <= 0 || length >= (int)MAX_PACKET_BYTES) abort();
  for (int i = 0; i < length; i++)
    if (text[i] < ' ' || text[i] > '~') abort();
}

void report(const char *format, ...) {
  va_list values;
  va_start(values, format);
  check_message(format, values);
  va_end(values);
}

void report_to(int fd, const char *format, ...) {
  va_list values;
  (void)fd;
  va_start(values, format);
  check_message(format, values);
  va_end(values);
}

void die(const char *step) {
  (void)step;
  end_run(125);
}

/* No message of the supervisor comes here. */
ssize_t receive(int socket_fd, char *text, size_t room, int *sent, int *sent_count) {
  (void)socket_fd, (void)text, (void)room, (void)sent;
  *sent_count = 0;
  return 0;
}

/* A second reader of the guest's bytes: all that it sent on the sink, up to a frame that is too long. */
static size_t sent_on_sink(const uint8_t *data, size_t size, char *into) {
  size_t found = 0;
  while (size >= 8) {
    size_t stream = data[2] | (size_t)data[3] << 8;
    size_t length = data[4] | (size_t)data[5] << 8 | (size_t)data[6] << 16 | (size_t)data[7] << 24;
    if (length > MAX_PAYLOAD || length > size - 8) break;
    if (data[0] == FRAME_DATA && stream == SINK && found + length <= MAX_SHOWN) {
      memcpy(into + found, data + 8, length);
      found += length;
    }
    data += 8 + length;
    size -= 8 + length;
  }
  return found;
}

static void drain(int fd) {
  char bytes[4096];
  while (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0) continue;
}

static size_t take_shown(int fd, char *into, size_t have) {
  ssize_t got;
  while (have < MAX_SHOWN && (got = read(fd, into + have, MAX_SHOWN - have)) > 0) have += (size_t)got;
  return have;
}

static void run(const uint8_t *data, size_t size, size_t piece, int guest, int shown_fd, char *shown,
                size_t *shown_bytes) {
  while (size > 0 && !link_state.is_over) {
    size_t part = size < piece ? size : piece;
    if (send(guest, data, part, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)part) return;
    data += part;
    size -= part;
    /* More than one turn for the streams, whose descriptors are ready. */
    for (int i = 0; i < 3 && !link_state.is_over; i++) link_poll(NULL, 0, 0);
    *shown_bytes = take_shown(shown_fd, shown, *shown_bytes);
    drain(guest);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static char shown[MAX_SHOWN], sent[MAX_SHOWN];
  static size_t have;
  int ends[2], main_line[2], sink[2], source[2], deaf[2], usage = -1;
  if (size < 2) return 0;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0 ||
      socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, main_line) != 0 || pipe2(sink, O_CLOEXEC | O_NONBLOCK) != 0 ||
      pipe2(source, O_CLOEXEC | O_NONBLOCK) != 0 || pipe2(deaf, O_CLOEXEC | O_NONBLOCK) != 0)
    abort();
  uint8_t state = data[0];
  size_t piece = 1 + data[1] * 16u;
  data += 2;
  size -= 2;
  is_up = state & 1;
  has_started = state >> 1 & 1;
  has_ended = 0;
  asked = state >> 2 & 7;
  usage_fd = usage = memfd_create("usage", MFD_CLOEXEC);
  memset(&link_state, 0, sizeof link_state);
  link_begin(ends[0]);
  link_state.on_frame = on_frame;
  link_state.on_packet = on_packet;
  link_state.on_local = on_local;
  link_state.on_violation = on_violation;
  (void)!write(source[1], "input", 5);
  close(deaf[0]); /* its reader has gone */
  have = 0;
  if (setjmp(after_exit) == 0) {
    link_open(MAIN_STREAM, STREAM_PACKETS, main_line[0], 0);
    link_open(1, STREAM_IN, source[0], 1);
    link_open(SINK, STREAM_OUT, sink[1], 0);
    link_open(3, STREAM_BLOB, -1, 0);
    link_open(4, STREAM_OUT, deaf[1], 0);
    run(data, size, piece, ends[1], sink[0], shown, &have);
  }
  have = take_shown(sink[0], shown, have);
  size_t most = sent_on_sink(data, size, sent);
  if (have > most || memcmp(shown, sent, have) != 0) abort();
  for (int i = 0; i < MAX_STREAMS; i++) {
    if (link_state.streams[i].fd >= 0) close(link_state.streams[i].fd);
    free(link_state.streams[i].buffer);
  }
  free(link_state.out);
  close(ends[0]), close(ends[1]), close(main_line[1]), close(sink[0]), close(source[1]), close(usage);
  return 0;
}
