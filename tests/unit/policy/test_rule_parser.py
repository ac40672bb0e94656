"""A rule is what it says, or it is refused with place and hint (POL-1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.verdict import Verdict
from cellwall.parsing.shell.words import UNKNOWN
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import BadRule, Layer, Rule, Source

SOURCE = Source("policy.toml", 3, 5, "/conf")


def parse(text: str, verdict: Verdict = Verdict.ALLOW, *, is_foreign: bool = False) -> Rule:
    return parse_rule(text, verdict=verdict, source=SOURCE, layer=Layer.USER, is_foreign=is_foreign)


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize(
    ("text", "tool", "specifier"),
    [
        ("Bash", "Bash", None),
        ("Bash()", "Bash", None),
        ("Bash(*)", "Bash", None),
        ("Bash(git status)", "Bash", "git status"),
        ("Bash(git:*)", "Bash", "git:*"),
        ("Bash(echo (a) b)", "Bash", "echo (a) b"),
        (r"Bash(echo \))", "Bash", r"echo \)"),
        ("Read(./.env)", "Read", "./.env"),
        ("Edit(/src/**)", "Edit", "/src/**"),
        ("Write(a(1).txt)", "Write", "a(1).txt"),
        ("WebFetch(domain:example.com)", "WebFetch", "domain:example.com"),
        ("WebFetch", "WebFetch", None),
        ("WebSearch", "WebSearch", None),
        ("Code(py)", "Code", "python"),
        ("Code(Bash)", "Code", "shell"),
        ("mcp__git", "mcp__git", None),
        ("mcp__git__*", "mcp__git__*", None),
        ("mcp__git__get_*", "mcp__git__get_*", None),
        ("mcp__git__push(*)", "mcp__git__push", None),
        ("Task", "Task", None),
        ("Task(*)", "Task", None),
        ("my_tool-2", "my_tool-2", None),
    ],
)
def test_a_rule_is_read(text: str, tool: str, specifier: str | None) -> None:
    assert parse(text) == Rule(Verdict.ALLOW, tool, specifier, SOURCE, Layer.USER)


def test_a_rule_keeps_its_reason() -> None:
    rule = parse_rule(
        "Bash(rm *)",
        verdict=Verdict.DENY,
        source=SOURCE,
        layer=Layer.PROJECT,
        reason="no",
    )
    assert rule == Rule(Verdict.DENY, "Bash", "rm *", SOURCE, Layer.PROJECT, "no")


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("", 0),
        ("(x)", 0),
        (" Bash", 0),
        ("Bash ", 0),
        ("Bash(git", 4),
        ("Bash(git))", 8),
        ("Bash(git) x", 8),
        ("Bash(a)(b)", 6),
        ("Bash)", 4),
        ("Bash(echo ()", 4),
        (r"Bash(git\)", 4),
        ("Bash(git\nstatus)", 8),
        ("Bash(git\x00)", 8),
        ("Bash(git\u202e)", 8),
        ("Bash(git\u3164)", 8),
        ("Bash(git\ud800)", 8),
        (f"Bash(git {UNKNOWN})", 9),
        ("Bash(git:* push)", 8),
        ("Bash(:*)", 5),
        ("Bash(a:* b:*)", 6),
        ("Ba sh(git)", 0),
        ("2Bash", 0),
        ("*", 0),
        ("bash", 0),
        ("bash(git)", 0),
        ("READ(x)", 0),
        ("Raed(x)", 0),
        ("Read(!x)", 5),
        ("Read(a/[b)", 7),
        ("Read(~root/x)", 5),
        ("WebFetch(example.com)", 9),
        ("WebFetch(domain:*)", 16),
        ("WebFetch(domain:*.com)", 16),
        ("WebSearch(cats)", 10),
        ("Code(cobol)", 5),
        ("Task(explore)", 5),
        ("mcp__git__push(x)", 15),
        ("mcp__", 0),
        ("mcp__*", 5),
        ("mcp__git*", 5),
        ("mcp__a b", 0),
        ("mcp__a*b", 0),
        ("Bash(" + "x" * 4096 + ")", 4096),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused_at_its_place(text: str, offset: int) -> None:
    with pytest.raises(BadRule) as caught:
        parse(text)
    assert caught.value.offset == offset
    assert caught.value.hint
    assert caught.value.message.isprintable()


def test_a_misspelt_tool_is_told_what_was_meant() -> None:
    with pytest.raises(BadRule) as caught:
        parse("Raed(x)")
    assert caught.value.hint == "Did you mean Read?"


@pytest.mark.parametrize("verdict", [Verdict.DENY, Verdict.ASK])
def test_all_servers_can_be_denied_at_once(verdict: Verdict) -> None:
    assert parse("mcp__*", verdict).tool == "mcp__*"


def test_what_only_another_program_can_read_is_kept_for_it() -> None:
    assert parse("Skill(deploy *)", is_foreign=True).specifier == "deploy *"
    assert parse("WebSearch(cats)", is_foreign=True).specifier == "cats"
    with pytest.raises(BadRule):
        parse("bash(git)", is_foreign=True)
    with pytest.raises(BadRule):
        parse("Read(!x)", is_foreign=True)


@given(
    st.one_of(
        st.text(max_size=40),
        st.builds(
            "{}({})".format,
            st.sampled_from(["Bash", "Read", "Edit", "WebFetch", "Code", "mcp__a", "X"]),
            st.text(max_size=20),
        ),
    ),
    st.sampled_from(list(Verdict)),
    st.booleans(),
)
def test_whatever_is_written_is_a_rule_or_a_bad_rule(
    text: str, verdict: Verdict, is_foreign: bool
) -> None:
    try:
        rule = parse(text, verdict, is_foreign=is_foreign)
    except BadRule as error:
        told = (error.offset, error.message.isprintable())
    else:
        told = (0, rule.text.isprintable())
        again = parse(rule.text, verdict, is_foreign=is_foreign)
        assert again == rule
    assert 0 <= told[0] <= len(text)
    assert told[1]
