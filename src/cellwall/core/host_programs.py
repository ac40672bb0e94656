"""The files that Cellwall executes on the host (ISO-13). Light: hooks have no time for imports.

PATH is never searched: a project's `.venv/bin`, or any folder that a person has added, could hold a
hostile `bwrap`. A program comes from one of three places:

(1) fixed directories of the system, writable by root alone: `host_program`;
(2) a wheel that was installed with Cellwall itself, unchanged since: `wheel_program`;
(3) a path in the configuration, writable by root or this user alone: `operator_program`.

Every directory on the path is checked, and every link is followed step by step: a writer of one of
them can replace the program.
"""

# ruff: noqa: PLC0415  # late imports: runs that look for no wheel skip these modules

from __future__ import annotations

import os
import stat
import time

from cellwall.core.home import open_private

TYPE_CHECKING = False  # `typing` itself takes as long to import as Python takes to start
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

FIXED_PLACES = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
_MAX_LINKS = 40
_MAX_RECORD_BYTES = 4 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024
_VERIFIED = "programs.verified"
_MAX_VERIFIED = 32
_MAX_VERIFIED_BYTES = 16 * 1024
_SETTLED_AFTER_S = 2.0  # a second change within one tick of the clock would leave the same times


class ProgramRefused(Exception):
    """The program is missing or must not be executed."""

    def __init__(self, why: str, *, hint: str, detail: str = "", is_missing: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint
        self.detail = detail
        """Names host paths; for the audit log alone (ERR-1)."""
        self.is_missing = is_missing


def host_program(name: str) -> str:
    """A program of the system, by its name in one of the fixed directories.

    Its links are not resolved: `sh` behaves by the name with which it is started.
    """
    problem = ""
    for place in FIXED_PLACES:
        path = os.path.join(place, name)
        resolved, found = _walk(path, owners=(0,), groups=())
        if not found:
            return path
        problem = problem or ("" if resolved == "" else f"{path}: {found}")
    if problem:
        raise ProgramRefused(
            f"{name} is not started: users other than root can replace it ({problem})",
            hint="Make each directory on the way and the file belong to root and writable by root "
            f"alone (chown root, chmod go-w), or install {name} with the system's packages.",
        )
    raise ProgramRefused(
        f"{name} is in none of {', '.join(FIXED_PLACES)}",
        hint=f"Install {name} with the system's packages; PATH is not searched.",
        is_missing=True,
    )


def has_program(name: str) -> bool:
    """Whether there is such a program and it may be executed."""
    try:
        return bool(host_program(name))
    except ProgramRefused:
        return False


def operator_program(word: str) -> str:
    """The program of a configured command: an absolute path, or a name as above."""
    if "/" not in word:
        return host_program(word)
    if not word.startswith("/"):
        raise ProgramRefused(
            "the command does not begin with an absolute path",
            hint="Write the whole path of the program, or the name of one of the system's.",
        )
    resolved, problem = _walk(word, owners=(0, os.geteuid()), groups=())
    if not resolved:
        raise ProgramRefused(
            "its program is missing", hint="Correct the path.", detail=word, is_missing=True
        )
    if problem:
        raise ProgramRefused(
            "users other than root and you can replace its program",
            hint="Each directory on its path and the file must belong to root or to you, and must "
            "not be writable by others (chmod go-w).",
            detail=f"{word}: {problem}",
        )
    # Not the resolved path: the Python of a virtual environment finds its packages by its name.
    return word


def wheel_program(distribution: str, name: str) -> str:
    """A program of a wheel in the installation of Cellwall, with the hash of its RECORD.

    Only directories of our own installation are searched: not PATH, the working directory or other
    module paths. A writer of these directories can change Cellwall itself.
    """
    own = os.stat(__file__)
    for folder in _own_places():
        for path, digest in _wheel_files(folder, distribution, name):
            resolved, problem = _walk(
                path, owners=(0, own.st_uid), groups=(own.st_gid,), passed=_own_folders()
            )
            if not resolved:
                continue  # removed since it was installed
            if problem:
                raise ProgramRefused(
                    f"others can change {name} of the package {distribution}",
                    hint="Remove their write permission: chmod o-w for the file and its directory, "
                    "which must belong to the owner of Cellwall's own files.",
                    detail=f"{path}: {problem}",
                )
            if not _has_digest(resolved, digest):
                raise ProgramRefused(
                    f"{name} of the package {distribution} is not the file that was installed",
                    hint=f"Install it again: pip install --force-reinstall {distribution}",
                    detail=path,
                )
            return resolved
    raise ProgramRefused(
        f"{name} is not installed with Cellwall",
        hint=f"Install it where Cellwall is: pip install {distribution}",
        is_missing=True,
    )


def _own_folders() -> set[str]:
    """The directories above Cellwall itself: a writer of one of them controls Cellwall anyway, so a
    refusal would protect nothing."""
    found, at = {"/"}, os.path.realpath(__file__)
    while (at := os.path.dirname(at)) not in found:
        found.add(at)
    return found


def _own_places() -> list[str]:
    """Directories of our own wheels: beside Cellwall, and those of this interpreter."""
    import sysconfig

    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    places = [ours, sysconfig.get_path("platlib"), sysconfig.get_path("purelib")]
    return list(dict.fromkeys(places))


def _wheel_files(folder: str, distribution: str, name: str) -> Iterator[tuple[str, str]]:
    """Path and SHA-256 (as in RECORD, PEP 376) of files with this name."""
    wanted = f"{distribution.replace('-', '_')}-"
    try:
        found = [each for each in os.listdir(folder) if each.endswith(".dist-info")]
    except OSError:
        return
    for entry in found:
        if not entry.lower().startswith(wanted.lower()):
            continue
        try:
            with open(os.path.join(folder, entry, "RECORD"), encoding="utf-8") as file:
                lines = file.read(_MAX_RECORD_BYTES).splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        for line in lines:
            path, _, rest = line.partition(",")
            method, _, digest = rest.partition(",")[0].partition("=")
            if os.path.basename(path) == name and method == "sha256" and digest:
                yield os.path.normpath(os.path.join(folder, path)), digest


def _has_digest(path: str, digest: str) -> bool:
    import base64
    import hashlib

    found = hashlib.sha256()
    try:
        with open(path, "rb", buffering=0) as file:
            identity = _identity(file.fileno(), digest)
            if identity in _read_verified():
                return True
            while chunk := file.read(_CHUNK_BYTES):
                found.update(chunk)
            is_same = base64.urlsafe_b64encode(found.digest()).decode().rstrip("=") == digest
            is_still = _identity(file.fileno(), digest) == identity
            is_old = time.time() - os.fstat(file.fileno()).st_ctime > _SETTLED_AFTER_S
    except OSError:
        return False
    if is_same and is_still and is_old:
        _remember(identity)
    return is_same


def _identity(descriptor: int, digest: str) -> str:
    """Unchanged for an unchanged file; only root can set a change time back."""
    info = os.fstat(descriptor)
    numbers = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    return " ".join((*map(str, numbers), digest))


def _read_verified() -> list[str]:
    """Identities of files whose digest matched when they were last read as a whole."""
    folder = open_private(os.environ)
    if folder is None:
        return []
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        with open(os.open(_VERIFIED, flags, dir_fd=folder), encoding="ascii") as file:
            return file.read(_MAX_VERIFIED_BYTES).splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    finally:
        os.close(folder)


def _remember(identity: str) -> None:
    """A failed write only costs time at the next start."""
    lines = [*_read_verified(), identity][-_MAX_VERIFIED:]
    folder = open_private(os.environ)
    if folder is None:
        return
    name = f"{_VERIFIED}.{os.getpid()}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(name, flags, 0o600, dir_fd=folder), "w", encoding="ascii") as file:
            file.write("\n".join(lines) + "\n")
        os.rename(name, _VERIFIED, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        return
    finally:
        os.close(folder)


def _walk(
    path: str,
    *,
    owners: Collection[int],
    groups: Collection[int],
    passed: Collection[str] = (),
) -> tuple[str, str]:
    """The resolved path and the objection to it; no path: no such file."""
    at, rest, links = "/", path.split("/"), 0
    try:
        problem = "" if "/" in passed else _problem_of("/", os.lstat("/"), owners, groups)
        while rest and not problem:
            name = rest.pop(0)
            if name in ("", "."):
                continue
            if name == "..":
                at = os.path.dirname(at)
                continue
            here = os.path.join(at, name)
            info = os.lstat(here)
            if stat.S_ISLNK(info.st_mode):
                links += 1
                if links > _MAX_LINKS:
                    return at, "too many links"
                # In a sticky directory another user can have created it.
                if info.st_uid not in owners:
                    return at, f"{here} belongs to uid {info.st_uid}"
                target = os.readlink(here)
                at = "/" if target.startswith("/") else at
                rest = target.split("/") + rest
                continue
            at = here
            problem = "" if here in passed else _problem_of(here, info, owners, groups)
        if not problem and not (os.path.isfile(at) and os.access(at, os.X_OK)):
            problem = f"{at} is no program"
    except OSError as error:
        return "", error.strerror or "it cannot be looked at"
    return at, problem


def _problem_of(
    path: str, info: os.stat_result, owners: Collection[int], groups: Collection[int]
) -> str:
    mode = info.st_mode
    if info.st_uid not in owners:
        return f"{path} belongs to uid {info.st_uid}"
    by_group = mode & stat.S_IWGRP and info.st_gid not in groups
    # In a sticky directory others can add names, but not replace those of its owners.
    is_sticky = stat.S_ISDIR(mode) and mode & stat.S_ISVTX
    if (mode & stat.S_IWOTH or by_group) and not is_sticky:
        return f"{path} can be written by others"
    return ""
