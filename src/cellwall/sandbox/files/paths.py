"""Paths below a directory, as text. Pure: nothing here decides where a path leads (FS-1)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from cellwall.core.files import MEMORY_ROOTS
from cellwall.sandbox.files.descriptors import path_error

MAX_PATH_BYTES = 4096
MAX_NAME_BYTES = 255
WORKSPACE_INSIDE = "/workspace"


def inner_path(text: str, *, inside: str = WORKSPACE_INSIDE) -> str:
    """The path below the root for a path that a user typed; `.` is the root itself.

    `inside` is where the sandbox sees the root: `/workspace/a.txt` is `a.txt`. `..` is kept: only
    the kernel, which resolves the symlinks, knows where `..` leads.
    """
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise path_error(text, "CW-PATH-INVALID", "is not valid Unicode") from error
    if not raw or b"\0" in raw:
        raise path_error(text, "CW-PATH-INVALID", "is empty or holds a NUL character")
    parts = [part for part in text.split("/") if part not in {"", "."}]
    if text.startswith("/"):
        above = inside.split("/")[1:]
        if parts[: len(above)] != above:
            roots = ", ".join((WORKSPACE_INSIDE, *MEMORY_ROOTS))
            raise path_error(text, "CW-PATH-OUTSIDE", f"is not below {roots}")
        del parts[: len(above)]
    if len(raw) > MAX_PATH_BYTES or any(len(p.encode()) > MAX_NAME_BYTES for p in parts):
        raise path_error(text, "CW-PATH-INVALID", "is too long")
    return "/".join(parts) or "."


def join(way: str, name: str) -> str:
    """A name below a path; the root itself is `.` or empty."""
    return name if way in {"", "."} else f"{way}/{name}"


def parents_of(path: str) -> Iterator[str]:
    """Every directory above a path, the deepest first; the root, "", comes last."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def is_at_or_below(path: str, names: Collection[str]) -> bool:
    """Whether a path is one of these names, or lies below one."""
    return path in names or any(above in names for above in parents_of(path))


def as_text(name: str) -> str:
    """A name as printable text: names are bytes to the kernel, and need not be UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
