"""The interface behind which each peer runs a job."""

from __future__ import annotations

import os
import platform
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from peers.job import Ended, Job, Place
from peers.processes import run_bounded

LIMIT_NAMES = (
    "wall_s",
    "cpu_s",
    "memory_bytes",
    "processes",
    "disk_bytes",
    "file_count",
    "file_size_bytes",
    "output_bytes",
    "open_files",
)
_VERSION_WITHIN_S = 20.0
MULTIARCH = f"{platform.machine()}-linux-gnu"


class PeerMissing(Exception):
    """The peer cannot be measured here; the text is the exact reason."""


class Peer(ABC):
    """One product with one choice of settings."""

    name: ClassVar[str]
    """`bubblewrap-strict`: the product and the choice of settings."""
    product: ClassVar[str]
    """The key in products.toml."""
    settings: ClassVar[str]
    """The settings as a person would type them, or in a sentence."""
    runs_as: ClassVar[str] = "ordinary user"
    limits: ClassVar[frozenset[str]] = frozenset()
    """The limits for which the product has a setting."""
    has_own_kernel: ClassVar[bool] = False
    """Whether system calls are answered by a kernel of the sandbox, not by that of the host."""
    language: ClassVar[str] = "python"

    def __init__(self, place: Place) -> None:
        self.place = place
        self.env: dict[str, str] = {}

    def open(self, env: Mapping[str, str]) -> None:
        """Make ready; `env` is the environment of the program that uses the peer."""
        self.env = dict(env)

    def close(self) -> None:
        """End what `open` began."""
        self.env = {}

    def inside(self, job: Job) -> str:
        """The name of the workspace in the sandbox."""
        return job.workspace

    @abstractmethod
    def version(self) -> str:
        """The version, or `PeerMissing`."""

    @abstractmethod
    def run(self, job: Job, timeout_s: float) -> Ended:
        """Run the job in a new sandbox."""


class ProgramPeer(Peer):
    """A peer that is a program."""

    program: ClassVar[str]
    """A name on the path, or a path below the scratch directory."""
    version_words: ClassVar[tuple[str, ...]] = ("--version",)

    def find(self) -> str:
        path = self.place.installed(self.program) if "/" in self.program else self.program
        found = shutil.which(path, path="/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        if found is None:
            raise PeerMissing(f"{self.program} is not installed")
        return found

    def version(self) -> str:
        ended = run_bounded(
            [self.find(), *self.version_words],
            env={"PATH": os.defpath, "HOME": self.place.home},
            cwd="/",
            timeout_s=_VERSION_WITHIN_S,
        )
        if ended.code != 0:
            raise PeerMissing(f"{self.program}: {ended.reason()}")
        return ended.stdout.decode("utf-8", "replace").strip().partition("\n")[0]


class CommandPeer(ProgramPeer):
    """A program whose one command line runs the job."""

    @abstractmethod
    def command(self, job: Job) -> list[str]:
        """The whole command line."""

    def run(self, job: Job, timeout_s: float) -> Ended:
        return run_bounded(self.command(job), env=self.env, cwd=job.workspace, timeout_s=timeout_s)
