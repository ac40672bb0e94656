"""Alerts for people: how they stand, silences, evaluation, and a message to try the receivers.

`alert_report` reads two small files and the end of the log; it is what the dashboard, the HTTP API
and the command line show.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cellwall.accounts.failures import not_found
from cellwall.admin import audit_queries
from cellwall.admin.alert_secrets import AlertSecrets
from cellwall.audit.alerts.engine import AlertEngine
from cellwall.audit.alerts.notices import Notice, safe_text
from cellwall.audit.alerts.outbox import Outbox
from cellwall.audit.alerts.series import Alert, AlertState
from cellwall.audit.alerts.silences import MAX_SILENCES, Silence, check_silence
from cellwall.audit.alerts.watch_state import (
    BrokenState,
    WatchedElsewhere,
    WatchState,
    is_watched,
    read_state,
)
from cellwall.audit.alerts.watcher import AlertWatcher, send_now
from cellwall.audit.search import Query, search
from cellwall.config.models import Settings
from cellwall.core.errors import AuditFailed, BadInput, CellwallError
from cellwall.core.ids import new_id
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Permission, Principal
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.judging import require
from cellwall.runtime.recording import AdminChange, audit_directory
from cellwall.runtime.state_lists import StateList
from cellwall.runtime.vault import AskPassphrase

__all__ = [
    "Alert",
    "AlertAdmin",
    "AlertReport",
    "AlertState",
    "AlertWatcher",
    "ReceiverStatus",
    "Silence",
    "alert_report",
]
_DELIVER_WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class ReceiverStatus:
    """How delivery to one receiver stands."""

    name: str
    kind: str
    outbox: Outbox

    @property
    def is_failing(self) -> bool:
        return bool(self.outbox.problem)

    def to_json(self) -> dict[str, Any]:
        outbox = self.outbox
        return {
            "name": self.name,
            "kind": self.kind,
            "waiting": len(outbox.waiting),
            "delivered": outbox.delivered,
            "last_delivered_s": outbox.last_delivered_s,
            "dropped": outbox.dropped,
            "problem": outbox.problem or None,
            "code": outbox.code or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertReport:
    """All that is to be shown about alerts."""

    active: tuple[tuple[Alert, Silence | None], ...]
    """Pending and firing alerts, the most severe first, each with the silence that hides it."""
    recent: tuple[Alert, ...]
    """Alerts that have ended, the newest first."""
    silences: tuple[Silence, ...]
    receivers: tuple[ReceiverStatus, ...]
    is_watched: bool
    evaluated_s: float | None
    """When the rules were last evaluated; None: never."""
    unread: int
    """Records that were not evaluated yet."""
    problem: str = ""
    """Why this report may be incomplete."""

    @property
    def firing(self) -> tuple[Alert, ...]:
        return tuple(each for each, _ in self.active if each.state is AlertState.FIRING)

    def to_json(self) -> dict[str, Any]:
        return {
            "alerts": [
                {**alert.to_json(), "silenced_by": None if silence is None else silence.id}
                for alert, silence in self.active
            ],
            "recent": [each.to_json() for each in self.recent],
            "silences": [each.to_json() for each in self.silences],
            "receivers": [each.to_json() for each in self.receivers],
            "is_watched": self.is_watched,
            "evaluated_s": self.evaluated_s,
            "unread": self.unread,
            "problem": self.problem or None,
        }


_SEVERITY_ORDER = ("critical", "high", "medium", "low")


def alert_report(home: str, settings: Settings, *, now_s: float | None = None) -> AlertReport:
    """How alerts of this state folder stand; evaluates and writes nothing."""
    now_s = time.time() if now_s is None else now_s
    section, folder = settings.alerts, _folder(home)
    problem, state, engine = "", WatchState(), AlertEngine(section.rules)
    try:
        state = read_state(folder) or state
        if state.engine:
            engine.load(state.engine)
    except (BrokenState, OSError, ValueError, TypeError, KeyError):
        problem = "the state of alerts cannot be read; the next evaluation begins anew"
        state, engine = WatchState(), AlertEngine(section.rules)
    silences: tuple[Silence, ...] = ()
    try:
        silences = tuple(each for each in _read_silences(home) if each.until_s > now_s)
    except CellwallError as error:
        problem = error.message
    active = sorted(
        (alert for _, alert in engine.active()),
        key=lambda each: (_SEVERITY_ORDER.index(each.severity), each.since_s),
    )
    return AlertReport(
        active=tuple(
            (each, next((silence for silence in silences if silence.hides(each, now_s)), None))
            for each in map(_cleaned, active)
        ),
        recent=tuple(map(_cleaned, reversed(engine.recent))),
        silences=silences,
        receivers=tuple(
            ReceiverStatus(name, table.kind, state.outboxes.get(name, Outbox()))
            for name, table in section.receivers.items()
        ),
        is_watched=is_watched(folder),
        evaluated_s=state.saved_s or None,
        unread=_count_unread(home, state.position.seq),
        problem=problem,
    )


class AlertAdmin:
    """What a person does about alerts, for one state folder."""

    def __init__(self, home: str, settings: Settings) -> None:
        self._home, self._settings = home, settings
        self._stored = _silence_list(home)

    def silence(
        self, rule: str, *, group: str, for_s: float, reason: str, by: Principal, is_remote: bool
    ) -> Silence:
        """Hold messages about a rule back; recorded with who and why."""
        if not is_remote:
            refuse_agents("a silence")
        require(self._settings, by, Permission.POLICY_WRITE)
        now_s = time.time()
        made = check_silence(
            Silence(
                id=new_id("sil"),
                rule=rule,
                group=group,
                until_s=now_s + for_s,
                by=by.name,
                reason=safe_text(reason) if len(reason) <= 1000 else reason,
                made_s=now_s,
            )
        )
        known = self._settings.alerts.rules
        if "*" not in rule and rule not in known:
            raise BadInput(
                f"there is no alert rule {rule!r}",
                hint=f"Known: {', '.join(known)}."[:1000],
                code="CW-BAD-SILENCE",
            )
        change = AdminChange(EventKind.CONFIG, "silence alerts", rule, made.to_json())
        with change.recorded_in(self._home, self._settings, by), self._stored.change() as rows:
            rows[:] = [row for row in rows if float(row["until_s"]) > now_s]
            if len(rows) >= MAX_SILENCES:
                raise BadInput(f"there are {MAX_SILENCES} silences", code="CW-BAD-SILENCE")
            rows.append(made.to_json())
        return made

    def unsilence(self, silence_id: str, *, by: Principal, is_remote: bool) -> None:
        """End a silence."""
        if not is_remote:
            refuse_agents("the end of a silence")
        require(self._settings, by, Permission.POLICY_WRITE)
        change = AdminChange(EventKind.CONFIG, "end silence", silence_id[:64], {})
        with change.recorded_in(self._home, self._settings, by), self._stored.change() as rows:
            kept = [row for row in rows if row["id"] != silence_id]
            if len(kept) == len(rows):
                raise not_found("silence")
            rows[:] = kept

    def watcher(self, secrets: AlertSecrets) -> AlertWatcher:
        """The evaluation of this log, not started."""
        home = self._home

        def verify() -> str:
            try:
                report = audit_queries.check(home=home)
            except AuditFailed as error:
                return error.message
            return "" if report.ok else f"{report.reason} (record {report.first_bad})"

        return AlertWatcher(
            audit_directory(home),
            _folder(home),
            self._settings.alerts,
            silences=lambda: _read_silences(home),
            read_secret=secrets.read,
            verify=verify,
        )

    def check(self, *, by: Principal, ask: AskPassphrase | None) -> AlertReport:
        """Evaluate once and deliver; where another process evaluates, only report."""
        secrets = AlertSecrets(self._home, self._settings, by, ask=ask)
        try:
            with suppress(WatchedElsewhere):
                self.watcher(secrets).check(deliver_within_s=_DELIVER_WITHIN_S)
        finally:
            secrets.close()
        return alert_report(self._home, self._settings)

    def test(
        self, names: Sequence[str], *, by: Principal, ask: AskPassphrase | None
    ) -> dict[str, tuple[str, str] | None]:
        """Send a message that says it is a test; by receiver the problem and its code, or None."""
        refuse_agents("a test of the receivers")
        require(self._settings, by, Permission.POLICY_WRITE)
        section = self._settings.alerts
        unknown = set(names) - set(section.receivers)
        if unknown or not section.receivers:
            raise BadInput(
                "there is no such receiver" if unknown else "no receiver is configured",
                hint=f"Known: {', '.join(section.receivers)}."
                if section.receivers
                else 'Write for example [alerts.receivers.ops], kind = "file", to = "/…".',
                code="CW-ALERT-RECEIVER",
            )
        notice = _test_notice(section.link)
        secrets = AlertSecrets(self._home, self._settings, by, ask=ask)
        try:
            return {
                name: send_now(section, name, notice, secrets.read)
                for name in (names or section.receivers)
            }
        finally:
            secrets.close()


def _test_notice(link: str) -> Notice:
    alert = Alert(
        id=new_id("alr"),
        rule="test",
        group="",
        severity="low",
        state=AlertState.FIRING,
        summary="a test of this receiver; nothing has happened",
        reason="somebody ran `cellwall alerts test`",
        records=(),
        since_s=round(time.time(), 3),
    )
    host = safe_text(socket.gethostname())[:64]
    return Notice.about(alert, "test", number=0, host=host, link=link)


def _cleaned(alert: Alert) -> Alert:
    return Notice.about(alert, "", number=0, host="", link="").alert


def _folder(home: str) -> str:
    return os.path.join(home, "alerts")


def _silence_list(home: str) -> StateList:
    return StateList(home, "alert-silences", "CW-ALERT-SILENCES")


def _read_silences(home: str) -> list[Silence]:
    stored = _silence_list(home)
    try:
        return [Silence.of(row) for row in stored.read()]
    except TypeError:
        raise stored.broken() from None


def _count_unread(home: str, seq: int) -> int:
    try:
        newest = next(search(audit_directory(home), Query()), None)
    except AuditFailed:
        return 0
    return 0 if newest is None else max(0, int(newest.record["seq"]) - seq)
