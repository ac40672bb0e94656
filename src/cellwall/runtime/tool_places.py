"""Where the tool of an agent's own host reads and writes, for the labels of directories (POL-9)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from cellwall.core.types import UseTool
from cellwall.runtime.label_files import is_below
from cellwall.runtime.label_scopes import real_directory

_WRITERS = frozenset({"Bash", "Write", "Edit", "MultiEdit", "NotebookEdit"})
_PATH_KEYS = ("file_path", "notebook_path", "path")
_WILD = re.compile(r"[*?\[{]")


@dataclass(frozen=True, slots=True)
class ToolPlaces:
    """Resolved paths."""

    read: tuple[str, ...]
    written: tuple[str, ...]


def places_of(use: UseTool) -> ToolPlaces:
    """The project as a whole, and each path outside of it that the call names. Raises
    `WorkspaceError` for a path that is none."""
    project = real_directory(use.project or use.cwd)
    here = real_directory(use.cwd)
    inside = (project,) if is_below(here, project) else (project, here)
    # Attack: a file of another directory by its absolute path, `..`, `~` or a link.
    outside = tuple(
        path
        for name in _named_paths(use)
        if not is_below(path := real_directory(os.path.join(here, name)), project)
    )
    is_writer = use.tool in _WRITERS
    folders = dict.fromkeys(
        path if os.path.isdir(path) else os.path.dirname(path) for path in outside
    )
    is_elsewhere = bool(outside) and use.tool != "Bash"
    return ToolPlaces(
        (*inside, *outside),
        () if not is_writer else tuple(folders) if is_elsewhere else inside,
    )


def _named_paths(use: UseTool) -> Iterator[str]:
    for key in _PATH_KEYS:
        if isinstance(path := use.input.get(key), str) and path:
            yield os.path.expanduser(path)
    pattern = use.input.get("pattern")
    if use.tool == "Glob" and isinstance(pattern, str):
        # The folder before the first wildcard.
        yield os.path.dirname(_WILD.split(os.path.expanduser(pattern), maxsplit=1)[0])
