"""bubblewrap has no policy of its own: the example of its package, and the options it advises."""

from __future__ import annotations

from peers.job import Job
from peers.peer import CommandPeer

_ROOT = (
    *("--ro-bind", "/usr", "/usr"),
    *("--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"),
    *("--symlink", "usr/lib64", "/lib64", "--symlink", "usr/sbin", "/sbin"),
    *("--ro-bind-try", "/etc/passwd", "/etc/passwd", "--ro-bind-try", "/etc/group", "/etc/group"),
    *("--proc", "/proc", "--dev", "/dev"),
)


class Bubblewrap(CommandPeer):
    name = "bubblewrap"
    product = "bubblewrap"
    program = "bwrap"
    settings = (
        "as demos/bubblewrap-shell.sh: /usr read-only, new /proc, /dev and /tmp, "
        "--unshare-all --share-net --die-with-parent"
    )

    def inside(self, job: Job) -> str:
        del job
        return "/workspace"

    def options(self, job: Job) -> list[str]:
        del job
        return ["--unshare-all", "--share-net", "--tmpfs", "/tmp"]

    def command(self, job: Job) -> list[str]:
        return [
            self.find(),
            *_ROOT,
            *self.options(job),
            "--die-with-parent",
            *("--bind", job.workspace, "/workspace", "--chdir", "/workspace"),
            "--",
            *job.command(self.inside(job)),
        ]


class BubblewrapStrict(Bubblewrap):
    name = "bubblewrap-strict"
    limits = frozenset({"tmp_bytes"})
    settings = (
        "--unshare-all --new-session --clearenv --disable-userns --cap-drop ALL, "
        "/tmp with --size; no seccomp filter, since bubblewrap brings none"
    )

    def options(self, job: Job) -> list[str]:
        size = ["--size", str(int(job.limits["tmp_bytes"]))] if "tmp_bytes" in job.limits else []
        words = ["--unshare-all", "--unshare-user", "--disable-userns", "--new-session"]
        words += ["--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--cap-drop", "ALL"]
        return [*words, *size, "--tmpfs", "/tmp"]
