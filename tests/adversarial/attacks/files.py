"""Reaching files of the host from inside (ISO-2, ISO-6), and writing where nobody may.

`secret` is a file of the host that its owner alone may read; `link` a symlink to it and `hardlink`
a second name, both lying in the workspace; `place` is a directory of the host, outside.
"""

import os
import socket

MARK = GIVEN.get("mark", "")
SECRET = GIVEN.get("secret", "/nonexistent")
HERE = GIVEN.get("workspace", "/workspace")


def read(path, size=65_536):
    with open(path, "rb") as file:
        return file.read(size)


def steal(path):
    if MARK.encode() not in read(path):
        raise Stopped("another file")
    return "the secret"


@attack("read-by-its-path")
def _():
    return steal(SECRET)


@attack("read-by-dot-dot")
def _():
    return steal("../" * 64 + SECRET.lstrip("/"))


@attack("read-by-proc-self-root")
def _():
    return steal("/proc/self/root" + SECRET)


@attack("read-by-proc-thread-self-root")
def _():
    return steal("/proc/thread-self/root" + SECRET)


@attack("read-by-proc-self-cwd")
def _():
    return steal("/proc/self/cwd/" + "../" * 64 + SECRET.lstrip("/"))


@attack("read-by-the-parent-s-root")
def _():
    return steal(f"/proc/{GIVEN.get('parent', 1)}/root" + SECRET)


@attack("read-by-the-root-of-any-process")
def _():
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                return steal(f"/proc/{name}/root{SECRET}")
            except OSError as error:
                last = error
    raise last


@attack("read-by-a-symlink-that-lay-there")
def _():
    return steal(f"{HERE}/link")


@attack("read-by-a-new-symlink")
def _():
    os.symlink(SECRET, f"/tmp/link-{os.getpid()}")
    return steal(f"/tmp/link-{os.getpid()}")


@attack("read-by-an-O_PATH-descriptor")
def _():
    descriptor = os.open(SECRET, os.O_PATH)
    return steal(f"/proc/self/fd/{descriptor}")


@attack("read-by-walking-up-from-a-descriptor")
def _():
    descriptor = os.open(HERE, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(64):
        descriptor = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor)
    return os.read(os.open(SECRET.lstrip("/"), os.O_RDONLY, dir_fd=descriptor), 100)


@attack("hard-link-to-it")
def _():
    os.link(SECRET, f"{os.path.dirname(SECRET) if HERE != '/workspace' else HERE}/stolen")
    return "linked"


@attack("rename-it-into-the-workspace")
def _():
    os.rename(SECRET + ".spare", f"{HERE}/moved")
    return "moved"


@attack("rename-an-ancestor-of-the-workspace")
def _():
    above = os.path.dirname(HERE)
    os.rename(HERE, f"{above.rstrip('/')}/renamed-{os.getpid()}")
    os.rename(f"{above.rstrip('/')}/renamed-{os.getpid()}", HERE)
    return "renamed"


@attack("make-a-file-beside-the-workspace")
def _():
    os.close(os.open(f"{os.path.dirname(HERE).rstrip('/')}/planted", os.O_CREAT | os.O_WRONLY))
    return "planted"


@attack("connect-to-a-socket-of-the-host")
def _():
    socket.socket(socket.AF_UNIX).connect(GIVEN["socket"])
    return "connected"


@attack("connect-to-the-agent-in-SSH_AUTH_SOCK")
def _():
    path = os.environ.get("SSH_AUTH_SOCK")
    if path is None:
        raise Stopped("no such variable")
    socket.socket(socket.AF_UNIX).connect(path)
    return "connected"


for _place in ("/root", "/home", "/run", "/var", "/srv", "/sys", "/boot", "/mnt", "/media", "/etc/ssl/private"):
    attack(f"list{_place.replace('/', '-')}")(lambda place=_place: exists(place))
for _place in ("/etc/shadow", "/etc/gshadow", "/etc/hostname", "/etc/sudoers", "/etc/machine-id",
               "/etc/fstab", "/var/run/docker.sock", "/run/docker.sock", "/run/dbus/system_bus_socket",
               "/run/systemd/private", "/dev/mem", "/dev/kmsg", "/dev/fuse", "/dev/kvm", "/dev/vda",
               "/dev/sda", "/dev/tty", "/dev/console"):  # fmt: skip
    attack(f"see{_place.replace('/', '-')}")(lambda place=_place: exists(place))


def exists(place):
    try:
        os.lstat(place)
    except FileNotFoundError:
        if not GIVEN.get("control"):
            raise
        raise Lacking(place) from None
    return os.listdir(place) if os.path.isdir(place) else "there"


@attack("read-the-accounts-of-the-host")
def _():
    if b"daemon" not in read("/etc/passwd"):
        raise Stopped("a made-up file")
    return "accounts"


# Tells about the kernel or the host; hidden, so that there is nothing to read.
for _name in ("kcore", "kallsyms", "keys", "key-users", "cmdline", "interrupts", "timer_list", "modules",
              "sched_debug", "latency_stats"):  # fmt: skip

    @attack(f"read-proc-{_name}")
    def _(path=f"/proc/{_name}"):
        try:
            found = read(path, 64)
        except FileNotFoundError:
            if not GIVEN.get("control"):
                raise
            raise Lacking(path) from None
        if not found:
            raise Stopped("empty")
        return len(found)


# Opened, never written: opening is already what a write-deny has to refuse.
for _name in ("sys/kernel/core_pattern", "sys/kernel/modprobe", "sys/kernel/hostname", "sys/vm/overcommit_memory",
              "sys/kernel/randomize_va_space", "sys/fs/protected_symlinks", "sys/net/ipv4/ip_forward",
              "sysrq-trigger", "irq/default_smp_affinity"):  # fmt: skip

    @attack(f"open-to-write-proc-{_name.replace('/', '-')}")
    def _(path=f"/proc/{_name}"):
        if GIVEN.get("control") and not os.path.exists(path):
            raise Lacking(path)
        return os.open(path, os.O_WRONLY)


# File modes and mounts allow these (the process's own, /proc is mounted writable): only Landlock
# stands before them.
for _name, _text in {"comm": "renamed", "coredump_filter": "0x33", "oom_score_adj": "500",
                     "clear_refs": "1", "timerslack_ns": "50000", "autogroup": "10"}.items():  # fmt: skip

    @attack(f"landlock-write-own-{_name}")
    def _(path=f"/proc/self/{_name}", text=_text):
        if GIVEN.get("control") and not os.path.exists(path):
            raise Lacking(path)
        with open(path, "w") as file:
            file.write(text)
        return "written"


@attack("landlock-write-own-memory-by-proc-self-mem")
def _():
    place = ctypes.create_string_buffer(b"before")
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(ctypes.addressof(place))
        memory.write(b"AFTER!")
    return place.value


@attack("landlock-reopen-standard-input-to-write")
def _():
    # The descriptor comes from outside, from a mount that no rule of the cell names.
    return os.open("/proc/self/fd/0", os.O_RDWR)


for _name, _act in {
    "make-a-directory-in-the-root": lambda: os.mkdir("/planted"),
    "write-into-usr": lambda: open("/usr/planted", "x"),
    "write-into-etc": lambda: open("/etc/planted", "x"),
    "replace-a-program": lambda: os.open("/usr/bin/env", os.O_WRONLY),
    "change-the-mode-of-a-program": lambda: os.chmod("/usr/bin/env", 0o755),
    "touch-a-program": lambda: os.utime("/usr/bin/env"),
    "mark-a-program-with-an-attribute": lambda: os.setxattr("/usr/bin/env", "user.mark", b"1"),
    "touch-dev-null": lambda: os.utime("/dev/null"),
    "remove-dev-null": lambda: os.remove("/dev/null"),
}.items():
    attack(_name)(_act)
