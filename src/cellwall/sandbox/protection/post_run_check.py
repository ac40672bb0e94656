"""Checks a user's directory after a run in which code could write to it.

Mounts protect the protected names that exist. This check finds new ones and files that are not
allowed at all, and moves them to the quarantine, where no tool runs or obeys them (FS-3, FS-4,
FS-8). An incomplete check is an error: the directory is then not handed over as clean.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cellwall.core.errors import WorkspaceError
from cellwall.core.git_names import fold
from cellwall.core.outcomes import Finding
from cellwall.core.protected_names import Protection
from cellwall.sandbox.files.descriptors import (
    OPEN_NODE,
    closing_fd,
    from_os_error,
    identity_of,
    is_empty_dir,
    proc_path,
    unlock,
)
from cellwall.sandbox.files.file_tree import FileTree, WriteLimits, is_blocked
from cellwall.sandbox.files.paths import is_at_or_below
from cellwall.sandbox.files.survey import DiskUsage, Survey
from cellwall.sandbox.files.walking import WalkStep
from cellwall.sandbox.protection import quarantine
from cellwall.sandbox.protection.found_names import (
    GitDirs,
    KnownLinks,
    ProtectedPath,
    symlink_record,
)
from cellwall.sandbox.protection.host_directory import intact_covers, lost_covers

_MAX_WALKED_BYTES = 3000
_MAX_REPORTED = 100
_LIST_COMMAND = "cellwall quarantine list"
_SET_ID = stat.S_ISUID | stat.S_ISGID
COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE; `time` has no name for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The state of a directory before a run, as far as the check needs it."""

    before: tuple[ProtectedPath, ...]
    """The protected names that a scan found."""
    started_ns: int
    """The time of that scan, by `COARSE_CLOCK`: never behind the time of a later change."""
    paths: frozenset[str] = frozenset()
    """Paths that its git configurations name as programs."""
    links: KnownLinks = field(default_factory=KnownLinks)
    covered: Mapping[str, str] = field(default_factory=dict)
    """The names that mounts cover, and the inode of each."""
    usage: DiskUsage = DiskUsage()
    """Counted before the run, and not a part of what it used."""
    index: bytes = b""
    """git's index: for a finding after the run, not part of the check."""


UNBOUNDED = WriteLimits(max_file_bytes=1 << 62, max_total_bytes=1 << 62, max_files=1 << 62)
"""For a late check, which does not know the limits of its run."""
MAX_CHECK_ENTRIES = 2_000_000
"""Names checked after a run: more than code can create before the disk limit ends it."""


def check_directory(
    tree: FileTree,
    baseline: Baseline,
    *,
    protection: Protection,
    limits: WriteLimits,
    quarantine_dir: str | os.PathLike[str],
    max_entries: int | None = None,
) -> tuple[Finding, ...]:
    """Move forbidden files to the quarantine, clear set-id bits, and report findings.

    The user's own files that are older than the baseline are left alone. A file behind a cover that
    existed the whole time was created on the host (`git init` in a live sandbox's directory).
    Raises `CW-WORKSPACE-UNCHECKED` where a path could not be checked or moved out, after moving out
    everything else. Directories that code has changed come first, small ones before large ones: a
    flood of names hides nothing.
    """
    check = _DirectoryCheck(
        protection,
        baseline,
        limits,
        quarantine.QuarantineOrigin.of(tree.fd),
        intact_covers(tree, baseline.covered),
    )
    with quarantine.open_quarantine(quarantine_dir) as check.quarantine_fd:
        steps = tree.walk(
            max_entries=MAX_CHECK_ENTRIES if max_entries is None else max_entries,
            descend=check.enter,
            on_overflow=check.missed.append,
            order=lambda status: (status.st_ctime_ns < baseline.started_ns, status.st_size),
            survey=check.survey,
        )
        for step in steps:
            check.at(step)
        check.restore_links(tree)
        check.compare_hard_links(tree)
        check.report_lost_covers(tree, lost_covers(tree, baseline.covered))
    if check.missed:
        why = f"{min(check.missed) or '.'!r} holds more names than can be checked"
        raise _incomplete_check(why, check.result())
    if check.stuck:
        raise _incomplete_check(min(check.stuck), check.result())
    return check.result()


@dataclass(slots=True)
class _DirectoryCheck:
    """One check of a workspace after a run."""

    protection: Protection
    baseline: Baseline
    limits: WriteLimits
    origin: quarantine.QuarantineOrigin
    intact: frozenset[str] = frozenset()
    """The covered names whose covers existed the whole time."""
    quarantine_fd: int = -1
    missed: list[str] = field(default_factory=list)
    """Directories that were not entered."""
    stuck: list[str] = field(default_factory=list)
    """Why a forbidden file could not be moved out, for each."""
    findings: list[tuple[str, Finding]] = field(default_factory=list)
    settled: set[str] = field(default_factory=set)
    git_dirs: GitDirs = field(default_factory=GitDirs)
    survey: Survey = field(init=False)
    """Leaves out the files that code has not changed and whose names are not protected."""
    known: frozenset[tuple[str, tuple[int, int], str]] = field(init=False)
    were_git: frozenset[tuple[int, int]] = field(init=False)
    """The directories, of any name, that were git directories before the run."""
    became_git: set[tuple[str, ...]] = field(default_factory=set)
    """Directories that became git directories by a HEAD of this run, which is moved out."""

    def __post_init__(self) -> None:
        self.survey = Survey(self.protection.names_to_look_at, since_ns=self.baseline.started_ns)
        # Known by the inode of its directory, not by its path: the name was covered by a mount
        # during the run. By path alone, code could move `.git` away and plant a new one of the
        # same name. No mount covers a symlink; it is compared, and restored.
        self.known = frozenset(
            (item.name, item.directory_id, item.target) for item in self.baseline.before
        )
        self.were_git = frozenset(
            item.directory_id for item in self.baseline.before if fold(item.name) == "head"
        )

    def enter(self, step: WalkStep) -> bool:
        if step.path in self.settled:
            return False
        if len(os.fsencode(step.path)) > _MAX_WALKED_BYTES:
            # Deeper paths cannot be opened; a tree like that must neither hide a planted file nor
            # end the check of everything else.
            self._move_out(step, "is too deep to be checked")
            return False
        self.findings += [(step.path, each) for each in _reopen_directory(step)]
        return True

    def at(self, step: WalkStep) -> None:
        if step.in_git_layout and step.directory_id not in self.were_git:
            self.became_git.add(tuple(map(fold, step.path.split("/")[:-1])))
        if self.git_dirs.treatment_of(self.protection, step) is not None:
            self.settled.add(step.path)
            # An empty directory configures nothing, and can be the placeholder of another run:
            # moving it would remove that run's cover.
            is_empty = stat.S_ISDIR(step.status.st_mode) and is_empty_dir(step.dir_fd, step.name)
            if not (is_empty or self._is_known(step) or self._is_users_own(step)):
                self._move_out(step, "is a protected name")
        elif self._is_new_redirecting_link(step):
            self._move_out(step, "is a symlink that redirects what other tools read or write")
        elif step.status.st_ctime_ns >= self.baseline.started_ns:
            self._check_new_file(step)

    def _is_new_redirecting_link(self, step: WalkStep) -> bool:
        """Whether `scan` did not find the symlink with that target; git itself creates none.

        Below a version control directory the time does not count: an old symlink can get there
        with the directory around it.
        """
        if not self.git_dirs.is_redirecting_link(self.protection, step):
            return False
        row = symlink_record(step)
        is_of_mercurial = step.name == "checklink" and row[2] == "checklink-target"
        if is_of_mercurial or row in self.baseline.links.symbolic:
            return False
        if step.status.st_ctime_ns >= self.baseline.started_ns:
            return True
        if self.git_dirs.is_in_named(step):
            return True
        return not self.became_git.issuperset(self.git_dirs.by_layout(step))

    def _is_known(self, step: WalkStep) -> bool:
        here = (step.name, step.directory_id)
        if (*here, "") in self.known:
            return True
        return stat.S_ISLNK(step.status.st_mode) and (*here, symlink_record(step)[2]) in self.known

    def _is_users_own(self, step: WalkStep) -> bool:
        """An old `config` in a directory that became a git directory by a new HEAD: that HEAD is
        moved out, and then git does not read the file. In `.git`, HEAD stays."""
        if not step.in_git_layout or ".git" in map(fold, step.path.split("/")):
            return False
        return fold(step.name) != "head" and step.status.st_ctime_ns < self.baseline.started_ns

    def _check_new_file(self, step: WalkStep) -> None:
        mode = step.status.st_mode
        if stat.S_ISDIR(mode):
            return
        if is_blocked(step.name, self.limits.blocked_extensions):
            self._move_out(step, "has a blocked extension")
        elif stat.S_ISREG(mode):
            if mode & _SET_ID:
                self.findings.append((step.path, _clear_set_id_bits(step)))
            most = self.limits.max_file_bytes
            if step.status.st_size > most:
                finding = _finding(f"{step.path!r} is larger than {most} bytes")
                self.findings.append((step.path, finding))

    def _move_out(self, step: WalkStep, why: str) -> None:
        if is_at_or_below(step.path, self.intact):
            return
        try:
            kept_as = quarantine.move_out(step, self.quarantine_fd, origin=self.origin, why=why)
        except OSError as error:
            self.stuck.append(
                f"{step.path!r} {why} and could not be moved out: {_describe(step, error)}"
            )
            return
        except WorkspaceError as error:  # a tree that cannot be copied to another file system
            self.stuck.append(f"{step.path!r} {why} and could not be moved out: {error.message}")
            return
        message = (
            f"{step.path!r} {why}; it was moved to quarantine as {kept_as!r} ({_LIST_COMMAND})"
        )
        self.findings.append((step.path, _finding(message)))

    def restore_links(self, tree: FileTree) -> None:
        """Restore symlinks to instructions that code has replaced or removed."""
        for item in self.baseline.before:
            if not item.target:
                continue
            try:
                with tree.parent(item.path) as (parent, name):
                    if identity_of(parent) != item.directory_id:
                        continue
                    message = self._restore_link(parent, name, item)
            except FileNotFoundError:
                continue  # its directory was removed
            except OSError as error:
                self.stuck.append(from_os_error(item.path, error).message)
                continue
            except WorkspaceError as error:
                self.stuck.append(error.message)
                continue
            if message:
                self.findings.append((item.path, _finding(message)))

    def _restore_link(self, parent: int, name: str, item: ProtectedPath) -> str:
        try:
            if os.readlink(name, dir_fd=parent) == item.target:
                return ""
            is_there = True
        except FileNotFoundError:
            is_there = False
        except OSError as error:
            if error.errno != errno.EINVAL:  # not a symlink any more
                raise
            is_there = True
        if is_there:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            step = WalkStep(item.path, name, parent, item.directory_id, status)
            why = "replaced a protected link"
            quarantine.move_out(step, self.quarantine_fd, origin=self.origin, why=why)
        os.symlink(item.target, name, dir_fd=parent)
        return f"{item.path!r} is a protected link and was replaced; it was put back"

    def compare_hard_links(self, tree: FileTree) -> None:
        """Report changes of read-only files that had a second name, by which code can write."""
        for path, (device, inode, changed_ns) in self.baseline.links.hard.items():
            try:
                with tree.node(path) as node:
                    status = os.fstat(node)
            except FileNotFoundError:
                continue
            except OSError as error:
                self.stuck.append(from_os_error(path, error).message)
                continue
            if (status.st_dev, status.st_ino, status.st_ctime_ns) != (device, inode, changed_ns):
                message = (
                    f"{path!r} is read-only and was changed, perhaps by another hard link to it"
                )
                self.findings.append((path, _finding(message, is_open=True)))

    def report_lost_covers(self, tree: FileTree, gone: Iterable[str]) -> None:
        """Report protected names that were replaced on the host: code could write the new ones."""
        for path in gone:
            with suppress(OSError), tree.node(path):
                message = (
                    f"{path!r} was replaced on the host while code ran, which ended its "
                    "protection: code could change it since. Check it before you use it"
                )
                self.findings.append((path, _finding(message, is_open=True)))

    def result(self) -> tuple[Finding, ...]:
        reported = [each for _, each in sorted(self.findings, key=lambda it: it[0])]
        most_bytes, most_files = self.limits.max_total_bytes, self.limits.max_files
        used_bytes, count = self.survey.usage
        if used_bytes > most_bytes:
            reported.append(_finding(f"the workspace holds {used_bytes} bytes, limit {most_bytes}"))
        if count > most_files:
            reported.append(_finding(f"the workspace holds {count} files, limit {most_files}"))
        return tuple(reported)


def _incomplete_check(why: str, findings: Sequence[Finding]) -> WorkspaceError:
    return WorkspaceError(
        f"the directory was not checked after the run: {why}",
        hint="Do not use the directory as it is: remove what the run has left in it. The next run "
        "there checks it again before it starts.",
        code="CW-WORKSPACE-UNCHECKED",
        detail="; ".join(finding.message for finding in findings[:_MAX_REPORTED]),
    )


def _finding(message: str, *, is_open: bool = False) -> Finding:
    return Finding("workspace", "high" if is_open else "medium", message)


def _clear_set_id_bits(step: WalkStep) -> Finding:
    try:
        with closing_fd(os.open(step.name, OPEN_NODE, dir_fd=step.dir_fd)) as node:
            os.chmod(proc_path(node), os.fstat(node).st_mode & 0o777)
    except OSError as error:
        return _finding(f"set-id bits could not be cleared: {_describe(step, error)}", is_open=True)
    return _finding(f"{step.path!r} had a set-user-id or set-group-id bit; it was cleared")


def _reopen_directory(step: WalkStep) -> Iterator[Finding]:
    # Root reads it anyway; for other users `chmod 0` would prevent the check.
    if os.geteuid() != 0 and step.status.st_mode & 0o500 != 0o500:
        try:
            unlock(step.dir_fd, step.name)
        except OSError as error:
            raise from_os_error(step.path, error) from error
        yield _finding(f"{step.path!r} had no permissions for its owner; they were restored")


def _describe(step: WalkStep, error: OSError) -> str:
    return from_os_error(step.path, error).message
