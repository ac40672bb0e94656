"""Events and rules that the tests of alerts share."""

from __future__ import annotations

from collections.abc import Iterator

from cellwall.audit.alerts.engine import AlertEngine
from cellwall.audit.alerts.events import AlertEvent
from cellwall.audit.alerts.series import Alert, AlertState
from cellwall.audit.log import AuditLog
from cellwall.config.alerts_section import AlertRuleTable, AlertsSection
from cellwall.core.outcomes import Event, EventKind

NOON_S = 1_800_000_000.0


def rules(**changes: dict) -> dict[str, AlertRuleTable]:
    """The built-in rules with changes by name, in which _ stands for -."""
    given = {name.replace("_", "-"): table for name, table in changes.items()}
    return AlertsSection.model_validate({"rules": given}).rules


def outcome(at_s: float, status: str = "ok", **words: str) -> AlertEvent:
    fields = {"kind": "outcome", "action": "run-code", "id": f"evt_{int(at_s * 1000):x}", **words}
    return AlertEvent(time_s=NOON_S + at_s, status=status, **fields)


def firing(engine: AlertEngine) -> dict[tuple[str, str], Alert]:
    return {
        (alert.rule, alert.group): alert
        for _, alert in engine.active()
        if alert.state is AlertState.FIRING
    }


def states(engine: AlertEngine) -> dict[str, str]:
    return {alert.rule: alert.state.value for _, alert in engine.active()}


def write_outcomes(log: AuditLog, *statuses: str, **body: object) -> None:
    for status in statuses:
        fields = {"status": status, "action_kind": "run-code", **body}
        log.write(Event(EventKind.OUTCOME, "act_1", "ann", "sdk", fields, "sbx_1"))


def numbers(count: int, step_s: float = 1.0) -> Iterator[float]:
    return (number * step_s for number in range(count))
