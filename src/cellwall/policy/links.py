"""Where the symbolic links in a path lead. It reads the disk, and says nothing about permission.

A rule speaks of names. An allow must hold for the path and for what it leads to, a denial for
either; so all of them are handed out.
"""

from __future__ import annotations

import os
import stat
from collections import deque

from cellwall.policy.paths import normalise

LINKS_MOST = 40
"""As many as the kernel follows; with more of them it opens nothing."""
NAMES_MOST = 4096


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
    return frozenset(found)


def _link(path: str) -> str | None:
    try:
        if stat.S_ISLNK(os.lstat(path).st_mode):
            return os.readlink(path)
    except (OSError, ValueError):
        pass
    return None
