"""`cellwall run` asks the person at its own terminal, with and without a supervisor (POL-8)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import terminals
from cellwall.sandbox.linux.channels import ready_to_read
from conftest import audit_records
from interfaces.conftest import start_supervisor, stop_supervisor
from interfaces.test_cli_process import DEADLINE_S, person

RULES = '[permissions]\nallow = ["Bash(ls *)"]\nask = ["Bash(echo *)"]\n'


class Screen(terminals.Screen):
    def end(self) -> tuple[int, str]:
        self.look_to_the_end(within_s=DEADLINE_S)
        return self.process.wait(DEADLINE_S), self.seen


def on_terminal(*words: str) -> AbstractContextManager[Screen]:
    """The terminal becomes the controlling one, as in a shell."""
    return terminals.cellwall_on_terminal(words, Screen, on_terminal=True)


@pytest.fixture(params=["alone", "supervised"])
def words(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    policy = tmp_path / "rules.toml"
    policy.write_text(RULES)
    policy.chmod(0o600)
    if request.param == "supervised":
        monkeypatch.setenv("CELLWALL_SUPERVISOR", "on")
        process = start_supervisor({})
    yield ["run", "--policy", str(policy), "--", "echo", "hello"]
    if request.param == "supervised":
        stop_supervisor(process, {})


def way() -> str:
    """What a supervisor reads is a file, which any process of the user can have written."""
    return "terminal" if os.environ["CELLWALL_SUPERVISOR"] == "off" else "queue"


@pytest.mark.requirement("POL-8")
def test_a_yes_at_the_terminal_runs_it(words):
    with on_terminal(*words) as screen:
        assert "wants to use Bash:\n| echo hello\n" in screen.until(r"N\]: $")
        screen.type("y\n")
        code, seen = screen.end()
    assert (code, seen.endswith("hello\n")) == (0, True), seen
    told = next(each["body"] for each in audit_records() if each["kind"] == "approval")
    assert (told["verdict"], told["via"], told["interface"]) == ("allow", way(), "cli")


@pytest.mark.requirement("POL-8")
def test_enter_alone_denies_it(words):
    with on_terminal(*words) as screen:
        screen.until(r"N\]: $")
        screen.type("\n")
        code, seen = screen.end()
    assert code == 125
    assert f"({way()}) denied it" in seen


@pytest.mark.requirement("POL-8")
def test_an_answer_from_another_terminal_ends_the_prompt(words):
    with on_terminal(*words) as screen:
        name = re.search(r"ask_\w+", screen.until(r"N\]: $"))
        assert name is not None
        assert person("approvals", "allow", name[0]).returncode == 0
        code, seen = screen.end()
    assert "\nNo answer is needed any more.\n" in seen
    assert (code, seen.endswith("hello\n")) == (0, True), seen


@pytest.mark.requirement("POL-8")
def test_ctrl_c_at_the_prompt_ends_the_run_and_nothing_runs(words):
    with on_terminal(*words) as screen:
        screen.until(r"N\]: $")
        screen.type("\x03")
        code, seen = screen.end()
    assert code == 130, seen
    kinds = [each["kind"] for each in audit_records()]
    assert "intent" not in kinds
    assert [each["body"]["verdict"] for each in audit_records() if each["kind"] == "approval"] == [
        "deny"
    ]


def test_no_spinner_runs_over_the_prompt(words):
    with on_terminal(*words) as screen:
        screen.until(r"N\]: $")
        before = screen.seen
        # A spinner begins after one second of silence.
        assert not ready_to_read(screen.terminal, timeout_s=1.6)
        screen.type("n\n")
        _, seen = screen.end()
    assert seen[len(before) :].startswith("n\n")
