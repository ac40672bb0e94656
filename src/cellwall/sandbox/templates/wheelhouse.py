"""Fetches the wheels of a request with their dependencies, and inspects each before any is used.

(1) pip downloads wheels, and nothing else, into an empty folder. It resolves dependencies, too, and
    an index may answer with the URL of a repository or a source archive (PEP 508), to which
    `--only-binary` does not apply: pip would build it, on the host. So pip runs under an audit hook
    that keeps it from starting programs, without which it cannot build. The index decides how
    much it sends, and pip accepts all of it: files, memory, time and disk have limits.
(2) Each wheel is inspected: dependencies by URL, paths of its files and scripts, its size.
(3) The hashes of the inspected files become pins; the installer accepts no other file, and can
    write only in the directory of the build.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import resource
import struct
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from email.parser import BytesHeaderParser
from pathlib import PurePosixPath

from cellwall.core.errors import CellwallError
from cellwall.core.limits import GIB, MIB
from cellwall.core.packages import Package, normalized
from cellwall.sandbox.linux.programs import stream_lines
from cellwall.sandbox.templates import installer

MAX_UNPACKED_BYTES = 8 * GIB
MAX_ENTRIES = 400_000
MAX_MEMORY_BYTES = 4 * GIB
_MAX_METADATA_BYTES = 4 * MIB
_MAX_READ_BYTES = 32 * MIB
_LINES_KEPT = 200
_WORDS = (
    *("download", "--only-binary", ":all:", "--no-input", "--progress-bar", "off"),
    *("--retries", "2", "--disable-pip-version-check"),
)
_WHEEL = re.compile(r"(?P<name>[A-Za-z0-9._]+)-(?P<version>[^-]+)(?:-\d[^-]*)?(?:-[^-]+){3}\.whl")
_PINNABLE = re.compile(r"[A-Za-z0-9.!+_]+")
_TOO_MUCH = (os.strerror(errno.EFBIG), "MemoryError", "Cannot allocate memory")
_DAMAGES = (
    *(zipfile.BadZipFile, zlib.error, struct.error),
    *(NotImplementedError, RuntimeError, ValueError, EOFError),
)
_MISSING = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]{1,100})")


def fetch(
    requirements: str,
    folder: str,
    *,
    python: str,
    temporary: str,
    environ: Mapping[str, str],
    on_progress: Callable[[str], None],
    held_fds: Sequence[int] = (),
) -> tuple[Package, ...]:
    """Download every wheel that the requirements file needs into `folder`."""
    env = installer.installer_environment(environ, temporary=temporary)
    pip = installer.find_working_installer(installer.guarded_pips(python, _WORDS), env)
    words = [*pip, "-d", folder, "-r", requirements]
    output: deque[str] = deque(maxlen=_LINES_KEPT)

    free = installer.free_bytes(folder)
    limits = {**installer.file_limit(temporary), resource.RLIMIT_AS: MAX_MEMORY_BYTES}

    def handle_line(line: str) -> None:
        output.append(line)
        if _size_of(temporary) > min(MAX_UNPACKED_BYTES, free // 2):
            raise _too_much(line)
        progress = installer.progress_of(line)
        if progress:
            on_progress(progress)

    try:
        code = stream_lines(
            words,
            env=env,
            on_line=handle_line,
            within_s=installer.INSTALL_WITHIN_S,
            held_fds=held_fds,
            limits=limits,
        )
    except TimeoutError:
        raise _failure([*output, "timed out"]) from None
    if code != 0:
        raise _failure(list(output))
    return inspect(folder)


def install(
    requirements: str,
    target: str,
    *,
    wheel_dir: str,
    only_in: str,
    python: str,
    temporary: str,
    on_progress: Callable[[str], None],
    held_fds: Sequence[int] = (),
) -> None:
    """Unpack the wheels in `wheel_dir`; nothing is written outside `only_in`."""
    # No index is used, so the user's settings for one are not needed.
    environ = {"PIP_CONFIG_FILE": os.devnull}
    words = (*installer.PIP_WORDS, "--no-cache-dir", "--no-index", "--find-links", wheel_dir)
    installer.install(
        requirements,
        target,
        candidates=installer.guarded_pips(python, words, only_in=only_in),
        temporary=temporary,
        environ=environ,
        on_progress=on_progress,
        limits={},  # their size was checked
        held_fds=held_fds,
    )


def inspect(folder: str) -> tuple[Package, ...]:
    """The packages of the wheels; raises for a wheel that must not be unpacked."""
    packages, size, entries = [], 0, 0
    for file in sorted(os.listdir(folder)):
        named = _WHEEL.fullmatch(file)
        if named is None or not _PINNABLE.fullmatch(named["version"]):
            raise _refusal("the index sent a file that is not a wheel", file)
        name = normalized(named["name"])
        try:
            with (
                _BoundedReads(os.path.join(folder, file)) as content,
                zipfile.ZipFile(content) as archive,
            ):
                inside = archive.infolist()
                _check_places(name, inside)
                _check_description(name, archive, inside)
        except _DAMAGES as error:
            raise _refusal(f"the wheel of {name} is damaged", str(error)) from None
        size += sum(each.file_size for each in inside)
        entries += len(inside)
        if size > MAX_UNPACKED_BYTES or entries > MAX_ENTRIES:
            raise _refusal(
                f"the packages are larger than {MAX_UNPACKED_BYTES // GIB} GiB or have more than "
                f"{MAX_ENTRIES} files",
                name,
            )
        packages.append(Package(name, named["version"]))
    if size > installer.free_bytes(folder):
        raise installer.no_space()
    return tuple(packages)


class _BoundedReads(io.FileIO):
    """Bounds reads: `zipfile` reads the central directory at once, whatever its size."""

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = _MAX_READ_BYTES + 1 if size is None or size < 0 else size
        data = super().read(wanted) if wanted <= _MAX_READ_BYTES + 1 else None
        if data is None or len(data) > _MAX_READ_BYTES:
            raise zipfile.BadZipFile("a part of it is too large")
        return data


def pins(folder: str) -> bytes:
    """The wheels as requirements with hashes, in the format of the shipped templates."""
    lines = []
    for file in sorted(os.listdir(folder)):
        named = _WHEEL.fullmatch(file)
        assert named is not None  # noqa: S101  # `inspect` has checked it
        with open(os.path.join(folder, file), "rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        lines.append(
            f"{normalized(named['name'])}=={named['version']} \\\n    --hash=sha256:{digest}\n"
        )
    return "".join(lines).encode()


def _check_places(name: str, inside: Sequence[zipfile.ZipInfo]) -> None:
    """pip refuses these as well; a second barrier, before pip starts."""
    for each in inside:
        parts = each.filename.replace("\\", "/").split("/")
        if each.filename.startswith(("/", "\\")) or ".." in parts or "\0" in each.filename:
            raise _refusal(f"the wheel of {name} has files outside of itself", each.filename)
        if each.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            # For other methods Python decompresses a whole part at once, whatever its stated size.
            raise _refusal(f"the wheel of {name} uses an unsupported compression", each.filename)


def _check_description(
    name: str, archive: zipfile.ZipFile, inside: Sequence[zipfile.ZipInfo]
) -> None:
    """Refuse dependencies by URL, which choose their own source, and scripts whose name is a path,
    which choose their own location."""
    for each in inside:
        parts = PurePosixPath(each.filename).parts  # `x.dist-info/./METADATA` is read as well
        kind = parts[1].lower() if len(parts) == 2 and ".dist-info" in parts[0].lower() else ""
        if kind not in {"metadata", "entry_points.txt"}:
            continue
        if each.file_size > _MAX_METADATA_BYTES:
            raise _refusal(f"the description of {name} is too large", each.filename)
        content = archive.read(each)
        if kind == "entry_points.txt":
            if has_script_path(content.decode("utf-8")):
                raise _refusal(f"{name} has a program whose name is a path", each.filename)
            continue
        # As pip parses it: a header may continue on the next line.
        needs = BytesHeaderParser().parsebytes(content).get_all("Requires-Dist", [])
        if any("@" in str(need).partition(";")[0] for need in needs):
            raise _refusal(f"{name} needs a package by its address", each.filename)


def _size_of(folder: str) -> int:
    """The size of all files in a folder; a file removed meanwhile counts nothing."""
    size = 0
    for inside, _, files in os.walk(folder):
        for each in files:
            with suppress(OSError):
                size += os.lstat(os.path.join(inside, each)).st_size
    return size


def _too_much(detail: str) -> CellwallError:
    return _refusal(
        "the package index sends more data than the limit or the free space allows",
        detail,
    )


def _refusal(message: str, detail: str) -> CellwallError:
    return CellwallError(
        message,
        hint="Nothing was installed. Ask for another version, or take the package from another "
        "index with PIP_INDEX_URL.",
        code="CW-PACKAGE-REFUSED",
        detail=detail,
    )


def _failure(lines: Sequence[str]) -> CellwallError:
    """The error for a failed download, in terms of the request."""
    text = "\n".join(lines)
    if installer.PROGRAM_REFUSED in text:
        return CellwallError(
            "a package would have to be built from source, which runs its code on the host",
            hint="Ask for a version that has a wheel for this Python.",
            code="CW-PACKAGE-SOURCE",
            detail=text[-2000:],
        )
    if any(sign in text for sign in _TOO_MUCH):
        return _too_much(text[-2000:])
    if "ResolutionImpossible" in text or "conflicting dependencies" in text:
        return CellwallError(
            "the packages need versions of each other that exclude one another",
            hint="Ask for fewer or wider versions.",
            code="CW-PACKAGE-CONFLICT",
            detail=text[-2000:],
        )
    failure = installer.failure_of(lines)
    if failure.code != "CW-TEMPLATE-NO-WHEELS":
        return failure
    missing = _MISSING.search(text)
    named = f"of {missing[1]} " if missing else ""
    return CellwallError(
        f"the package index has no wheel {named}that fits the versions and the Python inside",
        hint="Check the spelling and the versions; packages that exist as source only are not "
        "built.",
        code="CW-PACKAGE-NOT-FOUND",
        detail=failure.detail,
    )


# At the first column: for some parsers an indented line continues the one before.
_OTHER_SECTION = re.compile(r"\[[A-Za-z0-9_.\- ]+\][ \t]*")
_SCRIPTS = "_scripts"
_LINE = re.compile(r"\r\n|\r|\n")


def has_script_path(text: str) -> bool:
    """Whether `entry_points.txt` could make an installer write a script elsewhere.

    pip creates a script for each name below `[console_scripts]` and joins the name to the scripts
    folder. Up to pip 26, a name such as `/home/ann/.bashrc` is written there, on the host. pip, its
    backends and their versions parse this file differently, so it is not parsed like one of them:
    a line counts unless all of them agree that it belongs to another section.
    """
    lines = _LINE.split(text)
    if lines[-1:] == [""]:
        lines.pop()
    if lines != text.splitlines():  # a character that only some parsers take for a line end
        return True
    counts = True
    for line in lines:
        if _SCRIPTS in line.lower():
            counts = True
        elif _OTHER_SECTION.fullmatch(line):
            counts = False
        # In the whole line: parsers disagree on which part is the name.
        if counts and not line.startswith("#") and ("/" in line or "\\" in line):
            return True
    return False
