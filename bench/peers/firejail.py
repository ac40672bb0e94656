"""firejail: its default profile, and the options that its manual names for untrusted programs."""

from __future__ import annotations

from peers.job import Job
from peers.peer import CommandPeer

_RLIMITS = {
    "cpu_s": "cpu",
    "memory_bytes": "as",
    "processes": "nproc",
    "file_size_bytes": "fsize",
    "open_files": "nofile",
}


class Firejail(CommandPeer):
    name = "firejail"
    product = "firejail"
    program = "firejail"
    limits = frozenset({*_RLIMITS, "wall_s"})
    settings = "firejail --quiet --profile=default.profile"

    def options(self) -> list[str]:
        return ["--profile=default"]

    def command(self, job: Job) -> list[str]:
        words = [self.find(), "--quiet", *self.options()]
        words += [
            f"--rlimit-{option}={int(job.limits[name])}"
            for name, option in _RLIMITS.items()
            if name in job.limits
        ]
        if "wall_s" in job.limits:
            words.append(f"--timeout=00:00:{int(job.limits['wall_s']):02d}")
        return [*words, *self.workspace(job), "--", *job.command(self.inside(job))]

    def workspace(self, job: Job) -> list[str]:
        del job
        return []


class FirejailStrict(Firejail):
    name = "firejail-strict"
    settings = (
        "default.profile, which drops capabilities and has a seccomp filter, with "
        "--private=WORKSPACE --net=none --private-dev --private-tmp --nogroups --ipc-namespace "
        "--disable-mnt"
    )

    def options(self) -> list[str]:
        return [
            *("--profile=default", "--net=none", "--private-dev", "--private-tmp"),
            *("--nogroups", "--ipc-namespace", "--disable-mnt"),
        ]

    def workspace(self, job: Job) -> list[str]:
        return [f"--private={job.workspace}"]

    def inside(self, job: Job) -> str:
        del job
        return self.place.home  # --private shows the workspace as the home of the user
