"""What is remembered of a parsed command, and that nothing of the disk is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.parsing.shell.words import Command, literals
from cellwall.policy.calls import ToolCall
from cellwall.policy.command_facts import remembered
from unit.policy.policies import bash, policy

PUSH = Command(literals(("git", "push")))


def test_a_fact_is_found_once_for_a_command_and_the_same_arguments():
    asked: list[object] = []

    @remembered
    def fact(command: Command, of: object) -> int:
        asked.append((command, of))
        return len(asked)

    command, first, second = replace(PUSH), object(), object()
    assert [fact(command, first), fact(command, first)] == [1, 1]
    assert [fact(command, second), fact(command, second)] == [2, 2]
    assert fact(replace(command), second) == 3


def test_facts_are_no_part_of_the_command():
    @remembered
    def fact(command: Command) -> str:
        return command.program

    known, unknown = replace(PUSH), replace(PUSH)
    fact(known)
    assert known == unknown
    assert hash(known) == hash(unknown)
    assert replace(known, place=("|",)).facts == {}


@pytest.mark.requirement("POL-4")
def test_the_decision_on_a_known_text_follows_the_links_on_the_disk(tmp_path: Path):
    made = policy(allow=["Bash(cat *)"], deny=["Read(//**/secret.txt)"])
    (tmp_path / "secret.txt").touch()
    (tmp_path / "notes.txt").touch()
    call = ToolCall("Bash", {"command": "cat notes.txt"}, str(tmp_path), "/home/ann")
    verdicts = [made.check(call).verdict.word]
    (tmp_path / "notes.txt").unlink()
    (tmp_path / "notes.txt").symlink_to("secret.txt")
    verdicts.append(made.check(call).verdict.word)
    (tmp_path / "notes.txt").unlink()
    verdicts.append(made.check(call).verdict.word)
    assert verdicts == ["allow", "deny", "allow"]


@pytest.mark.requirement("POL-4")
def test_decisions_of_two_policies_on_one_text_are_kept_apart():
    allowing, denying = policy(allow=["Bash(git *)"]), policy(deny=["Bash(git push)"])
    verdicts = [bash(each, "git push").verdict.word for each in (allowing, denying) * 2]
    assert verdicts == ["allow", "deny", "allow", "deny"]
