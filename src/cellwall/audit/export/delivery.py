"""Reads records, sends them to a target in batches, and tracks where to continue.

Every record is delivered at least once: only confirmed batches count, and after a failure the
reported number is that of the last record before the failed batch. A record that a receiver gets
twice has the same number and id.
"""

# ruff: noqa: PLC0415  # late imports: each sink has imports of its own, and only one is needed

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

from cellwall.audit.export.sinks import ExportSink, NotDelivered, Receipt, open_file_sink
from cellwall.audit.export.target import ExportForm, ExportTarget, Transport, target_error
from cellwall.audit.files import io_failure, log_altered
from cellwall.audit.records import MAX_RECORD_BYTES, BadRecord, parse_link, parse_record
from cellwall.audit.search import FoundRecord, Query, match_line
from cellwall.audit.segments import BadSegment, Segment, list_segments, open_records, read_lines
from cellwall.core.errors import AuditFailed, BadInput, CellwallError
from cellwall.core.ports import SessionKeysPort

_MAX_NOTICES = 16


@dataclass(frozen=True, slots=True)
class Exported:
    """How far an export came. `last_seq` is where the next one continues, even if nothing was
    sent."""

    last_seq: int
    first_seq: int | None = None
    """The first record sent; higher than expected if retention deleted records before the
    export."""
    sent: int = 0
    """Delivered and not rejected by the receiver."""
    rejected: int = 0
    """Of the records delivered by OTLP, those the receiver reported as rejected."""
    cut: int = 0
    """Sent by syslog with only the start of the line, and marked as truncated."""
    notices: tuple[str, ...] = ()
    """Messages for the operator, including escaped text from the receiver."""

    def plus(self, batch: Sequence[FoundRecord], receipt: Receipt) -> Exported:
        is_news = receipt.notice and receipt.notice not in self.notices
        notices = (*self.notices, receipt.notice) if is_news else self.notices
        return Exported(
            last_seq=batch[-1].record["seq"],
            first_seq=self.first_seq or batch[0].record["seq"],
            sent=self.sent + len(batch) - receipt.rejected,
            rejected=self.rejected + receipt.rejected,
            cut=self.cut + receipt.cut,
            notices=notices[:_MAX_NOTICES],
        )


class ExportFailed(CellwallError):
    """An export that did not finish; `exported` says how far it came."""

    default_code = "CW-EXPORT"

    def __init__(
        self, message: str, *, exported: Exported, hint: str, code: str, detail: str = ""
    ) -> None:
        go_on = f"Then go on after record {exported.last_seq} (--after {exported.last_seq})."
        super().__init__(message, hint=f"{hint} {go_on}", code=code, detail=detail)
        self.exported = exported


def export_records(
    found: Iterator[FoundRecord],
    target: ExportTarget,
    *,
    after_seq: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Exported:
    """Send records, oldest first, to the target; `progress` gets the number sent so far.

    Raises `BadInput` if the target cannot be used at all, `ExportFailed` if the export stops
    midway.
    """
    exported = Exported(last_seq=after_seq)
    try:
        with closing(_open_sink(target)) as sink:
            for batch in _batches(map_reader_errors(found), sink, after_seq):
                exported = exported.plus(batch, sink.send(batch))
                if progress is not None:
                    progress(exported.sent)
    except (NotDelivered, AuditFailed) as problem:
        raise ExportFailed(
            problem.message,
            exported=exported,
            hint=problem.hint,
            code=problem.code,
            detail=problem.detail,
        ) from None
    return exported


def _open_sink(target: ExportTarget) -> ExportSink:
    if target.form is ExportForm.SYSLOG:
        from cellwall.audit.export.syslog import SyslogSink

        return SyslogSink(target)
    if target.address.transport in (Transport.HTTP, Transport.HTTPS):
        from cellwall.audit.export.otlp_http import OtlpHttpSink

        return OtlpHttpSink(target)
    return open_file_sink(target)


def _batches(
    found: Iterator[FoundRecord], sink: ExportSink, after_seq: int
) -> Iterator[list[FoundRecord]]:
    batch: list[FoundRecord] = []
    size_bytes, last = 0, 0
    try:
        for each in found:
            seq = each.record["seq"]
            if seq <= last:
                # With newest first, continuing after the last number would skip all unsent records.
                raise BadInput("records must be exported in order, oldest first")
            last = seq
            if seq <= after_seq:
                continue
            if batch and size_bytes + len(each.line) > sink.max_bytes:
                yield batch
                batch, size_bytes = [], 0
            batch.append(each)
            size_bytes += len(each.line)
            if len(batch) == sink.max_records:
                yield batch
                batch, size_bytes = [], 0
    except AuditFailed:
        if batch:  # send the valid records before raising
            yield batch
        raise
    if batch:
        yield batch


_NUMBER = re.compile(rb"[0-9]{1,20}\n?")
_MAX_BYTES = 64


class Bookmark:
    """An open bookmark file; locked, so that two exports do not send the same records at once."""

    def __init__(self, file: int) -> None:
        self._file = file
        text = os.pread(file, _MAX_BYTES, 0)
        if text and _NUMBER.fullmatch(text) is None:
            raise target_error(
                "the bookmark file contains no number", "Give a file of its own for it."
            )
        self.seq = int(text or b"0")
        """Continue after this record; 0 in a new bookmark."""

    def move(self, seq: int) -> None:
        """Durable when it returns. Written in place with a fixed length: there is no partial
        state, and the lock stays with the file."""
        try:
            os.pwrite(self._file, b"%020d\n" % seq, 0)
            os.fsync(self._file)
        except OSError:
            raise CellwallError(
                "the bookmark cannot be moved",
                hint=f"Check its disk. The records were sent: go on after record {seq}.",
                code="CW-EXPORT-BOOKMARK",
            ) from None
        self.seq = seq


@contextmanager
def open_bookmark(path: str) -> Iterator[Bookmark]:
    """Create or open a bookmark, mode 0600; raises `BadInput` if it is in use or not a bookmark.

    After `ExportFailed`, move it to that error's `last_seq` as well, so that nothing is sent twice
    needlessly.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(path, flags, 0o600)
    except OSError:
        raise target_error(
            "the bookmark file cannot be used",
            "Check that its folder is there, that it is yours, and that it is no link.",
        ) from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise target_error("the bookmark is not a plain file", "Give a file of its own for it.")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise target_error(
                "another export uses this bookmark", "Wait until that one has ended."
            ) from None
        yield Bookmark(file)
    finally:
        os.close(file)


def records_after(
    directory: str,
    query: Query | None = None,
    *,
    after_seq: int = 0,
    keys: SessionKeysPort | None = None,
) -> Iterator[FoundRecord]:
    """All matching records with a number above `after_seq`, oldest first; an altered record raises.
    With `keys`, sealed bodies are decrypted; without, each line is the stored one.

    Segments that end before the number are not opened; at most one block is held in memory.
    """
    query = query or Query()
    last = 0
    try:
        segments = [each for each in list_segments(directory) if each.has_records]
        for place, segment in enumerate(segments):
            following = segments[place + 1].first if place + 1 < len(segments) else None
            if following is not None and following <= after_seq + 1:
                continue
            last = max(last, segment.first - 1)
            for line in _lines(segment, is_last=following is None):
                last = parse_link(line).seq
                if last <= after_seq:
                    continue
                found = match_line(query, parse_record(line), line, segment, keys)
                if found is not None:
                    yield found
    except FileNotFoundError:
        if os.path.isdir(directory):
            raise log_altered("the audit log was altered: a segment is gone") from None
    except (BadRecord, BadSegment) as problem:
        raise log_altered(f"the audit log was altered: {problem}") from None
    except OSError as error:
        raise io_failure(error) from None
    if last < after_seq:
        # The log was restarted, or the number belongs to another log. Continuing silently would
        # export nothing until the new log has grown past the old number.
        raise BadInput(
            f"the audit log ends at record {last}, before record {after_seq}",
            hint="Check that it is the same log; to export all of it, start after 0.",
            code="CW-EXPORT-AHEAD",
        )


def _lines(segment: Segment, *, is_last: bool) -> Iterator[bytes]:
    """The complete lines. At the end of the log, a line may be incomplete because it is being
    written."""
    for line, is_whole in _read(segment):
        if is_whole:
            yield line
        elif not is_last or len(line) > MAX_RECORD_BYTES:
            raise BadSegment("a segment ends in the middle of a record")


def _read(segment: Segment) -> Iterator[tuple[bytes, bool]]:
    # A segment sealed since the listing may be compressed by now, under another name.
    with suppress(FileNotFoundError):
        with open_records(segment) as file:
            yield from read_lines(file)
        return
    now = [each for each in list_segments(segment.directory) if each.first == segment.first]
    if not now or not now[0].has_records:
        raise BadSegment("a segment is gone")
    with open_records(now[0]) as file:
        yield from read_lines(file)


def map_reader_errors(found: Iterator[FoundRecord]) -> Iterator[FoundRecord]:
    """The same records; errors of the reader become errors of the log."""
    try:
        yield from found
    except BadSegment as problem:
        raise log_altered(f"the audit log was altered: {problem}") from None
    except OSError as error:
        raise io_failure(error) from None
