"""The form of a passage is what regular expressions say of it, which take longer."""

# ruff: noqa: RUF001  # punctuation of other scripts

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.guard.detect.passages.forms import ends_colon, forms_of, is_code
from cellwall.guard.detect.passages.splitting import split_passages

ROOT = Path(__file__).parents[5]
FORMS = {
    "list": re.compile(r"\s*(?:[-*+•]|\d+[.)])\s"),
    "heading": re.compile(r"\s*#{1,6}\s"),
    "quoted": re.compile(r"\s*(?:[-*|]\s*)?[>\"“`'|]"),
    "key": re.compile(r"\s*[\"']?[\w .-]{1,30}[\"']?\s*[:=]\s*\S"),
    "ends question": re.compile(r"[?？؟][\"')\]]*\s*\Z"),
    "ends loud": re.compile(r"[!！][\"')\]]*\s*\Z"),
    "ends colon": re.compile(r":\s*\Z"),
    "ends stop": re.compile(r"[.。।][\"')\]]*\s*\Z"),
    "tag": re.compile(r"</?[a-z][\w-]*>|\[/?[A-Z]{3,}\]|\*\*\*|={3,}|#{3,}|-{3,}"),
    "code": re.compile(r"[{};]\s*\Z|^\s{4,}\S|\w\(\w*\)|=>|==|::|\bdef \b|\breturn\b"),
}
PIECES = (
    *" \t\n\x1c\u3000abA1²_.,:;=-*+•#>|\"'`“()[]{}?!？。।",
    *("def ", "return", "=>", "::", "<b>", "[END]", "    ", "***", "12.", "key: value"),
)


def by_expressions(passage: str) -> set[str]:
    return {name for name, form in FORMS.items() if form.search(passage)}


def agrees(passage: str) -> None:
    expected = by_expressions(passage)
    assert set(forms_of(passage, set(passage))) == expected, repr(passage)
    assert is_code(passage) == ("code" in expected), repr(passage)
    assert ends_colon(passage) == ("ends colon" in expected), repr(passage)


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@settings(max_examples=3000)
def test_generated_passages_have_the_form_that_expressions_find(passage: str) -> None:
    agrees(passage)


def test_passages_of_real_files_have_the_form_that_expressions_find() -> None:
    seen: set[str] = set()
    for path in ("README.md", "dev", "docs/threat-model.md", "src/cellwall/__init__.py"):
        text = (ROOT / path).read_text("utf-8")
        for start, end in split_passages(text):
            agrees(text[start:end])
            seen |= by_expressions(text[start:end])
    assert seen == FORMS.keys()  # the control: every form stands in these files
