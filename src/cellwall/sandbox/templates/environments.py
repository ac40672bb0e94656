"""Environments of templates: directories of packages, built once, mounted read-only (LANG-2).

$CELLWALL_HOME/templates/NAME/DIGEST/site-packages    the packages
$CELLWALL_HOME/templates/NAME/DIGEST/pylock.toml      the lock of a request, as resolved
$CELLWALL_HOME/templates/NAME/DIGEST/built.json       names and versions; written last
$CELLWALL_HOME/templates/NAME/.unfinished-…           a running or killed build or removal
$CELLWALL_HOME/templates/NAME.lock                    held during a build or a removal

DIGEST is a hash of the requirements, the Python version and the machine. Packages are installed by
the caller, in a cell: nothing here executes or parses a file of a package.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from glob import escape, glob

from cellwall.core.cancellation import check_cancelled
from cellwall.core.errors import CellwallError
from cellwall.core.packages import Package, normalized
from cellwall.sandbox import languages
from cellwall.sandbox.files.descriptors import closing_fd, remove_tree
from cellwall.sandbox.templates import definitions, uv_program
from cellwall.sandbox.templates.definitions import TemplateDefinition

_NEEDED_BYTES = 600_000_000  # wheels, packages and bytecode together, with some room
_TRY_AGAIN_S = 0.1
_MAX_ENTRIES = 10_000_000
_UNFINISHED = ".unfinished-"
SITE = "site-packages"
"""The folder of the packages in an environment, and in the staging directory of a build."""
_MANIFEST = "built.json"
_MAX_MANIFEST_BYTES = 1024 * 1024
_METADATA = ".dist-info"
_MAX_DETAIL = 2000


@dataclass(frozen=True, slots=True)
class Environment:
    """One environment on disk."""

    name: str
    path: str
    python: str
    size_bytes: int
    packages: tuple[tuple[str, str], ...]
    is_new: bool = False
    """Whether this call built it."""


@dataclass(frozen=True, slots=True)
class TargetPython:
    """The Python that runs inside, by its path there."""

    path: str
    version: str


Install = Callable[[TemplateDefinition, TargetPython, str], Sequence[Package]]
"""Fills `SITE` in the staging directory of the given path; returns the packages of the lock."""


def environment_of(home: str, name: str) -> str | None:
    """The package directory of a template; None if not built for this Python and machine."""
    if name == uv_program.TEMPLATE:
        return uv_program.folder(home)
    path = os.path.join(_place(home, name), SITE)
    return path if os.path.isdir(path) else None


def find(home: str, name: str) -> Environment | None:
    """The environment of a template with its packages; None if not built."""
    place = _place(home, name)
    try:
        with open(os.path.join(place, _MANIFEST), "rb") as file:
            note = json.loads(file.read(_MAX_MANIFEST_BYTES))
        packages = tuple((str(package), str(version)) for package, version in note["packages"])
        site = os.path.join(place, SITE)
        return Environment(name, site, str(note["python"]), int(note["size_bytes"]), packages)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CellwallError(
            f"the environment {name} is damaged",
            hint=f"Run `cellwall template remove {name}`, then build it again.",
            code="CW-TEMPLATE-DAMAGED",
            detail=str(error),
        ) from error


def build(
    home: str,
    name: str,
    *,
    install: Install,
    on_progress: Callable[[str], None],
    definition: TemplateDefinition | None = None,
) -> Environment:
    """Build the environment of a template unless it exists.

    `definition` defines or redefines the template; without it the template must be defined.

    (1) Lock the template; other builds and removals wait.
    (2) Remove the remains of interrupted builds and removals.
    (3) `install` runs the package manager in a cell, and copies the files out of the cell into a
        directory with a temporary name.
    (4) Check that the packages are those of the lock; remove files that code inside does not need
        or must not see.
    (5) Sync to disk, then rename to the final name atomically.
    """
    if definition is not None:
        definitions.check_new_name(name, definition)
    wanted = definition or definitions.read(home, name)
    python = interpreter()
    if name in definitions.SHIPPED:
        definitions.check_wheels(python.version)
    with _state_errors(), _lock_template(home, name, on_progress) as folder:  # (1)
        known = digest(wanted.text, python)
        if os.path.exists(os.path.join(_folder(home, name), known, _MANIFEST)):
            _define(home, name, definition)
            there = find(home, name)
            assert there is not None  # noqa: S101  # this process holds the lock
            return there
        _remove_unfinished(folder)  # (2)
        _sweep_other_templates(home)
        if (free := os.fstatvfs(folder)).f_bavail * free.f_frsize < _NEEDED_BYTES:
            raise no_space()
        unfinished = _UNFINISHED + secrets.token_hex(8)
        os.mkdir(unfinished, 0o700, dir_fd=folder)
        try:
            staging = os.path.join(_folder(home, name), unfinished)
            locked = install(wanted, python, staging)  # (3)
            with closing_fd(os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as top:
                _drop_programs(top)  # (4)
            site = os.path.join(staging, SITE)
            packages = _installed_packages(site, locked)
            _write_manifest(staging, python, size_bytes=_make_readable(site), packages=packages)
            os.sync()  # (5)
            _define(home, name, definition)
            os.rename(unfinished, known, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                remove_tree(folder, unfinished, max_entries=_MAX_ENTRIES)
            raise
        built = find(home, name)
        assert built is not None  # noqa: S101  # it was just built, and this process holds the lock
        return replace(built, is_new=True)


def _define(home: str, name: str, definition: TemplateDefinition | None) -> None:
    if definition is not None:
        definitions.write(home, name, definition)


def count(home: str, name: str) -> int:
    """The number of environments of a template, for any Python and packages."""
    definitions.check_name(home, name)
    try:
        return sum(not each.startswith(_UNFINISHED) for each in os.listdir(_folder(home, name)))
    except FileNotFoundError:
        return 0


def remove(home: str, name: str, *, on_progress: Callable[[str], None]) -> int:
    """Remove every environment of a template, of any version; returns their number."""
    definitions.check_name(home, name)
    with _state_errors(), _lock_template(home, name, on_progress) as folder:
        definitions.forget(home, name)
        environments = [each for each in os.listdir(folder) if not each.startswith(_UNFINISHED)]
        for each in environments:
            # Renamed first: a partly removed environment must never be found.
            os.rename(each, _UNFINISHED + each, src_dir_fd=folder, dst_dir_fd=folder)
        _remove_unfinished(folder)
    return len(environments)


def interpreter() -> TargetPython:
    """The Python that runs inside."""
    return TargetPython(languages.python_inside(), languages.python_version())


def digest(requirements: bytes, python: TargetPython) -> str:
    """The directory name for these packages and this Python."""
    parts = (requirements, python.version.encode(), platform.machine().encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def _folder(home: str, name: str) -> str:
    return os.path.join(home, "templates", name)


def _place(home: str, name: str) -> str:
    return os.path.join(
        _folder(home, name), digest(definitions.read(home, name).text, interpreter())
    )


@contextmanager
def _lock_template(home: str, name: str, on_progress: Callable[[str], None]) -> Iterator[int]:
    """The template's folder as a descriptor, with the lock on the template."""
    path = _folder(home, name)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with closing_fd(_acquire_lock(f"{path}.lock", on_progress)):
        os.makedirs(path, mode=0o700, exist_ok=True)
        try:
            with closing_fd(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
                yield folder
        finally:
            _remove_if_empty(path)


def _acquire_lock(path: str, on_progress: Callable[[str], None]) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    is_waiting = False
    while True:
        lock = os.open(path, flags, 0o600)  # anew for each attempt: its holder may remove the file
        if _try_lock(lock):
            return lock
        os.close(lock)
        if not is_waiting:
            on_progress("waiting for another build or removal to end")
            is_waiting = True
        check_cancelled()
        time.sleep(_TRY_AGAIN_S)


def _try_lock(lock: int) -> bool:
    """False while another process holds the lock, and for a file that its holder has removed:
    a lock on that one would exclude no other process."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(lock).st_nlink > 0


def _remove_if_empty(path: str) -> None:
    """Remove the folder of a template without environments, and its lock; only by its holder."""
    with suppress(OSError):
        os.rmdir(path)
        os.unlink(f"{path}.lock")


def _remove_unfinished(folder: int) -> None:
    for each in os.listdir(folder):
        if each.startswith(_UNFINISHED):
            remove_tree(folder, each, max_entries=_MAX_ENTRIES)


def _sweep_other_templates(home: str) -> None:
    """Remove the remains of killed builds of other templates: if the same request is never made
    again, nothing else removes or lists them."""
    for folder in glob(os.path.join(escape(home), "templates", "*", f"{_UNFINISHED}*")):
        path = os.path.dirname(folder)
        with (
            suppress(OSError),  # unreadable, or removed meanwhile
            closing_fd(os.open(f"{path}.lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)) as lock,
            closing_fd(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)) as place,
        ):
            if _try_lock(lock):
                _remove_unfinished(place)
                _remove_if_empty(path)


def _drop_programs(staging: int) -> None:
    """Remove scripts, whose first line names a Python, manual pages, and the lock file of uv."""
    with closing_fd(os.open(SITE, os.O_RDONLY | os.O_DIRECTORY, dir_fd=staging)) as site:
        for each in ("bin", "share"):
            with suppress(FileNotFoundError, NotADirectoryError):
                remove_tree(site, each)
        with suppress(OSError):
            os.unlink(".lock", dir_fd=site)


def _installed_packages(site: str, locked: Sequence[Package]) -> list[Package]:
    """The packages of the tree, by the names of their metadata folders. The lock may have more, for
    other systems; the tree may not."""
    found = []
    for each in sorted(os.listdir(site)):
        if not each.endswith(_METADATA):
            continue
        name, _, version = each.removesuffix(_METADATA).partition("-")
        found.append(Package(normalized(name), version))
    known = {each.name for each in locked}
    extra = [each.name for each in found if each.name not in known]
    if extra or not found:
        raise CellwallError(
            "the installed packages are not those of the lock",
            hint="Build the template again.",
            code="CW-TEMPLATE-FAILED",
            detail=", ".join(extra)[:_MAX_DETAIL],
        )
    return found


def _make_readable(site: str) -> int:
    """Make files readable to every user inside, whatever the umask; returns the size in bytes."""
    size = 0
    for folder, _, files in os.walk(site):
        os.chmod(folder, 0o755)  # noqa: S103  # read-only inside, below a 0700 directory here
        for each in files:
            path = os.path.join(folder, each)
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                os.chmod(path, 0o644)
                size += status.st_size
    return size


def _write_manifest(
    staging: str, python: TargetPython, *, size_bytes: int, packages: Sequence[Package]
) -> None:
    listed = [(each.name, each.version) for each in packages]
    note = {"python": python.version, "size_bytes": size_bytes, "packages": listed}
    with open(os.path.join(staging, _MANIFEST), "x", encoding="utf-8") as file:
        json.dump(note, file)


@contextmanager
def _state_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise no_space() from error
        raise CellwallError(
            "the environment's folder cannot be written",
            hint="Check the permissions of the Cellwall state folder.",
            code="CW-STATE",
            detail=str(error),
        ) from error


def no_space() -> CellwallError:
    """The same error for a disk that is full before or during a build."""
    return CellwallError(
        "there is not enough space for the environment",
        hint="Free about 600 MB where the Cellwall state folder is, or set CELLWALL_HOME.",
        code="CW-TEMPLATE-NO-SPACE",
    )
