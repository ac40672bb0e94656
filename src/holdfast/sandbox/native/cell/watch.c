/* Was a limit of the cell's own file systems reached? Asked by init, of the kernel. */
#define _GNU_SOURCE
#include "cell.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#define MOST_ENTRIES 100000
#define MOST_DEPTH 64

int is_full(const char *path) {
  struct statfs info;
  if (statfs(path, &info) != 0) return 0;
  return info.f_bavail == 0 || (info.f_files > 0 && info.f_ffree == 0);
}

static int search(int parent, const char *name, uint64_t size, int depth, int *left) {
  int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return 0;
  DIR *dir = fdopendir(fd);
  if (dir == NULL) {
    close(fd);
    return 0;
  }
  int found = 0;
  struct dirent *entry;
  while (!found && --*left > 0 && (entry = readdir(dir)) != NULL) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    struct stat info;
    if (fstatat(fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (S_ISREG(info.st_mode)) found = (uint64_t)info.st_size > size;
    if (S_ISDIR(info.st_mode) && depth < MOST_DEPTH)
      found = search(fd, entry->d_name, size, depth + 1, left);
  }
  closedir(dir);
  return found;
}

/* RLIMIT_FSIZE is one byte above the limit, so a file of that size is proof that it was hit even
 * when the program survived the refusal. */
int has_file_over(const char *path, uint64_t size) {
  int left = MOST_ENTRIES;
  return search(AT_FDCWD, path, size, 0, &left);
}
