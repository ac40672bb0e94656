"""What a peer is asked to run, how it ended, and where everything lies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

PYTHON = "/usr/bin/python3"
PROGRAM_NAME = "program.py"
_MAX_INLINE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run: a command, or Python, which peers for JavaScript run as `javascript` instead."""

    workspace: str
    """A directory of the host, which the peer gives to the code to read and write."""
    argv: tuple[str, ...] = ()
    python: str = ""
    javascript: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    """By the names of the red team's catalog."""
    needs_workspace: bool = True
    """Whether the directory of the host matters, or any private one does as well."""

    def command(self, inside: str) -> list[str]:
        """The words to start; `inside` is the name of the workspace in the sandbox."""
        if self.argv:
            return list(self.argv)
        if len(self.python) <= _MAX_INLINE:
            return [PYTHON, "-I", "-S", "-c", self.python]
        with open(os.path.join(self.workspace, PROGRAM_NAME), "w", encoding="utf-8") as file:
            file.write(self.python)
        return [PYTHON, "-I", "-S", os.path.join(inside, PROGRAM_NAME)]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    code: int | None
    """The exit status; negative for a signal, None if the bench had to stop the run."""
    stdout: bytes = b""
    stderr: bytes = b""
    limit: str = ""
    """The limit that the peer says it enforced."""

    @property
    def is_ok(self) -> bool:
        return self.code == 0 and not self.limit

    def reason(self) -> str:
        """The end in a few words, for a report."""
        if self.limit:
            return f"limit {self.limit}"
        if self.code is None:
            return "still running"
        text = self.stderr or self.stdout
        last = text.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return f"exit {self.code}: {last[:160]}" if last else f"exit {self.code}"


@dataclass(frozen=True, slots=True)
class Place:
    """The scratch directory into which peers are installed, and the home of the user."""

    root: str
    home: str

    def installed(self, *parts: str) -> str:
        return os.path.join(self.root, "installed", *parts)

    def state(self, *parts: str) -> str:
        """A path below the home, where the user may write."""
        return os.path.join(self.home, "state", *parts)
