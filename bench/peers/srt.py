"""Anthropic's sandbox-runtime (`srt`, npm): its example settings, and the home not readable."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from typing import Any

from peers.job import Job
from peers.peer import CommandPeer


class Srt(CommandPeer):
    name = "srt"
    product = "srt"
    program = "npm/node_modules/.bin/srt"
    settings = (
        'srt --settings with the example of its README: denyRead ["~/.ssh"], '
        'allowWrite [WORKSPACE, "/tmp"], no domain allowed'
    )

    def denied(self, job: Job) -> dict[str, list[str]]:
        del job
        return {"denyRead": ["~/.ssh"]}

    def open(self, env: Mapping[str, str]) -> None:
        super().open(env)
        self._file = self.place.state(f"{self.name}.json")

    def command(self, job: Job) -> list[str]:
        files: dict[str, Any] = {**self.denied(job), "denyWrite": []}
        files["allowWrite"] = [job.workspace, "/tmp"]
        network = {"allowedDomains": [], "deniedDomains": []}
        path = f"{self._file}.{os.path.basename(job.workspace)}"
        if not os.path.exists(path):
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"filesystem": files, "network": network}, file)
        return [self.find(), "--settings", path, "-c", shlex.join(job.command(self.inside(job)))]


class SrtStrict(Srt):
    name = "srt-strict"
    settings = "the same with denyRead of the whole home and allowRead of the workspace"

    def denied(self, job: Job) -> dict[str, list[str]]:
        return {"denyRead": [self.place.home], "allowRead": [job.workspace]}
