/* Included before each source of cellwall-cell that is fuzzed: no system call that would change the
 * host is made. A plan that is read there ends, or is carried out by functions that do nothing. */
#ifndef CELLWALL_SAFE_CALLS_H
#define CELLWALL_SAFE_CALLS_H
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

_Noreturn void safe_exit(int code);
int safe_kill(pid_t pid, int number);
int safe_open(const char *path, int flags, ...);
int safe_none(void);
long safe_fail(void);

#define _exit(code) safe_exit(code)
#define kill(pid, number) safe_kill(pid, number)
#define open(...) safe_open(__VA_ARGS__)
#define fork() safe_none()
#define mkdir(path, mode) ((void)strlen(path), safe_none())
#define rmdir(path) ((void)strlen(path), safe_none())
#define symlink(target, path) ((void)strlen(target), (void)strlen(path), safe_none())
#define unlink(path) ((void)strlen(path), safe_none())
#define unlinkat(fd, path, flags) ((void)(fd), (void)(flags), (void)strlen(path), safe_none())
#define chmod(path, mode) ((void)strlen(path), safe_none())
#define mount(...) safe_none()
#define execve(...) ((int)safe_fail())
#define syscall(...) safe_fail()
#define openat(...) ((int)safe_fail())
#define fstatat(fd, path, info, flags) ((void)(fd), (void)(info), (void)(flags), (void)strlen(path), (int)safe_fail())
#define flock(fd, kind) ((void)(fd), (void)(kind), safe_none())
#define fchown(...) safe_none()
#define prctl(...) safe_none()
#define setsid() safe_none()
#define waitpid(...) ((pid_t)safe_fail())
#define wait4(...) ((pid_t)safe_fail())
#define unshare(...) safe_none()
#define setresuid(...) safe_none()
#define setresgid(...) safe_none()
#define getgroups(...) safe_none()
#endif
