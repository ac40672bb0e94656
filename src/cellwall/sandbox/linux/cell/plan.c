/* Plan reading and reporting. */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

int report_fd = -1;
const char *failure_word = "fail";

static void put(int fd, const char *format, va_list values) {
  char text[256];
  int length = vsnprintf(text, sizeof text, format, values);
  if (length < 0) return;
  if ((size_t)length >= sizeof text) length = sizeof text - 1;
  /* A dead or blocked supervisor must not keep this process from cleaning up. */
  (void)!send(fd, text, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void report(const char *format, ...) {
  va_list values;
  va_start(values, format);
  put(report_fd, format, values);
  va_end(values);
}

void report_to(int fd, const char *format, ...) {
  va_list values;
  va_start(values, format);
  put(fd, format, values);
  va_end(values);
}

void die(const char *step) {
  int error = errno;
  report("%s %s %d", failure_word, step, error);
  _exit(125);
}

struct plan plan_read(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0 || info.st_size <= 0) die("plan-stat");
  const char *text = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (text == MAP_FAILED) die("plan-map");
  /* The last byte must terminate a word, or strlen below could read past the mapping. */
  if (text[info.st_size - 1] != '\0') {
    errno = EINVAL;
    die("plan-unterminated");
  }
  return (struct plan){text, text + info.st_size};
}

const char *plan_word(struct plan *plan) {
  if (plan->at >= plan->end) return NULL;
  const char *word = plan->at;
  plan->at += strlen(word) + 1;
  return word;
}

const char *plan_need(struct plan *plan) {
  const char *word = plan_word(plan);
  if (word == NULL) {
    errno = EINVAL;
    die("plan-short");
  }
  return word;
}

uint64_t plan_number(struct plan *plan) {
  const char *word = plan_need(plan);
  char *rest = NULL;
  errno = 0;
  uint64_t number = strtoull(word, &rest, 10);
  if (errno != 0 || *word == '\0' || *rest != '\0') {
    errno = EINVAL;
    die("plan-number");
  }
  return number;
}

const char *plan_bytes(struct plan *plan, size_t length) {
  /* `length + 1` would be 0 for the greatest length. */
  if ((size_t)(plan->end - plan->at) <= length) {
    errno = EINVAL;
    die("plan-bytes");
  }
  const char *bytes = plan->at;
  plan->at += length + 1;
  return bytes;
}
