/* cellwall-cell: plans, messages, lists of processes, journals. The first byte selects the reader.
 *
 * Invariants: each reader stays within the bytes that it was given (AddressSanitizer), has no undefined
 * behaviour (UBSan), and ends by `die` or returns. A list of processes signals those that a second
 * reader finds in it. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

/* What a plan asks for, read in full and not done. */
static void use(const char *text) { (void)strlen(text); }
static void use_bytes(const char *bytes, size_t length) {
  volatile char last = 0;
  for (size_t i = 0; i < length; i++) last = bytes[i];
  (void)last;
}
void make_file(const char *path, uint64_t mode, const char *content, size_t length) {
  (void)mode;
  use(path);
  use_bytes(content, length);
}
void take(const char *from, const char *to, const char *kind) { use(from), use(to), use(kind); }
void leave(const char *path) { use(path); }
void seal(const char *path) { use(path); }
void mount_tmpfs(const char *path, const char *options) { use(path), use(options); }
void mount_devpts(const char *path, const char *options) { use(path), use(options); }
void mount_overlay(const char *base, const char *target, uint64_t lowers) { use(base), use(target), (void)lowers; }
void expect_same(const char *path, uint64_t device, uint64_t inode) { use(path), (void)device, (void)inode; }
void cover(int root_fd, const char *path, const char *treatment, int must_exist) {
  (void)root_fd, (void)must_exist, use(path), use(treatment);
}
int copy_tree(int dir_fd, int userns_fd, int read_only) { return dir_fd + userns_fd + read_only; }
void attach_tree(int tree, const char *target) { (void)tree, use(target); }
void show_file(const char *from, const char *to) { use(from), use(to); }
void make_path(const char *path) { use(path); }
void mirror(const char *from, const char *to) { use(from), use(to); }
int clone_mount(const char *path) { return use(path), -1; }
void hand_view(int line_fd, const char *path) { (void)line_fd, use(path); }
void hand_root(int line_fd, unsigned long number) { (void)line_fd, (void)number; }
void hand_connection(int line_fd, unsigned long port, int family) { (void)line_fd, (void)port, (void)family; }
void map_ids(uint64_t uid, uint64_t gid) { (void)uid, (void)gid; }
void join_group(int fd) { (void)fd; }
void own_namespaces(void) {}
void mount_proc(void) {}
void put_share(const char *path, const char *value) { use(path), use(value); }
void put_setting(const char *path, const char *value) { use(path), use(value); }
void own_prefix(const char *address, const char *mask) { use(address), use(mask); }
void hand_out(int line_fd, const char *name, int kind, const char *address, uint64_t port) {
  (void)line_fd, (void)kind, (void)port, use(name), use(address);
}
void set_rlimit(uint64_t resource, uint64_t value) { (void)resource, (void)value; }
void drop_capabilities(void) {}
void become(uint64_t uid, uint64_t gid) { (void)uid, (void)gid; }
void landlock_begin(uint64_t handled_fs, uint64_t scoped) { (void)handled_fs, (void)scoped; }
void landlock_allow(const char *path, uint64_t access) { use(path), (void)access; }
void landlock_enforce(void) {}
int seccomp_enforce(const char *filter, size_t length, int want_listener) {
  (void)want_listener;
  use_bytes(filter, length);
  return -1;
}
const char *limit_of_mounts(const struct cell *cell) {
  for (int i = 0; i < cell->watched_count; i++) use(cell->watched[i]);
  return NULL;
}
const char *limit_of_tasks(const struct cell *cell) { return cell->max_open_files == 0 ? "processes" : NULL; }
const char *limit_after_end(const struct cell *cell, int status) {
  limit_of_mounts(cell);
  for (int i = 0; i < cell->searched_count; i++) use(cell->searched[i]);
  return status != 0 && cell->max_file_bytes == 0 ? "file_size" : NULL;
}
int handle_notice(struct cell *cell) { return cell->listener >= 0 && cell->max_open_files == 0; }
int raise_loopback(void) { return 0; }
int cellwall_zygote(int control_fd) { return control_fd; }
pid_t spawn(struct program *program, int *error_fd, int *terminal) {
  for (int i = 0; i < program->argument_count; i++) use(program->arguments[i]);
  for (int i = 0; i < program->environment_count; i++) use(program->environment[i]);
  *error_fd = *terminal = -1;
  return 1001;
}
void into_session(struct program *program) { (void)program; }
int move_down(int fd, int lowest) { return (void)lowest, fd; }

/* A plan with its own last byte, or none: `plan_read` accepts no other. */
static struct plan plan_of(const uint8_t *data, size_t size, char **kept) {
  *kept = malloc(size + 1);
  if (*kept == NULL) abort();
  memcpy(*kept, data, size);
  size_t length = size > 0 && data[size - 1] == '\0' ? size : size + 1;
  (*kept)[length - 1] = '\0';
  char *exact = realloc(*kept, length);
  if (exact == NULL) abort();
  *kept = exact;
  return (struct plan){exact, exact + length};
}

/* As the kernel writes them; numbers with more digits than any pid are none. */
static long signals_in(const uint8_t *data, size_t size) {
  long count = 0, pid = 0;
  int is_number = 1, digits = 0;
  for (size_t i = 0; i < size; i++) {
    if (data[i] == '\n' || data[i] == ' ') {
      count += is_number && digits > 0 && pid > 1 && pid != getpid();
      pid = digits = 0;
      is_number = 1;
    } else if (data[i] < '0' || data[i] > '9') {
      is_number = 0;
    } else if (is_number) {
      pid = pid * 10 + (data[i] - '0');
      digits++;
      if (pid > 4194304) is_number = 0;
    }
  }
  return count;
}

static void fuzz_list(const uint8_t *data, size_t size) {
  signals_sent = 0;
  kill_listed("/list");
  if (signals_sent != signals_in(data, size)) abort();
}

static void fuzz_packet(int fd, int peer, const uint8_t *data, size_t size) {
  char text[32];
  int sent[MAX_SENT], count = 0;
  if (size == 0 || send(peer, data, size, MSG_DONTWAIT) != (ssize_t)size) return;
  ssize_t got = receive(fd, text, sizeof text, sent, &count);
  if (got < 0 || got >= (ssize_t)sizeof text || text[got] != '\0' || count != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct cell cell;
  static struct program program;
  int lines[2];
  if (size == 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, lines) != 0) return 0;
  uint8_t reader = data[0] % 9;
  data++, size--;
  char *volatile kept = NULL;
  char *buffer = NULL;
  struct plan plan = plan_of(data, size, &buffer);
  kept = buffer;
  file_data = data;
  file_size = size;
  report_fd = lines[0];
  if (setjmp(after_exit) == 0) {
    memset(&cell, 0, sizeof cell);
    memset(&program, 0, sizeof program);
    switch (reader) {
      case 0: build_cell(plan, &cell); break;
      case 1: read_program(plan, &program); break;
      case 2: fuzz_job(plan); break;
      case 3: fuzz_stock(plan); break;
      case 4: fuzz_stock_messages(lines[0], lines[1], plan.at, size); break;
      case 5: fuzz_init_message(lines[0], lines[1], plan.at, size); break;
      case 6: fuzz_list(data, size), fuzz_stat_line(); break;
      case 7: fuzz_reaper(plan.at); break;
      default: fuzz_packet(lines[0], lines[1], data, size); break;
    }
  }
  free(kept);
  close(lines[0]);
  close(lines[1]);
  return 0;
}
