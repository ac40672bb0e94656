"""Verification of a million records and searches in them, in clear and encrypted; some minutes."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from audit import disk, sample_event, say, timed
from audit_text import measure_text

from cellwall.audit.encoding import RecordDraft
from cellwall.audit.files import LogSettings
from cellwall.audit.log import AuditLog
from cellwall.audit.retention import maintain_segments
from cellwall.audit.search import Query, search
from cellwall.audit.verify import verify
from cellwall.audit.writer import Writer
from cellwall.core.verdict import Verdict

MANY = 1_000_000
_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
_QUIET = LogSettings(checkpoint_events=1 << 40, checkpoint_s=1e6)


def measure(rounds: int, *, quiet: bool) -> dict[str, Any]:
    del rounds  # the number of records is the measure
    with tempfile.TemporaryDirectory(prefix="cellwall-bench-", dir=disk()) as folder:
        say(f"{MANY} events; this takes a minute", quiet=quiet)
        figures = _million(folder)
        say(f"{MANY} encrypted events, indexed by text; some minutes", quiet=quiet)
        return figures | measure_text(folder)


def _million(folder: str) -> dict[str, Any]:
    directory = f"{folder}/million/audit"
    log = AuditLog.open(directory, settings=_QUIET)
    writer = Writer(directory, _QUIET, log.notary.signed_size)
    writer.open(log.notary.first_record_body)
    for first in range(0, MANY, 2000):
        writer.commit([RecordDraft(sample_event(number)) for number in range(first, first + 2000)])
    writer.close()
    log.notary.sign_now(timeout_s=60)
    maintain_segments(directory, _QUIET, log.write, log.notary)
    keys = log.notary.signers.trusted()
    log.close()
    report, verify_s = timed(lambda: verify(directory, keys))
    assert report.ok, report
    found: dict[str, Any] = {"verified_events_per_s": round(report.records / verify_s)}
    cases = {
        "tail": Query(),
        "by_session": Query(session_id="sbx_7"),
        "by_user": Query(principal="user3"),
        "by_verdict": Query(verdict=Verdict.DENY),
        "by_text_that_is_nowhere": Query(text="nothing like this"),
        "by_time_before_all": Query(until=_LONG_AGO),
    }
    for name, query in cases.items():
        found[f"search_{name}_s"] = round(timed(lambda q=query: _some(directory, q))[1], 3)
    return found


def _some(directory: str, query: Query) -> list[object]:
    return list(islice(search(directory, query), 20))
