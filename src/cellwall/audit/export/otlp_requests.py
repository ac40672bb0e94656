"""Records as an ExportLogsServiceRequest of OTLP, in its JSON form. Pure.

The body of each is the line of the record as it stands in the log, as one text, so that it can
still be checked; what is searched for stands in the attributes. Numbers of 64 bits are texts, as
the JSON form of protobuf has it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cellwall import __version__
from cellwall.audit.export.encodings import Facts, visible
from cellwall.audit.search import Found

_ATTRIBUTES = (
    *("id", "kind", "action_id", "session_id", "principal", "interface"),
    *("verdict", "status"),
)


def request(batch: Sequence[Found], *, hostname: str, observed_ns: int) -> bytes:
    """One request on one line, in ASCII."""
    resource = [_text("service.name", "cellwall"), _text("service.version", __version__)]
    if hostname != "-":
        resource.append(_text("host.name", hostname))
    told = {
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
    return json.dumps(told, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def _log_record(found: Found, observed_ns: int) -> dict[str, Any]:
    facts = Facts.of(found)
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
    return {"key": key, "value": {"stringValue": visible(text)}}
