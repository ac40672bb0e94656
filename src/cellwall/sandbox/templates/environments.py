"""Environments of templates: directories of packages, built once, shown read-only inside (LANG-2).

$CELLWALL_HOME/templates/NAME/DIGEST/site-packages    the packages
$CELLWALL_HOME/templates/NAME/DIGEST/built.json       what they are; written last
$CELLWALL_HOME/templates/NAME/.unfinished-…           a build or a removal under way, or its remains
$CELLWALL_HOME/templates/NAME.lock                    held during a build or a removal

DIGEST stands for the requirements, the Python and the machine: another one is another environment.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from glob import escape, glob

from cellwall.core.cancelling import check_cancelled
from cellwall.core.errors import CellwallError
from cellwall.core.packages import Package, package_of
from cellwall.sandbox import languages
from cellwall.sandbox.files.descriptors import closing_fd, remove_tree
from cellwall.sandbox.templates import definitions, installer, wheelhouse

_NEEDED_BYTES = 600_000_000  # wheels, packages and bytecode together, with some room
_TRY_AGAIN_S = 0.1
_MAX_ENTRIES = 10_000_000
_UNFINISHED = ".unfinished-"
_SITE = "site-packages"
_MANIFEST = "built.json"
_MAX_MANIFEST_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Environment:
    """One environment on disk."""

    name: str
    path: str
    python: str
    size_bytes: int
    packages: tuple[tuple[str, str], ...]
    is_new: bool = False
    """Whether this very call built it."""


@dataclass(frozen=True, slots=True)
class TargetPython:
    """The Python that runs inside, as the host can start it."""

    path: str
    version: str


def environment_of(home: str, name: str) -> str | None:
    """The directory of packages of a template, if it is built for this Python and machine."""
    path = os.path.join(_place(home, name), _SITE)
    return path if os.path.isdir(path) else None


def find(home: str, name: str) -> Environment | None:
    """The same with what is known about it."""
    place = _place(home, name)
    try:
        with open(os.path.join(place, _MANIFEST), "rb") as file:
            note = json.loads(file.read(_MAX_MANIFEST_BYTES))
        packages = tuple((str(package), str(version)) for package, version in note["packages"])
        site = os.path.join(place, _SITE)
        return Environment(name, site, str(note["python"]), int(note["size_bytes"]), packages)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
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
    on_progress: Callable[[str], None],
    may_install: MayInstall,
    request: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Environment:
    """Build the environment of a template unless it is there.

    `request` defines the template, or defines it anew; without it the template is known.

    (1) Only one builds or removes at a time; the others wait.
    (2) What an interrupted build or removal left is removed.
    (3) The packages are unpacked into a directory whose name nobody takes for an environment: ours
        by the hashes that we ship; those of a request are fetched, looked at and hashed first, and
        `may_install` is asked about each of them.
    (4) The bytecode is written, and what code inside has no use for or must not see is dropped.
    (5) When all of it is on the disk, it gets its name, in one step.
    """
    asked = _requirements_for(home, name, request)
    python = interpreter()
    is_shipped = name in definitions.SHIPPED
    if is_shipped:
        definitions.check_wheels(python.version)
    with _state_errors(), _lock_template(home, name, on_progress) as (folder, lock):  # (1)
        known = digest(asked, python)
        if os.path.exists(os.path.join(_folder(home, name), known, _MANIFEST)):
            _define(home, name, request)
            there = find(home, name)
            assert there is not None  # noqa: S101  # the lock is ours
            return there
        _remove_unfinished(folder)  # (2)
        _sweep_other_templates(home)
        if (free := os.fstatvfs(folder)).f_bavail * free.f_frsize < _NEEDED_BYTES:
            raise installer.no_space()
        unfinished = _UNFINISHED + secrets.token_hex(8)
        os.mkdir(unfinished, 0o700, dir_fd=folder)
        try:
            staging = os.path.join(_folder(home, name), unfinished)
            site = os.path.join(staging, _SITE)
            work = _Installation(
                staging,
                python.path,
                environ=os.environ if environ is None else environ,
                on_progress=on_progress,
                lock=lock,
            )
            if is_shipped:  # (3)
                pins = asked
                may_install(definitions.pinned(pins))
                work.install_pinned(pins, site)
            else:
                pins = work.install_request(asked, site, may_install)
            on_progress("compiling")
            with closing_fd(os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as top:
                remove_tree(top, "tmp")
                _drop_programs(top)  # (4)
            installer.precompile(site, python=python.path)
            _write_manifest(staging, python, size_bytes=_make_readable(site), pins=pins)
            os.sync()  # (5)
            _define(home, name, request)
            os.rename(unfinished, known, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                remove_tree(folder, unfinished, max_entries=_MAX_ENTRIES)
            raise
        built = find(home, name)
        assert built is not None  # noqa: S101  # it was just made, and the lock is ours
        return replace(built, is_new=True)


def _requirements_for(home: str, name: str, request: Sequence[str]) -> bytes:
    if request:
        definitions.check_new_name(name, request)
        return definitions.as_text(request)
    return definitions.requirements(home, name)


def _define(home: str, name: str, request: Sequence[str]) -> None:
    if request:
        definitions.write(home, name, request)


def count(home: str, name: str) -> int:
    """How many environments a template has, for whichever Python and packages."""
    definitions.check_name(home, name)
    try:
        return sum(not each.startswith(_UNFINISHED) for each in os.listdir(_folder(home, name)))
    except FileNotFoundError:
        return 0


def remove(home: str, name: str, *, on_progress: Callable[[str], None]) -> int:
    """Remove every environment of a template, those of earlier versions too; returns how many."""
    definitions.check_name(home, name)
    with _state_errors(), _lock_template(home, name, on_progress) as (folder, _):
        definitions.forget(home, name)
        found = [each for each in os.listdir(folder) if not each.startswith(_UNFINISHED)]
        for each in found:
            # First it stops being one: half an environment must never be taken for a whole one.
            os.rename(each, _UNFINISHED + each, src_dir_fd=folder, dst_dir_fd=folder)
        _remove_unfinished(folder)
    return len(found)


def interpreter() -> TargetPython:
    """The Python that runs inside."""
    return TargetPython(languages.python_outside(), languages.python_version())


def digest(requirements: bytes, python: TargetPython) -> str:
    """The name of the directory that belongs to these packages for this Python."""
    parts = (requirements, python.version.encode(), platform.machine().encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def _folder(home: str, name: str) -> str:
    return os.path.join(home, "templates", name)


def _place(home: str, name: str) -> str:
    return os.path.join(
        _folder(home, name), digest(definitions.requirements(home, name), interpreter())
    )


@contextmanager
def _lock_template(
    home: str, name: str, on_progress: Callable[[str], None]
) -> Iterator[tuple[int, int]]:
    """The template's folder and the lock on the template, as descriptors."""
    path = _folder(home, name)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with closing_fd(_acquire_lock(f"{path}.lock", on_progress)) as lock:
        os.makedirs(path, mode=0o700, exist_ok=True)
        try:
            with closing_fd(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
                yield folder, lock
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
    a lock on that one would exclude nobody."""
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
    """What killed builds of other templates left: a request that nobody makes again has no other
    end, and no list shows it."""
    for folder in glob(os.path.join(escape(home), "templates", "*", f"{_UNFINISHED}*")):
        path = os.path.dirname(folder)
        with (
            suppress(OSError),  # somebody else's work, or gone meanwhile
            closing_fd(os.open(f"{path}.lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)) as lock,
            closing_fd(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)) as place,
        ):
            if _try_lock(lock):
                _remove_unfinished(place)
                _remove_if_empty(path)


def _drop_programs(staging: int) -> None:
    """Scripts name the host's Python in their first line; manual pages nobody reads inside."""
    with closing_fd(os.open(_SITE, os.O_RDONLY | os.O_DIRECTORY, dir_fd=staging)) as site:
        for each in ("bin", "share"):
            with suppress(FileNotFoundError, NotADirectoryError):
                remove_tree(site, each)


def _make_readable(site: str) -> int:
    """Let every user inside read it, whatever our umask was; returns the size in bytes."""
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


def _write_manifest(staging: str, python: TargetPython, *, size_bytes: int, pins: bytes) -> None:
    packages = [(each.name, each.version) for each in definitions.pinned(pins)]
    note = {"python": python.version, "size_bytes": size_bytes, "packages": packages}
    with open(os.path.join(staging, _MANIFEST), "x", encoding="utf-8") as file:
        json.dump(note, file)


@contextmanager
def _state_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise installer.no_space() from error
        raise CellwallError(
            "the environment's folder cannot be written",
            hint="Check the permissions of the Cellwall state folder.",
            code="CW-STATE",
            detail=str(error),
        ) from error


MayInstall = Callable[[Sequence[Package]], None]
"""Asked about packages before anything of them is unpacked; raises for one that must not be."""


@dataclass(frozen=True, slots=True)
class _Installation:
    """Of one build, in a directory of its own."""

    staging: str
    python: str
    environ: Mapping[str, str]
    on_progress: Callable[[str], None]
    lock: int

    def install_pinned(self, pins: bytes, site: str) -> None:
        """Packages whose versions and hashes we ship."""
        installer.install(
            self._write_file("requirements.txt", pins),
            site,
            candidates=installer.installer_candidates(self.python),
            temporary=self._temporary(),
            environ=self.environ,
            on_progress=self.on_progress,
            limits=installer.file_limit(self.staging),
            held_fds=(self.lock,),
        )

    def install_request(self, asked: bytes, site: str, may_install: MayInstall) -> bytes:
        """Packages that were asked for, and all that they need; returns their pins."""
        may_install([package_of(line) for line in asked.decode().splitlines()])
        self.on_progress("resolving")
        wheel_dir = os.path.join(self._temporary(), "wheels")
        os.mkdir(wheel_dir, 0o700)
        found = wheelhouse.fetch(
            self._write_file("request.txt", asked),
            wheel_dir,
            python=self.python,
            temporary=self._temporary(),
            environ=self.environ,
            on_progress=self.on_progress,
            held_fds=(self.lock,),
        )
        may_install(found)
        pins = wheelhouse.pins(wheel_dir)
        wheelhouse.install(
            self._write_file("requirements.txt", pins),
            site,
            wheel_dir=wheel_dir,
            only_in=self.staging,
            python=self.python,
            temporary=self._temporary(),
            on_progress=self._tell_unpacking,  # which wheels there are has been told
            held_fds=(self.lock,),
        )
        return pins

    def _tell_unpacking(self, told: str) -> None:
        if told == "unpacking":
            self.on_progress(told)

    def _temporary(self) -> str:
        path = os.path.join(self.staging, "tmp")
        os.makedirs(path, mode=0o700, exist_ok=True)
        return path

    def _write_file(self, name: str, content: bytes) -> str:
        path = os.path.join(self.staging, name)
        with open(path, "xb") as file:
            file.write(content)
        return path
