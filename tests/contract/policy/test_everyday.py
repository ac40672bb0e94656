"""An ordinary policy lets ordinary work be done: a wall that is always in the way gets removed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.engine import Policy

FAMILIES = tomllib.loads(Path(__file__).with_name("everyday.toml").read_text("utf-8"))["everyday"]
ENTRIES = [entry for family in FAMILIES.values() for entry in family]
WANTED = 0.97


def told(entry: dict[str, str], decision: Decision) -> str:
    """The command that was refused, and the part of it that was the reason."""
    parts = [part for part in decision.parts if part.verdict is decision.verdict] or [decision]
    why = f"{parts[0].subject!r}: {parts[0].reason} [{parts[0].rule}]"
    return f"{entry['id']}: {decision.verdict.word}: {entry['command']!r}\n    {why}"


def test_the_set_is_large_and_every_command_has_an_id_of_its_own():
    assert len(ENTRIES) >= 200
    assert len({entry["id"] for entry in ENTRIES}) == len(ENTRIES)
    assert len({entry["command"] for entry in ENTRIES}) == len(ENTRIES)


@pytest.mark.requirement("POL-2", "POL-3")
@pytest.mark.slow
def test_everyday_commands_are_allowed_by_an_ordinary_policy(place, ordinary: Policy):
    decisions = [(entry, place.judge(ordinary, entry["command"])) for entry in ENTRIES]
    misses = [told(*pair) for pair in decisions if pair[1].verdict is not Verdict.ALLOW]
    print(f"{len(misses)} of {len(ENTRIES)} are not allowed", *misses, sep="\n")
    assert 1 - len(misses) / len(ENTRIES) >= WANTED, "\n".join(misses)
