"""The root file system of containers, as an image of one small layer. Pure.

The image holds directories, links, a few files of /etc, the interpreter's modules and
`cellwall-cell`. The host's /usr is mounted read-only, as in a native cell, so that code finds the
same programs. Its tag is a digest of the content: another version of Cellwall makes another image.
"""

from __future__ import annotations

import hashlib
import io
import tarfile

from cellwall.core.network import NETWORK_INSIDE
from cellwall.core.skills import SKILLS_INSIDE
from cellwall.sandbox import languages
from cellwall.sandbox.linux import jobs, visible_host

CELL_INSIDE = "/.cellwall/cell"
JOIN_INSIDE = "/.cellwall/join"
# Podman looks for a name without a host in registries.
_REPOSITORY = "localhost/cellwall-root"
FILLED_BY_INIT = ("/code", SKILLS_INSIDE, NETWORK_INSIDE)
"""Memory file systems that init fills before any program runs, and that Landlock then closes."""
WRITABLE_BY_INIT = frozenset({"/tmp", "/workspace", *FILLED_BY_INIT})  # inside
_DIRECTORIES = (
    "/dev",
    "/etc",
    "/etc/ssl",
    "/proc",
    "/sys",
    "/tmp",
    "/code",
    "/workspace",
    "/opt",
    "/.cellwall",
    "/.cellwall/__pycache__",
    "/.cellwall/empty",
    JOIN_INSIDE,
    NETWORK_INSIDE,
    SKILLS_INSIDE,
    visible_host.PROGRAMS_INSIDE,
)


def root_archive(root: visible_host.HostRoot, cell_program: bytes, *, home: str) -> bytes:
    """The tar archive of the image; equal input gives equal bytes."""
    directories = {*_DIRECTORIES, *root.binds}
    files = {**jobs.base_files(home=home), **languages.inside_files(), CELL_INSIDE: cell_program}
    # Processor times of the host: cannot be mounted over the container's /proc.
    del files[visible_host.PROC_STAT]
    for path in [*files, *(name for _target, name in root.links)]:
        directories |= set(_parents(path))
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(directories):
            # A runtime gives a memory file system the mode of the directory below it.
            mode = 0o1777 if path in WRITABLE_BY_INIT else 0o755
            archive.addfile(_entry(path, tarfile.DIRTYPE, mode))
        for link, name in sorted(root.links, key=lambda pair: pair[1]):
            entry = _entry(name, tarfile.SYMTYPE, 0o777)
            entry.linkname = link
            archive.addfile(entry)
        for path, content in sorted(files.items()):
            entry = _entry(path, tarfile.REGTYPE, 0o555 if path == CELL_INSIDE else 0o444)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def image_name(archive: bytes) -> str:
    """Repository and tag."""
    return f"{_REPOSITORY}:{hashlib.sha256(archive).hexdigest()[:32]}"


def _entry(path: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.type, entry.mode = kind, mode
    return entry


def _parents(path: str) -> list[str]:
    parts = path.strip("/").split("/")[:-1]
    return ["/" + "/".join(parts[: end + 1]) for end in range(len(parts))]
