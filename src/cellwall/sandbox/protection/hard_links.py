"""Other names of protected files: hard links (FS-4, FS-8).

A mount covers a name, not the file behind it. A second name of the same file, from before the run,
would let code read a hidden file or write one that the host obeys; so it gets the same cover.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import replace

from cellwall.core.errors import WorkspaceError
from cellwall.core.protected_names import NameTreatment
from cellwall.sandbox.files.paths import parents_of
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.files.survey import Survey
from cellwall.sandbox.files.walking import WalkStep
from cellwall.sandbox.protection.found_names import KnownLinks, ProtectedPath

MAX_OTHER_NAMES = 64
"""Of one file. Each needs a mount; a store of packages may link one empty file many times."""


def other_names(
    tree: Root, protected: Iterable[ProtectedPath], links: KnownLinks, *, max_entries: int
) -> tuple[ProtectedPath, ...]:
    """The names of protected files that are not protected by themselves, in name order.

    `links` and `protected` are those of a scan. Only a tree in which a protected file has a second
    name is walked again. Raises `WorkspaceError` for a file with too many names; an empty one is
    left out then: there is nothing to read, and a change is reported after the run.
    """
    if not links.shared:
        return ()
    treatments = {item.path: item.treatment for item in protected}
    found: dict[tuple[int, int], list[ProtectedPath]] = {}

    def enter(step: WalkStep) -> bool:
        return treatments.get(step.path) is not NameTreatment.HIDE

    # Only a file with several links can be one of them.
    survey = Survey(are_links_dull=lambda _directory: False)
    steps = tree.walk(
        max_entries=max_entries, descend=enter, on_locked=lambda _path: None, survey=survey
    )
    for step in steps:
        status = step.status
        inode = status.st_dev, status.st_ino
        if not stat.S_ISREG(status.st_mode) or inode not in links.shared:
            continue
        if step.path in treatments or any(above in treatments for above in parents_of(step.path)):
            continue
        item = ProtectedPath(step.path, links.shared[inode], False, False, step.directory_id)
        names = found.setdefault(inode, [])
        names.append(
            replace(item, treatment=NameTreatment.READ_ONLY) if not status.st_size else item
        )
        if len(names) > MAX_OTHER_NAMES and status.st_size:
            raise _too_many(step.path)
    few = (item for names in found.values() if len(names) <= MAX_OTHER_NAMES for item in names)
    return tuple(sorted(few, key=lambda item: item.path))


def _too_many(path: str) -> WorkspaceError:
    return WorkspaceError(
        f"{path!r:.200} is one of more than {MAX_OTHER_NAMES} hard links to a protected file",
        hint="Replace the protected file by a copy (cp --remove-destination), or give another "
        "directory.",
        code="CW-WORKSPACE-REFUSED",
    )
