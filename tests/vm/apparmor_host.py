"""A host with AppArmor 4 that gives user namespaces only to programs with a profile, as Ubuntu 24.04.

Debian 13 has the same AppArmor. Ubuntu's own switch (kernel.apparmor_restrict_unprivileged_userns) is
not in Debian's kernel; a profile around the checks restricts them in the same way.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import image
import unpacked

_RELEASE = "trixie"
_PACKAGES = ("apparmor", "bubblewrap")
_JOB_BYTES = 32 * 1024**2
_PRINT = "from cellwall.sandbox.namespace_causes import APPARMOR_COMMAND as line; print(line)"


def build(machine: image.Machine) -> image.Image:
    """Make, or find in the cache, everything but the job."""
    return unpacked.build(machine, "apparmor", _PACKAGES, release=_RELEASE)


def job_disk(target: Path) -> None:
    """The checks, and the command exactly as doctor prints it."""
    folder = target.with_suffix(".d")
    shutil.copytree(image.HERE / "inside", folder)
    command = image.run_program(image.ROOT / ".venv/bin/python", "-c", _PRINT)
    (folder / "apparmor-command").write_text(command)
    image.make_disk(folder, target, _JOB_BYTES)
    shutil.rmtree(folder)
