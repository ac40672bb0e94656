/* Two users in one cell, and no capability with which to change between them.
 *
 * Init of such a cell has the second user as its real uid and the first one as its effective and saved
 * uid. So it may signal the processes of both, see kill(2), and a child of it may become either one for
 * good, see setresuid(2), after every capability was dropped: no process that runs a program, and not
 * init either, ever holds CAP_SETUID, CAP_SETGID or CAP_KILL while code runs. A program has one user in
 * all its uids, from which the kernel lets it change to no other.
 */
#define _GNU_SOURCE
#include "cell.h"

#include <errno.h>
#include <linux/securebits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#define KEPT ((uid_t)-1)

static struct identity {
  uid_t uid;
  gid_t gid;
} first_user, second_user;
static int has_second;

/* A change of the effective uid makes a process dumpable where the host says so (fs.suid_dumpable), and
 * clears the signal of its parent's death. */
static void keep_hidden(void) {
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) die("users-dumpable");
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) die("users-pdeathsig");
}

void hold_both(uint64_t uid, uint64_t gid) {
  first_user = (struct identity){geteuid(), getegid()};
  second_user = (struct identity){(uid_t)uid, (gid_t)gid};
  if (getgroups(0, NULL) != 0) { /* a group that both had would join them */
    errno = EPERM;
    die("users-groups");
  }
  if (setresgid(second_user.gid, first_user.gid, first_user.gid) != 0) die("users-gid");
  if (setresuid(second_user.uid, first_user.uid, first_user.uid) != 0) die("users-uid");
  /* Uid 0 gets no capability by its number, not even one that a mistake would leave in the bounding set.
   * The empty bounding set and no_new_privs say the same. */
  const unsigned long bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP_LOCKED |
                             SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE |
                             SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
  if (prctl(PR_SET_SECUREBITS, bits, 0, 0, 0) != 0) die("users-securebits");
  keep_hidden();
  has_second = 1;
}

/* In a new process, for good. Returns an errno. */
int become_one(int is_second) {
  if (!has_second) return is_second ? EPERM : 0;
  const struct identity *own = is_second ? &second_user : &first_user;
  const struct identity *other = is_second ? &first_user : &second_user;
  if (setresgid(own->gid, own->gid, own->gid) != 0) return errno;
  if (setresuid(own->uid, own->uid, own->uid) != 0) return errno;
  if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return errno; /* until exec, as init */
  /* Ask the kernel again instead of trusting return codes: the wall between the two depends on this. */
  if (setresgid(KEPT, other->gid, KEPT) == 0 || setresuid(KEPT, other->uid, KEPT) == 0) return EPERM;
  return 0;
}

/* Around the fork of a program. The child has the real and saved uid of its user from its first moment:
 * kill(2) looks at these two, so that the other user cannot stop or kill a program before it starts. */
void begin_fork(int is_second) {
  if (!has_second) return;
  const struct identity *own = is_second ? &second_user : &first_user;
  const struct identity *other = is_second ? &first_user : &second_user;
  if (setresuid(own->uid, other->uid, own->uid) != 0) die("users-uid");
  keep_hidden();
}

void end_fork(void) {
  if (!has_second) return;
  if (setresuid(second_user.uid, first_user.uid, first_user.uid) != 0) die("users-uid");
  keep_hidden();
}

/* Init itself, for one step, on files that only the second user may open. Returns whether there is one. */
int act_as_second(void) {
  if (!has_second) return 0;
  if (setresgid(KEPT, second_user.gid, KEPT) != 0) die("users-gid");
  if (setresuid(KEPT, second_user.uid, KEPT) != 0) die("users-uid");
  keep_hidden();
  return 1;
}

void act_as_first(void) {
  if (!has_second) return;
  if (setresuid(KEPT, first_user.uid, KEPT) != 0) die("users-uid");
  if (setresgid(KEPT, first_user.gid, KEPT) != 0) die("users-gid");
  keep_hidden();
}
