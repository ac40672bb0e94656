"""The process without any sandbox: what times are divided by, and the control of the attacks."""

from __future__ import annotations

import platform

from peers.job import Job
from peers.peer import CommandPeer


class Bare(CommandPeer):
    name = "bare"
    product = "bare"
    program = "python3"
    settings = "fork and exec as the same user"

    def version(self) -> str:
        return f"Linux {platform.release().partition('-')[0]}"

    def command(self, job: Job) -> list[str]:
        return job.command(job.workspace)


class BareNamespaces(Bare):
    """Namespaces of its own, in which the user is root: the control of calls that need rights."""

    name = "bare-namespaces"
    settings = "unshare of util-linux, as the same user"

    def command(self, job: Job) -> list[str]:
        words = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--uts", "--ipc"]
        words += ["--pid", "--fork", "--mount-proc"]
        own_tmp = 'mount -t tmpfs tmpfs /tmp && exec "$@"'
        return [*words, "sh", "-c", own_tmp, "sh", *job.command(job.workspace)]
