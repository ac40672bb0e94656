"""Reads a zip archive of OSV records as untrusted data: bounded in members, bytes and memory."""

from __future__ import annotations

import io
import lzma
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

from cellwall.core.errors import BadInput, CellwallError
from cellwall.packages.names import Ecosystem
from cellwall.packages.osv import MAX_RECORD_BYTES, Advisory, BadAdvisory, parse_advisory

MAX_RECORDS = 1_000_000
MAX_ARCHIVE_BYTES = 16 * 2**30
MAX_DIRECTORY_BYTES = 64 * 2**20
"""The list of members of a zip archive, which `zipfile` reads whole before anything is counted."""
MAX_RATIO = 100
"""Of content to archive; advisories are below 10."""
_SMALL_ARCHIVE_BYTES = 256 * 2**20
"""Content of this size is read at any ratio."""
_SAMPLE = 500


class FeedRefused(CellwallError):
    """An archive of advisories is damaged or suspicious; the store is unchanged."""

    default_code = "CW-FEED"


def read_archive(
    path: str, counts: list[int], progress: Callable[[int, int], None] | None
) -> Iterator[Advisory]:
    """The advisories about PyPI and npm; `counts` are those read, withdrawn and unreadable."""
    try:
        with _BoundedFile(io.FileIO(path)) as file, zipfile.ZipFile(file) as archive:
            members = [each for each in archive.infolist() if each.filename.endswith(".json")]
            total = sum(each.file_size for each in members)
            is_bomb = total > max(_SMALL_ARCHIVE_BYTES, MAX_RATIO * os.path.getsize(path))
            if len(members) > MAX_RECORDS or total > MAX_ARCHIVE_BYTES or is_bomb:
                raise FeedRefused(
                    f"the archive is too large: {len(members):,} records, {total:,} bytes",
                    code="CW-FEED-TOO-LARGE",
                )
            for number, member in enumerate(members, 1):
                if progress is not None:
                    progress(number, len(members))
                yield from _read_member(archive, member, counts)
    except FileNotFoundError:
        raise BadInput("there is no such archive", code="CW-USAGE") from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        OSError,
        EOFError,
        ValueError,  # of a directory whose offsets lie
        RuntimeError,  # encrypted
        NotImplementedError,
    ) as error:
        raise FeedRefused(
            f"the archive cannot be read ({type(error).__name__})",
            hint="Download the archive again.",
            detail=repr(error),
        ) from None


def main_ecosystem(path: str) -> Ecosystem | None:
    """The registry that most of the first records are about.

    osv.dev names the archive of every registry `all.zip`: the file name does not say which it is.
    """
    named = Counter(
        affected.ecosystem
        for advisory in islice(read_archive(path, [0, 0, 0], None), _SAMPLE)
        for affected in advisory.affected
    )
    return max(named, key=lambda each: (named[each], each.value), default=None)


class _BoundedFile(io.BufferedReader):
    """Refuses one large read, which `zipfile` does for a directory of millions of members."""

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = size if size is not None and size >= 0 else self._rest()
        if wanted > MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile("the directory of the archive is too large")
        return super().read(wanted)

    def _rest(self) -> int:
        return max(0, os.fstat(self.fileno()).st_size - self.tell())


def _read_member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, counts: list[int]
) -> Iterator[Advisory]:
    with archive.open(member) as stream:
        data = stream.read(MAX_RECORD_BYTES + 1)
    try:
        advisory = parse_advisory(data)
    except BadAdvisory:
        counts[2] += 1
        return
    if advisory.is_withdrawn:
        counts[1] += 1
    elif advisory.affected:
        counts[0] += 1
        yield advisory
