"""Whatever the code is, the screening answers with places inside it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.guard.code import RULES, screen
from unit.guard.code.samples import HONEST, SEEN

PIECES = st.sampled_from(
    [code for *_, code, _ in SEEN if len(code) < 200]
    + [code for _, code in HONEST]
    + ["(", ")", "[", "]", "{", "}", '"', "'", "`", "${", "$(", "\\", "\n", "\r", "\r\n", "\t", ";", "|",
       "<<A\n", "A\n", "é", "😀", "\ud800", "\x00", "\ufeff", "/", "/*", "*/", "#", "//", "=", ".", "?.",
       "<(", "$'", "\\u{", "f'{", "\u2028", "\x0c", " "]
)  # fmt: skip
CODES = st.one_of(st.lists(PIECES, max_size=12).map("".join), st.text(max_size=60))


@pytest.mark.requirement("GRD-9", "RED-2")
@settings(max_examples=400, deadline=None)
@given(CODES, st.sampled_from(["python", "javascript", "typescript", "tsx", "shell", "none"]))
def test_screening_never_raises_and_stays_in_the_code(code: str, language: str) -> None:
    for hit in screen(code, language):
        assert 0 <= hit.start <= hit.end <= len(code)
        assert hit.rule in RULES


@pytest.mark.requirement("GRD-9")
@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([each for each in SEEN if not each[0].startswith("text.")]),
    st.text("é\n #", max_size=8),
)
def test_places_hold_behind_other_text(sample: tuple[str, str, str, str], before: str) -> None:
    rule, language, code, span = sample
    mark = "//" if language in {"javascript", "typescript"} else "#"
    whole = f"{mark} {before.replace(chr(10), ' ')}\n{code.removeprefix(chr(0xFEFF))}"
    found = {(hit.rule, whole[hit.start : hit.end]) for hit in screen(whole, language)}
    assert (f"code.{rule}", span) in found
