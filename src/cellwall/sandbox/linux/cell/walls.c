/* The inner walls: rlimits, capabilities, Landlock, seccomp. Each only removes privileges. */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
  NR_landlock_create_ruleset = 444,
  NR_landlock_add_rule = 445,
  NR_landlock_restrict_self = 446,
  RULE_PATH_BENEATH = 1,
};

/* The rights a rule on a non-directory may name; the kernel refuses others. */
#define FILE_ACCESS (0x1ull | 0x2ull | 0x4ull | 0x4000ull | 0x8000ull)

static int ruleset = -1;

void set_rlimit(uint64_t resource, uint64_t value) {
  struct rlimit limit;
  if (getrlimit((int)resource, &limit) != 0) die("rlimit-get");
  /* Lowering is always allowed; a stricter limit of the host is kept. */
  if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < value) value = limit.rlim_max;
  limit.rlim_cur = limit.rlim_max = value;
  if (setrlimit((int)resource, &limit) != 0) die("rlimit-set");
}

/* Dropping needs a capability, which a container without any lacks: only what is there is dropped. */
static void empty_bounding_set(void) {
  for (int held, cap = 0; (held = prctl(PR_CAPBSET_READ, cap, 0, 0, 0)) >= 0; cap++)
    if (held && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0) die("caps-bounding");
}

/* From root inside to the user of the code, for good: the capabilities go with the uid. */
void become(uint64_t uid, uint64_t gid) {
  empty_bounding_set();
  gid_t group = (gid_t)gid;
  if (setgroups(1, &group) != 0) die("become-groups");
  if (setresgid(group, group, group) != 0) die("become-gid");
  if (setresuid((uid_t)uid, (uid_t)uid, (uid_t)uid) != 0) die("become-uid");
  /* The change of the uid has made the process dumpable again. */
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) die("become-dumpable");
}

void drop_capabilities(void) {
  /* EINVAL: a kernel without such a set, as gVisor's; Linux has it since 4.3. */
  if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0 && errno != EINVAL) die("caps-ambient");
  empty_bounding_set();
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct none[2] = {{0}};
  if (syscall(SYS_capset, &header, none) != 0) die("caps-set");
}

void landlock_begin(uint64_t handled_fs, uint64_t scoped) {
  struct {
    uint64_t handled_fs, handled_net, scoped;
  } attr = {handled_fs, 0, scoped};
  /* Kernels without scopes know a shorter struct; pass only the used part. */
  size_t size = scoped ? sizeof attr : sizeof attr.handled_fs;
  ruleset = (int)syscall(NR_landlock_create_ruleset, &attr, size, 0);
  if (ruleset < 0) die("landlock-create");
}

void landlock_allow(const char *path, uint64_t access) {
  struct {
    uint64_t access;
    int32_t fd;
  } __attribute__((packed)) rule = {access, open(path, O_PATH | O_CLOEXEC)};
  if (rule.fd < 0) {
    if (errno == ENOENT) return; /* does not exist: nothing to allow */
    die("landlock-open");
  }
  struct stat info;
  if (fstat(rule.fd, &info) != 0) die("landlock-stat");
  if (!S_ISDIR(info.st_mode)) rule.access &= FILE_ACCESS;
  if (syscall(NR_landlock_add_rule, ruleset, RULE_PATH_BENEATH, &rule, 0) != 0)
    die("landlock-rule");
  close(rule.fd);
}

void landlock_enforce(void) {
  if (ruleset < 0) return;
  if (syscall(NR_landlock_restrict_self, ruleset, 0) != 0) die("landlock-enforce");
  close(ruleset);
}

int seccomp_enforce(const char *filter, size_t length, int want_listener) {
  if (length == 0 || length % sizeof(struct sock_filter) != 0) {
    errno = EINVAL;
    die("seccomp-length");
  }
  struct sock_fprog program = {(unsigned short)(length / sizeof(struct sock_filter)),
                               (struct sock_filter *)(uintptr_t)filter};
  unsigned flags = want_listener ? SECCOMP_FILTER_FLAG_NEW_LISTENER : 0;
  int listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
  if (listener < 0) die("seccomp-enforce");
  return want_listener ? listener : -1;
}
