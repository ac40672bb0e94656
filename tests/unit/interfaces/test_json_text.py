"""Edits of JSON text: comments and commas around a change stay."""

from __future__ import annotations

import pytest

from cellwall.interfaces.json_text import InvalidJson, JsonText, parse_strictly


@pytest.mark.parametrize(
    ("before", "new", "after"),
    [
        ("{ /* none yet */ }", {"a": 1}, '{ /* none yet */"a": 1}'),
        ('{\n  // one\n  "a": 1, // two\n}', {}, "{\n  // one\n   // two\n}"),
        ('{"a": 1, "b": 2, }', {"a": 1}, '{"a": 1, }'),
        ('{"a": 1, /* of b */ "b": 2}', {"b": 2}, '{"b": 2}'),
        ('{\n\t// tab\n\t"a": {}\n}', {"a": {"b": 1}}, '{\n\t// tab\n\t"a": {\n\t\t"b": 1\n\t}\n}'),
        ("// nothing\n", {"a": 1}, '{\n  "a": 1\n}\n'),
        ('{"a": [1.10, 2, 3e0]}', {"a": [1.10, 3e0]}, '{"a": [1.10, 3e0]}'),
    ],
)
def test_only_the_change_is_written(before, new, after):
    assert JsonText(before, comments=True).change_to(new) == after.encode()


@pytest.mark.parametrize("text", ["[1, NaN]", '{"a": 1, "a": 1}', "[" * 100_000, "{"])
def test_forms_that_parsers_read_differently_are_refused(text):
    with pytest.raises(InvalidJson):
        parse_strictly(text)
