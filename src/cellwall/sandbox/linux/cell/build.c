/* Carries out the plan of a cell in its order: mounts, rlimits, capabilities, Landlock, seccomp. */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static char **next_slot(char **list, int *count) {
  if (*count >= MAX_WORDS - 1) {
    errno = E2BIG;
    die("plan-too-many-words");
  }
  return &list[(*count)++];
}

static _Noreturn void unknown_verb(void) {
  errno = EINVAL;
  die("plan-verb");
}

void clear_program(struct program *program) {
  program->environment_count = program->argument_count = 0;
  program->directory = "/";
  program->wants_terminal = program->is_second = 0;
  for (int i = 0; i < MAX_GIVEN; i++) program->given[i] = -1;
}

/* Returns whether the verb describes the program to start. */
static int program_step(const char *verb, struct plan *plan, struct program *program) {
  if (strcmp(verb, "env") == 0) {
    *next_slot(program->environment, &program->environment_count) = (char *)plan_need(plan);
  } else if (strcmp(verb, "arg") == 0) {
    *next_slot(program->arguments, &program->argument_count) = (char *)plan_need(plan);
  } else if (strcmp(verb, "cwd") == 0) {
    program->directory = plan_need(plan);
  } else if (strcmp(verb, "as-second") == 0) {
    program->is_second = 1;
  } else if (strcmp(verb, "terminal") == 0) {
    program->wants_terminal = 1;
    program->rows = (unsigned short)plan_number(plan);
    program->columns = (unsigned short)plan_number(plan);
  } else {
    return 0;
  }
  program->environment[program->environment_count] = NULL;
  program->arguments[program->argument_count] = NULL;
  return 1;
}

void read_program(struct plan plan, struct program *program) {
  const char *verb;
  while ((verb = plan_word(&plan)) != NULL)
    if (!program_step(verb, &plan, program)) unknown_verb();
}

/* A file that programs can do without, in a directory that may hold files of the cell's own code. What
 * exists stays as it is. A link of that code leads to no place that the code cannot write: the root is
 * sealed by now. */
static void offer_file(const char *path, uint64_t mode, const char *content, size_t length) {
  char folder[256]; /* the plan itself is mapped read-only */
  for (const char *end = strchr(path + 1, '/'); end != NULL; end = strchr(end + 1, '/')) {
    size_t size = (size_t)(end - path);
    if (size >= sizeof folder) return;
    memcpy(folder, path, size);
    folder[size] = '\0';
    (void)mkdir(folder, 0755);
  }
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, (mode_t)mode);
  if (fd < 0) return;
  if (write(fd, content, length) != (ssize_t)length) (void)unlink(path); /* the disk is full */
  close(fd);
}

static int file_step(const char *verb, struct plan *plan) {
  if (strcmp(verb, "dir") == 0) {
    if (mkdir(plan_need(plan), 0755) != 0) die("dir-make");
  } else if (strcmp(verb, "link") == 0) {
    const char *target = plan_need(plan);
    if (symlink(target, plan_need(plan)) != 0) die("link-make");
  } else if (strcmp(verb, "file") == 0) {
    const char *path = plan_need(plan);
    uint64_t mode = plan_number(plan);
    size_t length = (size_t)plan_number(plan);
    make_file(path, mode, plan_bytes(plan, length), length);
  } else if (strcmp(verb, "offer") == 0) {
    const char *path = plan_need(plan);
    uint64_t mode = plan_number(plan);
    size_t length = (size_t)plan_number(plan);
    offer_file(path, mode, plan_bytes(plan, length), length);
  } else {
    return 0;
  }
  return 1;
}

static int mount_step(const char *verb, struct plan *plan, int *workspace_fd) {
  if (strcmp(verb, "take") == 0) {
    const char *kind = plan_need(plan);
    const char *from = plan_need(plan);
    take(from, plan_need(plan), kind);
  } else if (strcmp(verb, "leave") == 0) {
    leave(plan_need(plan));
  } else if (strcmp(verb, "seal") == 0) {
    seal(plan_need(plan));
  } else if (strcmp(verb, "tmpfs") == 0) {
    const char *path = plan_need(plan);
    mount_tmpfs(path, plan_need(plan));
  } else if (strcmp(verb, "devpts") == 0) {
    const char *path = plan_need(plan);
    mount_devpts(path, plan_need(plan));
  } else if (strcmp(verb, "overlay") == 0) {
    const char *base = plan_need(plan);
    const char *target = plan_need(plan);
    mount_overlay(base, target, plan_number(plan));
  } else if (strcmp(verb, "view") == 0) {
    hand_view(report_fd, plan_need(plan));
  } else if (strcmp(verb, "expect") == 0) {
    const char *path = plan_need(plan);
    uint64_t device = plan_number(plan);
    expect_same(path, device, plan_number(plan));
  } else if (strcmp(verb, "workspace") == 0) {
    *workspace_fd = open(plan_need(plan), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*workspace_fd < 0) die("workspace-open");
  } else if (strcmp(verb, "protect") == 0) {
    const char *treatment = plan_need(plan);
    cover(*workspace_fd, plan_need(plan), treatment, 1);
  } else if (strcmp(verb, "cover") == 0) {
    const char *treatment = plan_need(plan);
    cover(AT_FDCWD, plan_need(plan), treatment, 0);
  } else if (strcmp(verb, "same") == 0) {
    const char *from = plan_need(plan);
    show_file(from, plan_need(plan));
  } else if (strcmp(verb, "path") == 0) {
    make_path(plan_need(plan));
  } else if (strcmp(verb, "mirror") == 0) {
    const char *from = plan_need(plan);
    mirror(from, plan_need(plan));
  } else {
    return 0;
  }
  return 1;
}

/* Steps only of a cell that a zygote forked. */
static int fork_step(const char *verb, struct plan *plan) {
  if (strcmp(verb, "ids") == 0) {
    uint64_t uid = plan_number(plan);
    map_ids(uid, plan_number(plan));
  } else if (strcmp(verb, "join") == 0) {
    join_group((int)plan_number(plan));
  } else if (strcmp(verb, "namespaces") == 0) {
    own_namespaces();
  } else if (strcmp(verb, "proc") == 0) {
    mount_proc();
  } else if (strcmp(verb, "share") == 0) {
    const char *path = plan_need(plan);
    put_share(path, plan_need(plan));
  } else if (strcmp(verb, "tree") == 0) {
    int tree = (int)plan_number(plan);
    attach_tree(tree, plan_need(plan));
  } else {
    return 0;
  }
  return 1;
}

/* The cell's network namespace, and its egress sockets if it has any; needs a capability that "drop"
 * removes. */
static int network_step(const char *verb, struct plan *plan) {
  if (strcmp(verb, "setting") == 0) {
    const char *path = plan_need(plan);
    put_setting(path, plan_need(plan));
  } else if (strcmp(verb, "loopback") == 0) {
    if (raise_loopback() != 0) die("loopback-up");
  } else if (strcmp(verb, "network-setting") == 0) {
    plan_need(plan); /* written by the zygote, when it made the namespace */
    plan_need(plan);
  } else if (strcmp(verb, "prefix") == 0) {
    const char *address = plan_need(plan);
    own_prefix(address, plan_need(plan));
  } else if (strcmp(verb, "listen") == 0 || strcmp(verb, "datagrams") == 0) {
    int kind = strcmp(verb, "listen") == 0 ? SOCK_STREAM : SOCK_DGRAM;
    int line = (int)plan_number(plan);
    const char *name = plan_need(plan), *address = plan_need(plan);
    hand_out(line, name, kind, address, plan_number(plan));
  } else if (strcmp(verb, "handed") == 0) {
    close((int)plan_number(plan));
  } else {
    return 0;
  }
  return 1;
}

static int limit_step(const char *verb, struct plan *plan, struct cell *cell) {
  if (strcmp(verb, "watch") == 0 && cell->watched_count < MAX_WATCHED) {
    cell->watched[cell->watched_count++] = plan_need(plan);
  } else if (strcmp(verb, "search") == 0 && cell->searched_count < MAX_WATCHED) {
    cell->searched[cell->searched_count++] = plan_need(plan);
  } else if (strcmp(verb, "file-size") == 0) {
    cell->max_file_bytes = plan_number(plan);
  } else if (strcmp(verb, "open-files") == 0) {
    cell->max_open_files = plan_number(plan);
  } else if (strcmp(verb, "tasks") == 0) {
    cell->max_tasks = plan_number(plan);
  } else if (strcmp(verb, "rlimit") == 0) {
    uint64_t resource = plan_number(plan);
    set_rlimit(resource, plan_number(plan));
  } else {
    return 0;
  }
  return 1;
}

static int wall_step(const char *verb, struct plan *plan, struct cell *cell) {
  if (strcmp(verb, "become") == 0) {
    uint64_t uid = plan_number(plan);
    become(uid, plan_number(plan));
  } else if (strcmp(verb, "both") == 0) {
    uint64_t uid = plan_number(plan);
    hold_both(uid, plan_number(plan));
  } else if (strcmp(verb, "drop") == 0) {
    drop_capabilities();
  } else if (strcmp(verb, "landlock") == 0) {
    uint64_t handled = plan_number(plan);
    landlock_begin(handled, plan_number(plan));
  } else if (strcmp(verb, "allow") == 0) {
    const char *path = plan_need(plan);
    landlock_allow(path, plan_number(plan));
  } else if (strcmp(verb, "enforce") == 0) {
    landlock_enforce();
  } else if (strcmp(verb, "seccomp") == 0) {
    int want_listener = plan_number(plan) != 0;
    size_t length = (size_t)plan_number(plan);
    cell->listener = seccomp_enforce(plan_bytes(plan, length), length, want_listener);
  } else {
    return 0;
  }
  return 1;
}

static int life_step(const char *verb, struct plan *plan, struct cell *cell) {
  if (strcmp(verb, "kept-network") == 0) {
    cell->keeps_network = 1;
  } else if (strcmp(verb, "zygote") == 0) {
    cell->is_zygote = 1;
  } else if (strcmp(verb, "once") == 0) {
    cell->is_once = 1;
  } else if (strcmp(verb, "interpreter") == 0) {
    cell->forks_interpreter = 1;
  } else if (strcmp(verb, "life") == 0) {
    cell->life = move_down((int)plan_number(plan), FIRST_OWN_FD);
  } else if (strcmp(verb, "give") == 0) {
    int from = move_down((int)plan_number(plan), FIRST_PARKED_FD);
    uint64_t to = plan_number(plan);
    if (to > LAST_GIVEN_FD) {
      errno = EINVAL;
      die("plan-give");
    }
    cell->program.given[to] = from;
  } else {
    return 0;
  }
  return 1;
}

void build_cell(struct plan plan, struct cell *cell) {
  int workspace_fd = -1;
  const char *verb;
  cell->listener = cell->life = -1;
  clear_program(&cell->program);
  while ((verb = plan_word(&plan)) != NULL) {
    if (file_step(verb, &plan) || mount_step(verb, &plan, &workspace_fd) ||
        fork_step(verb, &plan) || network_step(verb, &plan) || limit_step(verb, &plan, cell) ||
        wall_step(verb, &plan, cell) || program_step(verb, &plan, &cell->program) || life_step(verb, &plan, cell))
      continue;
    unknown_verb();
  }
  if (workspace_fd >= 0) close(workspace_fd);
}
