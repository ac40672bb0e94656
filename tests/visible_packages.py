"""The installed packages of MCP servers, in a directory that a sandbox can show."""

from __future__ import annotations

import contextlib
import os
import shutil
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_INSTALLED = sysconfig.get_path("purelib")
_IN_A_SANDBOXS_OWN = os.path.realpath(_INSTALLED).startswith("/tmp/")
PACKAGES = f"/var/tmp/cellwall-test-packages-{os.getpid()}" if _IN_A_SANDBOXS_OWN else _INSTALLED
"""A checkout below /tmp is shown as a copy: /tmp is a directory of each sandbox itself."""


@contextlib.contextmanager
def shown_packages(*names: str) -> Iterator[None]:
    """What these distributions need lies in `PACKAGES`."""
    if not _IN_A_SANDBOXS_OWN:
        yield
        return
    try:
        for found in _with_requirements(names):
            for file in found.files or ():
                source, target = Path(str(found.locate_file(file))), Path(PACKAGES, file)
                if source.is_file() and ".." not in file.parts:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(source, target)
        yield
    finally:
        shutil.rmtree(PACKAGES, ignore_errors=True)


def _with_requirements(names: tuple[str, ...]) -> list[metadata.Distribution]:
    found: dict[str, metadata.Distribution] = {}
    waiting = [canonicalize_name(each) for each in names]
    while waiting:
        if (name := waiting.pop()) in found:
            continue
        found[name] = metadata.distribution(name)
        for text in found[name].requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append(canonicalize_name(needed.name))
    return list(found.values())
