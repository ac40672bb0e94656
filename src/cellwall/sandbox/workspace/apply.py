"""Applies the changes of a copy-on-write run to the host's directory, file by file (FS-2)."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from cellwall.core.git_names import (
    completes_git_layout,
    fold,
    is_in_version_control,
    is_named_git_dir,
)
from cellwall.core.protected_names import NameTreatment, Protection
from cellwall.sandbox.files.descriptors import (
    MAX_WALK_ENTRIES,
    closing_fd,
    copy_data,
    from_os_error,
    make_one_dir,
    make_symlink,
    new_owner,
    open_regular,
    proc_path,
    replace_atomically,
    temporary_name,
)
from cellwall.sandbox.files.file_tree import FileTree, is_blocked
from cellwall.sandbox.files.paths import parents_of
from cellwall.sandbox.files.root import status_of
from cellwall.sandbox.protection.found_names import ProtectedPath
from cellwall.sandbox.protection.indirect_paths import indirect_paths, instruction_targets
from cellwall.sandbox.protection.protected_paths import has_certificates, has_git_layout, scan
from cellwall.sandbox.workspace.changes import Change, changes, is_instruction, rank


@dataclass(frozen=True, slots=True)
class ApplyReport:
    """The applied changes, and the refused paths as (path, reason)."""

    applied: tuple[Change, ...]
    refused: tuple[tuple[str, str], ...]


def apply(
    lower: FileTree,
    upper: FileTree,
    protection: Protection,
    *,
    started_ns: int,
    blocked_extensions: Collection[str] = (),
    force: bool = False,
    instructions: bool = False,
    dry_run: bool = False,
    max_entries: int = MAX_WALK_ENTRIES,
) -> ApplyReport:
    """Apply the changes to the host's directory; a refused path is reported and the rest applied.

    Protected names are never applied; instructions for agents only with `instructions`.

    `started_ns` is the start of the run, as the time of a file that was made then. A file that
    the host changed since is kept, unless `force`. A `dry_run` reports the changes that it would
    apply, and writes nothing.
    """
    all_changes = changes(lower, upper, max_entries=max_entries)
    removals = [change for change in reversed(all_changes) if change.kind == "removed"]
    others = [change for change in all_changes if change.kind != "removed"]
    applied: list[Change] = []
    refusals: list[tuple[str, str]] = []
    here = scan(lower, protection, max_entries=max_entries)
    rules = _ApplyRules.of(lower, upper, protection, all_changes, here, instructions=instructions)
    # Removals first, the deepest first: a directory that keeps a refused name stays.
    for change in (*removals, *others):
        reason = rules.objection(change, blocked_extensions)
        try:
            if not reason and change.kind != "removed":
                reason = _node_objection(upper, change.path, rules)
            if not reason and not force and _is_newer(lower, change.path, started_ns):
                reason = "changed on the host since the run"
            if not reason:
                if not dry_run:
                    _apply_change(lower, upper, change)
                applied.append(change)
        except OSError as error:
            reason = from_os_error("", error).message.removeprefix("'' ")
        if reason:
            refusals.append((change.path, reason))
    return ApplyReport(rank(applied, rules.instruction_paths), tuple(sorted(refusals)))


@dataclass(frozen=True, slots=True)
class _ApplyRules:
    """The protected names, with the git directories of both layers merged."""

    lower: FileTree
    upper: FileTree
    protection: Protection
    git_dirs: frozenset[tuple[str, ...]]
    instructions: bool
    instruction_paths: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        lower: FileTree,
        upper: FileTree,
        protection: Protection,
        all_changes: Iterable[Change],
        here: Sequence[ProtectedPath],
        *,
        instructions: bool,
    ) -> _ApplyRules:
        above = {way for change in all_changes for way in parents_of(change.path)}
        dirs = frozenset(
            tuple(map(fold, filter(None, way.split("/"))))
            for way in above
            if has_git_layout((lower, upper), way)
        )
        if not protection.entries:
            return cls(lower, upper, protection, dirs, instructions)
        # Programs that the user's git configuration names, and targets of symlinks with names of
        # instructions, are protected as well.
        instruction_paths = instruction_targets(lower, here)
        paths = instruction_paths | indirect_paths(lower, here).keys()
        return cls(
            lower, upper, protection.with_paths(paths), dirs, instructions, instruction_paths
        )

    def objection(self, change: Change, blocked_extensions: Collection[str]) -> str:
        try:
            change.path.encode()
        except UnicodeEncodeError:
            return "its name is not valid text"
        treatment = self.treatment_of(
            change.path,
            # A symlink counts as file and directory.
            is_dir={"dir": True, "file": False}.get(change.entry_kind),
            is_public=lambda: self._is_public(change),
        )
        if treatment is not None:
            is_text = is_instruction(change.path) or change.path in self.instruction_paths
            if is_text and treatment is NameTreatment.READ_ONLY:
                return "" if self.instructions else "instructions for agents, taken over on request"
            return f"protected name ({treatment.value.replace('_', '-')})"
        is_link = change.kind != "removed" and change.entry_kind == "symlink"
        if is_link and (reason := self._redirecting_link_objection(change.path)):
            return reason
        is_new = change.kind in {"added", "type"} and change.entry_kind != "dir"
        if is_new and self.protection.entries and completes_git_layout(change.path):
            return "can make its folder a git repository"
        if change.kind in {"added", "modified", "type"} and is_blocked(
            change.path.rpartition("/")[2], blocked_extensions
        ):
            return "blocked extension"
        return ""

    def _redirecting_link_objection(self, path: str) -> str:
        """Tools of the user read and write through such a symlink: never applied."""
        if not self.protection.entries:
            return ""
        names = tuple(map(fold, path.split("/")))
        if is_in_version_control(names) or any(
            names[:depth] in self.git_dirs for depth in range(len(names))
        ):
            return "link in a version control directory"
        if self.protection.leads_to_protected(names):
            return "link in the place of a directory with protected names"
        return ""

    def _is_public(self, change: Change) -> bool:
        """Whether certificates replace certificates, or a missing file."""
        sides = {"added": (self.upper,), "removed": (self.lower,)}.get(
            change.kind, (self.lower, self.upper)
        )
        is_file = change.entry_kind == "file" and change.kind != "type"
        return is_file and all(has_certificates(side, change.path) for side in sides)

    def treatment_of(
        self, path: str, *, is_dir: bool | None = None, is_public: Callable[[], bool] = bool
    ) -> NameTreatment | None:
        return self.protection.treatment_of(
            path,
            is_dir=is_dir,
            has_certificates=is_public,
            is_git=lambda names: names in self.git_dirs or is_named_git_dir(names),
        )


def _node_objection(upper: FileTree, path: str, rules: _ApplyRules) -> str:
    with upper.node(path) as node:
        mode = os.fstat(node).st_mode
        if stat.S_ISLNK(mode):
            return _link_objection(path, os.readlink("", dir_fd=node), rules)
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return "device, FIFO or socket"
    if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
        return "set-user-id or set-group-id bit"
    return ""


def _link_objection(path: str, target: str, rules: _ApplyRules) -> str:
    """Symlinks may lead only to paths inside, and not to a protected name.

    `..` is allowed only at the start: after a name that is itself a symlink, `..` leads elsewhere.
    """
    if target.startswith("/"):
        return "link to an absolute path"
    parts = [part for part in target.split("/") if part not in {"", "."}]
    ups = len(list(itertools.takewhile("..".__eq__, parts)))
    way = path.split("/")[:-1]
    if ups > len(way) or ".." in parts[ups:]:
        return "link that leads out of the workspace"
    if rules.treatment_of("/".join([*way[: len(way) - ups], *parts[ups:]])) is not None:
        return "link to a protected name"
    return ""


def _is_newer(lower: FileTree, path: str, started_ns: int) -> bool:
    # A directory's times change with every name in it; only an empty one is removed.
    old = status_of(lower, path)
    return (
        old is not None
        and not stat.S_ISDIR(old.st_mode)
        and max(old.st_mtime_ns, old.st_ctime_ns) > started_ns
    )


def _apply_change(lower: FileTree, upper: FileTree, change: Change) -> None:
    with lower.parent(change.path) as (parent, name):
        if change.kind == "removed":
            _remove(parent, name, is_dir=change.entry_kind == "dir")
            return
        with upper.node(change.path) as source:
            mode = os.fstat(source).st_mode
            old = status_of(lower, change.path)
            was_dir = old is not None and stat.S_ISDIR(old.st_mode)
            if change.kind == "mode":
                with lower.node(change.path) as node:
                    os.chmod(proc_path(node), mode & 0o777)
            elif stat.S_ISDIR(mode):
                if old is not None:
                    _remove(parent, name, is_dir=was_dir)
                make_one_dir(parent, name, mode=mode | 0o700)
            else:
                if was_dir:
                    os.rmdir(name, dir_fd=parent)
                _replace(parent, name, source, old)


def _remove(parent: int, name: str, *, is_dir: bool) -> None:
    if is_dir:
        os.rmdir(name, dir_fd=parent)
    else:
        os.unlink(name, dir_fd=parent)


def _replace(parent: int, name: str, source: int, old: os.stat_result | None) -> None:
    """Replace a name by a file or a symlink atomically."""
    status = os.fstat(source)
    owner = new_owner(parent)
    if stat.S_ISLNK(status.st_mode):
        temporary = temporary_name()
        make_symlink(os.readlink("", dir_fd=source), parent, temporary)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        return
    if owner is not None and old is not None and stat.S_ISREG(old.st_mode):
        owner = (old.st_uid, old.st_gid)
    with (
        closing_fd(open_regular(source)) as data,
        replace_atomically(parent, name, mode=status.st_mode, owner=owner, durable=True) as fd,
    ):
        copy_data(data, fd)
