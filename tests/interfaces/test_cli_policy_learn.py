"""`cellwall policy learn`: what it prints is a policy that can be pasted."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

from cellwall.config.load import load_settings
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.types import Action, Principal, UseTool
from cellwall.core.verdict import Decision, Verdict
from cellwall.runtime.event_bodies import denial_body
from cellwall.runtime.recording import open_record
from interfaces.test_cli_process import cellwall, error_code, person


@pytest.fixture(autouse=True)
def recorded(tmp_path: Path, state_home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    denied = Decision(Verdict.DENY, "default", "no rule allows this", "built-in")
    settings = load_settings(file=None, profile=None, environ=os.environ)
    with open_record(state_home, settings) as audit:
        for command in ("git status", "sudo ls", "echo '\x1b[31m'"):
            operation = UseTool("Bash", {"command": command}, str(tmp_path), "agent-1")
            action = Action(principal=Principal("ann", "hook"), operation=operation)
            body = denial_body(action, denied)
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
    assert told["rules"] == [
        {"rule": "Bash(git status)", "stands_for": [], "also_allows": "", "answers": ""}
    ]
    assert (told["seen"], told["allowed_now"], len(told["not_proposed"])) == (3, 0, 2)
    assert json.loads(cellwall("policy", "learn", "--session", "x", "--json").stdout)["seen"] == 0


def test_a_time_that_is_none_is_refused():
    done = cellwall("policy", "learn", "--since", "yesterday")
    assert (done.returncode, error_code(done)) == (125, "CW-USAGE")


STARTER = '# mine\n[permissions]\notherwise = "ask"\nallow = ["Bash(ls)"]\n'


def project(text: str = STARTER) -> Path:
    file = Path(".cellwall/policy.toml")
    file.parent.mkdir()
    file.write_text(text)
    return file


@pytest.mark.requirement("POL-10", "POL-13")
@pytest.mark.parametrize(("says", "code"), [(None, 0), ("yes", 1)])
def test_a_person_sees_the_diff_and_only_their_word_writes_it(says, code):
    file = project()
    assert person("policy", "trust").returncode == 0
    done = person("policy", "learn", "--write", says=says)
    assert done.returncode == code, done
    assert b'+rule = "Bash(git status)"\n' in done.stderr
    assert b"+++ .cellwall/policy.toml\n" in done.stderr
    assert b"\x1b[31m" not in done.stderr
    after = file.read_text()
    assert after.startswith(STARTER)
    assert ("Bash(git status)" in after) is (code == 0)
    checked = cellwall("policy", "check", "Bash(git status)")
    assert checked.returncode == (3 if code else 0), checked  # trusted again at once
    if code == 0:
        again = cellwall("policy", "learn", "--write")  # nothing is left, so nobody is asked
        assert (again.returncode, again.stdout) == (0, b"Nothing to propose.\n")


@pytest.mark.requirement("POL-13")
def test_without_a_terminal_nothing_is_written():
    file = project()
    done = cellwall("policy", "learn", "--write", stdin=b"y\n")
    assert (done.returncode, error_code(done)) == (125, "CW-NOT-CONFIRMED")
    assert file.read_text() == STARTER


def test_rules_added_to_a_file_that_nobody_trusts_wait_for_trust():
    project()
    done = person("policy", "learn", "--write")
    assert b"to trust it: cellwall policy trust" in done.stderr
    assert cellwall("policy", "check", "Bash(git status)").returncode == 4


@pytest.mark.requirement("FS-8")
def test_a_project_s_link_to_a_file_of_the_user_s_is_not_written_through(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(STARTER)
    Path(".cellwall").mkdir()
    Path(".cellwall/policy.toml").symlink_to(own)
    done = cellwall("policy", "learn", "--write")
    assert (done.returncode, error_code(done)) == (125, "CW-POLICY-THERE")
    assert own.read_text() == STARTER
