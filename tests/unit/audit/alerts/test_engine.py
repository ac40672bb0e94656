"""The rules over a stream of records: thresholds, windows, states, clocks, bounds."""

from __future__ import annotations

import json

import pytest

from cellwall.audit.alerts.engine import MAX_GROUPS, OTHER_GROUP, AlertEngine
from cellwall.audit.alerts.events import AlertEvent
from unit.audit.alerts.alert_events import NOON_S, firing, numbers, outcome, rules, states

pytestmark = pytest.mark.requirement("OBS-2")


def refusal(at_s: float, **words: str) -> AlertEvent:
    given = {"status": "refused", "kind": "connection", "action": "", **words}
    return outcome(at_s, **given)


def test_failures_over_ten_per_cent_fire_and_ten_per_cent_do_not():
    engine = AlertEngine(rules(failures={"hold_s": 0}))
    for at_s in numbers(30):
        engine.observe(outcome(at_s, "failed" if at_s >= 27 else "ok"))  # 3 of 30
    assert firing(engine) == {}
    engine.observe(outcome(30, "failed"))
    alert = firing(engine)["failures", ""]
    assert alert.reason == "4 of 31 (12.9 %) in 15 minutes; the alert is for more than 10 %"
    assert alert.records[-1] == outcome(30).id
    assert (alert.severity, alert.since_s) == ("medium", NOON_S + 30)


def test_a_ratio_needs_twenty_runs_in_the_window():
    engine = AlertEngine(rules(failures={"hold_s": 0}))
    for at_s in numbers(19):
        engine.observe(outcome(at_s, "failed"))
    assert firing(engine) == {}
    engine.observe(outcome(19, "failed"))
    assert ("failures", "") in firing(engine)


def test_other_actions_do_not_dilute_the_failures_of_runs():
    engine = AlertEngine(rules(failures={"hold_s": 0}))
    for at_s in numbers(40):
        engine.observe(outcome(at_s, "failed" if at_s < 20 else "ok", action="run-command"))
        for _ in range(20):
            engine.observe(outcome(at_s, "ok", action="file"))
    assert ("failures", "") in firing(engine)


def test_time_outs_over_five_per_cent_fire():
    engine = AlertEngine(rules(time_outs={"hold_s": 0}, failures={"state": "off"}))
    for at_s in numbers(40):
        engine.observe(outcome(at_s, "ok"))
    engine.observe(outcome(40, "limit", limit="wall"))
    engine.observe(outcome(41, "limit", limit="wall"))
    assert firing(engine) == {}  # 2 of 42
    engine.observe(outcome(42, "limit", limit="wall"))
    assert firing(engine).keys() == {("time-outs", "")}


def test_limits_and_errors_count_for_each_name_apart():
    engine = AlertEngine(rules(time_outs={"state": "off"}, failures={"state": "off"}))
    for at_s in numbers(11):
        engine.observe(outcome(at_s, "limit", limit="memory"))
    for at_s in numbers(5):
        engine.observe(outcome(11 + at_s, "limit", limit="disk"))
    for at_s in numbers(101, 0.1):
        engine.observe(outcome(20 + at_s, "error", error_code="CW-BUSY"))
    for at_s in numbers(100, 0.1):
        engine.observe(outcome(40 + at_s, "error", error_code="CW-VAULT-LOCKED"))
    assert firing(engine).keys() == {("limits", "memory"), ("one-error", "CW-BUSY")}


@pytest.mark.parametrize(
    ("event", "rule"),
    [
        (refusal(0, status="leak-refused"), "leaks"),
        (outcome(0, "failed", kind="vault", error_code="CW-VAULT-ROLLED-BACK"), "tampering"),
        (AlertEvent.found(time_s=NOON_S, code="CW-AUDIT-ALTERED", finding="cut"), "tampering"),
        (outcome(0, "", kind="recovery"), "audit-trouble"),
        (outcome(0, "reused", kind="signin"), "stolen-tokens"),
    ],
)
def test_one_record_of_these_is_enough(event, rule):
    engine = AlertEngine(rules())
    engine.observe(event)
    assert [name for name, _ in firing(engine)] == [rule]


def test_egress_refusals_fire_above_fifty_in_ten_minutes():
    engine = AlertEngine(rules())
    for at_s in numbers(200, 13.0):  # 46 in any ten minutes
        engine.observe(refusal(at_s))
    assert firing(engine) == {}
    for at_s in numbers(20, 0.1):
        engine.observe(refusal(2600 + at_s))
    assert firing(engine).keys() == {("egress-refusals", "")}


def test_an_alert_is_pending_then_fires_then_is_resolved():
    engine = AlertEngine(rules())  # failures are held for a minute
    for at_s in numbers(20):
        engine.observe(outcome(at_s, "failed"))
    assert states(engine) == {"failures": "pending"}
    engine.tick(NOON_S + 78)
    assert states(engine) == {"failures": "pending"}
    engine.tick(NOON_S + 80)
    assert states(engine) == {"failures": "firing"}
    engine.tick(NOON_S + 19 + 900 + 200)  # the window is empty, and the hold lasts
    assert states(engine) == {"failures": "firing"}
    engine.tick(NOON_S + 19 + 900 + 320)
    assert states(engine) == {}
    ((alert, sent_s),) = engine.take_ended()
    assert (alert.state, sent_s) == ("resolved", None)
    assert engine.take_ended() == []
    assert [each.id for each in engine.recent] == [alert.id]


def test_a_pending_alert_that_ends_in_time_never_fires():
    engine = AlertEngine(rules(failures={"window_s": 60, "hold_s": 120}))
    for at_s in numbers(20):
        engine.observe(outcome(at_s, "failed"))
    engine.tick(NOON_S + 1000)
    assert states(engine) == {}
    assert engine.take_ended() == []


def test_what_happened_between_two_looks_is_found_when_records_are_read_late():
    """A timer that ran an hour later sees the same as a service."""
    engine = AlertEngine(rules())
    for at_s in numbers(20):
        engine.observe(outcome(at_s, "failed"))
    engine.tick(NOON_S + 3600)
    ((alert, _),) = engine.take_ended()
    assert alert.rule == "failures"
    assert NOON_S + 900 < (alert.ended_s or 0) < NOON_S + 1300


def test_a_clock_that_is_set_back_hides_nothing():
    engine = AlertEngine(rules(failures={"hold_s": 0}))
    for at_s in numbers(15):
        engine.observe(outcome(at_s, "failed"))
    for at_s in numbers(5):
        engine.observe(outcome(at_s - 86_400, "failed"))
    assert ("failures", "") in firing(engine)
    engine.tick(NOON_S - 86_400 + 2000)
    assert firing(engine) == {}  # and time goes on from there


def test_a_clock_that_jumps_far_ahead_and_back_leaves_the_rules_at_work():
    engine = AlertEngine(rules())
    engine.observe(outcome(0, "ok"))
    engine.observe(outcome(80 * 365 * 86_400.0, "ok"))
    for at_s in numbers(51):
        engine.observe(refusal(10 + at_s / 10))
    assert ("egress-refusals", "") in firing(engine)


def test_records_of_several_writers_a_little_out_of_order_do_not_drift_the_clock():
    engine = AlertEngine(rules())
    for at_s in numbers(1000, 0.5):
        engine.observe(refusal(at_s))
        engine.observe(outcome(at_s - 1.0))
    assert engine.to_json()["clock_s"] == pytest.approx(499.5)


def test_a_restart_goes_on_with_the_same_counts_and_alerts():
    whole, first = AlertEngine(rules()), AlertEngine(rules())
    events = [refusal(at_s) for at_s in numbers(60)]
    for event in events:
        whole.observe(event)
    for event in events[:30]:
        first.observe(event)
    second = AlertEngine(rules())
    second.load(json.loads(json.dumps(first.to_json())))
    for event in events[30:]:
        second.observe(event)
    assert firing(second) == firing(whole) != {}
    assert second.to_json() == whole.to_json()


def test_invented_names_take_no_memory_without_end():
    engine = AlertEngine(rules(limits={"by": "principal"}))
    for number in range(2000):
        engine.observe(outcome(number / 10, "limit", limit="memory", principal=f"user{number}"))
    series = [each for each in engine.to_json()["series"] if each["name"] == "limits"]
    assert len(series) == MAX_GROUPS + 1
    assert ("limits", OTHER_GROUP) in firing(engine)


def test_a_flood_takes_no_more_memory_than_its_first_records():
    engine = AlertEngine(rules())

    def flood(start: int) -> int:
        for number in range(start, start + 1500):
            engine.observe(refusal(number / 5, error_code=f"CW-E-{number % 7}"))
        return len(json.dumps(engine.to_json()))

    flood(0)
    before = flood(1500)
    assert flood(3000) < before * 1.2 < 50_000
