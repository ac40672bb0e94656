"""Finds the protected names in a user's directory (FS-4, FS-8).

`core/protected_names.toml` says which names are protected and why; this module scans the disk.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cellwall.core.git_names import (
    GIT_LAYOUT,
    completes_git_layout,
    is_git_by_name,
    is_git_layout,
    is_in_version_control,
)
from cellwall.core.protected_names import NameTreatment, Protection, build_files, load
from cellwall.sandbox.files.descriptors import (
    identity_of,
    path_error,
)
from cellwall.sandbox.files.paths import is_at_or_below, parents_of
from cellwall.sandbox.files.root import AccessCheck, Root
from cellwall.sandbox.files.survey import DiskUsage, Survey
from cellwall.sandbox.files.walking import WalkStep
from cellwall.sandbox.protection import git_files
from cellwall.sandbox.protection.certificates import is_certificates
from cellwall.sandbox.protection.found_names import GitDirs, KnownLinks, ProtectedPath, folded_names
from cellwall.sandbox.protection.indirect_paths import has_instruction_name, indirect_paths


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
    names = folded_names(path)
    return (
        is_in_version_control(names)
        or protection.leads_to_protected(names)
        or (root is not None and bool(git_dirs_above(root, path)))
    )


def _treatment(protection: Protection, root: Root | None, path: str) -> NameTreatment | None:
    known = set() if root is None else {folded_names(each) for each in git_dirs_above(root, path)}
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
    """`scan_and_count` without the disk usage."""
    return scan_and_count(tree, protection, max_entries=max_entries, links=links)[0]


def scan_and_count(
    tree: Root, protection: Protection, *, max_entries: int, links: KnownLinks | None = None
) -> tuple[tuple[ProtectedPath, ...], DiskUsage]:
    """The protected names that exist in a directory now, parents before their content, and the
    disk usage of the whole directory.

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

    # A second name of a file matters only below a protected directory.
    survey = Survey(
        protection.names_to_look_at,
        are_links_dull=lambda directory: not is_at_or_below(directory, protected),
    )
    steps = tree.walk(max_entries=max_entries, descend=enter, on_locked=hide, survey=survey)
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
    hidden = _hidden_usage(tree, protected.values(), max_entries - survey.usage.name_count)
    if protection.entries:
        for path in indirect_paths(tree, protected.values()):
            if protection.treatment_of(path) is None and (exact := _exact(tree, path)):
                protected.setdefault(path, exact)
    return tuple(protected[path] for path in sorted(protected)), survey.usage.plus(hidden)


def _hidden_usage(tree: Root, protected: Iterable[ProtectedPath], max_entries: int) -> DiskUsage:
    """The disk usage of the hidden directories, which a scan does not enter."""
    usage = DiskUsage()
    for item in protected:
        if item.treatment is NameTreatment.HIDE and item.is_dir:
            left = max_entries - usage.name_count
            usage = usage.plus(tree.usage(item.path, max_entries=left))
    return usage


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


def _as_found(step: WalkStep, treatment: NameTreatment) -> ProtectedPath:
    mode = step.status.st_mode
    is_link = stat.S_ISLNK(mode)
    target = ""
    if is_link and treatment is NameTreatment.READ_ONLY and has_instruction_name(step.path):
        target = os.readlink(step.name, dir_fd=step.dir_fd)
    return ProtectedPath(
        step.path, treatment, stat.S_ISDIR(mode), is_link, step.directory_id, target
    )
