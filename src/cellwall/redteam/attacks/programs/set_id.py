"""Set-id files, device nodes and whiteouts: what a cell must not leave behind (ISO-6)."""

# a part of a program: stage.py stands before it

import os
import stat

BASE = GIVEN.get("directory", "/tmp")
AT_FDCWD = -100


def fresh(name):
    path = f"{BASE}/{name}-{os.getpid()}"
    with open(path, "x"):
        return path


def marked(path):
    mode = os.lstat(path).st_mode
    if not mode & 0o6000:
        raise Stopped("the bit was dropped")
    return oct(mode)


@attack("chmod")
def _():
    path = fresh("a")
    os.chmod(path, 0o4755)
    return marked(path)


@attack("chmod-set-gid")
def _():
    path = fresh("a")
    os.chmod(path, 0o2755)
    return marked(path)


@attack("fchmod")
def _():
    path = fresh("a")
    os.chmod(os.open(path, os.O_RDWR), 0o4755)
    return marked(path)


@attack("fchmodat")
def _():
    path = fresh("a")
    os.chmod(os.path.basename(path), 0o4755, dir_fd=os.open(BASE, os.O_RDONLY))
    return marked(path)


@attack("fchmodat2")
def _():
    path = fresh("a")
    syscall("fchmodat2", AT_FDCWD, ctypes.c_char_p(path.encode()), 0o4755, 0)
    return marked(path)


@attack("chmod-with-high-bits")
def _():
    path = fresh("a")
    syscall("fchmodat", AT_FDCWD, ctypes.c_char_p(path.encode()), (1 << 32) | 0o4755, 0)
    return marked(path)


@attack("open")
def _():
    path = f"{BASE}/new-{os.getpid()}"
    os.umask(0)
    os.open(path, os.O_CREAT | os.O_WRONLY, 0o4755)
    return marked(path)


@attack("open-temporary-and-link")
def _():
    path = f"{BASE}/linked-{os.getpid()}"
    os.umask(0)
    nameless = os.open(BASE, os.O_TMPFILE | os.O_RDWR, 0o4755)
    words = [ctypes.c_char_p(name.encode()) for name in (f"/proc/self/fd/{nameless}", path)]
    syscall("linkat", AT_FDCWD, words[0], AT_FDCWD, words[1], 0x400)
    return marked(path)


@attack("mkdir-set-gid")
def _():
    path = f"{BASE}/directory-{os.getpid()}"
    os.umask(0)
    syscall("mkdirat", AT_FDCWD, ctypes.c_char_p(path.encode()), 0o2777)
    os.chmod(path, 0o2777)
    return marked(path)


@attack("mknod-regular-set-uid")
def _():
    path = f"{BASE}/node-{os.getpid()}"
    os.umask(0)
    os.mknod(path, stat.S_IFREG | 0o4755)
    return marked(path)


@attack("file-capability")
def _():
    path = fresh("a")
    data = bytes.fromhex("0100000200000000ffffffff00000000ffffffff")[:20]
    os.setxattr(path, "security.capability", data)
    return os.getxattr(path, "security.capability")


@attack("mknod-character-device")
def _():
    os.mknod(f"{BASE}/mem-{os.getpid()}", stat.S_IFCHR | 0o666, os.makedev(1, 1))
    return "a device node"


@attack("mknod-block-device")
def _():
    os.mknod(f"{BASE}/disk-{os.getpid()}", stat.S_IFBLK | 0o666, os.makedev(8, 0))
    return "a device node"


@attack("mknod-whiteout")
def _():
    os.mknod(f"{BASE}/whiteout-{os.getpid()}", stat.S_IFCHR, 0)
    return "a whiteout"


@attack("rename-leaves-a-whiteout")
def _():
    old, new = fresh("old"), f"{BASE}/renamed-{os.getpid()}"
    words = [ctypes.c_char_p(path.encode()) for path in (old, new)]
    syscall("renameat2", AT_FDCWD, words[0], AT_FDCWD, words[1], 4)
    return "a whiteout"
