"""Where the symbolic links in a path lead. It reads the disk, and says nothing about permission.

A rule speaks of names. An allow must hold for the path and for what it leads to, a denial for
either; so all of them are handed out. Three more names are told that only the disk knows: a git
directory of another name counts as `.git`, and wildcards as the protected names and the links that
they find. The links of a process in /proc lead elsewhere for the command than they do here: a path
through one of them could be any file, and is told as `/proc/self/root`.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from cellwall.core.protected_names import is_git_layout, load
from cellwall.policy.paths import normalise
from cellwall.policy.protected_rules import is_findable

LINKS_MOST = 40
"""As many as the kernel follows; with more of them it opens nothing."""
NAMES_MOST = 4096
FOUND_MOST = 10_000
"""Names that wildcards may find; of more of them none is told."""
FOUND_READ_MOST = 500
"""Names whose links are followed."""
_WILD = frozenset("*?[")
_ANY_FILE = "/proc/self/root"
_is_of_process = re.compile(
    r"/proc/[^/]+/(?:task/[^/]+/)?(?:cwd|root|exe|(?:fd|map_files|ns)/[^/]+)"
).fullmatch
_LAYOUT = ("HEAD", "commondir", "objects", "refs")


def targets(path: str, cwd: str = "/") -> frozenset[str]:
    """The path as it is written, and as it is after each of its links is followed.

    `..` behind a link is taken as the kernel takes it: from where the link leads. Never raises.
    """
    found = {normalise(path, cwd)}
    absolute = path if path.startswith("/") else f"{cwd}/{path}"
    left = deque(absolute.split("/"))
    at = "/"
    links = steps = 0
    while left:
        steps += 1
        if steps > NAMES_MOST:
            break
        name = left.popleft()
        if name in {"", "."}:
            continue
        if name == "..":
            at = at.rpartition("/")[0] or "/"
            continue
        here = normalise(name, at)
        if _is_of_process(here) and any(left):
            found.add(_ANY_FILE)
        leads_to = _link(here)
        if leads_to is None:
            at = here
            continue
        links += 1
        if links > LINKS_MOST:
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
    """The spelling that rules use, where the file system takes both for one name."""
    lower = path.lower()
    try:
        is_same = lower != path and os.path.samestat(os.lstat(path), os.lstat(lower))
    except (OSError, ValueError):
        return None
    return lower if is_same else None


def names_found(pattern: str, cwd: str) -> tuple[str, ...]:
    """What the shell would put in the place of a pattern now, and where the links of each name
    lead: the pattern itself where nothing fits. Empty: nobody can tell, or it is too much."""
    if "**" in pattern or not is_findable(pattern) or not os.path.isdir(cwd):
        return ()
    try:
        found = tuple(islice(glob.iglob(pattern), FOUND_READ_MOST + 1))
    except (OSError, ValueError, RecursionError):
        return ()
    if len(found) > FOUND_READ_MOST:
        return ()
    names = found or (pattern,)
    return tuple(dict.fromkeys(path for each in names for path in targets(each)))


def _paths_behind_wildcards(pattern: str) -> Iterator[str]:
    """Names behind the last wildcard, in each folder that the wildcards find."""
    names = pattern.split("/")
    last = max(at for at, name in enumerate(names) if not _WILD.isdisjoint(name))
    rest = "/".join(names[last + 1 :])
    if not rest.strip("/"):
        return
    try:
        for each in islice(glob.iglob("/".join(names[: last + 1])), FOUND_READ_MOST):
            yield normalise(f"{os.path.realpath(each)}/{rest}")
    except (OSError, ValueError, RecursionError):
        return


def _finds(pattern: str) -> Iterator[str]:
    """Of the names that the shell would put in the place of a pattern: those that are protected,
    and where the links on the way to them lead."""
    folders: dict[str, str] = {}
    try:
        for each in islice(glob.iglob(pattern, include_hidden=True), FOUND_MOST):
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
    """No wildcard of a shell stands for a dot in front of a name."""
    pairs = zip(path.split("/"), pattern.split("/"), strict=False)
    return any(name.startswith(".") and not wild.startswith(".") for name, wild in pairs)


def _as_git(paths: Iterable[str]) -> Iterator[str]:
    """What lies in a git directory of another name, as if that was called `.git`."""
    for path in paths:
        parts = path.split("/")
        for depth in range(2, len(parts)):
            folder = "/".join(parts[:depth])
            if parts[depth - 1] != ".git" and _is_git(folder):
                yield f"{folder}/.git/{'/'.join(parts[depth:])}"


def _is_git(folder: str) -> bool:
    return is_git_layout(name for name in _LAYOUT if os.path.lexists(f"{folder}/{name}"))


def _link(path: str) -> str | None:
    try:
        if stat.S_ISLNK(os.lstat(path).st_mode):
            return os.readlink(path)
    except (OSError, ValueError):
        pass
    return None
