"""What a git configuration in a given directory names as hooks, programs and further settings.

`core.hooksPath = .githooks` or `filter.x.clean = tools/clean` make a file of the working tree a
program that git runs on the host. Such files are read-only to code as the configuration is (FS-8).
The reader is generous: a word too many becomes read-only, which harms nobody.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from contextlib import suppress

from cellwall.sandbox.descriptors import held, open_regular, pinned
from cellwall.sandbox.root import Root

_MOST_BYTES = 256 * 1024
_MOST_INCLUDES = 16
_MOST_CHARACTERS = 1024
_SECTION = re.compile(r'\s*\[\s*([A-Za-z0-9.-]+)\s*(?:"((?:[^"\\]|\\.)*)")?\s*\](.*)')
_VARIABLE = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*=\s*(.*)")
_PROGRAMS = frozenset(
    (
        *("askpass", "clean", "cmd", "command", "diffcmd", "difffilter", "driver", "editor"),
        *("external", "fsmonitor", "gitproxy", "helper", "hookspath", "packobjectshook", "pager"),
        *("path", "process", "program", "receivepack", "smudge", "sshcommand", "templatedir"),
        *(
            "textconv",
            "tocmd",
            "cccmd",
            "update",
            "uploadpack",
            "attributesfile",
            "alternaterefscommand",
        ),
    )
)
"""Last names of variables whose value git runs, or reads programs from (git-config(1))."""
_PATHS = frozenset(("attributesfile", "hookspath", "templatedir"))
"""Those whose value is a path: it matters before there is something."""
_SECTIONS = frozenset(("alias", "pager", "include", "includeif"))
"""Sections in which every variable is such a one."""


def programs_named_in(root: Root, config: str) -> dict[str, bool]:
    """Places below the root that a configuration names, and those that its includes name; each
    with whether it is a directory of hooks, for which something can stand in while it is missing.
    """
    found: dict[str, bool] = {}
    pending, seen = [config], set[str]()
    tree = _working_tree(config)
    while pending and len(seen) < _MOST_INCLUDES:
        here = pending.pop()
        if here in seen:
            continue
        seen.add(here)
        for section, name, value in _variables(_text(root, here)):
            is_include = section in {"include", "includeif"}
            if section not in _SECTIONS and name not in _PROGRAMS:
                continue
            base = here.rpartition("/")[0] if is_include else tree
            is_path = is_include or name in _PATHS
            words = {_plain(value)} if is_path else _words(value)
            places = {
                _place(root, base, word, must_exist=not is_path and "/" not in word)
                for word in words
            }
            named = {place for place in places if place is not None}
            found |= dict.fromkeys(named, name == "hookspath")
            if is_include:
                pending.extend(named)
    return found


def place_of_link(root: Root, path: str, target: str) -> set[str]:
    """Where a link leads, as a place below the root that no further link is on the way to."""
    place = _place(root, path.rpartition("/")[0], target, must_exist=True)
    if place is None:
        return set()
    with suppress(OSError, ValueError), held(root.open_below(place, os.O_PATH)) as node:
        return {root.place_of(node)}
    return set()


def _working_tree(config: str) -> str:
    """Relative names of programs are taken from there; of a bare repository from itself."""
    git_dir = config.rpartition("/")[0]
    parts = git_dir.split("/")
    return "/".join(parts[: parts.index(".git")]) if ".git" in parts else git_dir


def _text(root: Root, path: str) -> str:
    try:
        with root.node(path) as node, held(open_regular(node)) as fd:
            return os.read(fd, _MOST_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return ""


def _variables(text: str) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    section = ""
    for line in text.replace("\\\n", "").split("\n"):
        opened = _SECTION.match(line)
        if opened is not None:
            section = opened[1].lower().partition(".")[0]
        variable = _VARIABLE.match(line if opened is None else opened[3])
        if variable is not None:
            found.append((section, variable[1].lower(), variable[2]))
    return found


def _plain(value: str) -> str:
    return value.partition(" #")[0].partition(" ;")[0].strip().strip('"')


def _words(value: str) -> set[str]:
    """The value as one name, and each of its words."""
    try:
        words = shlex.split(value.replace('\\"', '"'), comments=True)
    except ValueError:
        words = value.split()
    return {_plain(value), *words, *(part for word in words for part in word.split())}


def _place(root: Root, base: str, word: str, *, must_exist: bool) -> str | None:
    """The place below the root that a word names."""
    word = word.lstrip("!").strip("'\"")
    top = os.readlink(pinned(root.fd))
    if not word or "\0" in word or word.startswith(("~", "-")) or len(word) > _MOST_CHARACTERS:
        return None
    whole = os.path.normpath(word if word.startswith("/") else f"{top}/{base}/{word}")
    place = whole.removeprefix(top.rstrip("/") + "/")
    if place in {whole, ""} or (must_exist and not _exists(root, place)):
        return None
    return place


def _exists(root: Root, place: str) -> bool:
    try:
        with root.node(place) as node:
            mode = os.fstat(node).st_mode
            return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    except OSError:
        return False
