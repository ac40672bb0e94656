"""bubblewrap's command line, the outer wall. Pure: plain data in, a list of words out.

bubblewrap makes the namespaces and shows the directories; `cellwall-cell init`, which it starts as
PID 1 with three capabilities over the cell's own namespaces, does the rest right after: it takes
the few things a cell may see out of /etc and /dev, which lie aside until then, makes the root
read-only and drops all capabilities before the program starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cellwall.sandbox.linux import rootfs


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

ETC_ASIDE = "/.cellwall/etc"
DEV_ASIDE = "/.cellwall/dev"


def arguments(
    bubblewrap: str,
    root: rootfs.HostRoot,
    *,
    binds: Sequence[Bind],
    layers: bool,
    opening: bool,
    command: Sequence[str],
) -> list[str]:
    """The whole command line. `layers`: init will mount an overlay; `opening`: make sockets."""
    words = [bubblewrap, *_NAMESPACES]
    words += ["--uid", str(rootfs.UID_INSIDE), "--gid", str(rootfs.GID_INSIDE)]
    words += ["--hostname", rootfs.HOSTNAME, "--as-pid-1", "--die-with-parent", "--new-session"]
    # For init alone, over namespaces of its own: mounts (SYS_ADMIN), settings and addresses of the
    # network (NET_ADMIN), then dropping everything from the bounding set as well (SETPCAP).
    words += ["--cap-drop", "ALL"]
    for name in ("CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SETPCAP"):
        words += ["--cap-add", name]
    if layers:
        # overlayfs works in its layers with what its mounter had: it makes a directory of mode 0
        # and writes in it, and copies owners and modes. All within the one mapped uid.
        for name in ("CAP_DAC_OVERRIDE", "CAP_CHOWN", "CAP_FOWNER"):
            words += ["--cap-add", name]
    if opening:
        # Ports below 1024 on the loopback of its own namespace.
        words += ["--cap-add", "CAP_NET_BIND_SERVICE"]
    for path in root.binds:
        words += ["--ro-bind", path, path]
    words += ["--ro-bind", "/etc", ETC_ASIDE, "--dev-bind", "/dev", DEV_ASIDE, "--proc", "/proc"]
    for bind in binds:
        words += ["--ro-bind" if bind.read_only else "--bind", bind.outside, bind.inside]
    return [*words, "--", *command]
