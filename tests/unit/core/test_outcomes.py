"""Outcomes as every interface sees them."""

from __future__ import annotations

import json

import pytest

from holdfast.core.errors import Denied, HoldfastError, LimitReached, RunFailed
from holdfast.core.limits import LimitName
from holdfast.core.outcomes import ErrorInfo, Finding, Outcome, Status, Usage


def test_the_json_of_an_outcome_has_every_key_of_the_contract() -> None:
    outcome = Outcome(
        status=Status.LIMIT, action_id="act_x", limit=LimitName.WALL, usage=Usage(1.5, 0.5, 10),
        findings=(Finding("a", "low", "b"),), error=ErrorInfo("HF-X", "m", "n"),
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
    assert shown["error"] == {"code": "HF-X", "message": "m", "mend": "n"}


@pytest.mark.parametrize(
    ("status", "error"),
    [(Status.FAILED, RunFailed), (Status.LIMIT, LimitReached), (Status.DENIED, Denied), (Status.ERROR, HoldfastError)],
)  # fmt: skip
def test_raise_for_status_raises_the_error_of_the_status(
    status: Status, error: type[HoldfastError]
) -> None:
    with pytest.raises(error) as raised:
        Outcome(status=status, action_id="a").raise_for_status()
    assert raised.value.code.startswith("HF-")
