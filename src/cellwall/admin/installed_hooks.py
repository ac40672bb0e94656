"""Where `cellwall hook install` has installed hooks, so that `doctor` notices one that is gone.

The settings file is the agent's, and any process of the user can edit it, or this list. So the list
prevents nothing: it shows what an accident, or an attack that does not know of it, has removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cellwall.audit.files import (
    closing_fd,
    locked,
    make_folder,
    open_folder,
    open_private,
    replace_file,
)
from cellwall.core.errors import CellwallError
from cellwall.core.home import state_path

_FOLDER, _NAME = "hooks", "installed.json"
_MAX_BYTES = 1 << 20
_MAX_FILES = 1024


def note_installed(file: str, agent: str, *, environ: Mapping[str, str]) -> None:
    """Remember a settings file with our hooks."""
    with _changed(environ) as files:
        files[file] = agent


def forget_installed(file: str, *, environ: Mapping[str, str]) -> None:
    """Our command has removed them."""
    with _changed(environ) as files:
        files.pop(file, None)


def installed_hooks(environ: Mapping[str, str]) -> dict[str, str]:
    """The agent of each settings file; raises `CellwallError` for a list that is damaged."""
    try:
        with closing_fd(open_folder(os.path.join(state_path(environ), _FOLDER))) as folder:
            return _read(folder)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _unusable(str(error)) from None


@contextmanager
def _changed(environ: Mapping[str, str]) -> Iterator[dict[str, str]]:
    path = os.path.join(state_path(environ), _FOLDER)
    try:
        make_folder(path)
        with closing_fd(open_folder(path)) as folder, locked(folder):
            files = _read(folder)
            yield files
            kept = dict(list(files.items())[-_MAX_FILES:])
            text = json.dumps({"version": 1, "files": kept}, indent=1)
            replace_file(_NAME, text.encode("ascii") + b"\n", folder)
    except (OSError, ValueError) as error:
        raise _unusable(str(error)) from None


def _read(folder: int) -> dict[str, str]:
    try:
        with closing_fd(open_private(_NAME, os.O_RDONLY, folder)) as file:
            found = json.loads(os.pread(file, _MAX_BYTES, 0))
    except FileNotFoundError:
        return {}
    except RecursionError:
        raise ValueError("nested too deep") from None
    files = found.get("files") if isinstance(found, dict) else None
    if not isinstance(files, dict) or not all(isinstance(each, str) for each in files.values()):
        raise ValueError("not a list of files")
    return files


def _unusable(detail: str) -> CellwallError:
    return CellwallError(
        "the list of installed hooks is damaged or open to other users",
        hint="Remove the folder `hooks` in the state folder, and install the hooks again.",
        code="CW-STATE",
        detail=detail,
    )
