"""An outcome that travels as a frame arrives as it was."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from cellwall.core.files import FileEntry, Transfer
from cellwall.core.limits import LimitName
from cellwall.core.outcomes import ErrorInfo, Finding, Outcome, PackageUse, Status, Usage
from cellwall.core.types import ProcessInfo
from cellwall.core.verdict import Decision, Verdict
from cellwall.interfaces.supervisor.outcome_frames import decode_outcome, encode_outcome

PART = Decision(Verdict.ALLOW, "Bash(ls)", "listed", "built-in", subject="ls")
WHOLE = Outcome(
    status=Status.LIMIT,
    action_id="act_1",
    decision=Decision(
        Verdict.ASK,
        "Bash(git *)",
        "a rule asks",
        "policy.toml:3",
        subject="git push",
        place=("sh -c", "$(…)"),
        parts=(PART,),
        stops=True,
    ),
    exit_code=137,
    stdout="a\ufffd",
    stderr="é",
    stdout_bytes=b"a\xff",
    stderr_bytes="é".encode(),
    truncated=True,
    limit=LimitName.MEMORY,
    value={"a": [1, 2.5, None, "x"]},
    text="{…}",
    results=({"type": "text"}, None),
    code_error={"name": "E"},
    usage=Usage(1 / 3, 2 / 3, 7, None, 9),
    findings=(Finding("secret", "high", "a token", "r", (1, 5), ("base64",), "stdout"),),
    error=ErrorInfo("CW-LIMIT-EXCEEDED", "too many", "Wait.", "LimitExceeded", 2.5),
    audit_id="evt_1",
    workspace_id="act_1",
    sandbox_path="warm",
    state="kept",
    payload=None,
    shown="seen",
    packages=(PackageUse("pypi", "a", "1", "sha256", "00"),),
)


def carried(outcome: Outcome, **given: Any) -> Outcome:
    body, data = encode_outcome(outcome)
    return decode_outcome(json.loads(json.dumps(body)), data, **given)


def test_every_field_arrives():
    arrived = carried(WHOLE)
    assert arrived == WHOLE
    # Two fields that do not count in a comparison.
    assert (arrived.error.kind, arrived.error.retry_after_s) == ("LimitExceeded", 2.5)


def test_an_empty_outcome_arrives():
    empty = Outcome(status=Status.OK, action_id="act_2")
    assert carried(empty) == empty


@pytest.mark.parametrize(
    "payload",
    [
        b"\0\xff",
        True,
        "text",
        (FileEntry("a", "d/a", "file", 1, 0o644, 0.5), FileEntry("b", "b", "dir", 2, 0o700, 1.5)),
        Transfer(1, 2, 3, 4, "00"),
        ProcessInfo(1, 2, ("ls", "-la"), 0.5, True),
        (),
    ],
    ids=lambda each: type(each).__name__,
)
def test_payloads_arrive(payload):
    outcome = Outcome(status=Status.OK, action_id="act_3", payload=payload)
    assert carried(outcome).payload == payload


def test_a_download_goes_to_its_sink():
    outcome = Outcome(status=Status.OK, action_id="act_4", stdout_bytes=b"out", payload=b"rest")
    body, data = encode_outcome(outcome, b"file")
    sink = io.BytesIO()
    arrived = decode_outcome(body, data, sink)
    assert (arrived.stdout_bytes, sink.getvalue(), arrived.payload) == (b"out", b"file", b"rest")
