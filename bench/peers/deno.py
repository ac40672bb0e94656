"""Deno (PyPI): JavaScript with permissions; no other program runs inside."""

from __future__ import annotations

import os

from peers.job import Ended, Job
from peers.peer import CommandPeer


class Deno(CommandPeer):
    name = "deno"
    product = "deno"
    program = "deno/bin/deno"
    language = "javascript"
    settings = "deno run --no-prompt --allow-read=WORKSPACE --allow-write=WORKSPACE"

    def permissions(self, job: Job) -> list[str]:
        return [f"--allow-read={job.workspace}", f"--allow-write={job.workspace}"]

    def command(self, job: Job) -> list[str]:
        path = os.path.join(job.workspace, "program.js")
        with open(path, "w", encoding="utf-8") as file:
            file.write(job.javascript)
        words = [self.find(), "run", "--no-prompt", "--quiet", "--no-remote", "--no-config"]
        return [*words, *self.permissions(job), path]

    def run(self, job: Job, timeout_s: float) -> Ended:
        if not job.javascript:
            return Ended(126, b"", b"not applicable: no JavaScript")
        return super().run(job, timeout_s)


class DenoUnrestricted(Deno):
    """The control of Deno's attacks: the same program with all permissions."""

    name = "deno-unrestricted"
    settings = "deno run --allow-all"

    def permissions(self, job: Job) -> list[str]:
        del job
        return ["--allow-all"]
