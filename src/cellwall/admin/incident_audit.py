"""The part of the audit log that a bundle contains, so that it verifies offline (AUD-4, OBS-3).

Seals and checkpoints are copied of all segments, and records from the first segment of the range
on: a checkpoint stands for the segments before it. Checkpoints are read first: the log grows while
it is copied, and no checkpoint may cover more records than there are.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass

from cellwall.admin.bundle_file import BadBundle, add_file, add_member
from cellwall.audit.segments import (
    CHECKPOINTS,
    PACKED,
    RECORDS,
    SEAL,
    Segment,
    end_of_records,
    list_segments,
    open_plain,
)
from cellwall.audit.verify import VerifyReport, verify
from cellwall.core.notes import PublicKey
from cellwall.core.scratch import scratch_folder
from cellwall.sandbox.files.descriptors import closing_fd, write_all

FOLDER = "audit/"
_NAME = re.compile(r"audit/([0-9]{16}\.(?:jsonl|jsonl\.zst|checkpoints|seal))")
_MAX_FILES = 100_000


@dataclass(frozen=True, slots=True)
class CopiedLog:
    """What was copied."""

    since: int
    """The number of the first copied record: where a verification begins."""
    segments: int


def copy_log(payload: tarfile.TarFile, directory: str, *, first_seq: int) -> CopiedLog:
    """Copy the segments from the one with this record on."""
    segments = list_segments(directory)
    start = max((at for at, each in enumerate(segments) if each.first <= first_seq), default=0)
    for segment in segments:
        for part in (CHECKPOINTS, SEAL):
            if part in segment.parts:
                with open_plain(segment.path(part)) as file:
                    add_member(payload, _member(segment, part), file.read())
    # A segment without a seal is not signed yet, and is verified with the one after it.
    while start > 0 and SEAL not in segments[start - 1].parts:
        start -= 1
    for segment in segments[start:]:
        for part in (PACKED, RECORDS):
            if part in segment.parts:
                _copy_records(payload, segment, part)
                break
    return CopiedLog(segments[start].first if segments else 1, len(segments) - start)


def _copy_records(payload: tarfile.TarFile, segment: Segment, part: str) -> None:
    with closing_fd(os.open(segment.path(part), os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
        is_growing = part == RECORDS and SEAL not in segment.parts
        size = os.fstat(descriptor).st_size
        if is_growing:
            size = min(size, _end_of_line(descriptor, end_of_records(descriptor)))
        with os.fdopen(os.dup(descriptor), "rb") as file:
            file.seek(0)
            add_file(payload, _member(segment, part), file, size)


def _end_of_line(descriptor: int, end: int) -> int:
    """Where the last complete record ends: another one may be half written."""
    step = 64 * 1024
    at = end
    while at > 0:
        begin = max(0, at - step)
        found = os.pread(descriptor, at - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        at = begin
    return 0


def _member(segment: Segment, part: str) -> str:
    return FOLDER + os.path.basename(segment.path(part))


class ExtractedLog:
    """The log of a bundle in a folder of its own, as long as it is verified."""

    def __init__(self) -> None:
        self._folder = scratch_folder("cellwall-incident-")
        self._count = 0

    def take(self, payload: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Write one file of the log; its name is one of the few that a log has."""
        match = _NAME.fullmatch(member.name)
        self._count += 1
        if match is None or not member.isreg() or self._count > _MAX_FILES:
            raise BadBundle("its audit log has a file of another kind")
        source = payload.extractfile(member) or io.BytesIO()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        place = os.path.join(self._folder.name, match[1])
        try:
            with closing_fd(os.open(place, flags, 0o600)) as file:
                while part := source.read(1024 * 1024):
                    write_all(file, part)
        except FileExistsError:
            raise BadBundle("its audit log has a file twice") from None

    def verify(self, keys: Sequence[PublicKey], *, since: int) -> VerifyReport:
        return verify(self._folder.name, keys, since=since if since > 1 else None)

    def close(self) -> None:
        self._folder.cleanup()
