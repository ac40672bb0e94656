"""Ids as every interface sees them (FS-6)."""

from __future__ import annotations

import pytest

from cellwall.core.errors import BadInput
from cellwall.core.ids import check_id, new_id


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
    assert refused.value.code == "CW-BAD-ID"
    assert len(refused.value.message) < 200
