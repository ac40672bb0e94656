"""Codex (npm): `codex sandbox`, the sandbox that its agent runs commands in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar

from peers.job import Job
from peers.peer import CommandPeer

_CONFIG = """
[permissions.strict.filesystem]
":minimal" = "read"
"{installed}" = "read"
":workspace_roots" = { "." = "write" }
[permissions.strict.network]
enabled = false
"""


class Codex(CommandPeer):
    name = "codex"
    product = "codex"
    program = "npm/node_modules/.bin/codex"
    settings = "codex sandbox -P :workspace, the profile that it brings"
    profile: ClassVar[str] = ":workspace"

    def open(self, env: Mapping[str, str]) -> None:
        super().open(env)
        home = self.place.state("codex")
        os.makedirs(home, exist_ok=True)
        with open(os.path.join(home, "config.toml"), "w", encoding="utf-8") as file:
            # Its own program, which an ordinary installation has below /usr.
            file.write(_CONFIG.replace("{installed}", self.place.installed("npm")))
        self.env["CODEX_HOME"] = home

    def command(self, job: Job) -> list[str]:
        words = [self.find(), "sandbox", "-P", self.profile, "-C", job.workspace, "--"]
        return [*words, *job.command(self.inside(job))]


class CodexStrict(Codex):
    name = "codex-strict"
    settings = 'a profile with ":minimal" to read, the workspace to write, and no network'
    profile = "strict"
