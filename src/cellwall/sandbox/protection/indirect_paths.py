"""Paths that the host runs or obeys because another file names them (FS-4, SKL-1)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from cellwall.core.errors import WorkspaceError
from cellwall.core.git_names import fold
from cellwall.core.instruction_imports import MAX_BYTES, all_imports, may_be_new
from cellwall.core.protected_names import NameTreatment, load
from cellwall.sandbox.files.descriptors import OPEN_NODE, closing_fd, open_regular, read_at_most
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.protection import git_files
from cellwall.sandbox.protection.found_names import ProtectedPath

_CONFIGS = frozenset({"config", "config.worktree"})
_MAX_AGENT_ENTRIES = 1000
"""Names in one settings folder of an agent, whose texts are searched for imports."""


def indirect_paths(root: Root, protected: Iterable[ProtectedPath]) -> dict[str, bool]:
    """Paths that git configurations name as hooks or programs, targets of links to instructions,
    and files that instructions import: the host runs or obeys what code writes there. Some may not
    exist yet. The value says whether the path is a directory of hooks."""
    paths = git_files.programs_around(root)
    protected = tuple(protected)
    paths |= dict.fromkeys(instruction_imports(root, protected), False)
    for item in protected:
        above, _, name = item.path.rpartition("/")
        if item.target:
            places = git_files.place_of_link(root, item.path, item.target) or ()
            paths |= dict.fromkeys(places, False)
        elif item.is_dir or item.is_symlink:
            continue
        elif fold(name) == ".git":
            paths |= git_files.programs_of_tree(root, above)
        elif fold(name) in _CONFIGS and fold(above.rpartition("/")[2]) == ".git":
            paths |= git_files.programs_of_tree(root, above.rpartition("/")[0])
        elif fold(name) in _CONFIGS:
            paths |= git_files.programs_of_bare(root, item.path)
    return paths


def instruction_targets(root: Root, protected: Iterable[ProtectedPath]) -> frozenset[str]:
    """The targets of symlinks with names of instructions, and the files that instructions import:
    agents obey that text as well."""
    protected = tuple(protected)
    return _link_targets(root, protected) | frozenset(instruction_imports(root, protected))


def _link_targets(root: Root, protected: Iterable[ProtectedPath]) -> frozenset[str]:
    links = (item for item in protected if item.is_symlink and has_instruction_name(item.path))
    places: set[str] = set()
    for item in links:
        with suppress(OSError), root.parent(item.path) as (parent, name):
            places |= git_files.places_of(
                root, item.path.rpartition("/")[0], os.readlink(name, dir_fd=parent)
            )
    return frozenset(places)


def instruction_imports(root: Root, protected: Iterable[ProtectedPath]) -> tuple[str, ...]:
    """The files below the root that instructions import by a name in their text (SKL-1)."""
    protected = tuple(protected)
    files = [item.path for item in protected if not item.is_dir and has_instruction_name(item.path)]
    for item in protected:
        if item.is_dir and item.treatment is NameTreatment.READ_ONLY and _is_agents(item.path):
            files += _texts_in(root, item.path)
    files += sorted(_link_targets(root, protected))
    return all_imports(files, lambda path: _beginning(root, path)) if files else ()


def _texts_in(root: Root, folder: str) -> list[str]:
    steps = root.walk(
        folder, max_entries=_MAX_AGENT_ENTRIES, on_locked=_ignore, on_overflow=_ignore
    )
    return [step.path for step in steps if may_be_new(step.path)]


def _ignore(_path: str) -> None:
    """What is not looked at imports nothing that is known."""


def _beginning(root: Root, path: str) -> bytes | None:
    """The beginning of a regular file; None where there is none."""
    with (
        suppress(OSError, WorkspaceError),
        root.parent(path) as (parent, name),
        closing_fd(os.open(name, OPEN_NODE, dir_fd=parent)) as node,
        closing_fd(open_regular(node)) as fd,
    ):
        return read_at_most(fd, MAX_BYTES)
    return None


def _is_agents(path: str) -> bool:
    return not load().groups_of(path).isdisjoint(("instruction", "agent"))


def has_instruction_name(path: str) -> bool:
    """Whether agents obey the text of a file by its name."""
    return "instruction" in load().groups_of(path)
