"""The prompt on a real terminal: the default is no, and nothing but the person answers (POL-8)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import AbstractContextManager

import pytest

import terminals

pytestmark = pytest.mark.slow  # each starts a program on a terminal

ATTACK = "git push\x1b[2J\x1b[H\u202e\r\nBecause:\n| all is well\nWithin 9 s [y/N]: y"

PROGRAM = """
import fcntl, json, os, sys, termios, time
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
wanted = json.loads(sys.argv[1])
sys.path[:] = wanted["path"]
import anyio
from cellwall.core.errors import CellwallError
from cellwall.core.types import Principal
from cellwall.interfaces.cli.approval_prompt import TerminalApprover
from unit.runtime.questions_for_tests import SESSION, question_for
if wanted.get("background"):
    os.setpgid(0, 0) if os.fork() == 0 else (os.wait(), sys.exit(0))
changes = {"session_id": SESSION} if wanted.get("session") else {}
question = question_for(*wanted["argv"], timeout_s=wanted.get("timeout_s", 30.0), **changes)
os.write(2, b"READY\\n")
if wanted.get("pause"):
    os.read(0, 1)
    while termios.FIONREAD and not int.from_bytes(fcntl.ioctl(2, termios.FIONREAD, bytes(4)), "little"):
        time.sleep(0.01)
async def ask():
    with anyio.move_on_after(wanted.get("cancel_s", 60)):
        return await TerminalApprover(Principal("me", "cli")).ask(question)
try:
    answer = anyio.run(ask)
    told = None if answer is None else answer.to_json()
except CellwallError as error:
    told = {"error": error.code}
except KeyboardInterrupt:
    told = {"interrupted": True}
print(json.dumps({"told": told, "echo": bool(termios.tcgetattr(2)[3] & termios.ECHO)}))
"""


class Screen(terminals.Screen):
    """The person's side of a terminal with a question on it."""

    def answer(self, text: str, *, after: str = r"(\]|back): $") -> None:
        """Typed when this has been shown."""
        self.until(after)
        self.seen = ""
        self.type(text)

    def end(self) -> dict[str, object]:
        """What the asking process was told."""
        out, _ = self.process.communicate(timeout=terminals.DEADLINE_S)
        self.look_to_the_end(within_s=0)
        return json.loads(out)

    def told(self) -> object:
        return self.end()["told"]


def asked(
    *argv: str, columns: int = 80, stdin: int | None = None, **wanted: object
) -> AbstractContextManager[Screen]:
    changes = {} if stdin is None else {"stdin": stdin}
    told = {"argv": argv or ["git", "push"], "path": sys.path, **wanted}
    return terminals.cellwall_on_terminal(
        [json.dumps(told)],
        Screen,
        columns=columns,
        code=PROGRAM,
        stdout=subprocess.PIPE,
        **changes,
    )


def answer(kind: str, rule: str = "") -> dict[str, str]:
    return {
        "answer": kind,
        "by": "me",
        "interface": "cli",
        "via": "terminal",
        "rule": rule,
        "reason": "",
    }


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize(
    ("typed", "kind"),
    [
        *(("y\n", "once"), ("YES\n", "once"), ("once\n", "once"), ("s\n", "session")),
        *(("session\n", "session"), ("n\n", "deny"), ("no\n", "deny"), ("\n", "deny")),
        ("\x04", "deny"),  # the end of input
    ],
)
def test_what_each_key_says(typed: str, kind: str) -> None:
    with asked(session=True) as screen:
        screen.answer(typed)
        assert screen.told() == answer(kind)


@pytest.mark.requirement("POL-8")
def test_a_person_sees_the_question_the_ways_to_answer_and_the_time_left() -> None:
    with asked(session=True) as screen:
        shown = screen.until(r"\]: $")
        screen.answer("n\n", after="")
        assert screen.told() == answer("deny")
    assert re.search(
        r"cellwall asks you \(ask_[0-9a-z]+\):\nagent \(through sdk\) wants to use Bash:\n\| git push\n",
        shown,
    )
    ways, _, prompt = shown.partition("  y  ")[2].partition("Within ")
    assert ways == (
        "allow it, this once\n"
        "  s  allow exactly this, until the session ends\n"
        "  r  allow it, and write a rule\n"
        "  n  deny it (Enter alone, too)\n"
    )
    assert re.fullmatch(r"\d+ s \[y/s/r/N\]: ", prompt)


def test_only_what_can_be_answered_is_offered() -> None:
    with asked("sh", "-c", "a | b") as screen:
        shown = screen.until(r"\[y/N\]: $")
        assert "session" not in shown
        assert "rule\n" not in shown
        screen.answer("s\n")
        screen.until("Unknown answer.\n")
        screen.answer("r\n")
        screen.answer("n\n", after=r"answer.\nWithin \d+ s \[y/N\]: $")
        assert screen.told() == answer("deny")


@pytest.mark.requirement("POL-8")
def test_a_rule_is_shown_with_what_it_would_also_allow_and_asked_for_again() -> None:
    with asked() as screen:
        screen.answer("r\n")
        shown = screen.until("back: $")
        assert (
            "Rule 2, for all that follows:\n| Bash(git push *)\nIt would also allow:\n| every command"
            in shown
        )
        screen.answer("\n")  # think again
        screen.answer("r\n")
        screen.answer("2\n")
        assert screen.told() == answer("rule", "Bash(git push *)")


def test_nonsense_for_ever_is_a_no() -> None:
    with asked() as screen:
        for _ in range(5):
            screen.answer("maybe\n", after=r"N\]: $")
        told = screen.told()
    assert told == {**answer("deny"), "reason": "no valid answer"}


@pytest.mark.requirement("POL-8")
def test_what_was_typed_before_the_question_is_no_answer() -> None:
    with asked(pause=True, timeout_s=5.0) as screen:
        screen.answer("x\ny\ny\ny\n", after="READY")
        screen.until(r"N\]: $")
        screen.answer("n\n")
        assert screen.told() == answer("deny")


@pytest.mark.requirement("POL-8")
def test_standard_input_never_answers() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"y\ny\n")
    os.close(writing)
    with asked(stdin=reading) as screen:
        screen.answer("n\n")
        assert screen.told() == answer("deny")
    os.close(reading)


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize("columns", [20, 30, 80, 200, 0])
def test_a_hostile_command_cannot_forge_the_prompt(columns: int) -> None:
    with asked("sh", "-c", ATTACK, columns=columns) as screen:
        shown = screen.until(r"y/N\]: $")
        screen.answer("\n")
        assert screen.told() == answer("deny")
    # A colour that was left on ends before our first word, and there is no other.
    begin, reset, shown = shown.partition("\x1b[0m")
    assert (begin, reset) == ("READY\n", "\x1b[0m")
    assert all(char == "\n" or char.isprintable() for char in shown)
    assert "\u202e" not in shown
    lines = shown.split("\n")
    assert not any(line.startswith(("| all is well", "Within 9")) for line in lines)
    assert all(len(line) <= (columns or 80) for line in lines)
    if columns == 80:
        assert "|4 Within 9 s [y/N]: y\n" in shown


def test_what_is_typed_is_echoed_without_being_obeyed() -> None:
    with asked() as screen:
        screen.answer("\x1b]0;owned\x07\n")
        assert "\x1b" not in screen.until(r"Unknown answer(.|\n)*N\]: $")
        screen.answer("n\n")
        assert screen.told() == answer("deny")


@pytest.mark.requirement("POL-8")
def test_ctrl_c_is_never_a_yes() -> None:
    with asked() as screen:
        screen.answer("y\x03")
        assert screen.told() == {"interrupted": True}


def test_when_no_answer_is_needed_any_more_the_prompt_ends_and_says_so() -> None:
    with asked(cancel_s=1.0) as screen:
        screen.until(r"N\]: $")
        assert screen.end() == {"told": None, "echo": True}
        assert screen.seen.endswith("\nNo answer is needed any more.\n")


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize("wanted", [{"columns": 10}, {"background": True}])
def test_where_no_person_could_see_it_nobody_is_asked(wanted: dict[str, object]) -> None:
    with asked(**wanted) as screen:  # type: ignore[arg-type]  # plain keywords
        told = screen.end()["told"]
        assert told == {"error": "CW-NO-TERMINAL"}
        assert "cellwall approvals show ask_" in screen.seen
