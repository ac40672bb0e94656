"""Ids come from users and become file names; a malformed one is refused with a hint (FS-6)."""

from __future__ import annotations

import pytest

from cellwall.core.errors import BadInput
from cellwall.core.ids import check_id, new_id


def test_a_new_id_is_well_formed() -> None:
    made = new_id("sbx")
    assert check_id(made) == made


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("sbx_nope", "cellwall ps"),
        ("ask_../../etc", "cellwall approvals list"),
        ("snp_", "cellwall snapshot list"),
        ("nope", "cellwall audit tail"),
        (None, "cellwall audit tail"),
    ],
)
def test_a_malformed_id_is_refused_with_the_command_that_lists_such_ids(
    text: object, command: str
) -> None:
    with pytest.raises(BadInput) as refused:
        check_id(text)
    assert refused.value.code == "CW-BAD-ID"
    assert f"`{command}`" in refused.value.hint
