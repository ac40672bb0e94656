/* The reaper: messages of the Cellwall process, and the journal of placeholders. */
#include "safe_calls.h"

#include "reaper.c"

#include "harness.h"

void fuzz_reaper(const char *text) {
  while (lease_count > 0) drop(lease_count - 1);
  int sent[1] = {dup(report_fd)};
  serve(text, sent, 1);
  if (lease_count > 1) abort();
  serve("r 0", NULL, 0);
  (void)remove_placeholders(report_fd, "/journal");
}
