/* Init's reader of the supervisor's messages. */
#include "safe_calls.h"

#include "init.c"

#include "harness.h"

void fuzz_init_message(int fd, int peer, const char *text, size_t size) {
  static struct cell cell;
  int is_watching = 0;
  memset(&cell, 0, sizeof cell);
  cell.max_open_files = 64;
  cell.listener = -1;
  task_count = 0;
  add_task(7, 1000, fd, -1);
  report_fd = fd;
  if (send(peer, text, size, MSG_DONTWAIT) == (ssize_t)size) handle_message(&cell, &is_watching);
  if (task_count > 2) abort();
}
