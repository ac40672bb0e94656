"""A person's confirmation is read from the terminal, and a signal ends the wait for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cellwall.interfaces.cli import terminal_input


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = os.openpty()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


@pytest.mark.requirement("POL-13")
def test_a_signal_right_before_the_wait_is_handled_without_a_line(terminal, monkeypatch):
    """The kernel does not interrupt a wait that begins after the signal: Python must look again."""
    waited: list[float | None] = []

    def select(reads: list[int], writes: list[int], _: list[int], within_s: float | None = None):
        waited.append(within_s)
        if len(waited) > 3:  # by then the handler of a signal would have run
            raise KeyboardInterrupt
        return [], writes, []

    monkeypatch.setattr(terminal_input.select, "select", select)
    with pytest.raises(KeyboardInterrupt):
        terminal_input._read_confirmation(terminal[1], "", "this")
    assert all(each is not None and each <= 1 for each in waited)


@pytest.mark.requirement("POL-13")
@pytest.mark.parametrize(
    ("line", "expected"), [(b"abcde\n", True), (b"abcd\n", False), (b"\n", False)]
)
def test_only_the_word_that_is_shown_confirms(terminal, monkeypatch, line, expected):
    monkeypatch.setattr(terminal_input.secrets, "choice", lambda letters: letters[next(chosen)])
    monkeypatch.setattr(
        terminal_input, "wait_for", lambda _: os.write(terminal[0], line)
    )  # typed after the question is there
    chosen = iter(range(5))
    assert terminal_input._read_confirmation(terminal[1], "", "this") is expected


@pytest.mark.parametrize("make", [terminal_input.ask, terminal_input.ask_twice])
def test_without_a_terminal_the_hint_names_no_option_that_is_not_there(make, monkeypatch):
    def missing(*_: object) -> int:
        raise OSError

    monkeypatch.setattr(terminal_input.os, "open", missing)
    with pytest.raises(terminal_input.BadInput) as refused:
        make("Passphrase of the approver")
    assert "--" not in refused.value.hint
    assert "terminal" in refused.value.hint


@pytest.mark.parametrize(
    ("typed", "expected"), [("y\n", True), ("YES\n", True), ("\n", False), ("what\nn\n", False)]
)
def test_yes_or_no_is_asked_until_one_of_them_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, expected: bool
) -> None:
    (answers := tmp_path / "answers").write_text(typed)
    with answers.open() as lines:
        monkeypatch.setattr("sys.stdin", lines)
        assert terminal_input.ask_yes_no("Remove it?") is expected


def test_no_answer_at_all_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        with pytest.raises(terminal_input.BadInput) as refused:
            terminal_input.ask_yes_no("Remove it?")
    assert refused.value.code == "CW-NO-TERMINAL"
    assert "--yes" in refused.value.hint


def test_the_end_of_a_terminals_input_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal = os.openpty()
    with open(terminal) as lines:
        monkeypatch.setattr("sys.stdin", lines)
        os.write(controller, b"\x04")
        with pytest.raises(click.Abort):
            terminal_input.ask_yes_no("Remove it?")
    os.close(controller)
