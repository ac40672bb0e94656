"""Records as the bytes of a file: JSON Lines, CSV, or one OTLP request a line.

JSON Lines are the lines of the log, byte for byte: the one form that can be checked later.

CSV (RFC 4180) is for tables. Spreadsheets run what begins with = + - @ as a formula, and an agent
can choose what some cells hold; such a cell gets an apostrophe in front, which shows it as text.
Cells hold no control characters: those are written as their escapes.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import IO, Protocol

from cellwall.audit.export.address import Form
from cellwall.audit.export.encodings import Facts, visible
from cellwall.audit.export.otlp_requests import request
from cellwall.audit.export.target import ExportTarget
from cellwall.audit.search import Found

_FORMULA = tuple("=+-@\t\r\n＝＋－＠")  # noqa: RUF001  # some spreadsheets read the wide ones as well
COLUMNS = (*(field.name for field in fields(Facts)), "body")


class Encoder(Protocol):
    """Of one form."""

    head: bytes
    """What a new file begins with."""
    max_records: int

    def encode(self, batch: Sequence[Found]) -> bytes: ...


class JsonLines:
    """Each line as it stands in the log."""

    head = b""
    max_records = 10_000

    def encode(self, batch: Sequence[Found]) -> bytes:
        return b"".join(found.line + b"\n" for found in batch)


class Csv:
    """A header, then one row a record; the body is one cell of JSON."""

    max_records = 10_000

    def __init__(self) -> None:
        self.head = _row(COLUMNS)

    def encode(self, batch: Sequence[Found]) -> bytes:
        return b"".join(_row(_cells(found)) for found in batch)


class OtlpLines:
    """One request a line, as file exporters of OTLP write them."""

    head = b""

    def __init__(self, target: ExportTarget) -> None:
        self.max_records = target.batch_records
        self._hostname = target.hostname

    def encode(self, batch: Sequence[Found]) -> bytes:
        return request(batch, hostname=self._hostname, observed_ns=time.time_ns()) + b"\n"


def encoder_for(target: ExportTarget) -> Encoder:
    """What writes this form into a file."""
    match target.form:
        case Form.JSONL:
            return JsonLines()
        case Form.CSV:
            return Csv()
        case Form.OTLP:
            return OtlpLines(target)
        case Form.SYSLOG:
            raise AssertionError  # `Address.parse` lets it go to sockets only


def write_records(batch: Sequence[Found], target: ExportTarget, stream: IO[bytes]) -> None:
    """All of them with their head, for whoever has a stream of their own, as a download has."""
    encoder = encoder_for(target)
    stream.write(encoder.head)
    for start in range(0, len(batch), encoder.max_records):
        stream.write(encoder.encode(batch[start : start + encoder.max_records]))


def _cells(found: Found) -> list[str]:
    body = json.dumps(found.record["body"], sort_keys=True, separators=(",", ":"))
    return [_cell(visible(str(value))) for value in astuple(Facts.of(found))] + [body]


def _cell(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def _row(cells: Sequence[str]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue().encode("utf-8")
