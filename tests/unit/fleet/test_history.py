"""The checker of a fleet's history finds each kind of fault, and none where there is none (SRV-6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet_history import Attempt, Fate, History, HostEvent, events_of, violations

pytestmark = pytest.mark.requirement("SRV-6")


def event(host: str, kind: str, number: int, session: str = "sbx_1") -> HostEvent:
    mark = f"mark-1-{number}" if kind == "intent" else ""
    return HostEvent(host, f"evt_{kind}_{number}", kind, session, f"act_{number}", mark)


def run(host: str, number: int, session: str = "sbx_1") -> list[HostEvent]:
    return [event(host, kind, number, session) for kind in ("intent", "outcome")]


def attempt(number: int, fate: Fate = Fate.ACKNOWLEDGED, session: str = "sbx_1") -> Attempt:
    known = f"evt_intent_{number}" if fate is Fate.ACKNOWLEDGED else ""
    return Attempt(f"mark-1-{number}", session, fate, known)


RIGHT = History(
    attempts=[
        attempt(1),
        attempt(2, Fate.UNKNOWN),  # and was executed
        attempt(3, Fate.UNKNOWN),  # and was not
        attempt(4, Fate.REFUSED),
        attempt(5, session="sbx_2"),
    ],
    events=[*run("a", 1), event("a", "intent", 2), *run("b", 5, "sbx_2")],
    files={"sbx_2": ["mark-1-5"]},
)


def test_a_right_history_has_no_fault():
    assert violations(RIGHT) == []
    assert violations(History([], [], {})) == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            replace(RIGHT, events=[each for each in RIGHT.events if each.id != "evt_outcome_1"]),
            "mark-1-1 was acknowledged and has 0 records of its outcome",
        ),
        (
            replace(RIGHT, events=[*RIGHT.events, replace(RIGHT.events[1], host="b")]),
            "mark-1-1 was acknowledged and has 2 records of its outcome",
        ),
        (
            replace(RIGHT, attempts=[*RIGHT.attempts, replace(attempt(4), audit_id="evt_intent_1")]),
            "mark-1-4 was acknowledged with the record of another run",
        ),
        (
            replace(RIGHT, attempts=[*RIGHT.attempts, attempt(8)]),
            "mark-1-8 was acknowledged and has 0 records",
        ),
        (replace(RIGHT, files={"sbx_2": []}), "mark-1-5 was acknowledged, and its file"),
        (
            replace(RIGHT, events=[*RIGHT.events, replace(RIGHT.events[0], id="evt_9")]),
            "mark-1-1 was begun 2 times",
        ),
        (replace(RIGHT, files={"sbx_2": ["mark-1-5"] * 2}), "mark-1-5 was executed 2 times"),
        (
            replace(RIGHT, events=[*RIGHT.events, event("a", "intent", 4)]),
            "mark-1-4 was refused and done",
        ),
        (
            replace(RIGHT, files={"sbx_2": ["mark-1-5", "mark-1-4"]}),
            "mark-1-4 was refused and done",
        ),
        (
            replace(
                RIGHT,
                attempts=[*RIGHT.attempts, attempt(6)],
                events=[*RIGHT.events, *run("b", 6)],
            ),
            "sbx_1 ran on 2 hosts",
        ),
        (
            replace(RIGHT, events=[*RIGHT.events, *run("a", 7)]),
            "mark-1-7 was recorded in sbx_1, and nobody has sent it there",
        ),
    ],
)  # fmt: skip
def test_each_fault_is_found_and_named(wrong, says):
    (found,) = violations(wrong)
    assert found.startswith(says)


def test_a_mark_that_was_sent_again_after_a_refusal_is_no_fault():
    again = [attempt(1, Fate.REFUSED), *RIGHT.attempts]
    assert violations(replace(RIGHT, attempts=again)) == []


def test_the_mark_of_a_run_is_read_from_its_intent():
    common = {"session_id": "sbx_1", "action_id": "act_1"}
    records = [
        {"id": "evt_1", "kind": "intent", "body": {"command": "echo mark-3-7 >> log"}, **common},
        {"id": "evt_2", "kind": "outcome", "body": {"stdout": "mark-3-8"}, **common},
    ]
    assert [(each.kind, each.mark) for each in events_of("a", records)] == [
        ("intent", "mark-3-7"),
        ("outcome", ""),
    ]
