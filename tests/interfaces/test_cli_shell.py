"""`cellwall shell`: an interactive program in a sandbox, and what it may do to the terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import termios
from types import SimpleNamespace

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

import terminals
from cellwall.core.errors import CellwallError
from cellwall.interfaces.cli.interactive import ScreenFilter, TerminalProgram
from interfaces.test_cli_process import PROGRAM, cellwall, error_code

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
    *(b"\x1b[?2l", b"\x1b[?3h", b"\x1b[2h", b"\x1b[?1001h", b"\x1b[?25;2l", b"\x1b[123456789b"),
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


# What a terminal makes of it: controls inside a sequence are obeyed and the sequence goes on, and
# what stood around a removed sequence stands together.
JOINED = [
    (b"\x1b\r[6n", b"\r[6n"),
    (b"\x1b\x00]52;c;eA==\x07", b"]52;c;eA==\x07"),
    (b"\x1b\x7f[c", b"[c"),
    (b"\x1b\x1b]x\x07]52;c;eA==\x07", b"]52;c;eA==\x07"),
    (b"\x1b\x1b[6n[6n", b"[6n"),
    (b"\x1b[\r6n", b"\r6n"),
    (b"\xc2\x05\x9b6n", "\ufffd\ufffd6n".encode()),
    (b"\x9b6n", "\ufffd6n".encode()),
]


@pytest.mark.requirement("ISO-6")
@pytest.mark.parametrize(("hidden", "shown"), JOINED)
def test_no_sequence_comes_together_from_what_is_left(hidden, shown):
    assert ScreenFilter().feed(hidden + b"!") == shown + b"!"


@pytest.mark.requirement("ISO-6")
@given(
    st.lists(st.sampled_from([b"\x1b", b"[", b"]", b"\xc2", b"\x9b", b"6n", b"\r", b"\x07", b"0"]))
)
def test_every_escape_that_is_shown_draws(parts):
    shown = ScreenFilter().feed(b"".join(parts) + b"!").decode()
    left = re.sub(r"\x1b\[[0-9]*[A-HJKm]|\x1b[078DEHM=>]", "", shown)
    assert not {"\x1b", "\x9b"} & set(left)


@pytest.mark.requirement("ISO-6")
def test_a_string_without_an_end_is_not_kept_in_memory_and_ends_with_the_next_sequence():
    screen = ScreenFilter()
    assert [screen.feed(b"\x1b]0;" if n == 0 else b"x" * 10_000) for n in range(100)] == [b""] * 100
    assert len(screen._waiting) < 10
    assert screen.feed(b"\x1b[1mshown") == b"\x1b[1mshown"


@pytest.mark.requirement("ISO-6")
def test_at_the_end_the_screen_is_as_before_and_only_that_is_undone():
    quiet, screen = ScreenFilter(), ScreenFilter()
    quiet.feed(b"\x1b[?2004h$ \x1b[?2004lexit\r\n")
    assert quiet.finish() == b"\x1b(B\x0f\x1b[0m"  # above all, no cursor is moved
    screen.feed(b"\x1b[?1049;1003h\x1b[?25;7l\x1b[4h\x1b[3;9r\x1b[5 q\x1b=\x1b(0\x0edied")
    undone = screen.finish()
    for sequence in ["[?1049l", "[?1003l", "[?25h", "[?7h", "[4l", "[r", "[0 q", ">", "(B", "[0m"]:
        assert f"\x1b{sequence}".encode() in undone
    assert undone.endswith(b"\r\n")


def test_without_a_terminal_the_other_command_is_named():
    done = cellwall("shell")
    assert (error_code(done), b"cellwall run" in done.stderr) == ("CW-NO-TERMINAL", True)


@pytest.mark.parametrize("words", [["shell"], ["run", "--", "bash"]])
def test_a_person_types_and_sees_and_the_exit_code_is_the_shells(words):
    with terminals.cellwall_on_terminal(words, terminals.Screen) as screen:
        screen.until(r"\$ ")
        screen.type("echo $((6*7)); tty; stty size\n")
        screen.until("42\n/dev/pts/0\n24 80\n")
        # One program says so and waits: between two of its commands bash can lose a Ctrl-C.
        screen.type("""sh -c 'echo be""gun; exec sleep 100'\n""")
        screen.until("begun\n")
        screen.type("\x03")
        screen.until(r"\^C(?s:.*)\$ ")
        screen.type("printf 'a\\033]52;c;eA==\\007b\\n'; exit 7\n")
        screen.until("ab\n")
        assert screen.process.wait(terminals.DEADLINE_S) == 7


@pytest.mark.requirement("ERR-1")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_shell_and_leaves_the_terminal_as_it_was(number):
    with terminals.cellwall_on_terminal(["shell"], terminals.Screen) as screen:
        before = termios.tcgetattr(screen.terminal)
        screen.until(r"\$ ")
        assert termios.tcgetattr(screen.terminal) != before  # the control: raw, meanwhile
        screen.process.send_signal(number)
        screen.until(f"ended by {number.name}")
        assert "Traceback" not in screen.seen
        assert screen.process.wait(terminals.DEADLINE_S) == 128 + number
        assert termios.tcgetattr(screen.terminal) == before


@pytest.mark.requirement("ERR-1")
def test_a_terminal_that_is_closed_ends_the_shell():
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [PROGRAM, "shell"], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, process_group=0
    )
    os.close(theirs)
    screen = terminals.Screen(process, ours)
    screen.until(r"\$ ")
    os.close(ours)
    try:
        assert process.communicate(timeout=terminals.DEADLINE_S)[1].startswith(b"cellwall: ")
        assert process.returncode == 125
    finally:
        process.kill()


@pytest.mark.requirement("ERR-1")
def test_a_terminal_that_is_gone_when_we_go_on_is_told_as_closed(monkeypatch):
    program = TerminalProgram(SimpleNamespace(timeout=None), ("true",), "/workspace")

    async def nothing(_: object) -> None:
        await anyio.lowlevel.checkpoint()  # by then signals are waited for
        os.kill(os.getpid(), signal.SIGCONT)  # standard input is no terminal here
        await anyio.sleep_forever()

    monkeypatch.setattr(program, "_show", nothing)
    monkeypatch.setattr(program, "_forward_typed", nothing)
    with pytest.raises(CellwallError, match="the terminal was closed"):
        anyio.run(program._until_end, None)


@pytest.mark.requirement("LIM-2")
def test_a_time_that_was_asked_for_ends_the_shell():
    words = ["shell", "--timeout", "1", "--", "sleep", "1000"]
    with terminals.cellwall_on_terminal(words, terminals.Screen) as screen:
        screen.until("ended by the wall limit; raise it with --timeout\n")
        assert screen.process.wait(terminals.DEADLINE_S) == 124


@pytest.mark.requirement("FS-2")
def test_changes_of_the_shell_are_named_at_its_end(tmp_path):
    words = ["shell", "--workspace", f"{tmp_path}:cow", "--", "touch", "new"]
    with terminals.cellwall_on_terminal(words, terminals.Screen) as screen:
        screen.until(r"changes kept as sbx_\w+; see them with: cellwall diff sbx_")
        assert screen.process.wait(terminals.DEADLINE_S) == 0


@pytest.mark.requirement("ERR-1")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["shell", "--", "no-such-program"], "CW-COMMAND-NOT-FOUND"),
        (["run", "--cwd", "/nope", "--", "bash"], "CW-CWD-NOT-FOUND"),
    ],
)
def test_a_program_that_cannot_be_started_is_told(words, code):
    with terminals.cellwall_on_terminal(words, terminals.Screen) as screen:
        screen.until(code)
        assert screen.process.wait(terminals.DEADLINE_S) == 125


def test_json_and_shell_exclude_each_other():
    assert error_code(cellwall("shell", "--stdin")) == "CW-USAGE"
