/* Frames and streams; the same at both ends of the link. */
#define _GNU_SOURCE
#include "link.h"
#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_UNSENT_BYTES (1u << 20) /* above this, no more local bytes are read */
#define CHUNK_BYTES 16384u
#define MAX_ANSWERS_BYTES (64u << 20) /* above any plan that the supervisor sends */

struct link link_state;

void set_nonblocking(int fd) {
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) die("link-nonblocking");
}

void link_violation(const char *why) {
  link_state.on_violation(why);
  _exit(125);
}

void link_begin(int fd) {
  link_state.fd = fd;
  for (int i = 0; i < MAX_STREAMS; i++) link_state.streams[i].fd = -1;
}

static void append(const void *bytes, size_t length) {
  struct link *link = &link_state;
  if (link->out_start == link->out_end) link->out_start = link->out_end = 0;
  if (link->out_end + length > link->out_room && link->out_start > 0) {
    memmove(link->out, link->out + link->out_start, link->out_end - link->out_start);
    link->out_end -= link->out_start;
    link->out_start = 0;
  }
  if (link->out_end + length > link->out_room) {
    size_t room = (link->out_end + length) * 2;
    char *larger = realloc(link->out, room);
    if (larger == NULL) die("link-memory");
    link->out = larger;
    link->out_room = room;
  }
  memcpy(link->out + link->out_end, bytes, length);
  link->out_end += length;
}

void link_put(enum frame_kind kind, unsigned stream, const void *payload, size_t length) {
  struct frame frame = {(uint8_t)kind, 0, (uint16_t)stream, (uint32_t)length};
  append(&frame, sizeof frame);
  if (length > 0) append(payload, length);
}

void link_put_all(enum frame_kind kind, unsigned stream, const char *bytes, size_t length) {
  while (length > 0) {
    size_t part = length < CHUNK_BYTES ? length : CHUNK_BYTES;
    link_put(kind, stream, bytes, part);
    bytes += part;
    length -= part;
  }
}

static void send_out(void) {
  struct link *link = &link_state;
  while (link->out_start < link->out_end) {
    ssize_t sent = write(link->fd, link->out + link->out_start, link->out_end - link->out_start);
    if (sent > 0) {
      link->out_start += (size_t)sent;
      continue;
    }
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno != EAGAIN) link->is_over = 1;
    return;
  }
}

struct stream *link_open(unsigned number, enum stream_kind kind, int fd, int is_source) {
  struct link *link = &link_state;
  if (number >= MAX_STREAMS || link->streams[number].kind != STREAM_NONE) link_violation("open");
  struct stream *stream = &link->streams[number];
  *stream = (struct stream){.kind = (uint8_t)kind, .fd = fd, .is_source = (uint8_t)is_source};
  if ((int)number > link->highest) link->highest = (int)number;
  return stream;
}

static void forget_if_closed(struct stream *stream) {
  if (!stream->sent_close || !stream->got_close || stream->fd >= 0) return;
  free(stream->buffer);
  *stream = (struct stream){.fd = -1};
}

/* The local end is closed: nothing more is read from it or written to it. */
void link_close_local(unsigned number) {
  struct stream *stream = &link_state.streams[number];
  if (stream->fd >= 0) close(stream->fd);
  stream->fd = -1;
  stream->waiting = 0;
  if (!stream->sent_close) {
    stream->sent_close = 1;
    link_put(FRAME_CLOSE, number, NULL, 0);
  }
  forget_if_closed(stream);
}

static void write_waiting(unsigned number) {
  struct stream *stream = &link_state.streams[number];
  uint32_t written = 0;
  while (stream->waiting > 0) {
    ssize_t done = write(stream->fd, stream->buffer, stream->waiting);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno == EAGAIN) break;
    if (done <= 0) { /* its reader has gone */
      link_close_local(number);
      return;
    }
    memmove(stream->buffer, stream->buffer + done, stream->waiting - (size_t)done);
    stream->waiting -= (uint32_t)done;
    written += (uint32_t)done;
  }
  /* A guest that sends and never reads would fill our memory with these. */
  if (link_state.out_end - link_state.out_start > MAX_ANSWERS_BYTES) link_violation("unread");
  if (written > 0) link_put(FRAME_TAKEN, number, &written, sizeof written);
  if (stream->waiting == 0 && stream->got_close) link_close_local(number);
}

static void read_source(unsigned number) {
  struct stream *stream = &link_state.streams[number];
  char bytes[CHUNK_BYTES];
  size_t room = WINDOW_BYTES - stream->in_flight;
  ssize_t got = read(stream->fd, bytes, room < sizeof bytes ? room : sizeof bytes);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    link_close_local(number);
    return;
  }
  stream->in_flight += (uint32_t)got;
  link_put(FRAME_DATA, number, bytes, (size_t)got);
}

static void take_data(unsigned number, const char *payload, size_t length) {
  struct stream *stream = &link_state.streams[number];
  if (stream->kind == STREAM_PACKETS || stream->kind == STREAM_BLOB) {
    link_state.on_packet(number, payload, length);
    return;
  }
  if (stream->is_source || stream->got_close) link_violation("direction");
  if (stream->fd < 0) return; /* sent before our CLOSE arrived */
  if (length > WINDOW_BYTES - stream->waiting) link_violation("window");
  if (stream->buffer == NULL && (stream->buffer = malloc(WINDOW_BYTES)) == NULL) die("link-memory");
  memcpy(stream->buffer + stream->waiting, payload, length);
  stream->waiting += (uint32_t)length;
  write_waiting(number);
}

static void take_close(unsigned number) {
  struct stream *stream = &link_state.streams[number];
  if (stream->got_close) link_violation("close");
  stream->got_close = 1;
  if (stream->kind == STREAM_BLOB && stream->fd >= 0) return; /* complete; kept until it is used */
  /* What a sink holds is written first. */
  if (stream->is_source || stream->waiting == 0) link_close_local(number);
}

static void take_frame(struct frame frame, const char *payload) {
  struct link *link = &link_state;
  if (frame.kind != FRAME_DATA && frame.kind != FRAME_TAKEN && frame.kind != FRAME_CLOSE) {
    link->on_frame(frame, payload);
    return;
  }
  if (frame.stream >= MAX_STREAMS || link->streams[frame.stream].kind == STREAM_NONE)
    link_violation("stream");
  struct stream *stream = &link->streams[frame.stream];
  uint32_t taken;
  switch (frame.kind) {
    case FRAME_DATA:
      if (frame.length == 0) link_violation("empty");
      take_data(frame.stream, payload, frame.length);
      break;
    case FRAME_TAKEN:
      if (frame.length != sizeof taken) link_violation("length");
      memcpy(&taken, payload, sizeof taken);
      if (!stream->is_source || taken > stream->in_flight) link_violation("taken");
      stream->in_flight -= taken;
      break;
    default:
      if (frame.length != 0) link_violation("length");
      take_close(frame.stream);
  }
}

static void receive_in(void) {
  struct link *link = &link_state;
  ssize_t got = read(link->fd, link->in + link->in_length, sizeof link->in - link->in_length);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    link->is_over = 1;
    return;
  }
  link->in_length += (size_t)got;
  size_t at = 0;
  while (link->in_length - at >= sizeof(struct frame)) {
    struct frame frame;
    memcpy(&frame, link->in + at, sizeof frame);
    if (frame.length > MAX_PAYLOAD) link_violation("length");
    if (link->in_length - at < sizeof frame + frame.length) break;
    take_frame(frame, link->in + at + sizeof frame);
    at += sizeof frame + frame.length;
  }
  memmove(link->in, link->in + at, link->in_length - at);
  link->in_length -= at;
}

static short events_of(const struct stream *stream, int may_read) {
  if (stream->fd < 0) return 0;
  if (stream->kind == STREAM_PACKETS) return may_read ? POLLIN : 0;
  if (stream->is_source) return may_read && stream->in_flight < WINDOW_BYTES ? POLLIN : 0;
  return stream->waiting > 0 ? POLLOUT : 0;
}

/* Wait once, and serve the link and all streams. Returns what poll returned. */
int link_poll(struct pollfd *also, int count, int timeout_ms) {
  static struct pollfd waits[MAX_STREAMS + 16];
  static uint16_t numbers[MAX_STREAMS + 16];
  struct link *link = &link_state;
  send_out();
  int used = 0;
  for (int i = 0; i < count; i++) waits[used++] = also[i];
  int of_link = used;
  waits[used++] = (struct pollfd){link->is_over ? -1 : link->fd, POLLIN, 0};
  if (link->out_start < link->out_end) waits[of_link].events |= POLLOUT;
  int may_read = link->out_end - link->out_start < MAX_UNSENT_BYTES;
  int first = used;
  for (int i = 0; i <= link->highest; i++) {
    struct stream *stream = &link->streams[i];
    if (stream->fd < 0) continue;
    short events = events_of(stream, may_read);
    /* A source at the end of its window must not wake us by the end of its pipe. */
    if (events == 0 && (stream->is_source || stream->kind == STREAM_PACKETS)) continue;
    numbers[used] = (uint16_t)i;
    waits[used++] = (struct pollfd){stream->fd, events, 0};
  }
  int ready = poll(waits, (nfds_t)used, timeout_ms);
  for (int i = 0; i < count; i++) also[i].revents = ready > 0 ? waits[i].revents : 0;
  if (ready <= 0) return ready;
  for (int i = first; i < used; i++) {
    struct stream *stream = &link->streams[numbers[i]];
    if (waits[i].revents == 0 || stream->fd != waits[i].fd) continue;
    if (stream->kind == STREAM_PACKETS)
      link->on_local(numbers[i]);
    else if (stream->is_source)
      read_source(numbers[i]);
    else if (stream->waiting > 0)
      write_waiting(numbers[i]);
    else
      link_close_local(numbers[i]); /* POLLERR: its reader has gone */
  }
  if (waits[of_link].revents & (POLLIN | POLLHUP | POLLERR)) receive_in();
  send_out();
  return ready;
}

int link_has_unwritten(void) {
  for (int i = 0; i <= link_state.highest; i++)
    if (link_state.streams[i].fd >= 0 && link_state.streams[i].waiting > 0) return 1;
  return 0;
}

int link_has_sources(void) {
  for (int i = 0; i <= link_state.highest; i++) {
    const struct stream *stream = &link_state.streams[i];
    if (stream->fd >= 0 && (stream->is_source || stream->kind == STREAM_PACKETS)) return 1;
  }
  return 0;
}
