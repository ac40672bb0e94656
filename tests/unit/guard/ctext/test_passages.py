"""Passages as C reads them are those of plain Python, trait by trait."""

# ruff: noqa: RUF001  # punctuation of other scripts

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plain_passages
from cellwall.guard.ctext.letters import Kind, kind_of
from cellwall.guard.detect.passages import features
from cellwall.guard.detect.passages.lexicon import lexicon
from cellwall.guard.detect.passages.traits import trait_numbers

pytestmark = [pytest.mark.requirement("GRD-2"), pytest.mark.requirement("GRD-11")]

_ROOT = Path(__file__).parents[4]
_MARKS = (
    *" \t\n\r\x1c\x85\u2028\u3000abzABZ129_.,:;=-*+•#>|\"'`“”‘’«»「」()[]{}?!？！。।؟@$€£%&/~\\<",
    *("\n\n", "    ", "\\n", ". ", ".\n", ".A", ".Ab", "9.NOTE:", "<!--", "-->", "<p>", "</div x>"),
    *(
        "<é>",
        "[END]",
        "[/ABC]",
        "***",
        "===",
        "###",
        "---",
        "=>",
        "==",
        "::",
        "def f",
        "return",
        "f()",
    ),
    *(
        "key: value",
        '"key" = 1',
        "- 'a b' : x",
        "12.",
        "a_b",
        "ab_cd",
        "~/x",
        "../x",
        ".env",
        ".ssh",
    ),
    *("a@b.c", "A@EXAMPLE", "redacted@", "http:", "https://", "www.", "x.com", "x.commons", "$(x"),
    *(
        "curl x",
        "rm - x",
        " git x",
        "$5",
        "€ 5",
        "5 USD",
        "5euros",
        "GB29NWBK60161331",
        "123456789",
    ),
    *(
        "0xdeadbeef",
        "bc1qwert",
        "10:30",
        "2026-11-19",
        "5 pm",
        "12am",
        "٣",
        "٣ USD",
        "١٠:٣٠",
        "²",
        "½",
    ),
    *("on Ada, Bob", "İ", "Σ", "ΣΑΣ", "ς", "ß", "é", "é", "\u0301", "पासवर्ड", "भूल", "\U0001f600"),
    *("\ud800", "\U0010ffff", "жук", "面", "กำ", "\u093d", "ǅ", "ﬁ", "\x00", "\u200d"),
)
_WORDS = (
    *("please ", "now ", "the ", "you ", "Claude ", ".claude ", "...claude", "a.claude", "p.s. "),
    *("constructor", "misinstructed", "instruct", "Do not forget ", "ignore ", "and then "),
    *(f"{word} " for word in list(lexicon().classes)[::97]),
    *(phrase for phrase, _ in lexicon().phrases[::61]),
)
_TEXT = st.lists(st.sampled_from((*_MARKS, *_WORDS)), max_size=40).map("".join)


def _same(text: str) -> bool:
    """Fails on the first difference; whether any passage may instruct a model."""
    expected, around = plain_passages.read(text)
    found, in_common = features.read(text)
    for plain, other in zip(expected, found, strict=True):
        shown = text[plain.start : plain.end]
        assert (plain.start, plain.end) == (other.start, other.end), repr(shown)
        assert plain.traits == other.traits, (repr(shown), plain.traits ^ other.traits)
        assert plain.script == other.script, repr(shown)
    assert (around.traits, around.script, around.count) == (
        in_common.traits,
        in_common.script,
        in_common.count,
    )
    return bool(features.candidates(found))


@settings(max_examples=1500, deadline=None)
@given(_TEXT)
def test_generated_texts_are_read_alike(text: str) -> None:
    _same(text)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200), _TEXT)
def test_any_characters_are_read_alike(text: str, more: str) -> None:
    _same(f"{text}{more}")


@pytest.mark.slow
def test_files_and_training_texts_are_read_alike() -> None:
    paths = [
        *(_ROOT / name for name in ("README.md", "dev", "docs/limitations.md", "docs/guard.md")),
        *sorted((_ROOT / "bench" / "guard_data").rglob("*.toml"))[:4],
    ]
    seen: set[str] = set()
    for path in paths:
        text = path.read_text("utf-8")[:40_000]
        # The end of a file may be a line without any candidate.
        has_candidates = [_same(text[at : at + 8_000]) for at in range(0, len(text), 8_000)]
        assert any(has_candidates)
        for start in range(0, len(text), 8_000):
            passages, _ = features.read(text[start : start + 8_000])
            seen = seen.union(*(each.traits for each in passages))
    # The control: most traits stand in these files.
    assert len(seen) > 0.6 * len(trait_numbers().numbers)


def test_phrases_are_found_within_one_passage_alone() -> None:
    """All passages are searched at once; no phrase reaches from one to the next."""
    phrases = [phrase for phrase, _ in lexicon().phrases]
    assert _same("\n".join(phrases[:300]))
    assert _same("From now on, Reply only with yes.\nFrom now\nOn, reply.\0from now on\n")
    (first, second), _ = features.read("Please wait from now. On the table is a cup.")
    (whole,), _ = features.read("Please wait from now on the table.")
    assert "standing" in whole.traits
    assert "standing" not in first.traits | second.traits


@pytest.mark.parametrize("text", ["", " ", "\n", "a", "\ud800", "x" * 2000, "。" * 50, "Σ" * 700])
def test_texts_of_next_to_nothing_are_read_alike(text: str) -> None:
    _same(text)


def test_kinds_of_characters_are_those_of_the_interpreter() -> None:
    assert kind_of("a") == Kind.KNOWN | Kind.WORD | Kind.LETTER | Kind.ALPHA
    assert kind_of("٣") == Kind.KNOWN | Kind.WORD | Kind.DIGIT
    assert kind_of("²") == Kind.KNOWN | Kind.WORD | Kind.LETTER
    assert kind_of("\u0301") == Kind.KNOWN | Kind.MARK
    assert kind_of("\x1c") == Kind.KNOWN | Kind.SPACE
