"""Reads git's configuration and index in a user's directory (FS-8).

`core.hooksPath = .githooks` or `filter.x.clean = tools/clean` make a file of the working tree a
program that git runs on the host. Such files are read-only to code, like the configuration itself.
Relative names are resolved against the working tree: a submodule, a linked worktree and a folder
within a larger repository have configurations elsewhere, and the user's configuration applies to
all of them. The parser errs on the safe side: one word too many becomes read-only.

`git checkout other-branch` inside continues where it cannot replace CLAUDE.md: the file stays as it
was, and only git's output says so. The index names the version that git meant. It is read for that
finding alone; an unreadable index gives none. See gitformat-index(5).
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import struct
from collections.abc import Collection, Iterable, Iterator

from cellwall.core.outcomes import Finding
from cellwall.sandbox.files.descriptors import closing_fd, open_regular, proc_path, read_at_most
from cellwall.sandbox.files.root import Root

_MAX_CONFIG_BYTES = 256 * 1024
_MAX_INCLUDES = 16
_MAX_CHARACTERS = 1024
_MAX_LEVELS = 64
_SECTION = re.compile(r'\s*\[\s*([A-Za-z0-9.-]+)\s*(?:"((?:[^"\\]|\\.)*)")?\s*\](.*)')
_VARIABLE = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*=\s*(.*)")
_PROGRAMS = frozenset(
    (
        *("askpass", "clean", "cmd", "command", "diffcmd", "difffilter", "driver", "editor"),
        *("external", "fsmonitor", "gitproxy", "helper", "hookspath", "packobjectshook", "pager"),
        *("path", "process", "program", "receivepack", "smudge", "sshcommand", "templatedir"),
        *("textconv", "tocmd", "cccmd", "update", "uploadpack", "attributesfile"),
        "alternaterefscommand",
    )
)
"""Last parts of variables whose value git runs, or reads programs from (git-config(1))."""
_PATHS = frozenset(("attributesfile", "hookspath", "templatedir"))
"""Variables whose value is a path, protected even before it exists."""
_SECTIONS = frozenset(("alias", "pager", "include", "includeif"))
"""Sections in which every variable names a program or a file."""


def programs_of_tree(root: Root, tree: str) -> dict[str, bool]:
    """Paths below the root that the configuration of one working tree names, each with whether it
    is a directory of hooks, which a placeholder can replace while it is missing."""
    base = os.path.normpath(f"{_top(root)}/{tree}")
    return _named_paths(root, _configs(root, base), base) | _named_paths(
        root, _user_configs(), base, only_paths=True
    )


def programs_of_bare(root: Root, config: str) -> dict[str, bool]:
    """The same for a git directory without a `.git`; `core.worktree` names its working tree."""
    whole = f"{_top(root)}/{config}"
    return _named_paths(root, [whole], os.path.dirname(whole))


def programs_around(root: Root) -> dict[str, bool]:
    """The same for the repository around the root."""
    above = _top(root)
    for _ in range(_MAX_LEVELS):
        above = os.path.dirname(above)
        if os.path.lexists(f"{above}/.git"):
            return _named_paths(root, _configs(root, above), above)
    return {}


def is_within_hooks(root: Root) -> bool:
    """Whether the root lies within the hooks directory of the repository around it."""
    top = above = _top(root)
    for _ in range(_MAX_LEVELS):
        above = os.path.dirname(above)
        if os.path.lexists(f"{above}/.git"):
            configs = [*_configs(root, above), *_user_configs()]
            rows = (row for config in configs for row in _variables(_text(root, config)))
            hooks_paths = (_plain(value) for _, name, value in rows if name == "hookspath")
            hooks = [os.path.realpath(os.path.join(above, each)) for each in hooks_paths if each]
            return any(top == each or _below(each, top) for each in hooks)
    return False


def place_of_link(root: Root, path: str, target: str) -> set[str] | None:
    """The target of a symlink below the root, existing or not; None if the path contains a further
    symlink, which code could replace."""
    top = _top(root)
    word = os.path.normpath(os.path.join(top, path.rpartition("/")[0], target))
    real = os.path.realpath(word)
    if real != word and (_below(top, word) or _below(top, real)):
        return None
    place = _below(top, word)
    return {place} if place else set()


def places_of(root: Root, above: str, target: str) -> set[str]:
    """The paths below the root that a symlink in `above` names: literally, and resolved."""
    return _places(root, os.path.join(_top(root), above), target)


def _configs(root: Root, base: str) -> list[str]:
    """The configuration files of the repository with the working tree `base`."""
    git_file = _text(root, f"{base}/.git")
    git_dir = f"{base}/.git"
    if git_file.startswith("gitdir:"):
        git_dir = os.path.normpath(os.path.join(base, git_file.removeprefix("gitdir:").strip()))
    common = os.path.normpath(os.path.join(git_dir, _text(root, f"{git_dir}/commondir").strip()))
    return [f"{common}/config", f"{git_dir}/config.worktree", f"{common}/config.worktree"]


def _user_configs() -> list[str]:
    home = os.path.expanduser("~")
    settings = os.environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    return ["/etc/gitconfig", f"{settings}/git/config", f"{home}/.gitconfig"]


def _named_paths(
    root: Root, configs: Iterable[str], base: str, *, only_paths: bool = False
) -> dict[str, bool]:
    """The paths that configurations and their includes name, relative to the working tree `base`.

    `only_paths`: a bare word in a user's own alias is a command, not a folder of that name.
    """
    paths: dict[str, bool] = {}
    rows: list[tuple[str, str, str, str]] = []
    pending, read_files = list(configs), set[str]()
    while pending and len(read_files) < _MAX_INCLUDES:
        here = pending.pop()
        if here in read_files:
            continue
        read_files.add(here)
        for section, name, value in _variables(_text(root, here)):
            if section in {"include", "includeif"}:
                include = os.path.expanduser(_plain(value))
                pending.append(os.path.normpath(os.path.join(os.path.dirname(here), include)))
                paths |= dict.fromkeys(_places(root, os.path.dirname(here), include), False)
            else:
                rows.append((section, name, value, here))
    trees = {base} | {
        os.path.normpath(os.path.join(os.path.dirname(here), _plain(value)))
        for section, name, value, here in rows
        if (section, name) == ("core", "worktree")
    }
    for section, name, value, _here in rows:
        if section not in _SECTIONS and name not in _PROGRAMS:
            continue
        is_path = name in _PATHS
        for word in {_plain(value)} if is_path else _words(value):
            must_exist = not is_path and "/" not in word
            if must_exist and only_paths:
                continue
            for tree in trees:
                places = _places(root, tree, word, must_exist=must_exist)
                paths |= dict.fromkeys(places, name == "hookspath")
    return paths


def _top(root: Root) -> str:
    return os.readlink(proc_path(root.fd))


def _below(top: str, path: str) -> str:
    """An absolute path relative to `top`; empty if it lies elsewhere."""
    prefix = top.rstrip("/") + "/"
    return path.removeprefix(prefix) if path.startswith(prefix) else ""


def _text(root: Root, path: str) -> str:
    place = _below(_top(root), path)
    try:
        here = f"{proc_path(root.fd)}/{place}" if place else path
        node = os.open(here, os.O_PATH | os.O_CLOEXEC)
        with closing_fd(node), closing_fd(open_regular(node)) as fd:
            text = read_at_most(fd, _MAX_CONFIG_BYTES).decode("utf-8", "surrogateescape")
            return text.lstrip("\ufeff")
    except (OSError, ValueError):
        return ""


def _variables(text: str) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    section = ""
    for line in text.replace("\\\n", "").split("\n"):
        header = _SECTION.match(line)
        if header is not None:
            section = header[1].lower().partition(".")[0]
        variable = _VARIABLE.match(line if header is None else header[3])
        if variable is not None:
            rows.append((section, variable[1].lower(), variable[2]))
    return rows


def _plain(value: str) -> str:
    return value.partition(" #")[0].partition(" ;")[0].strip().strip('"')


def _words(value: str) -> set[str]:
    """The value as one path, and each of its words."""
    try:
        words = shlex.split(value.replace('\\"', '"'), comments=True)
    except ValueError:
        words = value.split()
    return {_plain(value), *words, *(part for word in words for part in word.split())}


def _places(root: Root, base: str, word: str, *, must_exist: bool = False) -> set[str]:
    """The paths below the root that a word names: literally, and with symlinks resolved."""
    word = word.lstrip("!").strip("'\"")
    if not word or "\0" in word or word.startswith(("~", "-")) or len(word) > _MAX_CHARACTERS:
        return set()
    whole = os.path.normpath(os.path.join(base, word))
    if must_exist and not os.path.exists(whole):
        return set()
    return {
        place for path in (whole, os.path.realpath(whole)) if (place := _below(_top(root), path))
    }


_INDEX = ".git/index"
_MAX_INDEX_BYTES = 16 * 1024 * 1024
_MAX_NAME_BYTES = 4096
_MAX_REPORTED = 20
_FIXED_BYTES = 62
_OBJECT_ID = slice(40, 60)
_EXTENDED = 0x4000


def read_index(root: Root) -> bytes:
    """The index of the repository at the root; empty if there is none."""
    return _read(root, _INDEX, _MAX_INDEX_BYTES) or b""


def left_as_they_were(
    root: Root, protected: Collection[str], before: bytes, after: bytes
) -> tuple[Finding, ...]:
    """Findings for protected files whose version in the index is not the version on disk."""
    if not after or before == after:
        return ()
    try:
        old = dict(_entries(before, protected)) if before else {}
        new = dict(_entries(after, protected))
    except (ValueError, IndexError, struct.error):
        return ()
    changed = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    stale = [path for path in changed if new.get(path) != _blob_id(root, path)]
    findings = [_finding(path) for path in stale[:_MAX_REPORTED]]
    if len(stale) > _MAX_REPORTED:
        findings.append(
            Finding("workspace", "low", f"{len(stale) - _MAX_REPORTED} more files like that")
        )
    return tuple(findings)


def _finding(path: str) -> Finding:
    return Finding(
        "workspace",
        "low",
        f"{path!r} is protected and was left as it is, while git checked out another version of it "
        "inside; `git status` outside shows the difference, `git restore` takes that version",
    )


def _entries(data: bytes, protected: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Path and object id of each entry that is protected or lies in a protected directory."""
    signature, version, count = struct.unpack_from(">4sII", data)
    if signature != b"DIRC" or version not in {2, 3, 4}:
        raise ValueError(version)
    depth = max((path.count("/") for path in protected), default=0)
    at, name = 12, b""
    for _ in range(count):
        start = at
        (flags,) = struct.unpack_from(">H", data, start + _FIXED_BYTES - 2)
        at += _FIXED_BYTES + (2 if flags & _EXTENDED else 0)
        if version == 4:
            stripped, at = _varint(data, at)
            name = name[: len(name) - stripped]
        else:
            name = b""
        end = data.index(b"\0", at)
        name += data[at:end]
        if len(name) > _MAX_NAME_BYTES:
            raise ValueError(len(name))
        at = end + 1 if version == 4 else end + 8 - (end - start) % 8
        path = os.fsdecode(name)
        parts = path.split("/", depth + 1)[: depth + 1]
        if any("/".join(parts[:end]) in protected for end in range(1, len(parts) + 1)):
            yield path, data[start + _OBJECT_ID.start : start + _OBJECT_ID.stop]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (data[at] & 0x7F)
    return value, at + 1


def _blob_id(root: Root, path: str) -> bytes | None:
    data = _read(root, path, _MAX_INDEX_BYTES)
    if data is None:
        return None
    # git names contents by SHA-1; not a security measure here.
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).digest()


def _read(root: Root, path: str, most: int) -> bytes | None:
    try:
        with root.node(path) as node, closing_fd(open_regular(node)) as fd:
            return read_at_most(fd, most)
    except OSError:
        return None
