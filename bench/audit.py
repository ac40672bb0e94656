"""Writing the record against bare appends and flushes on the same disk, interleaved in one run."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import anyio

from cellwall.audit.encoding import RecordDraft
from cellwall.audit.files import LogSettings
from cellwall.audit.log import AuditLog
from cellwall.audit.search import Query, search
from cellwall.core.outcomes import Event, EventKind
from cellwall.secrets.session_keys import SessionKeys

WRITERS = 64
EACH = 400
MANY = 1_000_000
_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
_QUIET = LogSettings(checkpoint_events=1 << 40, checkpoint_s=1e6)


def measure(rounds: int, *, quiet: bool) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="cellwall-bench-", dir=disk()) as folder:
        say("one writer", quiet=quiet)
        figures |= _one_writer(folder, max(rounds * 50, 1000))
        say(f"{WRITERS} writers", quiet=quiet)
        figures |= _many_writers(folder)
    return figures


def disk() -> str:
    """Where the state folder would be; /tmp is often memory."""
    return os.environ.get("CELLWALL_BENCH_DISK", "/var/tmp")


def say(text: str, *, quiet: bool) -> None:
    if not quiet:
        print(f"... {text}", file=sys.stderr)


def sample_event(number: int) -> Event:
    """As large as the intent of a short command."""
    verdict = "deny" if number % 5000 == 0 else "allow"
    body: dict[str, Any] = {
        "command": ["python3", "-c", f"print({number})"],
        "command_sha256": "0" * 64,
        "cwd": "/workspace",
        "decision": {
            "verdict": verdict,
            "rule": "explicit",
            "reason": "asked",
            "source": "built-in",
        },
        "workspace": {"mode": "private", "directory": None},
        "env_names": [],
    }
    kind = EventKind.DENIAL if verdict == "deny" else EventKind.INTENT
    return Event(kind, f"act_{number}", f"user{number % 7}", "sdk", body, f"sbx_{number // 100}")


def _one_writer(folder: str, rounds: int) -> dict[str, Any]:
    keys = SessionKeys(f"{folder}/one")
    log = AuditLog.open(f"{folder}/one/audit", keys=keys)
    clear_log = AuditLog.open(f"{folder}/clear/audit")
    line_bytes = len(RecordDraft(sample_event(1)).body) + 350
    bare = os.open(f"{folder}/bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    ours, clear, theirs = [], [], []
    for number in range(rounds):
        event = sample_event(number)
        started = time.perf_counter()
        log.write(event)
        ours.append(time.perf_counter() - started)
        started = time.perf_counter()
        clear_log.write(event)
        clear.append(time.perf_counter() - started)
        started = time.perf_counter()
        os.write(bare, b"x" * line_bytes)
        os.fdatasync(bare)
        theirs.append(time.perf_counter() - started)
    os.close(bare)
    clear_log.close()
    query = Query(text="nothing like this")
    _, search_s = timed(lambda: list(search(f"{folder}/one/audit", query, keys=keys)))
    log.close()
    return {
        "append_us": _us(ours),
        "append_in_clear_us": _us(clear),
        "append_mean_vs_clear": round(statistics.fmean(ours) / statistics.fmean(clear), 3),
        "sealed_text_search_events_per_s": round(rounds / search_s),
        "bare_append_fdatasync_us": _us(theirs),
        "append_vs_bare": round(statistics.median(ours) / statistics.median(theirs), 2),
    }


def _many_writers(folder: str) -> dict[str, Any]:
    total = WRITERS * EACH
    threads, tasks = _threads(f"{folder}/threads/audit"), _tasks(f"{folder}/tasks/audit")
    batch = [len(RecordDraft(sample_event(1)).body) + 350] * (WRITERS // 2)
    bare = os.open(f"{folder}/batched", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    started = time.perf_counter()
    for _ in range(total // len(batch)):
        os.write(bare, b"x" * sum(batch))
        os.fdatasync(bare)
    bare_s = time.perf_counter() - started
    os.close(bare)
    return {
        "writers": WRITERS,
        "events_per_s_tasks": round(total / tasks),
        "events_per_s_threads": round(total / threads),
        "bare_batched_events_per_s": round(total / bare_s),
    }


def _threads(directory: str) -> float:
    log = AuditLog.open(directory, keys=SessionKeys(os.path.dirname(directory)))

    def work() -> None:
        for number in range(EACH):
            log.write(sample_event(number))

    threads = [threading.Thread(target=work) for _ in range(WRITERS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken_s = time.perf_counter() - started
    log.close()
    return taken_s


def _tasks(directory: str) -> float:
    log = AuditLog.open(directory, keys=SessionKeys(os.path.dirname(directory)))

    async def work() -> None:
        for number in range(EACH):
            await log.record(sample_event(number))

    async def all_of_them() -> float:
        started = time.perf_counter()
        async with anyio.create_task_group() as group:
            for _ in range(WRITERS):
                group.start_soon(work)
        return time.perf_counter() - started

    taken_s = anyio.run(all_of_them)
    log.close()
    return taken_s


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    done = work()
    return done, time.perf_counter() - started


def _us(times: list[float]) -> float:
    return round(statistics.median(times) * 1e6, 1)
