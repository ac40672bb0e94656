"""JSON is read as everybody else reads it, or not at all; and every value has its place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.policy.positions import PositionError, read_json, read_toml


def test_every_value_has_its_place() -> None:
    text = '{\n  "permissions": {\n    "deny": ["a", "b"]\n  },\n  "x": 5\n}'
    found = read_json(text)
    assert {path: found.place(path) for path in (found.offsets or {})} == {
        (): (1, 1),
        ("permissions",): (2, 18),
        ("permissions", "deny"): (3, 13),
        ("permissions", "deny", 0): (3, 14),
        ("permissions", "deny", 1): (3, 19),
        ("x",): (5, 8),
    }
    assert found.place(("permissions", "deny", 1), inside=1) == (3, 21)
    assert found.place(("permissions", "gone", 3)) == (2, 18)


def test_toml_has_lines_and_the_columns_of_texts() -> None:
    text = '[permissions]\nallow = [\n  "a", "bcd",\n]\ndeny = ["x\\u0041"]\n'
    found = read_toml(text)
    assert found.place(("permissions", "allow", 0)) == (3, 3)
    assert found.place(("permissions", "allow", 1), inside=2) == (3, 11)
    assert found.place(("permissions", "deny", 0), inside=1) == (5, 1)
    assert found.place(("nothing", 4)) == (1, 1)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", (1, 1)),
        ("{", (1, 2)),
        ("[1,]", (1, 4)),
        ('{"a": 1,}', (1, 9)),
        ('{"a" 1}', (1, 6)),
        ("{a: 1}", (1, 2)),
        ('{"a": 1, "a": 2}', (1, 10)),
        ('{\n"a": {"b": 1,\n "b": 2}}', (3, 2)),
        ('"a\nb"', (1, 1)),
        ('"a', (1, 1)),
        (r'"\x"', (1, 1)),
        ("01", (1, 2)),
        ("NaN", (1, 1)),
        ("-", (1, 1)),
        ("1" * 100, (1, 1)),
        ("1 2", (1, 3)),
        ("// x\n1", (1, 1)),
        ("[" * 40, (1, 34)),
        ("[" * 200_000, (1, 34)),
    ],
)
def test_what_is_not_json_is_told_with_its_place(text: str, place: tuple[int, int]) -> None:
    with pytest.raises(PositionError) as caught:
        read_json(text)
    assert caught.value.place == place
    assert caught.value.hint


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_what_python_writes_is_read_the_same(value: object, indent: object, plain: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=plain)  # type: ignore[arg-type]
    assert read_json(text).value == value


@given(st.text(alphabet='{}[]":,\\ntrue0-1.e \n', max_size=30))
def test_nothing_is_read_that_python_refuses_nor_differently(text: str) -> None:
    try:
        found = read_json(text)
    except PositionError as error:
        line, column = error.place
        assert 1 <= line <= text.count("\n") + 1 and column >= 1  # noqa: PT018
        return
    assert found.value == json.loads(text)
