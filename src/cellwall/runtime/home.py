"""The state folder, created private and refused otherwise; its user, and its supervisor."""

from __future__ import annotations

import functools
import os
import pwd
import socket
import stat
import sys
import time
from collections.abc import Mapping

from cellwall.core.errors import CellwallError, SandboxFailed
from cellwall.core.home import SUPERVISOR_SOCKET, shaping, state_path, state_place
from cellwall.core.types import Principal
from cellwall.sandbox.linux.programs import start_detached


def state_home(environ: Mapping[str, str]) -> str:
    """`$CELLWALL_HOME`, else the XDG state folder; created 0700, refused if open to others."""
    home = state_path(environ)
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        info = os.stat(home)
    except OSError as error:
        raise no_state(error, state_place(environ)) from error
    if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
        raise CellwallError(
            f"the Cellwall state folder {state_place(environ)} is open to other users",
            hint="Run chmod 700 on it, and make sure that you own it.",
            code="CW-STATE-UNSAFE",
        )
    return os.path.realpath(home)


def no_state(error: OSError, place: str = "") -> CellwallError:
    """The error for a state folder that cannot be used; `place` as `state_place` gives it."""
    which = f" {place}" if place else ""
    why = f": {os.strerror(error.errno)}" if error.errno else ""
    return CellwallError(
        f"the Cellwall state folder{which} cannot be created or read{why}",
        hint="Set CELLWALL_HOME to a directory you can write to, with space left.",
        code="CW-STATE",
        detail=str(error),
    )


def user_name() -> str:
    """The user who started this process, by uid and not by the environment."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid:{os.getuid()}"


_START_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.02


@functools.cache
def local_principal(interface: str) -> Principal:
    """The user who started this process, through this interface."""
    return Principal(user_name(), interface)


def is_running(home: str) -> bool:
    """Whether a supervisor accepts connections on the socket of this state folder."""
    folder = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.connect(f"/proc/self/fd/{folder}/{SUPERVISOR_SOCKET}")
    except OSError:
        return False
    finally:
        os.close(folder)
    return True


def start_supervisor(environ: Mapping[str, str], *, wait: bool = True) -> None:
    """Start the per-user supervisor unless it runs already. It inherits no descriptor and only the
    variables named here."""
    home = state_home(environ)
    if is_running(home):
        return
    # With absolute paths: the supervisor runs in another directory.
    kept = {name: environ[name] for name in ("PATH", "LANG") if name in environ}
    words = [sys.executable, "-I", "-m", "cellwall.interfaces.supervisor.server"]
    start_detached(words, env={**kept, **shaping(environ)}, cwd="/")
    deadline = time.monotonic() + (_START_WITHIN_S if wait else 0.0)
    while time.monotonic() < deadline:
        if is_running(home):
            return
        time.sleep(_LOOK_EVERY_S)
    if wait:
        raise SandboxFailed(
            "the supervisor did not start",
            hint="`cellwall supervisor start --foreground` shows the reason.",
            code="CW-SUPERVISOR-START",
        )
