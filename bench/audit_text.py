"""Searches for a text in a million encrypted records: with the text index, and by a plain scan."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any

from cellwall.audit.encoding import RecordDraft
from cellwall.audit.files import LogSettings
from cellwall.audit.log import AuditLog
from cellwall.audit.retention import maintain_segments
from cellwall.audit.search import Query, search
from cellwall.audit.text_index import text_folder
from cellwall.audit.text_indexing import update_text_index
from cellwall.audit.writer import Writer
from cellwall.core.ids import new_id
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.verdict import Verdict
from cellwall.secrets.session_keys import SessionKeys

MANY = 1_000_000
PAGE = 100
ROUNDS = 3
_BATCH = 2000
_QUIET = LogSettings(checkpoint_events=1 << 40, checkpoint_s=1e6)
CASES = {
    "rare_word": Query(text="xylophone"),
    "word_in_a_hundred_records": Query(text="marmalade"),
    "common_word": Query(text="python3"),
    "several_words": Query(text="cat /etc/passwd"),
    "no_hit": Query(text="nothing like this"),
    "no_hit_of_four_letters": Query(text="qzqz"),
    "number": Query(text="print(123456)"),
    "digest_by_its_beginning": Query(text="5feceb66ffc8"),
    "word_and_verdict": Query(text="marmalade", verdict=Verdict.ALLOW),
}


def measure_text(folder: str) -> dict[str, Any]:
    """Figures of one log; each search opens the keys anew, as a command does."""
    home, directory = f"{folder}/texts", f"{folder}/texts/audit"
    os.makedirs(home, mode=0o700)
    with closing(SessionKeys(home)) as keys:
        _write(directory, keys)
    with closing(SessionKeys(home)) as keys:
        indexing_s = _timed_update(directory, keys)
    log_bytes = sum(e.stat().st_size for e in os.scandir(directory) if ".jsonl" in e.name)
    index_bytes = sum(e.stat().st_size for e in os.scandir(text_folder(directory)))
    scan_s = _timed(home, directory, CASES["no_hit"], is_indexed=False)
    found: dict[str, Any] = {
        "text_records": MANY,
        "text_indexed_records_per_s": round(MANY / indexing_s),
        "text_index_bytes_per_record": round(index_bytes / MANY, 1),
        "text_index_of_log_percent": round(100 * index_bytes / log_bytes, 1),
        "text_scan_s": round(scan_s, 2),
        "text_scanned_records_per_s": round(MANY / scan_s),
    }
    for name, query in CASES.items():
        times = [_timed(home, directory, query, is_indexed=True) for _ in range(ROUNDS)]
        found[f"text_{name}_ms"] = round(statistics.median(times) * 1000, 1)
    found["text_scan_vs_index"] = round(scan_s * 1000 / found["text_no_hit_ms"])
    return found


def _write(directory: str, keys: SessionKeys) -> None:
    log = AuditLog.open(directory, settings=_QUIET, keys=keys)
    writer = Writer(directory, _QUIET, log.notary.signed_size)
    writer.open(log.notary.first_record_body)
    events = _events()
    while batch := list(islice(events, _BATCH)):
        writer.commit([RecordDraft(each, 4096, keys) for each in batch])
    writer.close()
    log.notary.sign_now(timeout_s=60)
    maintain_segments(directory, _QUIET, log.write, log.notary)
    log.close()


def _events() -> Iterator[Event]:
    """Two records for each command, sessions of a hundred records."""
    session = action = ""
    for number in range(MANY):
        if number % 100 == 0:
            session = new_id("sbx")
        if number % 2 == 0:
            action = new_id("act")
        yield Event(
            EventKind.OUTCOME if number % 2 else EventKind.INTENT,
            action,
            f"user{number % 7}",
            "sdk",
            _outcome(number) if number % 2 else _intent(number),
            session,
        )


def _intent(number: int) -> dict[str, Any]:
    command = ["python3", "-c", f"print({number})"]
    if number % 250_000 == 1234:
        command = ["curl", "https://zebra.example/xylophone"]
    elif number % 10_000 == 42:
        command = ["sh", "-c", "cat /etc/passwd marmalade"]
    return {
        "command": command,
        "command_sha256": os.urandom(32).hex(),
        "cwd": "/workspace",
        "decision": {
            "verdict": "deny" if number % 5000 == 0 else "allow",
            "rule": "explicit",
            "reason": "asked",
            "source": "built-in",
        },
        "workspace": {"mode": "private", "directory": None},
        "env_names": [],
    }


def _outcome(number: int) -> dict[str, Any]:
    return {
        "status": "ok",
        "exit_code": 0,
        "duration_ms": number * 7919 % 100_003,
        "stdout_bytes": number * 104_729 % 65_537,
        "stderr_bytes": 0,
        "cpu_ms": number * 31 % 997,
        "memory_bytes": number * 4096 % 134_217_728,
        "findings": [],
    }


def _timed_update(directory: str, keys: SessionKeys) -> float:
    started = time.perf_counter()
    update_text_index(directory, keys, is_complete=True)
    return time.perf_counter() - started


def _timed(home: str, directory: str, query: Query, *, is_indexed: bool) -> float:
    with closing(SessionKeys(home)) as keys:
        started = time.perf_counter()
        list(islice(search(directory, query, is_indexed=is_indexed, keys=keys), PAGE))
        return time.perf_counter() - started
