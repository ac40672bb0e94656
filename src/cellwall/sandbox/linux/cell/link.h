/* The byte link between the kernel of the host and that of a virtual machine.
 *
 * Descriptors cannot cross it. Each descriptor of a cell is a stream: one end holds the pipe or socket of
 * the supervisor (relay.c), the other a pipe or socket of the guest (guest.c). A frame is a header of
 * 8 bytes, little endian as both processors are, and its payload. The host alone opens streams.
 *
 * The relay believes no byte of the guest: a frame of unknown kind, for a stream that is not open, too
 * long, or beyond the window ends the machine.
 */
#ifndef CELLWALL_LINK_H
#define CELLWALL_LINK_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_PAYLOAD 32768u
#define WINDOW_BYTES 131072u  /* sent on a stream and not yet taken up at the other end */
#define MAX_STREAMS 4096      /* six for each of init's 512 tasks, and room */
#define MAX_PACKET_BYTES 256u /* a message of init or of the supervisor */

enum frame_kind {
  FRAME_UP = 1, /* guest: it has booted; the Landlock ABI of its kernel */
  FRAME_OPEN,   /* host: a new stream, and its kind */
  FRAME_DATA,
  FRAME_TAKEN, /* so many bytes were taken up: the window moves */
  FRAME_CLOSE,
  FRAME_START, /* host: build the cell from these streams */
  FRAME_USAGE, /* guest: the counters of its cgroup */
  FRAME_END,   /* guest: every process of the cell has ended, and every byte was sent */
  FRAME_FAIL,  /* guest: a step of its start failed */
};

enum stream_kind {
  STREAM_NONE,
  STREAM_BLOB,    /* host to guest: a whole file, then CLOSE; outside the window */
  STREAM_PACKETS, /* messages with boundaries, both ways */
  STREAM_IN,      /* bytes, host to guest */
  STREAM_OUT,     /* bytes, guest to host */
};

struct frame {
  uint8_t kind, unused;
  uint16_t stream;
  uint32_t length;
};

/* In FRAME_USAGE, and in the memory that the supervisor reads. */
struct usage {
  uint64_t cpu_us, memory_peak, memory_now, out_of_memory, forks_refused;
};

struct stream {
  uint8_t kind;
  uint8_t sent_close, got_close;
  uint8_t is_source;   /* its local descriptor is read here */
  int fd;              /* -1: closed here */
  uint32_t in_flight;  /* of a source: sent and not taken up */
  uint32_t waiting;    /* in `buffer`, to be written to `fd` */
  unsigned messages;   /* packets received from the other end */
  char *buffer;
};

struct link {
  int fd;
  int is_over; /* the other end has closed */
  char *out;
  size_t out_start, out_end, out_room;
  char in[sizeof(struct frame) + MAX_PAYLOAD];
  size_t in_length;
  struct stream streams[MAX_STREAMS];
  int highest;
  /* Called for frames other than DATA, TAKEN and CLOSE, and for packets. */
  void (*on_frame)(struct frame frame, const char *payload);
  void (*on_packet)(unsigned stream, const char *payload, size_t length);
  /* A local packet socket is readable. */
  void (*on_local)(unsigned stream);
  /* The other end has broken the protocol: ends this process. */
  void (*on_violation)(const char *why);
};

extern struct link link_state;

_Noreturn void link_violation(const char *why);
void link_begin(int fd);
void link_put(enum frame_kind kind, unsigned stream, const void *payload, size_t length);
void link_put_all(enum frame_kind kind, unsigned stream, const char *bytes, size_t length);
struct stream *link_open(unsigned number, enum stream_kind kind, int fd, int is_source);
void link_close_local(unsigned number);
int link_poll(struct pollfd *also, int count, int timeout_ms);
int link_has_unwritten(void);
int link_has_sources(void);
void set_nonblocking(int fd);

#endif
