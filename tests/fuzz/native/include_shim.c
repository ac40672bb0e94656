/* The shim's reader of a job, which is private to its file. */
#include "safe_calls.h"

#include "shim.c"

#include "harness.h"

void fuzz_job(struct plan plan) {
  static struct job job;
  memset(&job, 0, sizeof job);
  read_job(plan, &job);
  for (int i = 0; i < job.task_count; i++) (void)strlen(job.tasks[i]);
  for (int i = 0; i < job.group_count; i++) (void)strlen(job.groups[i]);
  for (int i = 0; job.argv[i] != NULL; i++) (void)strlen(job.argv[i]);
}
