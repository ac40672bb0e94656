/* Selects the role of the process. */
#define _GNU_SOURCE
#include "cell.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
  /* The fourth word marks the state folder, for those who look for its shims. */
  if (argc == 5 && strcmp(argv[1], "keep") == 0) return run_shim(atoi(argv[2]), atoi(argv[3]));
  if (argc == 3 && strcmp(argv[1], "hold") == 0) return run_reaper(atoi(argv[2]));
  if (argc == 4 && strcmp(argv[1], "init") == 0) return init(atoi(argv[2]), atoi(argv[3]));
  if (argc == 3 && strcmp(argv[1], "join") == 0) return join_cell(argv[2]);
  if (argc == 3 && strcmp(argv[1], "attend") == 0) return attend(atoi(argv[2]));
  if (argc > 7 && strcmp(argv[1], "relay") == 0) return run_relay(argc - 2, argv + 2);
  if (argc >= 2 && strcmp(argv[1], "guest") == 0 && getpid() == 1)
    return run_guest(argc > 2 ? argv[2] : NULL);
  static const char usage[] =
      "cellwall-cell is started by Cellwall; it has no use of its own. Try: cellwall --help\n";
  (void)!write(STDERR_FILENO, usage, sizeof usage - 1);
  return 125;
}
