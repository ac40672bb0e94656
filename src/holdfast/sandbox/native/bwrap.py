"""bubblewrap's command line, the outer wall. Pure: plain data in, a list of words out.

bubblewrap makes the namespaces and the mounts it knows how to make; what it lacks is done right
after by `holdfast-cell init`, which it starts as PID 1 with two capabilities over the cell's own
namespaces. Init drops both before the program starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.sandbox.native import rootfs


@dataclass(frozen=True, slots=True)
class Bind:
    """One directory of the host, shown at `inside`."""

    outside: str
    inside: str
    read_only: bool


_NAMESPACES = (
    "--unshare-user",
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup",
)

# The mount points that init fills; made before the root becomes read-only.
_EMPTY_DIRS = ("/tmp", "/dev/shm", "/dev/pts", "/workspace", "/.holdfast/empty")
_LAYER_DIRS = ("/.holdfast/lower", "/.holdfast/cow")


def arguments(
    bubblewrap: str,
    root: rootfs.HostRoot,
    *,
    binds: Sequence[Bind],
    files: Mapping[str, int],
    layers: bool,
    command: Sequence[str],
) -> list[str]:
    """The whole command line. `files` maps a path inside to a descriptor with its content."""
    words = [bubblewrap, *_NAMESPACES]
    words += ["--uid", str(rootfs.UID_INSIDE), "--gid", str(rootfs.GID_INSIDE)]
    words += ["--hostname", rootfs.HOSTNAME, "--as-pid-1", "--die-with-parent", "--new-session"]
    # For init alone, over namespaces of its own: mounts (SYS_ADMIN), then dropping everything
    # from the bounding set as well (SETPCAP).
    words += ["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP"]
    for outside, inside in root.binds:
        words += ["--ro-bind", outside, inside]
    for target, name in root.links:
        words += ["--symlink", target, name]
    words += ["--proc", "/proc"]
    for device in rootfs.DEVICES:
        words += ["--dev-bind", device, device]
    for target, name in _DEVICE_LINKS:
        words += ["--symlink", target, name]
    for path in _EMPTY_DIRS + (_LAYER_DIRS if layers else ()):
        words += ["--dir", path]
    for inside, descriptor in files.items():
        words += ["--perms", "0444", "--file", str(descriptor), inside]
    for bind in binds:
        words += ["--ro-bind" if bind.read_only else "--bind", bind.outside, bind.inside]
    # Last: until here the root is a tmpfs in which bubblewrap makes the mount points.
    words += ["--remount-ro", "/", "--", *command]
    return words


_DEVICE_LINKS = (
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
    ("pts/ptmx", "/dev/ptmx"),
)
