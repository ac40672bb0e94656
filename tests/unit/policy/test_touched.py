"""What a call would touch is what the rules see of it."""

from __future__ import annotations

import pytest

from cellwall.core.verdict import Verdict
from cellwall.policy.calls import ToolCall
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import Layer, Source
from cellwall.policy.subjects import only_itself
from cellwall.policy.touched import touched

RULES = tuple(
    parse_rule(text, verdict=Verdict.ALLOW, source=Source("test"), layer=Layer.USER)
    for text in ("Bash", "Read", "Write")
)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("cat notes.txt > copy.txt", {("Writes", "/w/copy.txt")}),
        ("rm -rf build", {("Removes", "/w/build")}),
        ("sh -c 'echo a | tee b'", {("Writes", "/w/b")}),
        ("true", set()),
    ],
)
def test_files_of_a_command_are_named_with_what_happens_to_them(command, expected) -> None:
    call = ToolCall("Bash", {"command": command}, "/w", "/w")
    assert expected <= set(touched(call, RULES, links=only_itself))


def test_hosts_and_malformed_calls() -> None:
    fetch = ToolCall("WebFetch", {"url": "https://example.com/x"}, "/w", "/w")
    assert ("Reaches", "example.com") in touched(fetch, (), links=only_itself)
    assert touched(ToolCall("Bash", {}, "/w", "/w"), (), links=only_itself) == []
