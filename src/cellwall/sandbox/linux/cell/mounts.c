/* Mounts by descriptor. Runs with CAP_SYS_ADMIN over the cell's own mount namespace only (init),
 * or as root in a private mount namespace before root is dropped (copy_tree, attach_tree). */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

/* System call numbers and flags: the libc headers of some hosts lack them. */
enum {
  NR_open_tree = 428,
  NR_move_mount = 429,
  NR_openat2 = 437,
  NR_mount_setattr = 442,
  TREE_CLONE = 1,
  TREE_CLOEXEC = O_CLOEXEC,
  MOVE_F_EMPTY = 0x04,
  MOVE_T_EMPTY = 0x40,
  ATTR_RDONLY = 0x01,
  ATTR_NOSUID = 0x02,
  ATTR_NODEV = 0x04,
  ATTR_NOEXEC = 0x08,
  ATTR_IDMAP = 0x100000,
  PATH_EMPTY = 0x1000,
  PATH_RECURSIVE = 0x8000,
};

struct attr {
  uint64_t set, clear, propagation, userns_fd;
};

static int clone_tree(int fd, int recursive) {
  return (int)syscall(NR_open_tree, fd, "",
                      TREE_CLONE | TREE_CLOEXEC | PATH_EMPTY | (recursive ? PATH_RECURSIVE : 0));
}

static int set_attr(int tree, uint64_t set, int userns_fd, int recursive) {
  struct attr attr = {.set = set, .userns_fd = userns_fd < 0 ? 0 : (uint64_t)userns_fd};
  return (int)syscall(NR_mount_setattr, tree, "", PATH_EMPTY | (recursive ? PATH_RECURSIVE : 0),
                      &attr, sizeof attr);
}

static int put_over(int tree, int target) {
  return (int)syscall(NR_move_mount, tree, "", target, "", MOVE_F_EMPTY | MOVE_T_EMPTY);
}

/* The root is a tmpfs of the cell, writable until `seal`. */
void make_file(const char *path, uint64_t mode, const char *content, size_t length) {
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, (mode_t)mode);
  if (fd < 0) die("file-make");
  while (length > 0) {
    ssize_t done = write(fd, content, length);
    if (done < 0) die("file-write");
    content += done;
    length -= (size_t)done;
  }
  close(fd);
}

/* Mounts one entry of a host directory that bubblewrap mounted aside (/etc, /dev), and no other entry.
 * `kind`: "ro" or "dev". One bind mount by bubblewrap costs as much as six of these. */
void take(const char *from, const char *to, const char *kind) {
  int source = open(from, O_PATH | O_CLOEXEC);
  if (source < 0) {
    if (errno == ENOENT) return; /* not on this host */
    die("take-open");
  }
  struct stat info;
  if (fstat(source, &info) != 0) die("take-stat");
  if (S_ISDIR(info.st_mode)) {
    if (mkdir(to, 0755) != 0) die("take-mkdir");
  } else {
    make_file(to, 0444, "", 0);
  }
  int tree = clone_tree(source, 0);
  if (tree < 0) die("take-clone");
  /* A device is writable on a read-only mount; its times and mode, which are the host's, are not. */
  uint64_t set = ATTR_NOSUID | ATTR_RDONLY | (strcmp(kind, "dev") == 0 ? ATTR_NOEXEC : ATTR_NODEV);
  if (set_attr(tree, set, -1, 0) != 0) die("take-attr");
  int place = open(to, O_PATH | O_CLOEXEC);
  if (place < 0 || put_over(tree, place) != 0) die("take-move");
  close(place);
  close(tree);
  close(source);
}

void leave(const char *path) {
  if (umount2(path, MNT_DETACH) != 0) die("leave-umount");
  if (rmdir(path) != 0) die("leave-rmdir");
}

void seal(const char *path) {
  struct attr attr = {.set = ATTR_RDONLY};
  if (syscall(NR_mount_setattr, AT_FDCWD, path, 0, &attr, sizeof attr) != 0) die("seal");
}

void mount_tmpfs(const char *path, const char *options) {
  if (mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options) != 0) die("mount-tmpfs");
}

void mount_devpts(const char *path, const char *options) {
  /* A new instance: it has no terminal of the host or of another cell. */
  if (mount("devpts", path, "devpts", MS_NOSUID | MS_NOEXEC, options)) die("mount-devpts");
}

/* `lowers`: how many read-only layers there are, from the top: `lower`, `lower1`, `lower2`, … */
void mount_overlay(const char *base, const char *target, uint64_t lowers) {
  if (lowers < 1 || lowers > MAX_LOWERS) {
    errno = EINVAL;
    die("overlay-layers");
  }
  /* Relative paths: mountinfo would show absolute ones to the code inside. */
  char options[64 + 16 * MAX_LOWERS];
  size_t length = (size_t)snprintf(options, sizeof options, "lowerdir=lower");
  for (unsigned i = 1; i < lowers; i++)
    length += (size_t)snprintf(options + length, sizeof options - length, ":lower%u", i);
  snprintf(options + length, sizeof options - length,
           ",upperdir=cow/upper,workdir=cow/work,userxattr");
  if (chdir(base) != 0) die("overlay-chdir");
  if (mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, options) != 0)
    die("mount-overlay");
  /* overlayfs falls back to read-only silently when the upper layer cannot be used. */
  struct statvfs info;
  if (statvfs(target, &info) != 0) die("overlay-stat");
  if (info.f_flag & ST_RDONLY) {
    errno = EROFS;
    die("overlay-read-only");
  }
  if (chdir("/") != 0) die("overlay-chdir");
  /* The layers must not be reachable: writing to `lower` or `upper` would bypass the overlay. */
  char path[512];
  for (unsigned i = 0; i <= lowers; i++) {
    if (i == lowers)
      snprintf(path, sizeof path, "%s/cow", base);
    else
      snprintf(path, sizeof path, i == 0 ? "%s/lower" : "%s/lower%u", base, i);
    if (umount2(path, MNT_DETACH) != 0) die("overlay-hide-layers");
  }
}

void expect_same(const char *path, uint64_t device, uint64_t inode) {
  /* The supervisor opened and checked the directory; a path swapped for a symlink since then would
   * have led bubblewrap elsewhere. A mount cannot be swapped. */
  struct stat info;
  if (lstat(path, &info) != 0) die("expect-stat");
  if (info.st_dev != device || info.st_ino != inode) {
    errno = ESTALE;
    die("expect-same");
  }
}

static int empty_like(mode_t mode) {
  static int empty_dir = -1, empty_file = -1;
  int *kept = S_ISDIR(mode) ? &empty_dir : &empty_file;
  if (*kept < 0)
    *kept = open(S_ISDIR(mode) ? "/.cellwall/empty" : "/.cellwall/nothing", O_PATH | O_CLOEXEC);
  if (*kept < 0) die("cover-empty");
  return *kept;
}

/* treatment: "ro" makes the entry read-only, "hide" replaces it by an empty one, "pin" only makes it a
 * mount point, so that it cannot be renamed while a protected name lies below it. */
void cover(int root_fd, const char *path, const char *treatment, int must_exist) {
  struct open_how how = {.flags = O_PATH | O_CLOEXEC | O_NOFOLLOW,
                         .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
  if (root_fd == AT_FDCWD) how.resolve = RESOLVE_NO_SYMLINKS;
  int target = (int)syscall(NR_openat2, root_fd, path, &how, sizeof how);
  if (target < 0 && errno == ENOENT && !must_exist) return; /* not on this host */
  /* Another run moves a name of the workspace that was there a moment ago: the file to hide would
   * appear elsewhere. */
  if (target < 0) die(must_exist ? "protect-open" : "cover-open");
  struct stat info;
  if (fstat(target, &info) != 0) die("cover-stat");
  int hide = strcmp(treatment, "hide") == 0;
  int source = hide ? empty_like(info.st_mode) : target;
  int tree = clone_tree(source, !hide);
  if (tree < 0) die("cover-clone");
  uint64_t set = ATTR_NOSUID | (strcmp(treatment, "pin") == 0 ? 0 : ATTR_RDONLY);
  if (set_attr(tree, set, -1, !hide) != 0) die("cover-attr");
  if (put_over(tree, target) != 0) die("cover-move");
  close(tree);
  close(target);
}

int copy_tree(int dir_fd, int userns_fd, int read_only) {
  int tree = clone_tree(dir_fd, 0);
  if (tree < 0) die("stage-clone");
  uint64_t set = ATTR_NOSUID | ATTR_NODEV | (read_only ? ATTR_RDONLY : 0);
  if (userns_fd >= 0) set |= ATTR_IDMAP;
  if (set_attr(tree, set, userns_fd, 0) != 0) die(userns_fd >= 0 ? "stage-idmap" : "stage-attr");
  return tree;
}

void attach_tree(int tree, const char *target) {
  int place = open(target, O_PATH | O_CLOEXEC);
  if (place < 0 || put_over(tree, place) != 0) die("stage-move");
  close(place);
  close(tree);
}

/* Mounts a file at a second path; both belong to the template. */
void show_file(const char *from, const char *to) {
  int source = open(from, O_PATH | O_CLOEXEC);
  if (source < 0) die("show-open");
  int tree = clone_tree(source, 0);
  if (tree < 0) die("show-clone");
  attach_tree(tree, to);
  close(source);
}

/* Makes the missing directories of a path. An existing component must be a directory: through a symlink
 * the mount point would lie elsewhere. */
void make_path(const char *path) {
  char begun[4096];
  size_t length = strlen(path);
  if (path[0] != '/' || length >= sizeof begun) {
    errno = EINVAL;
    die("path-name");
  }
  memcpy(begun, path, length + 1);
  for (size_t at = 1; at <= length; at++) {
    if (path[at] != '/' && path[at] != '\0') continue;
    begun[at] = '\0';
    struct stat info;
    if (mkdir(begun, 0755) != 0 && errno != EEXIST) die("path-make");
    if (lstat(begun, &info) != 0) die("path-stat");
    if (!S_ISDIR(info.st_mode)) {
      errno = ENOTDIR;
      die("path-kind");
    }
    begun[at] = path[at];
  }
}

/* Mounts a directory at a second path, with every cover over names in it. */
void mirror(const char *from, const char *to) {
  int source = open(from, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (source < 0) die("mirror-open");
  int tree = clone_tree(source, 1);
  if (tree < 0) die("mirror-clone");
  attach_tree(tree, to);
  close(source);
}

int clone_mount(const char *path) {
  int place = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  int tree = place < 0 ? -1 : clone_tree(place, 0);
  if (tree < 0) die("stage-detach");
  close(place);
  return tree;
}

/* The supervisor's mount of the merged layers, for the file API: files are written through overlayfs,
 * since changing a mounted upper layer is undefined behaviour. The mount is detached, so no cover of the
 * cell lies over it, and none of the cell's namespaces can be reached from it. */
void hand_view(int line_fd, const char *path) {
  int tree = clone_mount(path);
  send_one(line_fd, "view", tree);
  close(tree);
}

/* A memory directory of the cell, for the supervisor's file API. Each is a mount point of the sealed root,
 * so no code can have put another directory in its place. */
void hand_root(int line_fd, unsigned long number) {
  static const char *const roots[] = {"/tmp", "/dev/shm", "/root"}; /* CELL_ROOTS in core/files.py */
  if (number >= sizeof roots / sizeof *roots) return;
  int place = open(roots[number], O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (place < 0) return; /* closing the socket tells the supervisor */
  send_one(line_fd, "root", place);
  close(place);
}
