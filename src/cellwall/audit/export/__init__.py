"""Hands the record to others: JSON Lines, CSV, syslog and OTLP (AUD-4).

`export_records` sends what an iterator finds to an `ExportTarget` and tells how far it came;
`records_after` is the iterator for whoever goes on where the last export ended, and a `Bookmark`
remembers where that was.
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
