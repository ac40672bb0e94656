"""What a person is asked: all that matters, in a form that the call cannot forge (POL-8)."""

from __future__ import annotations

import io
import unicodedata
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.errors import Denied
from cellwall.core.files import FileOperation
from cellwall.core.types import (
    Action,
    CallTool,
    Principal,
    ProcessOperation,
    RunCode,
    RunCommand,
    ServeClient,
    UseTool,
    WorkspaceMode,
    WorkspaceRequest,
)
from cellwall.core.verdict import Decision, Verdict
from cellwall.runtime.questions import call_sha256, question_about, tool_and_subject
from unit.runtime.questions_for_tests import ASK, SESSION, action_for, question_for

OURS = (
    "agent (through sdk) wants to use ", "Circumstances:", "The policy asks about:", "Because:",
    "By the rule:", "It would also allow:", "Mind: ", "Rule 1 ", "Rule 2 ",
)  # fmt: skip


def test_a_person_sees_who_wants_what_why_and_which_rules_could_be_written() -> None:
    question = question_for("git", "push", session_id=SESSION)
    assert question.shown == (
        "agent (through sdk) wants to use Bash:\n"
        "| git push\n"
        "Circumstances:\n"
        "| in /workspace\n"
        "Because:\n"
        "| pushes are seen by others\n"
        "By the rule:\n"
        "| Bash(git push *) (policy.toml:3)\n"
        "Rule 1 that could be written:\n"
        "| Bash(git push)\n"
        "It would also allow:\n"
        "| this exact command again, in every session and folder\n"
        "Rule 2 that could be written:\n"
        "| Bash(git push *)\n"
        "It would also allow:\n"
        "| every command that begins with `git push`, whatever follows\n"
    )
    assert question.session_id == SESSION
    assert question.deadline_s - question.asked_s == pytest.approx(30.0)


def test_what_changes_the_meaning_of_a_call_is_shown_but_no_values() -> None:
    wanted = action_for(
        "make",
        env={"LD_PRELOAD": "hunter2"},
        brief={"B": "hunter2"},
        stdin=b"hunter2",
        workspace=WorkspaceRequest(WorkspaceMode.READ_WRITE, "/home/me"),
        allow_domains=("evil.example",),
        tools=("add",),
        skills=("one",),
    )
    shown = question_about(wanted, ASK, timeout_s=1).shown
    for told in (
        "with /home/me (rw)", "with the variables B, LD_PRELOAD", "7 bytes of standard input",
        "may reach evil.example", "may call add", "sees the skills one",
    ):  # fmt: skip
        assert f"| {told}" in shown or f"| with {told}" in shown
    assert "hunter2" not in shown


def test_the_parts_that_ask_are_named() -> None:
    parts = (Decision(Verdict.ALLOW, subject="cd x"), Decision(Verdict.ASK, subject="git push"))
    decision = Decision(Verdict.ASK, reason="r", parts=parts)
    question = question_about(action_for("sh", "-c", "cd x && git push"), decision, timeout_s=1)
    assert question.parts == ("git push",)
    assert "The policy asks about:\n| git push\n" in question.shown


@pytest.mark.requirement("POL-8")
@given(st.text(max_size=500), st.text(max_size=200), st.text(max_size=80))
def test_no_text_of_others_stands_where_ours_does(script: str, reason: str, name: str) -> None:
    wanted = action_for("sh", "-c", script)
    wanted = replace(wanted, principal=Principal("agent", "sdk"), env={"X": name})
    decision = Decision(
        Verdict.ASK, name, reason, name, parts=(Decision(Verdict.ASK, subject=name),)
    )
    shown = question_about(wanted, decision, timeout_s=1).shown
    assert shown.endswith("\n")
    for line in shown[:-1].split("\n"):
        assert line.startswith("|") or line.startswith(OURS)
    assert all(char == "\n" or char.isprintable() for char in shown)
    assert not any(unicodedata.bidirectional(char) in {"R", "AL", "AN"} for char in shown)


def test_names_are_escaped_and_bounded_too() -> None:
    wanted = replace(action_for(), principal=Principal("a\x1b[2J\n" * 50, "b\u202e"))
    first = question_about(wanted, ASK, timeout_s=1).shown.splitlines()[0]
    assert first.isprintable()
    assert len(first) < 150


@pytest.mark.requirement("POL-8")
def test_a_shipped_policy_gets_no_rule_but_a_file_of_a_person_does(tmp_path: Path) -> None:
    """A first file of the user would replace the shipped one, and with it all that it allows."""
    shipped = resources.files("cellwall.interfaces.http") / "default_policies" / "service.toml"
    of_ours = action_for("git", "push", policy=(str(shipped),))
    assert question_about(of_ours, ASK, timeout_s=1).proposals == ()
    assert "as a rule" not in question_about(of_ours, ASK, timeout_s=1).shown
    of_a_person = action_for("git", "push", policy=(str(tmp_path / "policy.toml"),))
    assert question_about(of_a_person, ASK, timeout_s=1).proposals  # the control


def test_a_huge_call_makes_a_small_question() -> None:
    question = question_about(
        action_for(operation=RunCode("python", b"x = 1\n" * 1_000_000)), ASK, timeout_s=1
    )
    assert len(question.shown) < 10_000
    assert len(question.text) < 20_000


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (RunCommand(("git", "commit", "-m", "a b")), ("Bash", "git commit -m 'a b'")),
        (RunCommand(("/bin/sh", "-c", "a | b")), ("Bash", "a | b")),
        (RunCommand(("./sh", "-c", "a | b")), ("Bash", "./sh -c 'a | b'")),
        (RunCommand(("sh", "-c", "a", "b")), ("Bash", "sh -c a b")),
        (RunCode("python", b"1\xff"), ("Code", "# python\n1\\xff")),
        (FileOperation("read", "a"), ("Read", "read a")),
        (FileOperation("move", "a", target="b"), ("Write", "move a -> b")),
        (ProcessOperation("signal", 3, number=9), ("Process", "signal of process 3, 9")),
        (CallTool("add", (1,)), ("add", '{\n "args": [\n  1\n ],\n "kwargs": {}\n}')),
        (UseTool("Bash", {"command": "ls", "description": "x"}, "/"), ("Bash", "ls")),
        (UseTool("Read", {"file_path": "/a"}, "/"), ("Read", "/a")),
        (UseTool("Edit", {"file_path": "/a", "new": "b"}, "/"), ("Edit", '{\n "file_path": "/a",\n "new": "b"\n}')),
    ],
)  # fmt: skip
def test_each_kind_of_call_in_the_words_of_rules(
    operation: object, expected: tuple[str, str]
) -> None:
    assert tool_and_subject(action_for(operation=operation)) == expected


@pytest.mark.requirement("POL-8", "NET-8")
def test_a_person_is_told_which_client_wants_to_reach_what() -> None:
    async def hold(*_: object) -> None:
        """Never called."""

    first, second = (ServeClient("box", digest, hold) for digest in (b"token-1", b"token-2"))
    wanted = action_for(operation=first, allow_domains=("a.b", "c.d"))
    assert tool_and_subject(wanted) == ("WebFetch", "a.b, c.d by the client box")
    # A token is no part of the call, and no part of what is shown.
    assert call_sha256(wanted) == call_sha256(replace(wanted, operation=second))
    assert call_sha256(wanted) != call_sha256(replace(wanted, allow_domains=("a.b",)))


@pytest.mark.requirement("POL-8")
def test_the_same_call_is_the_same_and_nothing_else_is() -> None:
    base = action_for("ls", session_id=SESSION)
    assert call_sha256(base) == call_sha256(action_for("ls", session_id=SESSION))
    others = [
        action_for("ls", "-a", session_id=SESSION),
        action_for("ls -a", session_id=SESSION),
        replace(base, env={"A": "1"}),
        replace(base, stdin=b"x"),
        replace(base, operation=RunCommand(("ls",), cwd="/")),
        replace(base, workspace=WorkspaceRequest(WorkspaceMode.READ_WRITE, "/x")),
        replace(base, allow_domains=("a.b",)),
        replace(base, principal=Principal("other", "sdk")),
        replace(base, template="data"),
    ]
    digests = {call_sha256(each) for each in (base, *others)}
    assert len(digests) == len(others) + 1


def test_tool_calls_of_other_code_are_the_same_and_streams_never_are() -> None:
    first, second = (action_for(operation=CallTool("add", (1,), parent=each)) for each in "ab")
    assert call_sha256(first) == call_sha256(second)
    upload = FileOperation("upload", "a", source=io.BytesIO(b""))
    assert call_sha256(action_for(operation=upload)) == ""


@pytest.mark.requirement("POL-8")
def test_a_written_stream_is_known_by_its_digest() -> None:
    def write(size: int, sha256: str, path: str = "a") -> Action:
        source = io.BytesIO(b"")
        operation = FileOperation(
            "write", path, source=source, source_bytes=size, source_sha256=sha256
        )
        return action_for(operation=operation, session_id=SESSION)

    base = write(3, "ab")
    assert call_sha256(base) == call_sha256(write(3, "ab"))
    others = [write(4, "ab"), write(3, "cd"), write(3, "ab", path="b")]
    assert len({call_sha256(each) for each in (base, *others)}) == 4
    assert call_sha256(write(3, "")) == ""
    assert "3 bytes, SHA-256 ab" in question_about(base, ASK, timeout_s=1).shown
    read = FileOperation("read", "a", sink=io.BytesIO())
    plain = FileOperation("read", "a")
    digests = {call_sha256(action_for(operation=each, id="x")) for each in (read, plain)}
    assert len(digests) == 1
    assert digests != {""}


def asking(*subjects: str) -> Decision:
    parts = tuple(Decision(Verdict.ASK, subject=each) for each in subjects)
    return Decision(Verdict.ASK, reason="r", parts=parts)


@pytest.mark.requirement("POL-8")
def test_no_part_that_asks_is_left_out() -> None:
    subjects = [f"git push origin {number}" for number in range(31)] + ["git push --force"]
    script = "echo '" + "x" * 20_000 + "'; " + "; ".join(subjects) + "; echo '" + "x" * 20_000 + "'"
    question = question_about(action_for("sh", "-c", script), asking(*subjects), timeout_s=1)
    assert question.parts == tuple(subjects)
    assert all(f"| {subject}\n" in question.shown for subject in subjects)


@pytest.mark.requirement("POL-8")
def test_more_parts_than_anybody_reads_are_denied() -> None:
    subjects = [f"git push origin {number}" for number in range(33)]
    with pytest.raises(Denied) as refused:
        question_about(action_for("sh", "-c", "; ".join(subjects)), asking(*subjects), timeout_s=1)
    assert (refused.value.code, bool(refused.value.hint)) == ("CW-ASK-TOO-MUCH", True)


@pytest.mark.requirement("POL-8")
def test_no_key_of_an_input_hides_between_long_values() -> None:
    given = {"a_note": "x " * 2500, "target": "PRODUCTION", "z": [{"deep": "y" * 50_000, "k": 1}]}
    question = question_about(action_for(operation=CallTool("deploy", (), given)), ASK, timeout_s=1)
    for told in ('"a_note": "x x', '"target": "PRODUCTION"', '"deep": "yyy', '"k": 1'):
        assert told in question.shown
    assert "characters left out, SHA-256 of all " in question.shown.replace("\n|+", "")
    assert "|~" not in "".join(line[:5] for line in question.shown.splitlines())


def test_an_input_with_more_keys_than_can_be_shown_is_denied() -> None:
    few, many = ({f"key{n}": n for n in range(most)} for most in (50, 500))
    assert (
        "key49"
        in question_about(action_for(operation=CallTool("t", (), few)), ASK, timeout_s=1).shown
    )
    with pytest.raises(Denied) as refused:
        question_about(action_for(operation=CallTool("t", (), many)), ASK, timeout_s=1)
    assert refused.value.code == "CW-ASK-TOO-MUCH"
