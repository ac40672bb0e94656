"""Results of calls that skip the SDK's last validation have the form that the SDK gives them."""

from __future__ import annotations

import base64

import pytest
from mcp_types import CallToolResult
from mcp_types.methods import serialize_server_result

from cellwall.core.errors import BadInput
from cellwall.core.limits import LimitName
from cellwall.core.outcomes import ErrorInfo, Finding, Outcome, Status
from cellwall.interfaces.mcp.call_requests import VERSIONS, wire_form
from cellwall.interfaces.mcp.results import refusal, result_of, session_result

pytestmark = pytest.mark.requirement("INT-1")
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(64)).decode("ascii")
RESULTS = {
    "empty": result_of(Outcome(status=Status.OK, action_id="a"), session=None),
    "text": result_of(Outcome(status=Status.OK, action_id="a", shown="héllo\n"), session="ses_1"),
    "images": result_of(
        Outcome(status=Status.OK, action_id="a", results=({"png": PNG}, {"png": "no image"})),
        session="ses_1",
    ),
    "failed": result_of(
        Outcome(
            status=Status.FAILED,
            action_id="a",
            exit_code=3,
            limit=LimitName.WALL,
            findings=(Finding("secret", "medium", "a secret", rule="r", where="stdout"),),
            truncated=True,
        ),
        session=None,
    ),
    "denied": result_of(
        Outcome(
            status=Status.DENIED,
            action_id="a",
            error=ErrorInfo("CW-DENIED", "no", "Ask for it."),
        ),
        session=None,
    ),
    "refusal": refusal(BadInput("wrong", hint="Write it otherwise.", code="CW-BAD-ARGUMENT")),
    "session": session_result("A fresh sandbox: ses_1.", session="ses_1"),
}


@pytest.mark.parametrize("version", sorted(VERSIONS))
@pytest.mark.parametrize("name", sorted(RESULTS))
def test_result_of_a_call_has_the_form_that_the_sdk_gives_it(name: str, version: str) -> None:
    result: CallToolResult = RESULTS[name]
    dumped = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    assert wire_form(result) == serialize_server_result("tools/call", version, dumped)
