"""Answers of an interpreter that code has forged."""

from __future__ import annotations

import hashlib
import json
from functools import partial

import anyio
import pytest

from cellwall.core.outcomes import Outcome, Status
from cellwall.core.types import RunCode
from cellwall.interfaces.interpreter_state import write_down


@pytest.mark.requirement("FS-9")
def test_nesting_that_could_not_be_written_is_left_out_at_every_depth() -> None:
    # 150: three levels of JSON for each of the fifty that the program inside allows.
    depths = [1, 150, 300, *range(900, 1010)]
    texts = {f"d{depth}": "[" * depth + "]" * depth for depth in depths}
    answer = [[n, hashlib.sha256(t.encode()).hexdigest(), t] for n, t in texts.items()]

    async def run(_code: RunCode, _stdin: bytes | None) -> Outcome:
        return Outcome(status=Status.OK, action_id="act_1", value=answer)

    state, lost = anyio.run(partial(write_down, run))
    assert set(json.loads(state)) == {"d1", "d150"}  # the control
    assert {each.name for each in lost} == set(texts) - {"d1", "d150"}
