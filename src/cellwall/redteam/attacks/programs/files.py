"""Reaching files of the host from inside (ISO-2, ISO-6).

`secret` is a file of the host that its owner alone may read; `link` a symlink to it and `hardlink`
a second name, both lying in the workspace; `place` is a directory of the host, outside.
"""

# a part of a program: stage.py stands before it

import os
import socket
import tempfile

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
    # A new directory: a PID comes back, and the control runs on the host, where links stay.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.symlink(SECRET, f"{folder}/link")
        return steal(f"{folder}/link")


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


for _place in ("/root", "/home", "/run", "/var", "/srv", "/sys", "/boot", "/mnt", "/media", "/etc/ssl/private",
               "/etc/shadow", "/etc/gshadow", "/etc/hostname", "/dev/tty"):  # fmt: skip
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
for _name in ("kcore", "kallsyms", "keys", "key-users", "cmdline", "interrupts", "timer_list"):

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
