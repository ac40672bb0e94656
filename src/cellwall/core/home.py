"""Paths of one user's state; creates nothing. Light: a hook has no time for imports."""

from __future__ import annotations

import os
import pwd

TYPE_CHECKING = False  # `typing` itself takes as long to import as Python takes to start
if TYPE_CHECKING:
    from collections.abc import Mapping

SHAPING = (
    "CELLWALL_HOME",
    "CELLWALL_CONFIG",
    "XDG_STATE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "HOME",
    "CELLWALL_PATH",
)
"""The variables that configure a runtime; another value of one is another runtime."""

SUPERVISOR_SOCKET = "supervisor.sock"
_NAMES_OF_PLACES = (
    *("CELLWALL_CONFIG", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HOME"),
)


def user_home(environ: Mapping[str, str]) -> str:
    """The user's home directory. An empty or relative `HOME` names none: the state would lie in
    another place for each working directory, and a strict file of settings would not be found."""
    home = environ.get("HOME", "")
    if os.path.isabs(home):
        return home
    return pwd.getpwuid(os.geteuid()).pw_dir


def state_path(environ: Mapping[str, str]) -> str:
    """`$CELLWALL_HOME`, else the XDG state folder."""
    return environ.get("CELLWALL_HOME") or os.path.join(
        environ.get("XDG_STATE_HOME") or os.path.join(user_home(environ), ".local/state"),
        "cellwall",
    )


def state_place(environ: Mapping[str, str]) -> str:
    """The state folder for a message: by the variable that names it, without a path of the host
    (ERR-1)."""
    if environ.get("CELLWALL_HOME"):
        return "$CELLWALL_HOME"
    return (
        "$XDG_STATE_HOME/cellwall" if environ.get("XDG_STATE_HOME") else "~/.local/state/cellwall"
    )


def cache_path(environ: Mapping[str, str]) -> str:
    """The cache directory, shared by all state folders of a user."""
    return os.path.join(
        environ.get("XDG_CACHE_HOME") or os.path.join(user_home(environ), ".cache"), "cellwall"
    )


def shaping(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that configure a runtime, with absolute paths."""
    found = {name: environ[name] for name in SHAPING if name in environ}
    for name in _NAMES_OF_PLACES:
        if found.get(name):
            found[name] = os.path.abspath(found[name])
    # Always set, as in the supervisor: clients with and without the variable are equal then.
    found["CELLWALL_HOME"] = os.path.realpath(state_path(environ))
    return found


def open_private(environ: Mapping[str, str]) -> int | None:
    """A descriptor of the state folder; None if it is missing or open to other users."""
    try:
        folder = os.open(state_path(environ), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    info = os.fstat(folder)
    if info.st_uid != os.geteuid() or info.st_mode & 0o077:
        os.close(folder)
        return None
    return folder
