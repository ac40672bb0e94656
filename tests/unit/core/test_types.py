"""Ids, outcomes and errors as every interface sees them (FS-6, ERR-1)."""

from __future__ import annotations

import json

import pytest

from holdfast.core import errors
from holdfast.core.errors import BadInput, Denied, HoldfastError, LimitReached, RunFailed
from holdfast.core.limits import LimitName
from holdfast.core.types import ErrorInfo, Finding, Outcome, Status, Usage, check_id, new_id


@pytest.mark.requirement("FS-6")
def test_new_ids_are_random_and_pass_their_own_check() -> None:
    made = {new_id("sbx") for _ in range(1000)}
    assert len(made) == 1000
    assert {check_id(text) for text in made} == made
    assert {len(text) for text in made} == {30}


@pytest.mark.requirement("FS-6")
@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "../../etc/passwd", "/etc", "sbx_", "sbx_" + "a" * 19, "sbx_" + "a" * 33, "sbx_" + "a" * 26 + "\n",
     "sbx_" + "a" * 25 + "\0", "sbx_" + "a" * 25 + "/", "SBX_" + "a" * 26, "sbx_" + "A" * 26, "sbx_" + "\u0661" * 26,
     "sbx_" + "i" * 26, "sandbox_" + "a" * 26, "x" * 1_000_000],
)  # fmt: skip
def test_nothing_else_passes_for_an_id(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_id(text)
    assert refused.value.code == "HF-BAD-ID"
    assert len(refused.value.message) < 200


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


@pytest.mark.requirement("ERR-1")
def test_every_error_has_one_root_a_stable_code_and_keeps_its_detail_to_itself() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    assert all(issubclass(kind, HoldfastError) for kind in kinds)
    assert len({kind.default_code for kind in kinds}) == len(kinds)
    error = HoldfastError("m", mend="n", code="HF-X", detail="/secret/path")
    assert "/secret/path" not in f"{error}{error!r}{ErrorInfo.of(error).to_json()}"
