/* The stock of cells: its settings, the recipe of a group, and the supervisor's messages. */
#include "safe_calls.h"

#include "prefork.c"

#include "harness.h"

static void forget(void) {
  base_count = leaving_count = spare_count = reset_count = has_owner = passes_given = 0;
}

void fuzz_stock(struct plan plan) {
  char group[MAX_NAME];
  int none[2] = {-1, -1};
  forget();
  prefork_begin(plan, none);
  make_group("cell_a", group, plan);
  remove_later("cell_a", 1);
  prefork_tidy();
}

void fuzz_stock_messages(int fd, int peer, const char *text, size_t size) {
  forget();
  asking_fd = fd;
  zygote_fd = -1;
  if (send(peer, text, size, MSG_DONTWAIT) == (ssize_t)size) prefork_serve();
  for (int i = 0; i < leaving_count; i++)
    if (strchr(leaving[i].name, '/') != NULL) abort();
}
