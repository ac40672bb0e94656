"""Calls that would take the walls down from inside (ISO-6). The control runs in throwaway namespaces.

Where doing it would harm the host of the control, the call gets arguments that the kernel only
looks at after it has let the caller in.
"""

# a part of a program: stage.py stands before it

import fcntl
import os
import pty
import struct

only_in_throwaway_namespaces()

NAMESPACES = {
    "time": 0x80, "mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000,
    "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000,
}  # fmt: skip
SIGCHLD = 17
AT_FDCWD = -100
MNT_DETACH = 2
IS_X86 = os.uname().machine == "x86_64"


def text(value):
    return ctypes.c_char_p(value.encode())


def mount(source, target, kind, flags=0, data=None):
    arguments = [None if part is None else part.encode() for part in (source, target, kind, data)]
    source, target, kind, data = arguments
    called(LIBC.mount(source, target, kind, ctypes.c_ulong(flags), data))
    return f"mounted {kind}"


def scratch(name="scratch"):
    path = f"/tmp/{name}-{os.getpid()}"
    os.mkdir(path)
    return path


for _kind, _source, _data in (
    ("tmpfs", "none", None), ("proc", "proc", None), ("sysfs", "sysfs", None),
    ("devpts", "devpts", "newinstance"), ("mqueue", "mqueue", None),
    ("overlay", "overlay", "lowerdir=/usr/bin:/usr/lib"), ("cgroup2", "none", None),
):  # fmt: skip
    attack(f"mount-{_kind}")(
        lambda kind=_kind, source=_source, data=_data: mount(source, scratch(), kind, 0, data)
    )


@attack("mount-cgroup-v1-for-its-release-agent")
def _():
    with open("/proc/self/cgroup") as file:  # /proc/cgroups is empty inside
        controllers = [line.split(":")[1] for line in file]
    mounted = [names for names in controllers if names and not names.startswith("name=")]
    if not mounted:
        raise Lacking("cgroup v1")
    return mount("cgroup", scratch(), "cgroup", 0, mounted[0])


@attack("mount-bind")
def _():
    return mount("/usr", scratch(), None, 0x1000)


@attack("mount-remount-the-root-writable")
def _():
    return mount(None, "/", None, 0x20 | 0x1000)


@attack("mount-make-the-root-shared")
def _():
    return mount(None, "/", None, 0x100000)


@attack("umount-proc")
def _():
    return called(LIBC.umount2(b"/proc", MNT_DETACH))


@attack("umount-any-cover")
def _():
    with open("/proc/self/mountinfo") as file:
        places = [line.split()[4] for line in file]
    gone = []
    for place in reversed(places):
        if LIBC.umount2(place.encode(), MNT_DETACH) == 0:
            gone.append(place)
        else:
            number = ctypes.get_errno()
    if not gone:
        raise OSError(number, "nothing could be uncovered")
    return gone


@attack("pivot_root")
def _():
    os.chdir("/")
    return reach("pivot_root", text("."), text("."))


@attack("chroot")
def _():
    os.chroot("/tmp")
    return "chroot"


@attack("chroot-twice-and-walk-out")
def _():
    root = os.open("/", os.O_RDONLY)
    os.chroot(scratch())
    os.fchdir(root)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    return os.listdir("/")


for _name, _flag in NAMESPACES.items():
    attack(f"unshare-{_name}")(lambda flag=_flag: syscall("unshare", flag))

    @attack(f"clone-{_name}")
    def _(flag=_flag, high=0):
        child = syscall("clone", flag | high | (0 if flag == 0x80 else SIGCHLD))
        if child == 0:
            os._exit(0)
        return child

    if _flag != 0x80:  # the kernel takes a new time namespace only from clone3 and unshare
        attack(f"clone-{_name}-with-high-bits")(lambda flag=_flag, clone=_: clone(flag, 1 << 40))
    else:
        del ATTACKS["clone-time"]

    @attack(f"clone3-{_name}")
    def _(flag=_flag):
        how = struct.pack("8Q", flag, 0, 0, 0, SIGCHLD, 0, 0, 0)
        child = syscall("clone3", ctypes.create_string_buffer(how, 64), 64)
        if child == 0:
            os._exit(0)
        return child


@attack("unshare-everything-at-once")
def _():
    return syscall("unshare", sum(NAMESPACES.values()))


@attack("setns")
def _():
    return syscall("setns", os.open("/proc/self/ns/uts", os.O_RDONLY), 0)


@attack("setns-by-pidfd")
def _():
    return syscall("setns", syscall("pidfd_open", os.getppid(), 0), NAMESPACES["uts"])


@attack("open_tree")
def _():
    return syscall("open_tree", AT_FDCWD, text("/"), 1)


@attack("fsopen")
def _():
    return syscall("fsopen", text("tmpfs"), 0)


@attack("bpf")
def _():
    attr = struct.pack("IIIII", 2, 4, 4, 1, 0).ljust(128, b"\0")  # an array map
    return syscall("bpf", 0, ctypes.create_string_buffer(attr, 128), 128)


@attack("io_uring_setup")
def _():
    return syscall("io_uring_setup", 4, ctypes.create_string_buffer(120))


# The rest is judged by arguments that can do no harm: a descriptor that is not open, a null pointer,
# a name that does not exist, a magic number that is wrong.
_NONE = text("/nonexistent")
for _name, _arguments in {
    "move_mount": (-1, text(""), -1, text(""), 0x44),
    "mount_setattr": (AT_FDCWD, text("/"), 0, 0, 0),
    "open_tree_attr": (AT_FDCWD, text("/nonexistent"), 0, 0, 0),
    "fsconfig": (-1, 0, 0, 0, 0),
    "fsmount": (-1, 0, 0),
    "fspick": (AT_FDCWD, _NONE, 0),
    "open_by_handle_at": (AT_FDCWD, 0, 0),
    "name_to_handle_at": (AT_FDCWD, text("/"), 0, 0, 0),
    "io_uring_enter": (-1, 0, 0, 0, 0, 0),
    "io_uring_register": (-1, 0, 0, 0),
    "userfaultfd": (-1,),
    "perf_event_open": (0, 0, -1, -1, 0),
    "kexec_load": (0, 0, 0, 0xFFFF0001),
    "kexec_file_load": (-1, -1, 0, 0, 0xFFFF),
    "init_module": (0, 0, 0),
    "finit_module": (-1, text(""), 0),
    "delete_module": (text("no_such_module"), 0),
    "reboot": (0, 0, 0, 0),
    "swapon": (_NONE, 0),
    "swapoff": (_NONE,),
    "acct": (_NONE,),
    "quotactl": (0, 0, 0, 0),
    "syslog": (10, 0, 0),
    "sethostname": (text("renamed"), 7),
    "setdomainname": (text("renamed"), 7),
    "keyctl": (0, -3, 1),
    "add_key": (text("user"), text("cellwall"), text("x"), 1, -2),
    "request_key": (text("user"), text("cellwall-none"), 0, 0),
    "fanotify_init": (0, 0),
    "fanotify_mark": (-1, 1, 1, -1, 0),
    "memfd_secret": (0,),
    "vmsplice": (-1, 0, 0, 0),
    "process_vm_readv": (-1, 0, 0, 0, 0, 0),
    "process_vm_writev": (-1, 0, 0, 0, 0, 0),
    "process_madvise": (-1, 0, 0, 0, 0),
    "process_mrelease": (-1, 0),
    "pidfd_getfd": (-1, 0, 0),
    "kcmp": (os.getpid(), os.getpid(), 0, 0, 0),
    "ptrace": (0, 0, 0, 0),  # PTRACE_TRACEME
    "move_pages": (0, 0, 0, 0, 0, 0),
    "migrate_pages": (0, 0, 0, 0),
    "mbind": (0, 0, 0, 0, 0, 0),
    "cachestat": (-1, 0, 0, 0),
    **({"iopl": (0,), "ioperm": (0, 1, 0), "modify_ldt": (0, 0, 0)} if IS_X86 else {}),
    "listmount": (0, 0, 0, 0),
    "statmount": (0, 0, 0, 0),
    "openat2": (AT_FDCWD, text("/"), 0, 0),
}.items():
    attack(_name)(lambda name=_name, arguments=_arguments: reach(name, *arguments))


@attack("clock_settime")
def _():
    # No second has -1 nanoseconds: reached, and the host's clock stays as it is.
    return reach("clock_settime", 0, ctypes.create_string_buffer(struct.pack("qq", 0, -1), 16))


@attack("settimeofday")
def _():
    return reach("settimeofday", ctypes.create_string_buffer(struct.pack("qq", 0, -1), 16), 0)


for _name, _at in (("adjtimex", ()), ("clock_adjtime", (0,))):
    attack(_name)(lambda name=_name, at=_at: syscall(name, *at, ctypes.create_string_buffer(256)))


@attack("personality-without-aslr")
def _():
    return syscall("personality", 0x0040000)


@attack("prlimit-of-another-process")
def _():
    limit = struct.pack("QQ", 64, 64)
    return syscall("prlimit64", os.getppid(), 7, ctypes.create_string_buffer(limit, 16), 0)


def terminal_ioctl(command):
    _, terminal = pty.openpty()
    try:
        return syscall("ioctl", terminal, command, ctypes.create_string_buffer(b"x", 16))
    except OSError as error:
        if error.errno == errno.EPERM:
            raise
        return errno.errorcode[error.errno]


for _name, _command in {"tiocsti": 0x5412, "tioclinux": 0x541C, "tiocsetd": 0x5423}.items():
    for _kind, _high in {
        "": 0,
        "-with-high-bits": 1 << 32,
        "-with-all-high": 0xFFFFFFFF << 32,
    }.items():
        attack(f"{_name}{_kind}")(lambda command=_command | _high: terminal_ioctl(command))


@attack("tiocsti-into-an-own-controlling-terminal")
def _():
    child, _terminal = pty.fork()
    if child == 0:
        try:
            fcntl.ioctl(0, 0x5412, b"x")
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if number:
        raise OSError(number, "TIOCSTI")
    return "typed"


# A foreign architecture speaks other numbers: exit(42) as the smallest 32-bit program there is.
_PROGRAM = (
    bytes.fromhex("b801000000bb2a000000cd80") if IS_X86  # int 0x80
    else bytes.fromhex("0170a0e32a00a0e3000000ef")  # mov r7, #1; mov r0, #42; svc 0
)  # fmt: skip


@attack("a-32-bit-program")
def _():
    machine = 3 if IS_X86 else 40
    start = 0x10000 + 84
    head = struct.pack(
        "<16sHHIIIIIHHHHHH", b"\x7fELF\x01\x01\x01", 2, machine, 1, start, 52, 0,
        0 if IS_X86 else 0x5000200, 52, 32, 1, 0, 0, 0,
    )  # fmt: skip
    load = struct.pack("<8I", 1, 0, 0x10000, 0x10000, 84 + 12, 84 + 12, 5, 0x1000)
    path = scratch() + "/program"
    with open(path, "wb") as file:
        file.write(head + load + _PROGRAM)
    os.chmod(path, 0o755)
    try:
        child = os.posix_spawn(path, [path], {})
    except OSError as error:
        raise Lacking("32-bit programs") from error
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 42:
        return "its call was carried out"
    raise Stopped(f"ended with {code}")


if IS_X86:

    @attack("x32-numbers")
    def _():
        LIBC.syscall.restype = ctypes.c_long
        return called(LIBC.syscall(ctypes.c_long(0x40000000 | 39)))
