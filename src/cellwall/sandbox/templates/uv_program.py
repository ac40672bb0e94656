"""uv, the one installer of Python packages, in a folder that build cells mount read-only (PKG-4).

$CELLWALL_HOME/programs/uv-IDENTITY/uv    a copy of the binary in the uv wheel

A copy, because the directory of the original has every other program of the installation, with
host paths in their first lines. uv is never executed on the host.
"""

from __future__ import annotations

import fcntl
import os
import shutil

from cellwall.core.errors import CellwallError
from cellwall.core.host_programs import ProgramRefused, wheel_program
from cellwall.sandbox.files.descriptors import closing_fd
from cellwall.sandbox.templates.definitions import UV as TEMPLATE

__all__ = ["CACHE", "ENVIRONMENT", "INSIDE", "TEMPLATE", "folder"]

INSIDE = "/opt/packages/uv"
"""The path of uv in a cell with this template."""
CACHE = ".cellwall-cache"
"""The cache of a package manager, in the workspace: /tmp is memory."""
ENVIRONMENT = {
    "UV_NO_PROGRESS": "1",
    "UV_HTTP_RETRIES": "1",  # the proxy is on this host
    "UV_PYTHON_DOWNLOADS": "never",
    "UV_CACHE_DIR": f"/workspace/{CACHE}",
}
_PREFIX = "uv-"


def folder(home: str) -> str:
    """The folder with uv alone, made at the first use and for each new version of uv."""
    try:
        program = wheel_program("uv", "uv")  # checked against the hash in its RECORD
    except ProgramRefused as refused:
        raise CellwallError(
            f"Python packages are installed by uv, and {refused.why}",
            hint=refused.hint,
            code="CW-NO-UV",
            detail=refused.detail,
        ) from refused
    status = os.stat(program)
    programs = os.path.join(home, "programs")
    path = os.path.join(programs, f"{_PREFIX}{status.st_size:x}-{status.st_mtime_ns:x}")
    if not os.path.isdir(path):
        try:
            _copy_program(program, programs, path)
        except OSError as error:
            raise CellwallError(
                "uv cannot be copied into the state folder",
                hint="Check the permissions of the Cellwall state folder, and its free space.",
                code="CW-STATE",
                detail=str(error),
            ) from error
    return path


def _copy_program(program: str, programs: str, path: str) -> None:
    os.makedirs(programs, mode=0o700, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with closing_fd(os.open(os.path.join(programs, "lock"), flags, 0o600)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # for the moment that a copy takes
        if os.path.isdir(path):
            return  # another process made it meanwhile
        for each in os.listdir(programs):  # an earlier version, or an interrupted copy
            if each.startswith((_PREFIX, f".{_PREFIX}")):
                shutil.rmtree(os.path.join(programs, each), ignore_errors=True)
        beside = os.path.join(programs, f".{_PREFIX}new")
        os.mkdir(beside)
        shutil.copyfile(program, os.path.join(beside, "uv"))
        for each in (beside, os.path.join(beside, "uv")):
            os.chmod(each, 0o755)  # noqa: S103  # read-only inside, below a 0700 directory here
        os.rename(beside, path)
