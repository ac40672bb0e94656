"""System calls that Python does not provide. The only file that may use ctypes."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Any

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

# Calls newer than 2019 have one number on every architecture (x86_64 and aarch64 included).
_OPENAT2 = 437
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_CREATE_RULESET_VERSION = 1
_KCMP = {"x86_64": 312, "aarch64": 272}.get(os.uname().machine, -1)
_KCMP_FILES = 2
_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}.get(os.uname().machine, -1)
_RENAME_NOREPLACE = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _prototype(
    name: str, *arguments: type[ctypes._SimpleCData[Any]], result: type[ctypes._SimpleCData[Any]]
) -> Callable[..., Any]:
    """A function of libc. Indexing makes a new function object each time, so the prototypes of
    `syscall` do not overwrite each other."""
    function = _libc[name]
    function.restype, function.argtypes = result, arguments
    return function


# Every argument of `syscall` is a full machine word: libc reads them as `long`.
_LONG, _INT, _TEXT, _POINTER = ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
_SIZE, _ULONG, _UINT32 = ctypes.c_size_t, ctypes.c_ulong, ctypes.c_uint32
_openat2 = _prototype("syscall", _LONG, _LONG, _TEXT, _POINTER, _SIZE, result=_LONG)
_create_ruleset = _prototype("syscall", _LONG, _POINTER, _SIZE, _LONG, result=_LONG)
_kcmp = _prototype("syscall", _LONG, _LONG, _LONG, _LONG, _LONG, _LONG, result=_LONG)
_renameat2 = _prototype("syscall", _LONG, _LONG, _TEXT, _LONG, _TEXT, _ULONG, result=_LONG)
_inotify_init = _prototype("inotify_init1", _INT, result=_INT)
_inotify_add = _prototype("inotify_add_watch", _INT, _TEXT, _UINT32, result=_INT)
_inotify_remove = _prototype("inotify_rm_watch", _INT, _INT, result=_INT)
_name_to_handle = _prototype(
    "name_to_handle_at", _INT, _TEXT, _POINTER, _POINTER, _INT, result=_INT
)
_setfsuid = _prototype("setfsuid", _UINT32, result=_INT)
_setfsgid = _prototype("setfsgid", _UINT32, result=_INT)
_prctl = _prototype("prctl", _INT, _ULONG, _ULONG, _ULONG, _ULONG, result=_INT)
_adjtimex = _prototype("adjtimex", _POINTER, result=_INT)
_AT_EMPTY_PATH = 0x1000
_MAX_HANDLE_BYTES = 128
_PR_SET_DUMPABLE = 4
_TIMEX_BYTES = 512  # more than `struct timex` has
_TIME_ERROR = 5


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


class _FileHandle(ctypes.Structure):
    _fields_ = (
        ("handle_bytes", ctypes.c_uint),
        ("handle_type", ctypes.c_int),
        ("handle", ctypes.c_ubyte * _MAX_HANDLE_BYTES),
    )


def openat2(dir_fd: int, path: str | bytes, *, flags: int, mode: int = 0, resolve: int) -> int:
    """Open `path` relative to `dir_fd` under the `RESOLVE_*` rules; raises `OSError`.

    The descriptor never survives an exec: a leaked one would lead out of the sandbox.
    """
    raw = os.fsencode(path)
    if b"\0" in raw:
        # ctypes would truncate the path there and open another file.
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    how = _OpenHow(flags=flags | os.O_CLOEXEC, mode=mode, resolve=resolve)
    while True:
        fd = int(_openat2(_OPENAT2, dir_fd, raw, ctypes.addressof(how), ctypes.sizeof(how)))
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def rename_new(dir_fd: int, name: str, target_fd: int, target_name: str) -> None:
    """`os.rename` that never replaces a file: raises `FileExistsError` instead."""
    old, new = os.fsencode(name), os.fsencode(target_name)
    flags = _RENAME_NOREPLACE
    _raise_errno(int(_renameat2(_RENAMEAT2, dir_fd, old, target_fd, new, flags)))


def file_handle(fd: int, name: str = "") -> str:
    """The inode of a descriptor, or of a name in that directory, with its generation, so that no
    later inode with the same number has the same handle; empty if the file system has no handles,
    or no such name. Of a symlink: its own."""
    handle = _FileHandle(handle_bytes=_MAX_HANDLE_BYTES)
    mount_id = ctypes.c_int(0)
    result = _name_to_handle(
        fd,
        os.fsencode(name),
        ctypes.addressof(handle),
        ctypes.addressof(mount_id),
        0 if name else _AT_EMPTY_PATH,
    )
    if int(result) != 0:
        return ""
    return f"{handle.handle_type}:{bytes(handle.handle[: handle.handle_bytes]).hex()}"


def landlock_abi() -> int:
    """The Landlock ABI of this kernel; 0 if Landlock is not built in, disabled, or refused."""
    version = int(
        _create_ruleset(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_CREATE_RULESET_VERSION)
    )
    if version >= 0:
        return version
    code = ctypes.get_errno()
    # EPERM: the system-call filter of a container (systemd-nspawn, older Docker) lacks the call.
    if code in {errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}:
        return 0
    raise OSError(code, os.strerror(code))


def share_descriptors(task: int, other: int) -> bool:
    """Whether two threads share one descriptor table; False also if that is unknown."""
    return int(_kcmp(_KCMP, task, other, _KCMP_FILES, 0, 0)) == 0


def inotify_open() -> int:
    """An inotify descriptor, non-blocking and close-on-exec."""
    return _raise_errno(int(_inotify_init(os.O_NONBLOCK | os.O_CLOEXEC)))


def inotify_watch(fd: int, directory_fd: int, *, mask: int) -> int:
    """Watch the directory of a descriptor, whatever its path leads to by now."""
    return _raise_errno(int(_inotify_add(fd, b"/proc/self/fd/%d" % directory_fd, mask)))


def inotify_forget(fd: int, watch: int) -> None:
    """End one watch; EINVAL if the kernel has ended it already."""
    _raise_errno(int(_inotify_remove(fd, watch)))


def set_not_dumpable() -> None:
    """No core file of this process, and no other process of this user can trace it or read its
    memory; both last until the next exec."""
    _raise_errno(int(_prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)))


def set_file_system_ids(number: int) -> None:
    """The uid and gid with which this thread, and no other, accesses files; as root only.

    Setting a uid other than 0 also takes the capabilities away that override permissions.
    """
    # The group first: changing it needs the capability of root. Each call returns the old id and
    # reports no failure, so a second one, of an id that does not exist, reads it back.
    nobody = 0xFFFFFFFF
    for set_id in (_setfsgid, _setfsuid):
        set_id(number)
        if int(set_id(nobody)) != number:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def is_clock_synchronised() -> bool:
    """Whether the kernel's clock is synchronised: adjtimex(2) with no mode, which sets nothing."""
    return _raise_errno(int(_adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))) != _TIME_ERROR


def _raise_errno(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
