/* One pass over an open directory: the names that a walk looks at, and the sum of the rest.
 *
 * A project has a hundred thousand files, and a walk before and after each run concerns few of them.
 * A file is dull if it is regular, has not changed since a given time and, unless links are dull, has
 * no second name. Python decides about the names themselves (core/protected_names.py). */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define BATCH_BYTES 32768

struct names {
  char *text; /* each name ends with a NUL */
  uint64_t room;
  uint64_t used; /* more than `room` if the names do not fit */
};

struct survey {
  int64_t since_ns;
  uint64_t max_names;
  uint64_t are_links_dull;
  struct names dull, others;
  uint64_t name_count, blocks;
};

struct record { /* getdents64(2) */
  uint64_t inode;
  int64_t offset;
  uint16_t size;
  uint8_t kind;
  char name[];
};

static void append(struct names *names, const char *name) {
  size_t size = strlen(name) + 1;
  if (names->used + size <= names->room) memcpy(names->text + names->used, name, size);
  names->used += size;
}

static int is_dull(const struct survey *survey, const struct stat *status) {
  int64_t changed_ns = (int64_t)status->st_ctim.tv_sec * 1000000000 + status->st_ctim.tv_nsec;
  return S_ISREG(status->st_mode) && changed_ns < survey->since_ns &&
         (status->st_nlink == 1 || survey->are_links_dull);
}

/* 0, or an errno: E2BIG if there are more names than `max_names`. A name that was removed meanwhile is
 * left out. */
EXPORT int cw_survey_directory(int fd, struct survey *survey) {
  _Alignas(struct record) char batch[BATCH_BYTES];
  survey->name_count = survey->blocks = survey->dull.used = survey->others.used = 0;
  for (;;) {
    long size = syscall(SYS_getdents64, fd, batch, sizeof batch);
    /* ENOENT: the directory itself was removed, which readdir(3) takes for its end, too. */
    if (size == 0 || (size < 0 && errno == ENOENT)) return 0;
    if (size < 0) return errno;
    for (long at = 0; at < size;) {
      const struct record *record = (const struct record *)(batch + at);
      at += record->size;
      if (strcmp(record->name, ".") == 0 || strcmp(record->name, "..") == 0) continue;
      if (survey->name_count++ >= survey->max_names) return E2BIG;
      struct stat status;
      if (fstatat(fd, record->name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) continue;
        return errno;
      }
      survey->blocks += (uint64_t)status.st_blocks;
      append(is_dull(survey, &status) ? &survey->dull : &survey->others, record->name);
    }
  }
}
