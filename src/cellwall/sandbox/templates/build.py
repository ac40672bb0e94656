"""Puts packages into a directory: those with hashes of ours, or those that somebody asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cellwall.core.packages import Package, package_of
from cellwall.sandbox.templates import installer, wheelhouse

MayInstall = Callable[[Sequence[Package]], None]
"""Asked about packages before anything of them is unpacked; raises for one that must not be."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Of one build, in a directory of its own."""

    staging: str
    python: str
    environ: Mapping[str, str]
    on_progress: Callable[[str], None]
    lock: int

    def install_pinned(self, pins: bytes, site: str) -> None:
        """Packages whose versions and hashes we ship."""
        installer.install(
            self._file("requirements.txt", pins),
            site,
            ways=installer.installers(self.python),
            temporary=self._temporary(),
            environ=self.environ,
            on_progress=self.on_progress,
            limits=installer.file_limit(self.staging),
            held_fds=(self.lock,),
        )

    def install_request(self, asked: bytes, site: str, may_install: MayInstall) -> bytes:
        """Packages that were asked for, and all that they need; returns their pins."""
        may_install([package_of(line) for line in asked.decode().splitlines()])
        self.on_progress("resolving")
        house = os.path.join(self._temporary(), "wheels")
        os.mkdir(house, 0o700)
        found = wheelhouse.fetch(
            self._file("request.txt", asked),
            house,
            python=self.python,
            temporary=self._temporary(),
            environ=self.environ,
            on_progress=self.on_progress,
            held_fds=(self.lock,),
        )
        may_install(found)
        pins = wheelhouse.pins(house)
        wheelhouse.install(
            self._file("requirements.txt", pins),
            site,
            house=house,
            only_in=self.staging,
            python=self.python,
            temporary=self._temporary(),
            on_progress=self._tell_unpacking,  # which wheels there are has been told
            held_fds=(self.lock,),
        )
        return pins

    def _tell_unpacking(self, told: str) -> None:
        if told == "unpacking":
            self.on_progress(told)

    def _temporary(self) -> str:
        path = os.path.join(self.staging, "tmp")
        os.makedirs(path, mode=0o700, exist_ok=True)
        return path

    def _file(self, name: str, content: bytes) -> str:
        path = os.path.join(self.staging, name)
        with open(path, "xb") as file:
            file.write(content)
        return path
