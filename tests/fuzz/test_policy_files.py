"""Fuzzes the readers of policy files: whatever they are given, they give rules or one error."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.core.errors import ConfigError
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.rules import Layer
from fuzz.mutations import mutated

CORPUS = (
    '[permissions]\nallow = ["Bash(git status)", "Read(src/**)"]\ndeny = ["Read(.env)"]\n',
    '[[rule]]\nverdict = "ask"\nrule = "Bash(git push *)"\nreason = "r"\nmatch = ["Bash(git push)"]\n',
    '{"permissions": {"allow": ["WebFetch(domain:*.example.com)"], "defaultMode": "plan"}}',
    '{"rule": [{"verdict": "deny", "rule": "mcp__git__*", "not_match": ["mcp__a__b"]}]}',
    '{"permissions": {"deny": ["Read(//etc/**)", "Edit([a-z]*)", "Code(python)"]}, "env": {}}',
)
NAMES = ("policy.toml", "policy.json", "settings.json")
PIECES = st.sampled_from(
    ['"', "'", "[", "]", "{", "}", "(", ")", ",", ":", "=", ".", "\\", "\n", "#", "*", "!", "~/",
     "//", "[[rule]]", "[permissions]", "verdict", "rule", "allow", "deny", "Read", "Bash", "domain:",
     "\\u001b", "\u202e", "\ufffc", "\x00", "1e999", "true", "null", "é", "2020-01-01"]
)  # fmt: skip


def told(text: str, name: str) -> str:
    try:
        found = parse_policy(text, file=name, name=name, layer=Layer.USER, folder="/conf")
    except ConfigError as error:
        assert error.hint  # noqa: PT017
        return error.message
    lines = text.count("\n") + 1
    assert all(1 <= rule.source.line <= lines and rule.text.isprintable() for rule in found.rules)
    return ""


@pytest.mark.requirement("POL-1", "RED-2")
@settings(max_examples=300, deadline=None)
@given(mutated(CORPUS, PIECES), st.sampled_from(NAMES))
def test_a_damaged_file_gives_rules_or_one_error(text: str, name: str) -> None:
    message = told(text, name)
    assert message.replace("\n", "").isprintable()
    assert all(line.startswith(f"{name}:") for line in message.splitlines())


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=40), st.sampled_from(NAMES))
def test_any_pieces_give_rules_or_one_error(pieces: list[str], name: str) -> None:
    assert told("".join(pieces), name).replace("\n", "").isprintable()


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=12)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(
                st.sampled_from(["permissions", "allow", "deny", "rule", "verdict", "match"]),
                st.text(max_size=4),
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=15,
)


@settings(max_examples=200, deadline=None)
@given(VALUES, st.sampled_from(["policy.json", "settings.json"]))
def test_any_json_gives_rules_or_one_error(value: object, name: str) -> None:
    assert told(json.dumps(value), name).replace("\n", "").isprintable()
