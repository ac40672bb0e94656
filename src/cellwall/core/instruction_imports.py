"""Files that instruction files import by a name in their text: `@docs/style.md` (SKL-1). Pure.

Agents read such a file as if its text stood there, and follow its own imports as well. A name in a
block of code counts too: protecting a file too much is harmless. Names that lead out of the
project, or start at a home or a root, are left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable

MAX_DEPTH = 5
"""Of imports in imported files, as for Claude Code."""
MAX_FILES = 256
"""Imported files of one project."""
MAX_BYTES = 256 * 1024
"""Of one file that is searched."""
_MAX_NAMES = 256
_MAX_NAME = 512
_IMPORT = re.compile(r"(?<![^\s(\[{<>\"'|*_,;:-])@((?:\\ |[^\s@`()\[\]{}<>\"'|*?,;])+)")
_TEXTS = (".md", ".mdc", ".markdown", ".txt", ".rst")


def imports_of(text: bytes, path: str) -> tuple[str, ...]:
    """The paths that a file of this path imports, relative to the project, in order."""
    found: dict[str, None] = {}
    for match in _IMPORT.finditer(text[:MAX_BYTES].decode("utf-8", "replace")):
        name = match[1].replace("\\ ", " ").rstrip(".:!")
        if not name or len(name) > _MAX_NAME or name.startswith(("/", "~")) or "\0" in name:
            continue
        place = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
        if place != "." and not place.startswith("../") and place != "..":
            found.setdefault(place)
            if len(found) == _MAX_NAMES:
                break
    return tuple(found)


def may_be_new(path: str) -> bool:
    """Whether a file that does not exist counts: `@decorator` in a text names none."""
    return path.lower().endswith(_TEXTS)


def all_imports(paths: Iterable[str], read: Callable[[str], bytes | None]) -> tuple[str, ...]:
    """The files that the files of these paths import, and what those import, in order.

    `read` returns the beginning of a file, or None where there is no such file.
    """
    seen = dict.fromkeys(paths)
    found: list[str] = []
    level = [(path, text) for path in seen if (text := read(path)) is not None]
    for _ in range(MAX_DEPTH):
        deeper: list[tuple[str, bytes]] = []
        for path, text in level:
            for place in imports_of(text, path):
                if place in seen or len(found) >= MAX_FILES:
                    continue
                seen[place] = None
                content = read(place)
                if content is not None or may_be_new(place):
                    found.append(place)
                if content is not None:
                    deeper.append((place, content))
        level = deeper
    return tuple(found)
