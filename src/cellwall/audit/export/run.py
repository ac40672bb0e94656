"""Sends records to a target, batch by batch, and always knows from where to go on.

Every record is delivered at least once: only what surely arrived is counted, and after a failure
the number told is that of the last record before the batch that failed. What a receiver gets twice
has the same number and id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from cellwall.audit.export.address import Form, Way
from cellwall.audit.export.delivery import NotDelivered, Receipt, Sink
from cellwall.audit.export.files import open_file_sink
from cellwall.audit.export.source import mapped
from cellwall.audit.export.target import ExportTarget
from cellwall.audit.search import Found
from cellwall.core.errors import AuditFailed, BadInput, CellwallError

_MAX_NOTICES = 16


@dataclass(frozen=True, slots=True)
class Exported:
    """How far an export came. `last_seq` is where the next one goes on, even if none was sent."""

    last_seq: int
    first_seq: int | None = None
    """Of the first record sent; above the expected one if retention was quicker than the export."""
    sent: int = 0
    """Delivered, and not rejected by the receiver."""
    rejected: int = 0
    """Of those that OTLP delivered, what the receiver told us it threw away."""
    cut: int = 0
    """Sent by syslog with only the start of the line, and marked as such."""
    notices: tuple[str, ...] = ()
    """What an operator should know; words of the receiver among them, made visible."""

    def plus(self, batch: Sequence[Found], receipt: Receipt) -> Exported:
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
    """An export that did not come to its end; `exported` says how far it came."""

    default_code = "CW-EXPORT"

    def __init__(
        self, message: str, *, exported: Exported, hint: str, code: str, detail: str = ""
    ) -> None:
        go_on = f"Then go on after record {exported.last_seq} (--after {exported.last_seq})."
        super().__init__(message, hint=f"{hint} {go_on}", code=code, detail=detail)
        self.exported = exported


def export_records(
    found: Iterator[Found],
    target: ExportTarget,
    *,
    after_seq: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Exported:
    """Send what is found, oldest first, to the target; `progress` hears how many were sent so far.

    `BadInput` if the target cannot be used at all, `ExportFailed` if it ends on the way.
    """
    exported = Exported(last_seq=after_seq)
    try:
        with closing(_open_sink(target)) as sink:
            for batch in _batches(mapped(found), sink, after_seq):
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


def _open_sink(target: ExportTarget) -> Sink:
    # Each brings imports of its own, and only one is needed.
    if target.form is Form.SYSLOG:
        from cellwall.audit.export.syslog import SyslogSink  # noqa: PLC0415

        return SyslogSink(target)
    if target.address.way in (Way.HTTP, Way.HTTPS):
        from cellwall.audit.export.otlp_http import OtlpHttpSink  # noqa: PLC0415

        return OtlpHttpSink(target)
    return open_file_sink(target)


def _batches(found: Iterator[Found], sink: Sink, after_seq: int) -> Iterator[list[Found]]:
    batch: list[Found] = []
    size_bytes, last = 0, 0
    try:
        for each in found:
            seq = each.record["seq"]
            if seq <= last:
                # Newest first, the number to go on from would leave out all that was not sent yet.
                raise BadInput("an export is of records in their order, the oldest first")
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
        if batch:  # what is sound goes out before anybody hears of what is not
            yield batch
        raise
    if batch:
        yield batch
