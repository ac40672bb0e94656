"""Outcomes as every interface sees them."""

from __future__ import annotations

import json

import pytest

from cellwall.core.errors import CellwallError, Denied, LimitReached, RunFailed
from cellwall.core.limits import LimitName
from cellwall.core.outcomes import ErrorInfo, EventKind, Finding, Outcome, Status, Usage


def test_the_json_of_an_outcome_has_every_key_of_the_contract() -> None:
    outcome = Outcome(
        status=Status.LIMIT, action_id="act_x", limit=LimitName.WALL, usage=Usage(1.5, 0.5, 10),
        findings=(Finding("a", "low", "b"),), error=ErrorInfo("CW-X", "m", "n"),
    )  # fmt: skip
    shown = json.loads(json.dumps(outcome.to_json()))
    contract = {"status", "exit_code", "stdout", "stderr", "truncated", "limit", "value", "results", "usage",
                "decision", "findings", "error", "audit_id"}  # fmt: skip
    assert contract <= shown.keys()
    assert (shown["status"], shown["limit"], shown["decision"]["verdict"]) == (
        "limit",
        "wall",
        "deny",
    )
    assert shown["error"] == {"code": "CW-X", "message": "m", "hint": "n"}


@pytest.mark.parametrize(
    ("status", "error"),
    [(Status.FAILED, RunFailed), (Status.LIMIT, LimitReached), (Status.DENIED, Denied), (Status.ERROR, CellwallError)],
)  # fmt: skip
def test_raise_for_status_raises_the_error_of_the_status(
    status: Status, error: type[CellwallError]
) -> None:
    with pytest.raises(error) as raised:
        Outcome(status=status, action_id="a").raise_for_status()
    assert raised.value.code.startswith("CW-")


def test_every_kind_of_event_is_one_lower_case_word():
    """The reader of the audit log accepts no other, and would report the log as altered."""
    assert [kind for kind in EventKind if not (kind.value.isalpha() and kind.value.islower())] == []
