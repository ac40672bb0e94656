"""Encodes records for export: JSON Lines, CSV, or one OTLP request per line. Pure.

JSON Lines are the lines of the log; where bodies were not decrypted for the export, byte for byte:
the only form that can be verified later.

CSV (RFC 4180) is for tables. Spreadsheets run cells that begin with = + - @ as formulas, and an
agent controls the content of some cells (CSV injection); such a cell gets a leading apostrophe,
which shows it as text. Control characters in cells are escaped.

The body of an OTLP log record is the line of the record as stored, as one string, so that it can
still be verified; searchable fields are attributes. 64-bit numbers are strings, as in the JSON form
of protobuf.
"""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Protocol

from cellwall import __version__
from cellwall.audit.export.target import ExportForm, ExportTarget
from cellwall.audit.files import log_altered
from cellwall.audit.search import FoundRecord
from cellwall.core.outcomes import EventKind

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KIND = re.compile(r"[a-z]{1,32}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?Z")


class ExportSeverity(Enum):
    """The number for syslog (RFC 5424, table 2), and number and name for OTLP."""

    ERROR = (3, 17, "ERROR")
    WARNING = (4, 13, "WARN")
    NOTICE = (5, 10, "NOTICE")
    INFO = (6, 9, "INFO")

    @property
    def syslog(self) -> int:
        return self.value[0]

    @property
    def otlp(self) -> int:
        return self.value[1]

    @property
    def word(self) -> str:
        return self.value[2]


_OF_KIND = {
    EventKind.DENIAL.value: ExportSeverity.WARNING,
    EventKind.RECOVERY.value: ExportSeverity.WARNING,
    EventKind.WITNESS.value: ExportSeverity.WARNING,
    EventKind.STOP.value: ExportSeverity.WARNING,
    EventKind.INCIDENT.value: ExportSeverity.WARNING,
    EventKind.APPLY.value: ExportSeverity.NOTICE,
    EventKind.TEMPLATE.value: ExportSeverity.NOTICE,
    EventKind.SKILL.value: ExportSeverity.NOTICE,
    EventKind.CONFIG.value: ExportSeverity.NOTICE,
    EventKind.BEGIN.value: ExportSeverity.NOTICE,
    EventKind.KEY.value: ExportSeverity.NOTICE,
    EventKind.RETENTION.value: ExportSeverity.NOTICE,
    EventKind.HOLD.value: ExportSeverity.NOTICE,
    EventKind.ERASURE.value: ExportSeverity.NOTICE,
}
# A failed run is normal for an agent; a failure of Cellwall itself is not.
_OF_STATUS = {
    "error": ExportSeverity.ERROR,
    "interrupted": ExportSeverity.ERROR,
    "denied": ExportSeverity.WARNING,
    "limit": ExportSeverity.NOTICE,
}
_OF_VERDICT = {"deny": ExportSeverity.WARNING, "ask": ExportSeverity.NOTICE}


_STORED = ("seq", "time", "kind", "id", "action_id", "session_id", "principal", "interface")


@dataclass(frozen=True, slots=True)
class RecordFields:
    """One record, flat. Texts are as stored: the encoder escapes them."""

    seq: int
    time: str
    kind: str
    id: str
    action_id: str
    session_id: str
    principal: str
    interface: str
    verdict: str
    status: str

    @classmethod
    def of(cls, found: FoundRecord) -> RecordFields:
        record = found.record
        # These are put unescaped into headers and numbers; only a forged record has other values.
        if not _KIND.fullmatch(record["kind"]) or not _is_time(record["time"]):
            raise log_altered("a record of the audit log was altered: its kind or time is none")
        body: dict[str, Any] = record["body"]
        decision = body.get("decision")
        return cls(
            **{name: record[name] for name in _STORED},
            verdict=_word(decision if isinstance(decision, dict) else body, "verdict"),
            status=_word(body, "status"),
        )

    @property
    def severity(self) -> ExportSeverity:
        """The highest severity that kind, verdict and status imply."""
        severities = (
            _OF_KIND.get(self.kind, ExportSeverity.INFO),
            _OF_VERDICT.get(self.verdict, ExportSeverity.INFO),
            _OF_STATUS.get(self.status, ExportSeverity.INFO),
        )
        return min(severities, key=lambda severity: severity.syslog)

    @property
    def unix_nanoseconds(self) -> int:
        """Integer arithmetic: a float would lose the microseconds."""
        since = datetime.fromisoformat(self.time) - _EPOCH
        return since // timedelta(microseconds=1) * 1000


def escape_unprintable(text: str) -> str:
    r"""The text with `\u....` for unprintable characters: it cannot steer a terminal or end lines.

    Lone surrogates are escaped too, so the result can always be encoded as UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(ord(each)) for each in text)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _is_time(text: str) -> bool:
    try:
        return _TIME.fullmatch(text) is not None and datetime.fromisoformat(text) >= _EPOCH
    except ValueError:
        return False


def _word(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    return value if isinstance(value, str) else ""


_ATTRIBUTES = (
    *("id", "kind", "action_id", "session_id", "principal", "interface"),
    *("verdict", "status"),
)


def encode_request(batch: Sequence[FoundRecord], *, hostname: str, observed_ns: int) -> bytes:
    """One ExportLogsServiceRequest on one line, in ASCII."""
    resource = [_text("service.name", "cellwall"), _text("service.version", __version__)]
    if hostname != "-":
        resource.append(_text("host.name", hostname))
    body = {
        "resourceLogs": [
            {
                "resource": {"attributes": resource},
                "scopeLogs": [
                    {
                        "scope": {"name": "cellwall.audit", "version": __version__},
                        "logRecords": [_log_record(found, observed_ns) for found in batch],
                    }
                ],
            }
        ]
    }
    return json.dumps(body, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def _log_record(found: FoundRecord, observed_ns: int) -> dict[str, Any]:
    facts = RecordFields.of(found)
    attributes: list[dict[str, Any]] = [
        {"key": "cellwall.seq", "value": {"intValue": str(facts.seq)}}
    ]
    attributes += [
        _text(f"cellwall.{name}", text) for name in _ATTRIBUTES if (text := getattr(facts, name))
    ]
    return {
        "timeUnixNano": str(facts.unix_nanoseconds),
        "observedTimeUnixNano": str(observed_ns),
        "severityNumber": facts.severity.otlp,
        "severityText": facts.severity.word,
        "eventName": f"cellwall.audit.{facts.kind}",
        "body": {"stringValue": found.line.decode("ascii", "backslashreplace")},
        "attributes": attributes,
    }


def _text(key: str, text: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": escape_unprintable(text)}}


_FORMULA = tuple("=+-@\t\r\n＝＋－＠")  # noqa: RUF001  # some spreadsheets read the wide ones as well
COLUMNS = (*(field.name for field in fields(RecordFields)), "body")


class Encoder(Protocol):
    """Encodes batches in one form."""

    head: bytes
    """The start of a new file."""
    max_records: int

    def encode(self, batch: Sequence[FoundRecord]) -> bytes: ...


class JsonLines:
    """Each line as stored in the log."""

    head = b""
    max_records = 10_000

    def encode(self, batch: Sequence[FoundRecord]) -> bytes:
        return b"".join(found.line + b"\n" for found in batch)


class Csv:
    """A header, then one row per record; the body is one cell of JSON."""

    max_records = 10_000

    def __init__(self) -> None:
        self.head = _row(COLUMNS)

    def encode(self, batch: Sequence[FoundRecord]) -> bytes:
        return b"".join(_row(_cells(found)) for found in batch)


class OtlpLines:
    """One request per line, as OTLP file exporters write them."""

    head = b""

    def __init__(self, target: ExportTarget) -> None:
        self.max_records = target.batch_records
        self._hostname = target.hostname

    def encode(self, batch: Sequence[FoundRecord]) -> bytes:
        return encode_request(batch, hostname=self._hostname, observed_ns=time.time_ns()) + b"\n"


def encoder_for(target: ExportTarget) -> Encoder:
    """The encoder for a file of this form."""
    match target.form:
        case ExportForm.JSONL:
            return JsonLines()
        case ExportForm.CSV:
            return Csv()
        case ExportForm.OTLP:
            return OtlpLines(target)
        case ExportForm.SYSLOG:
            raise AssertionError  # `ExportAddress.parse` allows sockets only


def _cells(found: FoundRecord) -> list[str]:
    body = json.dumps(found.record["body"], sort_keys=True, separators=(",", ":"))
    return [_cell(escape_unprintable(str(value))) for value in astuple(RecordFields.of(found))] + [
        body
    ]


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def _row(cells: Sequence[str]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue().encode("utf-8")
