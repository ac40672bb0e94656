"""Protected names as a walk finds them, and what it notes about links and git directories."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field

from cellwall.core.git_names import fold, is_in_version_control, is_named_git_dir
from cellwall.core.protected_names import NameTreatment, Protection
from cellwall.sandbox.files.walking import WalkStep
from cellwall.sandbox.protection.certificates import is_certificates


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
            self._known.add(folded_names(step.path)[:-1])

    def contains(self, names: tuple[str, ...]) -> bool:
        return names in self._known or is_named_git_dir(names)

    def holds(self, step: WalkStep) -> bool:
        """Whether a step lies below a version control directory, at any depth."""
        return is_in_version_control(folded_names(step.path)) or bool(self.by_layout(step))

    def by_layout(self, step: WalkStep) -> list[tuple[str, ...]]:
        """The directories above a step that have the layout of a git directory."""
        names = folded_names(step.path)
        ways = (names[:depth] for depth in range(len(names)))
        return [way for way in ways if way in self._known]

    def is_in_named(self, step: WalkStep) -> bool:
        return is_in_version_control(folded_names(step.path))

    def is_redirecting_link(self, protection: Protection, step: WalkStep) -> bool:
        """Whether a symlink redirects what a tool of the user reads or writes: below a version
        control directory, or in the place of a directory with protected names."""
        if not protection.entries or not stat.S_ISLNK(step.status.st_mode):
            return False
        return self.holds(step) or protection.leads_to_protected(folded_names(step.path))

    def treatment_of(self, protection: Protection, step: WalkStep) -> NameTreatment | None:
        """The treatment of a step by its own name; a symlink counts as file and directory."""
        self.note(step)
        mode = step.status.st_mode
        names = folded_names(step.path)
        is_dir = None if stat.S_ISLNK(mode) else stat.S_ISDIR(mode)
        return protection.own_treatment(
            names,
            end=len(names),
            is_dir=is_dir,
            is_git=self.contains,
            has_certificates=lambda: is_certificates(step.dir_fd, step.name),
        )


def folded_names(path: str) -> tuple[str, ...]:
    """The names on a path, as the most lenient file system would compare them."""
    return tuple(fold(name) for name in path.split("/") if name)
