"""`holdfast run` asks the person at its own terminal, with and without a supervisor (POL-8)."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from conftest import audit_records
from holdfast.sandbox.native.waiting import ready_to_read
from interfaces.test_cli_process import DEADLINE_S, PROGRAM, holdfast

RULES = '[permissions]\nallow = ["Bash(ls *)"]\nask = ["Bash(echo *)"]\n'
# The terminal becomes the controlling one, as in a shell.
START = "import fcntl, os, sys, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class Screen:
    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self._terminal = terminal
        self.seen = ""

    def until(self, pattern: str) -> str:
        deadline = time.monotonic() + DEADLINE_S
        while re.search(pattern, self.seen) is None:
            left_s = deadline - time.monotonic()
            assert left_s > 0, self.seen
            if ready_to_read(self._terminal, timeout_s=left_s):
                self.seen += os.read(self._terminal, 65_536).decode().replace("\r\n", "\n")
        return self.seen

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def end(self) -> tuple[int, str]:
        with suppress(OSError):
            while ready_to_read(self._terminal, timeout_s=DEADLINE_S):
                part = os.read(self._terminal, 65_536)
                if not part:
                    break
                self.seen += part.decode().replace("\r\n", "\n")
        return self.process.wait(DEADLINE_S), self.seen


@contextmanager
def on_terminal(*words: str) -> Iterator[Screen]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", START, PROGRAM, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Screen(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.fixture(params=["alone", "supervised"])
def words(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    policy = tmp_path / "rules.toml"
    policy.write_text(RULES)
    policy.chmod(0o600)
    if request.param == "supervised":
        monkeypatch.setenv("HOLDFAST_SUPERVISOR", "on")
        assert holdfast("supervisor", "start").returncode == 0
    yield ["run", "--policy", str(policy), "--", "echo", "hello"]
    if request.param == "supervised":
        holdfast("supervisor", "stop")


def way() -> str:
    """What a supervisor reads is a file, which any process of the user can have written."""
    return "terminal" if os.environ["HOLDFAST_SUPERVISOR"] == "off" else "queue"


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
        assert holdfast("approvals", "allow", name[0]).returncode == 0
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
        time.sleep(2.5)
        screen.type("n\n")
        _, seen = screen.end()
    assert seen[len(before) :].startswith("n\n")
