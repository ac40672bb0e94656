"""`cellwall policy learn`: what it prints is a policy that can be pasted."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

from cellwall.config.load import load_settings
from cellwall.core.events import Event, EventKind
from cellwall.core.types import Action, Principal, UseTool
from cellwall.core.verdict import Decision, Verdict
from cellwall.runtime.outcomes import denial
from cellwall.runtime.record import open_record
from interfaces.test_cli_process import cellwall, error_code


@pytest.fixture(autouse=True)
def recorded(tmp_path: Path, state_home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    denied = Decision(Verdict.DENY, "default", "no rule allows this", "built-in")
    settings = load_settings(file=None, profile=None, environ=os.environ)
    with open_record(state_home, settings) as audit:
        for command in ("git status", "sudo ls", "echo '\x1b[31m'"):
            want = UseTool("Bash", {"command": command}, str(tmp_path), "agent-1")
            action = Action(principal=Principal("ann", "hook"), want=want)
            body = denial(action, denied)
            audit.write(Event(EventKind.DENIAL, action.id, "ann", "hook", body))


@pytest.mark.requirement("POL-10")
def test_the_proposal_can_be_pasted_and_allows_what_was_seen():
    done = cellwall("policy", "learn")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout
    assert tomllib.loads(done.stdout.decode()) == {"permissions": {"allow": ["Bash(git status)"]}}
    assert b"#   Bash(sudo ls)\n#     runs a command with the rights of another user" in done.stdout
    Path("learnt.toml").write_bytes(done.stdout)
    checked = cellwall("policy", "check", "Bash(git status)", "--policy", "learnt.toml")
    assert checked.returncode == 0, checked


def test_programs_get_one_object():
    told = json.loads(cellwall("policy", "learn", "--session", "agent-1", "--json").stdout)
    assert told["rules"] == [{"rule": "Bash(git status)", "stands_for": [], "also_allows": ""}]
    assert (told["seen"], told["allowed_now"], len(told["not_proposed"])) == (3, 0, 2)
    assert json.loads(cellwall("policy", "learn", "--session", "x", "--json").stdout)["seen"] == 0


def test_a_time_that_is_none_is_refused():
    done = cellwall("policy", "learn", "--since", "yesterday")
    assert (done.returncode, error_code(done)) == (125, "CW-USAGE")
