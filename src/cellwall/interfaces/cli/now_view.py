"""What happens now in one state folder: the data of `cellwall top`.

Without a service: the audit log, the supervisor (or the service in its place) and the queue of
approval questions have all of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from cellwall.admin.approvals import ApprovalInbox
from cellwall.admin.audit_queries import read_settings
from cellwall.admin.event_lines import EventLine
from cellwall.admin.live_view import LiveSnapshot, LiveView
from cellwall.admin.usage_history import UsageHistories, UsageHistory
from cellwall.core.approvals import Question
from cellwall.core.limits import MIB
from cellwall.core.showing import one_line
from cellwall.core.types import Json
from cellwall.interfaces.cli.options import cli_principal
from cellwall.interfaces.cli.output import json_fields
from cellwall.interfaces.supervisor.ownership import ask_supervisor
from cellwall.runtime.home import state_home
from cellwall.runtime.session_data import readable_keys

_BARS = "▁▂▃▄▅▆▇█"
_SPARK_COLUMNS = 20
_WIDE_COLUMNS = 100
"""Below it, lines leave out what a person can look up."""
_MAX_SANDBOXES = 50
_MAX_ROWS = 30


@dataclass(frozen=True, slots=True)
class ShownSandbox:
    """A live sandbox with its usage."""

    id: str
    owner: str
    is_busy: bool
    age_s: float
    cpu_s: float
    memory_bytes: int | None
    usage: UsageHistory

    def line(self, columns: int) -> str:
        cpu = self.usage.cpu[-1] if self.usage.cpu else 0.0
        state = "busy" if self.is_busy else "idle"
        memory = (self.memory_bytes or 0) / MIB
        if columns < _WIDE_COLUMNS:
            bars = max(4, min(_SPARK_COLUMNS, (columns - 44) // 2))
            return (
                f"{one_line(self.id, most=12):12} {state} "
                f"{cpu:5.0%} {spark(self.usage.cpu, most=1.0, columns=bars):{bars}} "
                f"{memory:6.0f} MiB {spark(self.usage.memory, columns=bars):{bars}}"
            ).rstrip()
        return (
            f"{one_line(self.id, most=32):32} {state} {self.age_s:7.0f}s "
            f"cpu {cpu:6.1%} {spark(self.usage.cpu, most=1.0):{_SPARK_COLUMNS}} "
            f"mem {memory:7.1f} MiB {spark(self.usage.memory):{_SPARK_COLUMNS}} "
            f"{one_line(self.owner, most=20)}"
        ).rstrip()


@dataclass(frozen=True, slots=True)
class NowView:
    """The state at one moment."""

    happened: LiveSnapshot
    sandboxes: tuple[ShownSandbox, ...]
    questions: tuple[Question, ...]

    def tiles(self, columns: int) -> str:
        """Counts of the last minutes, in as many lines as they need."""
        median, slow = self.happened.latency_s(0.5), self.happened.latency_s(0.95)
        limits = ", ".join(f"{one_line(name)} {count}" for name, count in self.happened.limits)
        words = (
            f"sandboxes {len(self.sandboxes)}",
            f"runs/s {self.happened.runs_per_s:.1f}",
            f"denied {sum(self.happened.refusals)}",
            f"median {_span(median)}",
            f"95 % {_span(slow)}",
            f"limits hit {limits or 'none'}",
            f"waiting {len(self.questions)}",
        )
        lines = [words[0]]
        for word in words[1:]:
            if len(lines[-1]) + 3 + len(word) <= columns:
                lines[-1] += f"   {word}"
            else:
                lines.append(word)
        return "\n".join(lines)

    def sandbox_lines(self, columns: int) -> list[str]:
        shown = [each.line(columns) for each in self.sandboxes[:_MAX_SANDBOXES]]
        return shown or ["no live sandboxes"]

    def latency_lines(self, columns: int) -> list[str]:
        """Runs by their time, one bar for each bin; empty without runs."""
        bins = self.happened.latency_bins
        most = max((count for _, count in bins), default=1)
        room = max(5, min(50, columns - 22))
        return [
            f"{'longer' if bound is None else _span(bound):>9} "
            f"{'█' * max(1, round(room * count / most)) if count else '':{room}} {count}"
            for bound, count in bins
        ]

    def event_lines(self, columns: int) -> list[tuple[str, str]]:
        """The verdict and the line of each event, the newest first."""
        rows = self.happened.rows[:_MAX_ROWS]
        return [(each.verdict, _event_line(each, columns)) for each in rows]

    def question_lines(self, columns: int) -> list[str]:
        is_wide = columns >= _WIDE_COLUMNS
        lines = []
        for each in self.questions:
            left_s = max(0.0, each.deadline_s - time.time())
            name = one_line(each.id, most=32) if is_wide else one_line(each.id[:12])
            head = f"{name}  {left_s:4.0f} s{' left' if is_wide else ''}  "
            who = f"{one_line(each.principal.name, most=20)}  " if is_wide else ""
            head += f"{who}{one_line(each.tool, most=20)}: "
            lines.append(head + one_line(each.text, most=max(20, columns - len(head))))
        return lines

    def to_text(self, *, columns: int) -> str:
        lines = [self.tiles(columns), "", *self.sandbox_lines(columns)]
        if times := self.latency_lines(columns):
            lines += ["", "Run time, last 5 minutes:", *times]
        if self.questions:
            lines += ["", "Questions (cellwall approvals show ID):", *self.question_lines(columns)]
        lines += ["", *(line for _, line in self.event_lines(columns))]
        return "\n".join(lines).rstrip() + "\n"

    def to_json(self) -> dict[str, Json]:
        happened = self.happened
        return {
            "runs_per_s": happened.runs_per_s,
            "runs": sum(happened.runs),
            "denied": sum(happened.refusals),
            "latency_median_s": happened.latency_s(0.5),
            "latency_p95_s": happened.latency_s(0.95),
            "latencies": [
                {"at_most_s": bound, "count": count} for bound, count in happened.latency_bins
            ],
            "limits": dict(happened.limits),
            "sandboxes": [
                json_fields(each, "id", "owner", "is_busy", "age_s", "cpu_s", "memory_bytes")
                for each in self.sandboxes
            ],
            "questions": [
                json_fields(each, "id", "tool", "text", "reason", "deadline_s")
                for each in self.questions
            ],
            "events": [
                json_fields(each, "seq", "at_s", "kind", "by", "verdict", "text", "reason", "rule")
                for each in happened.rows
            ],
        }


class NowReader:
    """Reads `NowView` as often as wanted; follows the audit log while it is open."""

    def __init__(self, live: LiveView, inbox: ApprovalInbox) -> None:
        self._live = live
        self.inbox = inbox
        self._histories = UsageHistories()

    @classmethod
    @contextmanager
    def opened(cls, *, config: str | None, profile: str | None) -> Iterator[Self]:
        settings = read_settings(config=config, profile=profile)
        home = state_home(os.environ)
        inbox = ApprovalInbox(cli_principal(), config=config, profile=profile)
        keys = readable_keys(home, lambda: settings)
        live = LiveView(home, keys)
        try:
            with live.watched():
                yield cls(live, inbox)
        finally:
            live.close()
            keys.close()

    def read(self) -> NowView:
        status = ask_supervisor({"do": "status"}) or {"sandboxes": []}
        found = status["sandboxes"]
        if self._histories.is_due:
            # A supervisor of an earlier version does not report usage.
            self._histories.add(
                {each["id"]: (each.get("cpu_s", 0.0), each.get("memory_bytes")) for each in found}
            )
        sandboxes = tuple(
            ShownSandbox(
                id=each["id"],
                owner=str(each.get("owner", "")),
                is_busy=each["is_busy"],
                age_s=max(0.0, time.time() - each["made_s"]),
                cpu_s=each.get("cpu_s", 0.0),
                memory_bytes=each.get("memory_bytes"),
                usage=self._histories.of(each["id"]),
            )
            for each in found
        )
        return NowView(self._live.snapshot(None), sandboxes, tuple(self.inbox.waiting()))


def spark(values: Sequence[float], *, most: float = 0.0, columns: int = _SPARK_COLUMNS) -> str:
    """The newest values as bars; `most` is the least value of the highest bar."""
    shown = list(values)[-columns:]
    top = max([most, *shown, 1e-9])
    return "".join(_BARS[min(7, int(8 * value / top))] for value in shown)


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"≤ {seconds * 1000:.0f} ms" if seconds < 1 else f"≤ {seconds:.1f} s"


def _event_line(event: EventLine, columns: int) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(event.at_s))
    word = one_line(event.verdict or event.kind, most=10)  # of a log that may have been altered
    head = f"{clock}  {word:10}  "
    if columns >= _WIDE_COLUMNS:
        head += f"{one_line(event.by, most=16):16}  "
    reason = f"  ({one_line(event.reason, most=80)})" if event.reason else ""
    return f"{head}{one_line(event.text, most=max(20, columns - len(head)))}{reason}"
