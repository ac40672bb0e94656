/* holdfast-cell: the one small native program of Holdfast. It has two lives:
 *
 *   keep   outside the walls: joins the cgroup, drops root, starts bubblewrap, outlives it,
 *          and removes every trace of the run even when the supervisor was killed (ISO-8).
 *   init   inside the walls as PID 1: adds what bubblewrap lacks (sized mounts, protected
 *          names, rlimits, Landlock, seccomp), starts the program, reaps, reports.
 *
 * It decides nothing: it carries out a plan that the supervisor wrote (plan.py), step by step,
 * and the first step that fails ends everything. It reads no byte that the sandboxed code wrote.
 */
#ifndef HOLDFAST_CELL_H
#define HOLDFAST_CELL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A plan is a sequence of NUL-terminated words; each step is a verb and its fixed arguments. */
struct plan {
  const char *at;
  const char *end;
};

struct plan plan_read(int fd);
const char *plan_word(struct plan *plan); /* NULL at the end */
const char *plan_need(struct plan *plan); /* dies at the end */
uint64_t plan_number(struct plan *plan);
const char *plan_bytes(struct plan *plan, size_t length);

/* Where `die` reports to; set once by each life. Never a descriptor the program inside has. */
extern int report_fd;
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void die(const char *step);

int keep(int line_fd);
int init(int plan_fd, int status_fd);

/* mounts.c: all by descriptor, so that no name is resolved twice (FS-1). */
void make_file(const char *path, uint64_t mode, const char *content, size_t length);
void take(const char *from, const char *to, const char *kind);
void leave(const char *path);
void seal_root(void);
void mount_tmpfs(const char *path, const char *options);
void mount_devpts(const char *path);
void mount_overlay(const char *base, const char *target);
void expect_same(const char *path, uint64_t device, uint64_t inode);
void cover(int root_fd, const char *path, const char *treatment, int must_exist);
int copy_tree(int dir_fd, int userns_fd, int read_only);
void attach_tree(int tree, const char *target);

/* walls.c */
void set_rlimit(uint64_t resource, uint64_t value);
void drop_capabilities(void);
void landlock_begin(uint64_t handled_fs, uint64_t scoped);
void landlock_allow(const char *path, uint64_t access);
void landlock_enforce(void);
int seccomp_enforce(const char *filter, size_t length, int want_listener);

/* watch.c */
int is_full(const char *path);
int has_too_many_open(int listener, uint64_t most);
int has_file_of(const char *path, uint64_t size);

#endif
