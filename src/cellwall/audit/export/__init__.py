"""Exports the audit log: JSON Lines, CSV, syslog and OTLP (AUD-4).

`export_records` sends the records of an iterator to an `ExportTarget` and reports how far it came;
`records_after` is the iterator for an export that continues an earlier one, and a `Bookmark` stores
where that one ended.
"""

from cellwall.audit.export.delivery import (
    Bookmark,
    Exported,
    ExportFailed,
    export_records,
    open_bookmark,
    records_after,
)
from cellwall.audit.export.target import ExportForm, ExportTarget, Framing, parse_headers

__all__ = [
    "Bookmark",
    "ExportFailed",
    "ExportForm",
    "ExportTarget",
    "Exported",
    "Framing",
    "export_records",
    "open_bookmark",
    "parse_headers",
    "records_after",
]
