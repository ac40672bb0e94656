"""The targets of the symbolic links in a path. Reads the disk, and decides nothing.

A rule matches names. An allow must hold for the path and for its targets, a denial for either; so
all of them are returned. Three more names only the disk knows: a git directory of another name
counts as `.git`, and wildcards as the protected names and the links that they match. The links of a
process in /proc have other targets for the command than for this process: a path through one of
them could be any file, and is returned as `/proc/self/root`.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from cellwall.core.git_names import is_git_layout
from cellwall.core.protected_names import load
from cellwall.policy.paths import normalise
from cellwall.policy.protected_rules import is_findable

MAX_LINKS = 40
"""The limit of the kernel: a path with more links opens nothing."""
MAX_NAMES = 4096
MAX_FOUND = 10_000
"""Names that wildcards may match; further names are not returned."""
MAX_FOUND_READ = 500
"""Names whose links are followed."""
_WILD = frozenset("*?[")
_ANY_FILE = "/proc/self/root"
_is_of_process = re.compile(
    r"/proc/[^/]+/(?:task/[^/]+/)?(?:cwd|root|exe|(?:fd|map_files|ns)/[^/]+)"
).fullmatch
_LAYOUT = ("HEAD", "commondir", "objects", "refs")


def targets(path: str, cwd: str = "/") -> frozenset[str]:
    """The path as written, and after each of its links is followed.

    `..` after a link starts at the target of the link, as in the kernel. Never raises.
    """
    found = {normalise(path, cwd)}
    absolute = path if path.startswith("/") else f"{cwd}/{path}"
    left = deque(absolute.split("/"))
    at = "/"
    links = steps = 0
    while left:
        steps += 1
        if steps > MAX_NAMES:
            break
        name = left.popleft()
        if name in {"", "."}:
            continue
        if name == "..":
            at = at.rpartition("/")[0] or "/"
            continue
        here = normalise(name, at)
        if here.startswith("/proc/") and _is_of_process(here) and any(left):
            found.add(_ANY_FILE)
        leads_to = _link(here)
        if leads_to is None:
            at = here
            continue
        links += 1
        if links > MAX_LINKS:
            break
        if leads_to.startswith("/"):
            at = "/"
        left.extendleft(reversed(leads_to.split("/")))
        found.add(normalise("/".join(left), at))
    else:
        found.add(at)
    if not _WILD.isdisjoint(absolute) and is_findable(absolute):
        found.update(_finds(absolute))
        joined = tuple(_paths_behind_wildcards(absolute))
        found.update(path for path in joined if load().groups_of(path))
        found.update(_as_git(joined))
    found.update([*filter(None, map(_in_lower_case, found))])
    return frozenset((*found, *_as_git(found)))


def _in_lower_case(path: str) -> str | None:
    """The lower-case spelling of rules, where the file system ignores case."""
    lower = path.lower()
    try:
        is_same = lower != path and os.path.samestat(os.lstat(path), os.lstat(lower))
    except (OSError, ValueError):
        return None
    return lower if is_same else None


def names_found(pattern: str, cwd: str) -> tuple[str, ...]:
    """The names that the shell would expand a pattern to now, and where the links of each name
    lead: the pattern itself where nothing matches. Empty: unknown, or too many."""
    if "**" in pattern or not is_findable(pattern) or not os.path.isdir(cwd):
        return ()
    try:
        found = tuple(islice(glob.iglob(pattern), MAX_FOUND_READ + 1))
    except (OSError, ValueError, RecursionError):
        return ()
    if len(found) > MAX_FOUND_READ:
        return ()
    names = found or (pattern,)
    return tuple(dict.fromkeys(path for each in names for path in targets(each)))


def _paths_behind_wildcards(pattern: str) -> Iterator[str]:
    """The names after the last wildcard, in each folder that the wildcards match."""
    names = pattern.split("/")
    last = max(at for at, name in enumerate(names) if not _WILD.isdisjoint(name))
    rest = "/".join(names[last + 1 :])
    if not rest.strip("/"):
        return
    try:
        for each in islice(glob.iglob("/".join(names[: last + 1])), MAX_FOUND_READ):
            yield normalise(f"{os.path.realpath(each)}/{rest}")
    except (OSError, ValueError, RecursionError):
        return


def _finds(pattern: str) -> Iterator[str]:
    """Of the names that the shell would expand a pattern to: the protected ones, and the targets
    of links in their paths."""
    folders: dict[str, str] = {}
    try:
        for each in islice(glob.iglob(pattern, include_hidden=True), MAX_FOUND):
            if load().groups_of(each):
                yield normalise(each)
            folder, _, name = each.rstrip("/").rpartition("/")
            if folder not in folders:
                folders[folder] = os.path.realpath(folder or "/")
            here = normalise(name, folders[folder])
            is_link = here != normalise(each) or _link(here) is not None
            if is_link and not _is_hidden_from(each, pattern):
                yield os.path.realpath(here)
    except (OSError, ValueError, RecursionError):
        return


def _is_hidden_from(path: str, pattern: str) -> bool:
    """No wildcard of a shell matches a leading dot."""
    pairs = zip(path.split("/"), pattern.split("/"), strict=False)
    return any(name.startswith(".") and not wild.startswith(".") for name, wild in pairs)


def _as_git(paths: Iterable[str]) -> Iterator[str]:
    """Paths in a git directory of another name, as if the directory was named `.git`."""
    for path in paths:
        parts = path.split("/")
        for depth in range(2, len(parts)):
            folder = "/".join(parts[:depth])
            if parts[depth - 1] != ".git" and _is_git(folder):
                yield f"{folder}/.git/{'/'.join(parts[depth:])}"


def _is_git(folder: str) -> bool:
    if not os.path.lexists(f"{folder}/HEAD"):  # one call decides for most folders
        return False
    return is_git_layout(name for name in _LAYOUT if os.path.lexists(f"{folder}/{name}"))


def _link(path: str) -> str | None:
    try:
        if stat.S_ISLNK(os.lstat(path).st_mode):
            return os.readlink(path)
    except (OSError, ValueError):
        pass
    return None
