"""`cellwall shell`: an interactive program in a sandbox, and what it may do to the terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import terminals
from cellwall.interfaces.cli.shell import ScreenFilter
from interfaces.test_cli_process import cellwall, error_code

DRAWN = [
    b"plain \xc3\xa9\r\n",
    b"\x1b[1;31mred\x1b[0m",
    b"\x1b[2J\x1b[H",
    b"\x1b[?1049h",
    b"\x1b(B",
]
REMOVED = [
    *(b"\x1b]52;c;aGk=\x07", b"\x1b]0;title\x1b\\", b"\x1bP$qm\x1b\\", b"\x1b_apc\x1b\\"),
    *(
        b"\x1b[6n",
        b"\x1b[c",
        b"\x1b[>c",
        b"\x1b[21t",
        b"\x1b[?6$p",
        b"\x1b[x",
        b"\x1b[>q",
        b"\x1b[?u",
    ),
    *(b"\x1bZ", b"\x05", b"\xc2\x9d52;c;x\x07"[:2], b"\x1b[1*y", b"\x1b[?1;1;0S", b"\x1b['|"),
]


@pytest.mark.requirement("ISO-6")
@pytest.mark.parametrize("text", DRAWN)
def test_what_draws_passes(text):
    assert ScreenFilter().feed(text) == text


@pytest.mark.requirement("ISO-6")
@pytest.mark.parametrize("sequence", REMOVED)
def test_what_steers_more_than_the_screen_is_removed_however_it_is_cut(sequence):
    for cut in range(len(sequence) + 1):
        screen = ScreenFilter()
        shown = screen.feed(b"a" + sequence[:cut]) + screen.feed(sequence[cut:] + b"b")
        assert shown == b"ab"


@pytest.mark.requirement("ISO-6")
@given(st.lists(st.sampled_from([*DRAWN, *REMOVED, b"\x1b", b"[", b"]", b"x"])), st.integers(1, 7))
def test_pieces_of_any_size_are_shown_as_the_whole(parts, size):
    data, screen = b"".join(parts) + b" end", ScreenFilter()
    pieces = [screen.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert b"".join(pieces) == ScreenFilter().feed(data)


def test_without_a_terminal_the_other_command_is_named():
    done = cellwall("shell")
    assert (error_code(done), b"cellwall run" in done.stderr) == ("CW-NO-TERMINAL", True)


@pytest.mark.parametrize("words", [["shell"], ["run", "--", "bash"]])
def test_a_person_types_and_sees_and_the_exit_code_is_the_shells(words):
    with terminals.cellwall_on_terminal(words, terminals.Screen) as screen:
        screen.until(r"\$ ")
        screen.type("echo $((6*7)); tty; stty size\n")
        screen.until("42\n/dev/pts/0\n24 80\n")
        screen.type('echo be""gun; sleep 100\n')
        screen.until("begun\n")
        screen.type("\x03")
        screen.until(r"\^C")
        screen.type("printf 'a\\033]52;c;eA==\\007b\\n'; exit 7\n")
        screen.until("ab\n")
        assert screen.process.wait(terminals.DEADLINE_S) == 7


def test_json_and_shell_exclude_each_other():
    assert error_code(cellwall("shell", "--stdin")) == "CW-USAGE"
