"""Tables of expected verdicts: read with their lines, refused where a test could be missed."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.errors import ConfigError
from cellwall.core.verdict import Verdict
from cellwall.policy.tables import CallTable, read_table


def read(text: str) -> CallTable:
    return read_table(text, file="t.toml", folder="/repo/tests", cwd="/here", home="/home/u")


def test_arrays_and_cases_become_calls_with_their_lines():
    table = read(
        'policy = ["../policy.toml", "/abs.toml"]\ncwd = ".."\n'
        'allow = [\n  "Bash(ls)",\n  "Read(a)",\n]\nask = ["Bash(git push)"]\n\n'
        '[[case]]\ncall = "Read(.env)"\nverdict = "deny"\nnote = "secret"\n\n'
        '[[case]]\ntool = "Bash"\ninput = { command = "rm x" }\nverdict = "ask"\n'
    )
    assert table.policies == ("/repo/policy.toml", "/abs.toml")
    assert table.cwd == "/repo"
    seen = [(each.text, each.verdict, each.line, each.note) for each in table.cases]
    assert seen == [
        ("Bash(ls)", Verdict.ALLOW, 4, ""),
        ("Read(a)", Verdict.ALLOW, 5, ""),
        ("Bash(git push)", Verdict.ASK, 7, ""),
        ("Read(.env)", Verdict.DENY, 10, "secret"),
        ("Bash(rm x)", Verdict.ASK, 15, ""),
    ]
    assert {(each.call.cwd, each.call.home) for each in table.cases} == {("/repo", "/home/u")}


def test_without_a_folder_of_its_own_it_is_about_here():
    assert read('allow = ["Bash(ls)"]').cwd == "/here"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "t.toml:1:1: the table holds no call"),
        ("allow = []", "the table holds no call"),
        ('\nallows = ["Bash(ls)"]', "t.toml:2:1: allows: unknown key. Did you mean allow?"),
        ('zebra = 1\nallow = ["Bash(ls)"]', "t.toml:1:1: zebra: unknown key. Known here: policy"),
        ('allow = "Bash(ls)"', "t.toml:1:9: allow: this is not a list"),
        ("allow = [1]", "t.toml:1:1: allow[0]: this is not a string"),
        ('deny = ["Bash"]', "t.toml:1:9: deny[0]: the call of Bash has no text in parentheses"),
        ('deny = [\n"Bash(ls)",\n"nonsense("]', "t.toml:3:1: deny[1]: the call does not end"),
        ("cwd = 3", "t.toml:1:1: cwd: this is not a string"),
        ("policy = [3]", "t.toml:1:1: policy[0]: this is not a string"),
        ("case = [1]", "this is not a table"),
        ('[[case]]\ncall = "Bash(ls)"', "the verdict is missing or unknown"),
        (
            '[[case]]\ncall = "Bash(ls)"\nverdict = "alow"',
            "t.toml:3:11: case[0].verdict: the verdict is missing",
        ),
        ('[[case]]\nverdict = "deny"', "t.toml:1:1: case[0]: the case needs exactly one call"),
        ('[[case]]\ncall = "Bash(ls)"\ntool = "Bash"\nverdict = "deny"', "exactly one call"),
        ('[[case]]\ncall = "Bash(ls)"\ninput = {}\nverdict = "deny"', "exactly one call"),
        ('[[case]]\ntool = "Bash"\ninput = 3\nverdict = "deny"', "is not an object"),
        (
            '[[case]]\ncall = "Bash(ls)"\nverdict = "deny"\nnote = 3',
            "t.toml:4:1: case[0].note: this is not a string",
        ),
        (
            '[[case]]\ncall = "Bash(ls)"\nverdict = "deny"\nwhy = ""',
            "t.toml:4:1: case[0].why: unknown key",
        ),
        ("allow = [", "t.toml:1:"),
        ('"\\u001b[31m" = 1\nallow = ["Bash(ls)"]', r't.toml:1:1: "\u001b[31m": unknown key'),
    ],
)
def test_what_could_hide_a_test_is_a_mistake_with_its_line(text, told):
    with pytest.raises(ConfigError) as raised:
        read(text)
    assert told in raised.value.message
    assert (raised.value.code, bool(raised.value.hint)) == ("CW-POLICY-TABLE", True)


def test_all_mistakes_are_told_together_and_not_without_end():
    with pytest.raises(ConfigError) as raised:
        read("".join(f"key{number} = 1\n" for number in range(200)))
    assert len(raised.value.message.splitlines()) == 101
    assert raised.value.message.endswith("and 100 more")


@given(st.text(max_size=300))
def test_any_text_is_a_table_or_a_told_mistake(text):
    with suppress(ConfigError):
        assert read(text).cases
