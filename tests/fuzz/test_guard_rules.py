"""Fuzzes the reader of rule packs: whatever it is given, it gives a pack or one error."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.core.errors import ConfigError
from cellwall.guard.detect import Detector, load_pack
from fuzz.mutations import mutated

ENGLISH = """
[[rule]]
id = "a.b"
category = "injection"
severity = "high"
languages = ["en"]
words = ["obey"]
pattern = 'obey (?:me|us)'
message = "m"
match = ["Obey me"]
not_match = ["obey the law"]
"""
GERMAN = """
[[rule]]
id = "c"
category = "task"
severity = "low"
languages = ["*"]
score = 0.3
words = ["straße", "größe"]
near = ["weiß"]
pattern = '''straße|größe'''
message = "ä"
match = ["weiße Straße"]
not_match = ["Strasse"]
"""
CORPUS = (ENGLISH, GERMAN)
PIECES = st.sampled_from(
    ['"', "'", "'''", "[", "]", "{", "}", "(", ")", "(?", "(?=", "\\1", "*", "{1001}", "{2,1}", "|", "^",
     "$", ",", "=", ".", "\\", "\n", "#", "[[rule]]", "[rule]", "id", "words", "near", "pattern", "score",
     "match", "severity", "\x00", "\u202e", "\u017f", "İ", "1e999", "nan", "true", "2020-01-01", "\\p{Greek}"]
)  # fmt: skip


def told(text: str) -> str:
    """The error, or nothing for a pack that can be used."""
    try:
        pack = load_pack(text, name="own")
    except ConfigError as error:
        assert error.hint  # noqa: PT017
        return error.message
    # What was taken keeps its word, and a detector can be made of it.
    detector = Detector([pack])
    for rule in pack.rules:
        assert list(rule.faults()) == []
        detector.find(" ".join(rule.match))
    return ""


def test_the_good_packs_are_good() -> None:
    assert [told(text) for text in CORPUS] == ["", ""]


@pytest.mark.requirement("GRD-2")
@settings(max_examples=150, deadline=None)
@given(mutated(CORPUS, PIECES))
def test_a_damaged_pack_gives_rules_or_one_error(text: str) -> None:
    message = told(text)
    assert message.replace("\n", "").isprintable()
    assert all(line.startswith("own:") for line in message.splitlines())


@settings(max_examples=100, deadline=None)
@given(st.lists(PIECES, max_size=40))
def test_any_pieces_give_rules_or_one_error(pieces: list[str]) -> None:
    assert told("".join(pieces)).replace("\n", "").isprintable()


VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=12)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=2),
    ),
    max_leaves=5,
)
KEYS = ("id", "category", "severity", "languages", "words", "near", "pattern", "score", "message",
        "match", "not_match", "other")  # fmt: skip


def toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float | int):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(toml(one) for one in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=12))
def test_values_of_any_type_give_rules_or_one_error(values: dict[str, object]) -> None:
    text = "[[rule]]\n" + "\n".join(f"{key} = {toml(value)}" for key, value in values.items())
    assert told(text).replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "a" + ".a" * 60_000 + " = 1",
        "x = " + "[" * 60_000,
        "x = " + "9" * 5000,
        "[[rule]]\n" * 2000,
        "\ufeff[[rule]]",
        "[[rule]]\npattern = '" + "(a{1,900}){1,900}" * 3 + "'",
    ],
)
def test_a_file_made_to_be_slow_is_refused_at_once(text: str) -> None:
    assert told(text)
