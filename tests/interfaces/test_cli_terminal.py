"""The command line on a real terminal: nothing hostile passes, questions are asked."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from cellwall.sandbox.linux.channels import ready_to_read
from interfaces import prepared_program
from interfaces.test_cli_process import DEADLINE_S, cellwall

ATTACK = r"printf 'a\033]0;owned\007\033[31mred\233\302\233\033[6nz\n'"
SHOWN = b"a^[]0;owned^G\x1b[31mred\\x9b\\x9b^[[6nz\n"


def on_terminal(
    *words: str, answer: bytes = b"", streams: tuple[str, ...] = ("stdin", "stdout", "stderr")
) -> tuple[int, bytes, dict[str, bytes]]:
    """Exit code, what the terminal got, and what came by the pipes of the other streams."""
    ours, theirs = pty.openpty()
    rest = {name for name in ("stdout", "stderr") if name not in streams}
    with prepared_program.Popen(
        words,
        stdin=theirs if "stdin" in streams else subprocess.DEVNULL,
        stdout=theirs if "stdout" in streams else subprocess.PIPE,
        stderr=theirs if "stderr" in streams else subprocess.PIPE,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        os.write(ours, answer)
        seen = read_to_end(ours)
        piped = {name: getattr(process, name).read() for name in rest}
        code = process.wait(DEADLINE_S)
    os.close(ours)
    return code, seen.replace(b"\r\n", b"\n"), piped


def read_to_end(terminal: int) -> bytes:
    seen = b""
    deadline = time.monotonic() + DEADLINE_S
    with suppress(OSError):  # EIO: the last holder of the other side is gone
        while ready_to_read(terminal, timeout_s=max(0, deadline - time.monotonic())):
            part = os.read(terminal, 65_536)
            if not part:
                break
            seen += part
    return seen


def test_the_attack_is_one_where_nothing_filters_it():
    ours, theirs = pty.openpty()
    subprocess.run(["/bin/bash", "-c", ATTACK], stdout=theirs, check=True)
    os.close(theirs)
    assert b"\x1b]0;owned\x07" in read_to_end(ours)
    os.close(ours)


def test_escape_sequences_of_a_program_are_shown_and_not_obeyed():
    code, seen, _ = on_terminal("run", "--", "bash", "-c", ATTACK)
    assert (code, seen) == (0, SHOWN + b"\x1b[0m")  # the colour is ended for it


def test_each_stream_is_judged_by_itself():
    both = f"{ATTACK}; {ATTACK} >&2"
    code, seen, piped = on_terminal("run", "--", "bash", "-c", both, streams=("stderr",))
    assert (code, seen) == (0, SHOWN + b"\x1b[0m")
    assert piped == {"stdout": b"a\x1b]0;owned\x07\x1b[31mred\x9b\xc2\x9b\x1b[6nz\n"}


def test_a_sequence_cut_between_two_writes_is_still_one():
    script = r"printf 'x\033'; sleep 0.2; printf ']0;owned'; sleep 0.2; printf '\007\n'"
    assert on_terminal("run", "--", "sh", "-c", script)[1] == b"x^[]0;owned^G\n"


@pytest.mark.parametrize("end", ["", r"\n\033[0m"])
def test_what_we_say_begins_a_line_of_its_own(tmp_path, end):
    """Whatever the program's last line is, and without an empty line where it has an end."""
    words = ["run", "--workspace", f"{tmp_path}:cow", "--"]
    _, seen, _ = on_terminal(*words, "sh", "-c", f"printf 'x{end}'; touch new")
    shown = re.sub(rb"\r[^\r\n]*\x1b\[K|\x1b\[0m", b"", seen)
    assert shown.startswith(b"x\ncellwall: changes kept as")


def test_errors_cannot_steer_the_terminal_either():
    code, seen, _ = on_terminal("code", "/\x1b]0;owned\x07")
    assert code == 125
    assert b"\x1b" not in seen
    code, seen, _ = on_terminal("run", "--\x1b]0;owned\x07")
    assert code == 125
    assert b"\x1b" not in seen


def test_a_spinner_shows_that_it_works_and_is_erased():
    script = "sleep 2.5; echo done"
    code, seen, _ = on_terminal("run", "--", "sh", "-c", script)
    frames, _, rest = seen.rpartition(b"\r\x1b[K")
    assert (code, rest) == (0, b"done\n")
    assert b" 1 s\x1b[K" in frames
    assert b" 2 s\x1b[K" in frames


@pytest.mark.parametrize(
    ("words", "script", "streams"),
    [
        ((), "sleep 2", ("stdin", "stdout")),  # standard error is no terminal
        (("--json",), "sleep 2", ("stderr",)),
        ((), "printf prompt; sleep 2; echo", ("stdin", "stdout", "stderr")),
    ],
)
def test_no_spinner_where_it_would_do_harm(words, script, streams):
    code, seen, _ = on_terminal("run", *words, "--", "sh", "-c", script, streams=streams)
    assert code == 0
    assert b"\x1b[K" not in seen


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, str]:
    """A directory, and the id of a run that changed it copy-on-write."""
    (tmp_path / "a").write_text("old\n")
    script = r"printf 'new\033]0;owned\007\rhidden\n' > a"
    done = cellwall("run", "--workspace", f"{tmp_path}:cow", "--", "sh", "-c", script)
    assert done.returncode == 0
    (found,) = os.listdir(Path(os.environ["CELLWALL_HOME"], "workspaces"))
    return tmp_path, found


def test_a_diff_on_a_terminal_shows_what_it_holds(kept):
    _, seen, _ = on_terminal("diff", kept[1])
    assert b"+new^[]0;owned^G^Mhidden\n" in seen
    assert b"\x1b" not in seen


def test_the_record_on_a_terminal_shows_what_it_holds(kept):
    _, seen, _ = on_terminal("audit", "tail")
    assert b"\x1b" not in seen
    _, seen, _ = on_terminal("audit", "show", kept[1])
    assert b"\x1b" not in seen


@pytest.mark.parametrize(
    ("answer", "code", "content"),
    [(b"y\n", 0, "new\x1b]0;owned\x07\rhidden\n"), (b"n\n", 1, "old\n")],
)
def test_apply_asks_on_a_terminal(kept, answer, code, content):
    folder, found = kept
    done, seen, _ = on_terminal("apply", found, answer=answer)
    assert (done, (folder / "a").read_bytes().decode()) == (code, content)
    assert f"Apply these changes to {folder}? [y/N]:".encode() in seen


def test_apply_does_not_ask_when_told_not_to(kept):
    folder, found = kept
    code, seen, _ = on_terminal("apply", "--yes", found)
    assert (code, b"[y/N]" in seen) == (0, False)
    assert (folder / "a").read_bytes().startswith(b"new")
