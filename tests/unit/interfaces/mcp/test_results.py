"""A client of MCP gets what the guard has marked, and nothing of a result beside it (GRD-4)."""

from __future__ import annotations

import pytest

from cellwall.core.outcomes import Outcome, Status
from cellwall.guard.mark import wrap
from cellwall.interfaces.mcp.results import result_of

pytestmark = pytest.mark.requirement("GRD-4")


def test_what_came_back_stands_between_marks_alone():
    said = "it said this"
    marked = wrap(said, source="standard output")
    outcome = Outcome(
        status=Status.OK,
        action_id="act_1",
        exit_code=0,
        stdout=said,
        stderr=said,
        stdout_bytes=said.encode(),
        value=said,
        text=said,
        results=({"text": said},),
        shown=marked,
    )
    result = result_of(outcome, session=None).model_dump_json()
    assert result.count("it said this") == 2  # as text and as structured content
    assert result.count("<<<cellwall:begin") == 2
    bare = result_of(
        Outcome(status=Status.OK, action_id="a", stdout=said, value=said), session=None
    )
    assert said not in bare.model_dump_json()
