/* The reaper removes placeholders from users' directories, whichever process was killed.
 *
 * One reaper for each Cellwall process, started with its first read-write workspace. It has a lease for
 * each such workspace: the directory, open, with a shared flock on it, and the path of the journal
 * that names the placeholders (placeholders.py). It acts
 *   (1) on a lease that the Cellwall process returns;
 *   (2) on all leases when the socket is closed. The Cellwall process and each of its shims hold the
 *       other end, and a shim exits only when every process of its cells is dead: until then the
 *       mounts over the placeholders must stay, and rmdir(2) would detach those mounts.
 * A placeholder is removed under an exclusive lock, so that no other run works in the directory, and
 * only if the name is still the inode that was made and is still empty. While other runs work there,
 * the reaper tries again until the last of them has ended.
 */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/openat2.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NR_openat2 = 437 };
#define MAX_LEASES 1024
#define MAX_JOURNAL_BYTES (256 * 1024)
#define ASK_AGAIN_MS 200

struct lease {
  uint64_t id;
  int dir_fd;
  char *journal;
  int is_given_back;
};
static struct lease leases[MAX_LEASES];
static int lease_count;

static int open_below(int dir_fd, const char *path, int flags) {
  struct open_how how = {.flags = (uint64_t)(flags | O_NOFOLLOW | O_CLOEXEC),
                         .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
  return (int)syscall(NR_openat2, dir_fd, path, &how, sizeof how);
}

/* The whole journal, or NULL. errno is ENOENT if it does not exist. */
static char *read_journal(const char *path, size_t *length) {
  int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return NULL;
  char *text = malloc(MAX_JOURNAL_BYTES);
  size_t done = 0;
  ssize_t got = 0;
  while (text != NULL && done < MAX_JOURNAL_BYTES &&
         (got = read(fd, text + done, MAX_JOURNAL_BYTES - done)) > 0)
    done += (size_t)got;
  close(fd);
  /* The last word must be terminated, or strlen would read past the buffer. */
  if (text == NULL || got < 0 || done == 0 || text[done - 1] != '\0') {
    free(text);
    errno = EINVAL;
    return NULL;
  }
  *length = done;
  return text;
}

/* Whether the placeholder itself is the workspace of another run. */
static int is_in_use(int parent, const char *name) {
  int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return 0;
  int is_used = flock(fd, LOCK_EX | LOCK_NB) != 0;
  close(fd);
  return is_used;
}

static int remove_name(int parent, const char *name, int flags) {
  if (unlinkat(parent, name, flags) == 0) return 0;
  if (errno != EACCES) return -1;
  /* Code that runs as the owner can remove its directory permissions: restore them briefly. */
  char self[64];
  struct stat info;
  snprintf(self, sizeof self, "/proc/self/fd/%d", parent);
  if (fstat(parent, &info) != 0 || chmod(self, (info.st_mode & 07777) | 0700) != 0) {
    errno = EACCES;
    return -1;
  }
  int result = unlinkat(parent, name, flags);
  int error = errno;
  (void)!chmod(self, info.st_mode & 07777);
  errno = error;
  return result;
}

/* Returns whether no placeholder of ours is left there. */
static int remove_one(int dir_fd, uint64_t inode, int is_file, char *path) {
  char *name = strrchr(path, '/');
  int parent;
  if (name == NULL) {
    name = path;
    parent = dup(dir_fd);
  } else {
    *name++ = '\0';
    parent = open_below(dir_fd, path, O_PATH | O_DIRECTORY);
  }
  if (parent < 0) return errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
  struct stat info;
  int is_gone = 1;
  if (fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
    is_gone = errno == ENOENT;
  } else if (inode != 0 && info.st_ino != inode) {
    /* Replaced: no longer ours. */
  } else if (is_file ? S_ISREG(info.st_mode) && info.st_size == 0 && info.st_nlink == 1
                     : S_ISDIR(info.st_mode)) {
    is_gone = !is_in_use(parent, name) &&
              (remove_name(parent, name, is_file ? 0 : AT_REMOVEDIR) == 0 || errno == ENOENT ||
               errno == ENOTEMPTY || errno == EEXIST); /* no longer empty: the user's */
  }
  close(parent);
  return is_gone;
}

/* The journal: the directory's path, then inode, kind ("dir" or "file") and path of each. */
static int remove_placeholders(int dir_fd, const char *journal) {
  size_t length = 0;
  char *text = read_journal(journal, &length);
  if (text == NULL) return errno != ENOENT;
  char **words = calloc(length, sizeof *words); /* a word takes at least one byte */
  size_t count = 0;
  int left = words == NULL;
  for (char *at = text + strlen(text) + 1; words != NULL && at < text + length; at += strlen(at) + 1)
    words[count++] = at;
  /* Backwards: a placeholder comes after the one that contains it. */
  for (size_t row = count / 3; row-- > 0;) {
    char *rest = NULL, **word = words + row * 3;
    uint64_t inode = strtoull(word[0], &rest, 10);
    if (*word[0] == '\0' || *rest != '\0' || *word[2] == '\0') continue;
    left += !remove_one(dir_fd, inode, strcmp(word[1], "file") == 0, word[2]);
  }
  free(words);
  free(text);
  /* Placeholders that are left stay in the journal, and a later start tries again. */
  if (left == 0) (void)!unlink(journal);
  return left;
}

static void drop(int index) {
  /* Closing alone does not unlock: a forked child of the Cellwall process may share the open file. */
  (void)flock(leases[index].dir_fd, LOCK_UN);
  close(leases[index].dir_fd);
  free(leases[index].journal);
  leases[index] = leases[--lease_count];
}

/* -1: other runs work in the directory. Else the number of placeholders that could not be removed. A
 * failed attempt loses the shared lock, see flock(2): the run has ended and does not need it. */
static int settle(int index) {
  int is_locked = flock(leases[index].dir_fd, LOCK_EX | LOCK_NB) == 0;
  if (!is_locked && errno == EWOULDBLOCK) return -1;
  /* Without locks on the file system the use is unknown: a later start tries again. */
  int left = is_locked ? remove_placeholders(leases[index].dir_fd, leases[index].journal) : 1;
  drop(index);
  return left;
}

static void settle_given_back(void) {
  for (int i = lease_count - 1; i >= 0; i--)
    if (leases[i].is_given_back) (void)settle(i);
}

static int any_given_back(void) {
  for (int i = 0; i < lease_count; i++)
    if (leases[i].is_given_back) return 1;
  return 0;
}

static void take_lease(uint64_t id, const char *journal, const int *sent, int count) {
  char *copy = count == 1 && *journal == '/' && lease_count < MAX_LEASES ? strdup(journal) : NULL;
  if (copy == NULL) {
    for (int i = 0; i < count; i++) close(sent[i]);
    report("no %" PRIu64, id);
    return;
  }
  leases[lease_count++] = (struct lease){.id = id, .dir_fd = sent[0], .journal = copy};
  report("yes %" PRIu64, id);
}

static void give_back(uint64_t id) {
  int left = 0;
  for (int i = lease_count - 1; i >= 0; i--) {
    if (leases[i].id != id) continue;
    leases[i].is_given_back = 1;
    left = settle(i);
  }
  settle_given_back(); /* leases that waited for this one */
  report("left %" PRIu64 " %d", id, left);
}

/* "a ID JOURNAL" with the locked directory, or "r ID"; each is answered. */
static void serve(const char *text, const int *sent, int count) {
  char *rest = NULL;
  uint64_t id = strlen(text) > 2 ? strtoull(text + 2, &rest, 10) : 0;
  if (text[0] == 'a' && rest != NULL && *rest == ' ')
    take_lease(id, rest + 1, sent, count);
  else if (text[0] == 'r' && rest != NULL && *rest == '\0' && count == 0)
    give_back(id);
  else
    for (int i = 0; i < count; i++) close(sent[i]);
}

int run_reaper(int inherited_fd) {
  /* Daemonise: the Cellwall process has no child to reap, and the reaper outlives it. */
  pid_t child = fork();
  if (child != 0) return child < 0 ? 125 : 0;
  int line_fd = fcntl(inherited_fd, F_DUPFD_CLOEXEC, 3);
  if (line_fd < 0) return 125;
  close(inherited_fd);
  report_fd = line_fd;
  /* Ctrl-C, `kill` of a process group and the end of a terminal must not end the reaper. */
  (void)setsid();
  for (int number = 1; number < 32; number++)
    if (number != SIGKILL && number != SIGSTOP && number != SIGSEGV && number != SIGBUS)
      signal(number, SIG_IGN);

  struct pollfd line = {line_fd, POLLIN, 0};
  int is_open = 1;
  while (is_open || lease_count > 0) {
    int wait_ms = any_given_back() ? ASK_AGAIN_MS : -1;
    if (poll(&line, is_open ? 1 : 0, wait_ms) < 0 && errno != EINTR) break;
    if (is_open && line.revents) {
      static char text[8192];
      int sent[MAX_SENT], count;
      if (receive(line_fd, text, sizeof text, sent, &count) > 0) {
        serve(text, sent, count);
      } else {
        is_open = 0;
        signal(SIGTERM, SIG_DFL); /* every user of the reaper is gone: a service manager need not wait */
        for (int i = 0; i < lease_count; i++) leases[i].is_given_back = 1;
      }
    }
    settle_given_back();
  }
  return 0;
}
