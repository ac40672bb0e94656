"""Queues of messages: bounds, budgets that an agent cannot spend for others, and pauses."""

from __future__ import annotations

import json

import pytest

from cellwall.audit.alerts.notices import Notice
from cellwall.audit.alerts.outbox import MAX_PAUSE_S, MAX_WAITING, Outbox
from cellwall.audit.alerts.series import Alert, AlertState

pytestmark = pytest.mark.requirement("OBS-2")
NOW_S = 1_800_000_000.0


def notice(number: int, severity: str = "low", rule: str = "x") -> Notice:
    alert = Alert(
        id=f"alr_{number}",
        rule=rule,
        group="",
        severity=severity,
        state=AlertState.FIRING,
        summary="s",
        reason="r",
        records=(),
        since_s=NOW_S,
    )
    return Notice.about(alert, "firing", number=number, host="h", link="")


def put(
    outbox: Outbox, number: int, severity: str = "low", *, rule: str = "x", at_s: float = 0.0
) -> None:
    outbox.put(notice(number, severity, rule), now_s=NOW_S + at_s, max_per_hour=30)


def test_a_flood_of_one_rule_spends_no_budget_of_others():
    outbox = Outbox()
    for number in range(500):
        put(outbox, number, "high")
    put(outbox, 500, "high", rule="leaks")
    put(outbox, 501, "critical")
    assert len(outbox.waiting) == 32
    due = outbox.due(NOW_S)
    assert due is not None
    assert due.id == "alr_501-firing-501"  # the most severe goes first


def test_messages_beyond_the_budget_are_counted_in_the_next_one():
    outbox = Outbox()
    for number in range(40):
        put(outbox, number)
    put(outbox, 40, at_s=3601)
    assert (len(outbox.waiting), outbox.waiting[-1].unsent) == (31, 10)
    assert "10 messages before this one were not sent" in outbox.waiting[-1].lines


def test_a_full_queue_drops_the_least_severe_and_oldest():
    outbox = Outbox()
    put(outbox, 0, rule="rare")
    put(outbox, 1)
    put(outbox, 2)
    for number in range(3, MAX_WAITING + 1):
        put(outbox, number, "critical")
    assert (len(outbox.waiting), outbox.dropped) == (MAX_WAITING, 1)
    assert [each.alert.id for each in outbox.waiting[:2]] == ["alr_0", "alr_2"]


def test_pauses_grow_to_a_bound_and_end_with_a_delivery():
    outbox = Outbox()
    put(outbox, 0)
    pauses = []
    for _ in range(12):
        outbox.failed_now("away", "CW-EXPORT-AWAY", now_s=NOW_S)
        pauses.append(outbox.retry_s - NOW_S)
    assert pauses == [5, 10, 20, 40, 80, 160, 320, *[MAX_PAUSE_S] * 5]
    assert outbox.due(NOW_S + 599) is None
    due = outbox.due(NOW_S + 600)
    assert due is not None
    outbox.delivered_now(due, now_s=NOW_S)
    assert (outbox.failures, outbox.problem, outbox.waiting) == (0, "", [])


def test_a_clock_that_is_set_back_stops_neither_retries_nor_the_budget():
    outbox = Outbox()
    for number in range(30):
        put(outbox, number)
    outbox.failed_now("away", "x", now_s=NOW_S)
    assert outbox.due(NOW_S - 86_400) is not None
    put(outbox, 31, at_s=-86_400.0)
    assert len(outbox.waiting) == 31


def test_it_is_the_same_after_a_restart():
    outbox = Outbox()
    for number in range(40):
        put(outbox, number, "high")
    outbox.failed_now("away", "x", now_s=NOW_S)
    assert Outbox.of(json.loads(json.dumps(outbox.to_json()))) == outbox
