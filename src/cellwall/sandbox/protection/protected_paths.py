"""Finds the protected names in a user's directory (FS-4, FS-8).

`core/protected_names.toml` says which names are protected and why; this module scans the disk.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from cellwall.core.errors import WorkspaceError
from cellwall.core.instruction_imports import MAX_BYTES, all_imports, may_be_new
from cellwall.core.protected_names import (
    GIT_LAYOUT,
    NameTreatment,
    Protection,
    build_files,
    completes_git_layout,
    fold,
    is_git_by_name,
    is_git_layout,
    is_in_version_control,
    is_named_git_dir,
    load,
)
from cellwall.sandbox.files.descriptors import (
    OPEN_NODE,
    closing_fd,
    identity_of,
    open_regular,
    path_error,
    read_at_most,
)
from cellwall.sandbox.files.paths import parents_of
from cellwall.sandbox.files.root import AccessCheck, Root, WalkStep
from cellwall.sandbox.protection import git_files
from cellwall.sandbox.protection.certificates import is_certificates

_CONFIGS = frozenset({"config", "config.worktree"})
_MAX_AGENT_ENTRIES = 1000
"""Names in one settings folder of an agent, whose texts are searched for imports."""


@dataclass(frozen=True, slots=True)
class ProtectedPath:
    """A protected name that exists.

    `directory_id` (device, inode) identifies the directory in which it was found: code cannot move
    a name under a mount, but can move the directory above and plant a new one.
    """

    path: str
    treatment: NameTreatment
    is_dir: bool
    is_symlink: bool
    directory_id: tuple[int, int]
    target: str = ""
    """The target of a symlink to instructions, which no mount can cover: compared after the run."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(slots=True)
class KnownLinks:
    """Links that existed before a run and that no mount covers: compared after it."""

    symbolic: set[tuple[str, tuple[int, int], str]] = field(default_factory=set)
    """Path, identity of its directory and target, in places where a new symlink is moved out."""
    hard: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Read-only files with a second name: device, inode, ctime."""
    shared: dict[tuple[int, int], NameTreatment] = field(default_factory=dict)
    """Protected files with a second name, by device and inode; the strictest treatment."""

    def note(
        self, step: WalkStep, *, is_redirecting: bool, treatment: NameTreatment | None
    ) -> None:
        status = step.status
        if is_redirecting:
            if (row := symlink_record(step))[2]:
                self.symbolic.add(row)
        elif treatment and stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            inode = status.st_dev, status.st_ino
            if self.shared.get(inode) is not NameTreatment.HIDE:
                self.shared[inode] = treatment
            if treatment is NameTreatment.READ_ONLY:
                self.hard[step.path] = (*inode, status.st_ctime_ns)


def symlink_record(step: WalkStep) -> tuple[str, tuple[int, int], str]:
    """A row of `KnownLinks.symbolic`; without a target if the symlink was just replaced."""
    try:
        target = os.readlink(step.name, dir_fd=step.dir_fd)
    except OSError:
        target = ""
    return step.path, step.directory_id, target


@dataclass(slots=True)
class GitDirs:
    """The git directories that a walk has passed, of any name."""

    _known: set[tuple[str, ...]] = field(default_factory=set)

    def note(self, step: WalkStep) -> None:
        """Note the directory of a step; a walk visits a directory before its content."""
        if step.in_git_layout:
            self._known.add(_names(step.path)[:-1])

    def contains(self, names: tuple[str, ...]) -> bool:
        return names in self._known or is_named_git_dir(names)

    def holds(self, step: WalkStep) -> bool:
        """Whether a step lies below a version control directory, at any depth."""
        return is_in_version_control(_names(step.path)) or bool(self.by_layout(step))

    def by_layout(self, step: WalkStep) -> list[tuple[str, ...]]:
        """The directories above a step that have the layout of a git directory."""
        names = _names(step.path)
        ways = (names[:depth] for depth in range(len(names)))
        return [way for way in ways if way in self._known]

    def is_in_named(self, step: WalkStep) -> bool:
        return is_in_version_control(_names(step.path))

    def is_redirecting_link(self, protection: Protection, step: WalkStep) -> bool:
        """Whether a symlink redirects what a tool of the user reads or writes: below a version
        control directory, or in the place of a directory with protected names."""
        if not protection.entries or not stat.S_ISLNK(step.status.st_mode):
            return False
        return self.holds(step) or protection.leads_to_protected(_names(step.path))

    def treatment_of(self, protection: Protection, step: WalkStep) -> NameTreatment | None:
        """The treatment of a step by its own name; a symlink counts as file and directory."""
        self.note(step)
        mode = step.status.st_mode
        names = _names(step.path)
        is_dir = None if stat.S_ISLNK(mode) else stat.S_ISDIR(mode)
        return protection.own_treatment(
            names,
            end=len(names),
            is_dir=is_dir,
            is_git=self.contains,
            has_certificates=lambda: is_certificates(step.dir_fd, step.name),
        )


def protection_for(
    extra_names: Iterable[str], *, protects_build_files: bool = False, dangerously_expose: bool
) -> Protection:
    """The protection of a configuration: built-in and extra names, or none at all."""
    if dangerously_expose:
        return Protection(())
    names = load()
    if protects_build_files:
        names = Protection((*names.entries, *build_files().entries))
    return names.with_extra(extra_names)


def access_check_for(protection: Protection, root: Root | None = None) -> AccessCheck:
    """The file API's `AccessCheck`: refuses hidden paths, and writes to read-only ones."""

    def check_access(path: str, *, writing: bool, is_link: bool = False) -> None:
        if is_link and writing and protection.entries and _is_redirecting(protection, root, path):
            raise path_error(
                path, "CW-PATH-PROTECTED", "is refused: a link there redirects other tools"
            )
        match _treatment(protection, root, path):
            case NameTreatment.HIDE:
                raise path_error(path, "CW-PATH-PROTECTED", "is hidden: such names hold secrets")
            case NameTreatment.READ_ONLY if writing:
                raise path_error(
                    path, "CW-PATH-PROTECTED", "is read-only: the host runs or obeys it"
                )
            case _ if writing and protection.entries and completes_git_layout(path):
                raise path_error(
                    path,
                    "CW-PATH-PROTECTED",
                    "is refused: it can turn its folder into a git repository",
                )
            case _:
                return

    return check_access


def _is_redirecting(protection: Protection, root: Root | None, path: str) -> bool:
    names = _names(path)
    return (
        is_in_version_control(names)
        or protection.leads_to_protected(names)
        or (root is not None and bool(git_dirs_above(root, path)))
    )


def _treatment(protection: Protection, root: Root | None, path: str) -> NameTreatment | None:
    known = set() if root is None else {_names(each) for each in git_dirs_above(root, path)}
    return protection.treatment_of(
        path,
        is_git=lambda names: names in known or is_git_by_name(names),
        has_certificates=lambda: root is not None and has_certificates(root, path),
    )


def has_certificates(root: Root, path: str) -> bool:
    """Whether a path below the root is a file with certificates and no private key."""
    try:
        with root.parent(path) as (parent, name):
            return is_certificates(parent, name)
    except OSError:
        return False


def git_dirs_above(root: Root, path: str) -> list[str]:
    """The directories above a path that have the layout of a git directory."""
    return [above for above in parents_of(path) if has_git_layout((root,), above)]


def has_git_layout(roots: Sequence[Root], way: str) -> bool:
    """Whether a directory, merged from several layers, has the layout of a git directory."""
    return is_git_layout(name for name in GIT_LAYOUT if any(_exists(r, way, name) for r in roots))


def _exists(root: Root, way: str, name: str) -> bool:
    try:
        with root.node(f"{way}/{name}" if way else name):
            return True
    except OSError:
        return False


def scan(
    tree: Root, protection: Protection, *, max_entries: int, links: KnownLinks | None = None
) -> tuple[ProtectedPath, ...]:
    """The protected names that exist in a directory now, parents before their content.

    A hidden directory is not entered. A read-only one is searched for secrets. A directory that
    cannot be read is reported as hidden: its content is unknown, and code that runs as its owner
    could open it. Sockets and FIFOs are hidden, whatever their name. `links` collects the links
    that are compared after the run.
    """
    protected: dict[str, ProtectedPath] = {}
    visited: dict[str, ProtectedPath] = {}
    git_dirs = GitDirs()

    def enter(step: WalkStep) -> bool:
        visited[step.path] = _as_found(step, NameTreatment.HIDE)
        known = protected.get(step.path)
        return known is None or known.treatment is not NameTreatment.HIDE

    def hide(path: str) -> None:
        if path not in visited:
            raise path_error(path or ".", "CW-NO-PERMISSION", "cannot be read by this user")
        protected[path] = visited[path]

    steps = tree.walk(max_entries=max_entries, descend=enter, on_locked=hide)
    for step in steps:
        treatment = git_dirs.treatment_of(protection, step)
        if stat.S_ISSOCK(step.status.st_mode) or stat.S_ISFIFO(step.status.st_mode):
            # A process of the host may listen: an egress path that no namespace closes (NET-1).
            treatment = NameTreatment.HIDE
        is_under = any(above in protected for above in parents_of(step.path))
        if links is not None:
            links.note(
                step,
                is_redirecting=git_dirs.is_redirecting_link(protection, step),
                treatment=treatment or (NameTreatment.READ_ONLY if is_under else None),
            )
        if treatment is None or (treatment is NameTreatment.READ_ONLY and is_under):
            continue
        item = _as_found(step, treatment)
        if item.target and git_files.place_of_link(tree, item.path, item.target) is None:
            item = replace(item, target="")  # like any other symlink that code could redirect
        protected[step.path] = item
    if protection.entries:
        for path in indirect_paths(tree, protected.values()):
            if protection.treatment_of(path) is None and (exact := _exact(tree, path)):
                protected.setdefault(path, exact)
    return tuple(protected[path] for path in sorted(protected))


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
    links = (item for item in protected if item.is_symlink and _is_instruction(item.path))
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
    files = [item.path for item in protected if not item.is_dir and _is_instruction(item.path)]
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


def _is_instruction(path: str) -> bool:
    return "instruction" in load().groups_of(path)


def _exact(root: Root, path: str) -> ProtectedPath | None:
    try:
        with root.parent(path) as (parent, name):
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            directory_id = identity_of(parent)
    except OSError:
        return None
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return None
    is_dir = stat.S_ISDIR(status.st_mode)
    return ProtectedPath(path, NameTreatment.READ_ONLY, is_dir, False, directory_id)


def _names(path: str) -> tuple[str, ...]:
    return tuple(fold(name) for name in path.split("/") if name)


def _as_found(step: WalkStep, treatment: NameTreatment) -> ProtectedPath:
    mode = step.status.st_mode
    is_link = stat.S_ISLNK(mode)
    target = ""
    if is_link and treatment is NameTreatment.READ_ONLY and _is_instruction(step.path):
        target = os.readlink(step.name, dir_fd=step.dir_fd)
    return ProtectedPath(
        step.path, treatment, stat.S_ISDIR(mode), is_link, step.directory_id, target
    )
