/* cellwall-cell: the one small native program of Cellwall. It has eight roles:
 *
 *   shim    (`keep`) outside the walls: joins the cgroup, drops root, starts bubblewrap, outlives it,
 *           and removes every trace of the run even when the supervisor was killed (ISO-8).
 *   reaper  (`hold`) outside the walls: removes the placeholders of protected names from users'
 *           directories once no run works there, whichever process was killed.
 *   init    (`init`) inside the walls as PID 1: adds what bubblewrap lacks (sized mounts, protected
 *           names, rlimits, Landlock, seccomp), starts programs, reaps, reports.
 *   join    (`join`) the same inside a container: receives over a socket the descriptors that no
 *           container engine passes on, then continues as init.
 *   attend  (`attend`) outside the walls, in the place of bubblewrap: holds a container's life line.
 *   relay   (`relay`) inside the wall around a virtual machine: starts it, and passes bytes between the
 *           supervisor's descriptors and the guest, which it does not trust.
 *   guest   (`guest`) PID 1 of a virtual machine: starts bubblewrap and init as the shim does on a host,
 *           and passes bytes to the relay.
 *   zygote  inside a template's walls: forks cells, each with namespaces and an init of its own.
 *           Also built as a shared library, so that a waiting interpreter can be the zygote.
 *
 * The program decides nothing: it carries out a plan that the supervisor wrote (plan.py), step by
 * step, and the first step that fails ends the process. It reads no byte that sandboxed code wrote.
 */
#ifndef CELLWALL_CELL_H
#define CELLWALL_CELL_H

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

/* The socket `die` reports to; set once by each role. Never a descriptor of the sandboxed program. */
extern int report_fd;
extern const char *failure_word;
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
void report_to(int fd, const char *format, ...) __attribute__((format(printf, 2, 3)));
_Noreturn void die(const char *step);

int run_shim(int line_fd, int life_fd);
int run_reaper(int line_fd);
int init(int plan_fd, int status_fd);
int cellwall_zygote(int control_fd);
int join_cell(const char *path);
int attend(int life_fd);
int run_relay(int count, char **words);
int run_guest(const char *workspace);
_Noreturn void start_bubblewrap(struct plan plan, pid_t parent);

/* build.c: the walls of a cell, and the program to start in it. */
#define MAX_WORDS 4096
#define MAX_WATCHED 8
#define MAX_GIVEN 8
struct program {
  char *environment[MAX_WORDS], *arguments[MAX_WORDS];
  int environment_count, argument_count;
  const char *directory;
  int given[MAX_GIVEN]; /* indexed by the number inside; -1: none */
  int wants_terminal;
  int is_second; /* runs as the second user */
  unsigned short rows, columns;
};
struct cell {
  const char *watched[MAX_WATCHED];  /* own file systems of the cell: a full one is a limit */
  const char *searched[MAX_WATCHED]; /* directories searched for a file that is too large */
  int watched_count, searched_count;
  uint64_t max_file_bytes, max_open_files;
  uint64_t max_tasks; /* processes and threads; 0: a cgroup counts them */
  int listener;
  int life; /* of a container: end of file ends the cell, and init exits only after its report was read */
  int is_zygote; /* a template: forks cells, runs no program itself */
  int is_once;   /* the cell ends with its only task */
  int forks_interpreter; /* fork a warm interpreter at once */
  int keeps_network; /* its network namespace is handed on if no socket was made in it */
  int has_socket;
  struct program program;
};
void build_cell(struct plan plan, struct cell *cell);
void read_program(struct plan plan, struct program *program);

/* spawn.c */
pid_t spawn(struct program *program, int *error_fd, int *terminal);
void clear_program(struct program *program);
void into_session(struct program *program);
void kill_task(pid_t leader);

/* run_cell returns only in a forked interpreter, whose channel is then descriptors 3 and 4. */
void run_cell(struct cell *cell, int status_fd);
int move_down(int fd, int lowest);
/* Descriptor numbers, all below the smallest open-files limit (32): the filter reports the use of
 * higher ones to init itself, which must not wait for its own answer. 0 to 4 are the program's: pipes
 * and terminals only. A unix socket among them would let code send descriptors to the host, and closing
 * such a descriptor (a TCP socket with SO_LINGER) blocks the receiving process (ISO-13). */
#define LAST_GIVEN_FD 4
#define LAST_FD 0x7fffffff /* of close_range: gVisor refuses higher numbers */
#define FIRST_OWN_FD 5
#define FIRST_PARKED_FD 8
#define FIRST_SENT_FD 64 /* in the shim and in a new cell: descriptors sent with a plan */
#define FIRST_ZYGOTE_FD 128 /* the zygote's own, which no cell keeps */

/* prefork.c: single-use cells, made by the shim of a template. */
void prefork_begin(struct plan plan, const int *sent);
int prefork_fd(void);
int prefork_pause_ms(void);
int prefork_serve(void);
void prefork_tidy(void);
void empty_group(const char *group);

/* pids.c */
void kill_listed(const char *path);

/* users.c: the second user of a cell, where its plan names one. */
void hold_both(uint64_t uid, uint64_t gid);
int become_one(int is_second);
void begin_fork(int is_second);
void end_fork(void);
int act_as_second(void);
void act_as_first(void);

/* packets.c */
#define MAX_SENT 32
ssize_t receive(int socket_fd, char *text, size_t room, int *sent, int *sent_count);
void send_one(int socket_fd, const char *text, int fd);
void send_packet(int socket_fd, const char *text, size_t length, const int *fds, int count);

/* namespaces.c: for a cell that a zygote forked. */
void map_ids(uint64_t uid, uint64_t gid);
void join_group(int fd);
void own_namespaces(void);
void mount_proc(void);
void put_share(const char *path, const char *value);

/* networks.c: in the zygote, for cells that make no socket. */
#define STATUS_NO_SOCKET 3 /* of an init */
void networks_begin(void);
int network_enter(struct plan settings);
void network_leave(int place, pid_t cell);
void networks_reap(void);

/* network.c */
int raise_loopback(void);
int write_setting(const char *path, const char *value);
void put_setting(const char *path, const char *value);
void own_prefix(const char *address, const char *mask);
void hand_out(int line_fd, const char *name, int kind, const char *address, uint64_t port);
void hand_connection(int line_fd, unsigned long port, int family);

/* mounts.c: all by descriptor, so that no path is resolved twice (FS-1). */
void make_file(const char *path, uint64_t mode, const char *content, size_t length);
void take(const char *from, const char *to, const char *kind);
void leave(const char *path);
void seal(const char *path);
void mount_tmpfs(const char *path, const char *options);
void mount_devpts(const char *path, const char *options);
#define MAX_LOWERS 16 /* read-only layers of one workspace */
void mount_overlay(const char *base, const char *target, uint64_t lowers);
void expect_same(const char *path, uint64_t device, uint64_t inode);
void cover(int root_fd, const char *path, const char *treatment, int must_exist);
int copy_tree(int dir_fd, int userns_fd, int read_only);
void attach_tree(int tree, const char *target);
void show_file(const char *from, const char *to);
void make_path(const char *path);
void mirror(const char *from, const char *to);
int clone_mount(const char *path);
void hand_view(int line_fd, const char *path);
void hand_root(int line_fd, unsigned long number);

/* walls.c */
void set_rlimit(uint64_t resource, uint64_t value);
void become(uint64_t uid, uint64_t gid);
void drop_capabilities(void);
void landlock_begin(uint64_t handled_fs, uint64_t scoped);
void landlock_allow(const char *path, uint64_t access);
void landlock_enforce(void);
int seccomp_enforce(const char *filter, size_t length, int want_listener);

/* watch.c: the name of the limit that was reached, or NULL. */
const char *limit_of_mounts(const struct cell *cell);
const char *limit_of_tasks(const struct cell *cell);
const char *limit_after_end(const struct cell *cell, int status);
int handle_notice(struct cell *cell);

#endif
