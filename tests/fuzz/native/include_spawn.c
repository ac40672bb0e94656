/* The reader of /proc/PID/stat, whose command name code chooses, and the end of a task, which uses it.
 * Programs are started by the functions of cell_fuzz.c. */
#include "safe_calls.h"

#define move_down started_move_down
#define spawn started_spawn
#define into_session started_into_session
#include "spawn.c"

#include "harness.h"

void fuzz_stat_line(void) {
  long parent = 0, session = 0;
  (void)read_stat("1", &parent, &session);
}
