"""Reaching other processes and their things (ISO-5).

`target` is the process to be read and traced: inside PID 1, the cell's own init, which shares the
code's uid; outside, for the control, a process of the same user.
"""

# a part of a program: stage.py stands before it

import mmap
import os
import signal
import struct

TARGET = GIVEN.get("target", 1)
VICTIM = GIVEN.get("victim", 0)
MARK = GIVEN.get("mark", "")
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206


for _name in ("environ", "maps", "auxv", "io", "syscall", "personality"):

    @attack(f"read-init-{_name}")
    def _(path=f"/proc/{TARGET}/{_name}"):
        with open(path, "rb") as file:
            return len(file.read())


for _name in ("exe", "cwd", "root"):
    attack(f"follow-init-{_name}")(lambda path=f"/proc/{TARGET}/{_name}": os.readlink(path))


@attack("list-init-descriptors")
def _():
    return os.listdir(f"/proc/{TARGET}/fd")


@attack("list-init-mapped-files")
def _():
    return os.listdir(f"/proc/{TARGET}/map_files")


@attack("take-init-descriptors-by-name")
def _():
    for number in range(64):
        try:
            return os.open(f"/proc/{TARGET}/fd/{number}", os.O_RDWR | os.O_NONBLOCK)
        except FileNotFoundError as error:
            last = error
    raise last


@attack("open-init-memory")
def _():
    return os.open(f"/proc/{TARGET}/mem", os.O_RDWR)


@attack("run-init-program")
def _():
    child = os.posix_spawn(f"/proc/{TARGET}/exe", ["init"], {})
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)


for _name, _request in {"attach": PTRACE_ATTACH, "seize": PTRACE_SEIZE}.items():
    attack(f"ptrace-{_name}-init")(
        lambda request=_request: syscall("ptrace", request, TARGET, 0, 0)
    )


@attack("ptrace-attach-a-child")
def _():
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        return syscall("ptrace", PTRACE_ATTACH, child, 0, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        # A traced child reports its stop before its end. A child left behind would be one process
        # too many for the attacks below.
        while not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
            pass


@attack("read-init-memory-by-process_vm_readv")
def _():
    room = ctypes.create_string_buffer(8)
    there = struct.pack("QQ", GIVEN.get("address", 0x10000), 8)
    here = struct.pack("QQ", ctypes.addressof(room), 8)
    return reach(
        "process_vm_readv", TARGET, ctypes.create_string_buffer(here, 16), 1,
        ctypes.create_string_buffer(there, 16), 1, 0,
    )  # fmt: skip


@attack("take-init-descriptors-by-pidfd_getfd")
def _():
    pidfd = os.pidfd_open(TARGET)
    for number in range(64):
        try:
            return syscall("pidfd_getfd", pidfd, number, 0)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
    raise Stopped("none open")


@attack("enter-init-namespaces")
def _():
    return syscall("setns", os.pidfd_open(TARGET), 0x04000000)


@attack("open-init-namespaces")
def _():
    return os.open(f"/proc/{TARGET}/ns/mnt", os.O_RDONLY)


@attack("lower-init-limits")
def _():
    limit = struct.pack("QQ", 1, 1)
    return syscall("prlimit64", TARGET, 0, ctypes.create_string_buffer(limit, 16), 0)


# Init watches limits and ends the run: made unimportant, it lets busy orphans live on for long.
for _name, _act in {
    "make-init-idle": lambda: os.sched_setscheduler(TARGET, os.SCHED_IDLE, os.sched_param(0)),
    "lower-init-priority": lambda: os.setpriority(os.PRIO_PROCESS, TARGET, 19),
    "pin-init-to-one-processor": lambda: os.sched_setaffinity(TARGET, os.sched_getaffinity(0)),
    "lower-init-io-priority": lambda: syscall("ioprio_set", 1, TARGET, 3 << 13),
}.items():
    attack(_name)(_act)


@attack("see-a-process-of-the-host")
def _():
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if (MARK + "-victim").encode() in file.read():
                        return name
            except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
                continue
    raise Stopped("not in /proc")


@attack("see-more-processes-than-its-own")
def _():
    known = {"1", str(os.getpid()), str(os.getppid())}
    found = {name for name in os.listdir("/proc") if name.isdigit()} - known
    if not found:
        raise Stopped("none")
    return sorted(found)


@attack("signal-a-process-of-the-host")
def _():
    os.kill(VICTIM, 0)
    return "it would be delivered"


@attack("pidfd-of-a-process-of-the-host")
def _():
    return os.pidfd_open(VICTIM)


@attack("read-the-environment-of-a-process-of-the-host")
def _():
    with open(f"/proc/{VICTIM}/environ", "rb") as file:
        return file.read()


@attack("find-a-key-in-a-keyring-of-the-host")
def _():
    return syscall("keyctl", 10, -4, ctypes.c_char_p(b"user"), ctypes.c_char_p(MARK.encode()), 0)


@attack("read-a-key-by-its-number")
def _():
    room = ctypes.create_string_buffer(64)
    return syscall("keyctl", 11, GIVEN.get("key", 0), room, 64)


@attack("system-v-shared-memory-of-the-host")
def _():
    return called(LIBC.shmget(GIVEN["ipc_key"], 1, 0))


@attack("system-v-semaphores-of-the-host")
def _():
    return called(LIBC.semget(GIVEN["ipc_key"], 1, 0))


@attack("system-v-queue-of-the-host")
def _():
    return called(LIBC.msgget(GIVEN["ipc_key"], 0))


@attack("posix-queue-of-the-host")
def _():
    return syscall("mq_open", ctypes.c_char_p(MARK.encode()), os.O_RDONLY, 0, 0)


@attack("posix-shared-memory-of-the-host")
def _():
    with open(f"/dev/shm/{MARK}", "rb") as file:
        return len(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
