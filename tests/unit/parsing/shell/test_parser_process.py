"""Each text has a process of its own; the next one waits, and ends with the program."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from cellwall.parsing.shell.parser_process import ParserProcesses

_CAT = "import os,sys; sys.stdout.write(f'{os.getpid()} {sorted(os.environ)} ' + sys.stdin.read())"


def pid_of(answer: bytes) -> int:
    return int(answer.split()[0])


@pytest.fixture
def parsers() -> Iterator[ParserProcesses]:
    made = ParserProcesses([sys.executable, "-I", "-S", "-c", _CAT])
    yield made
    made.close()


def test_each_text_gets_a_process_of_its_own_and_no_environment(parsers):
    answers = [parsers.run(f"text {n}".encode(), timeout_s=60) for n in range(4)]
    assert [answer.stdout.split()[-1] for answer in answers] == [b"0", b"1", b"2", b"3"]
    assert len({pid_of(answer.stdout) for answer in answers}) == 4
    assert all(b" ['LC_CTYPE'] " in answer.stdout or b" [] " in answer.stdout for answer in answers)


def test_only_a_program_that_parses_more_than_one_text_has_one_waiting(parsers):
    parsers.run(b"first", timeout_s=60)
    assert parsers._waiting is None
    parsers.run(b"second", timeout_s=60)
    waiting = parsers._waiting
    assert waiting is not None
    assert pid_of(parsers.run(b"third", timeout_s=60).stdout) == waiting.pid
    assert waiting.returncode == 0


def test_one_that_was_killed_while_it_waited_is_replaced(parsers):
    for text in (b"first", b"second"):
        parsers.run(text, timeout_s=60)
    parsers._waiting.kill()
    assert parsers.run(b"third", timeout_s=60).stdout.endswith(b"third")


def test_one_that_does_not_answer_is_killed_at_the_timeout():
    parsers = ParserProcesses([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
    with pytest.raises(subprocess.TimeoutExpired):
        parsers.run(b"text", timeout_s=0.2)
    assert parsers._waiting is None


def test_many_threads_get_their_own_answers(parsers):
    answers: dict[int, bytes] = {}

    def ask(number: int) -> None:
        answers[number] = parsers.run(b"%d" % number, timeout_s=60).stdout

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {n: int(answer.split()[-1]) for n, answer in answers.items()} == {n: n for n in range(8)}


def test_one_that_cannot_be_started_is_an_error_and_leaves_nothing():
    parsers = ParserProcesses(["/nonexistent/parser"])
    with pytest.raises(OSError, match="No such file"):
        parsers.run(b"text", timeout_s=1)


def test_a_forked_child_neither_uses_nor_ends_the_one_of_its_parent(parsers):
    for text in (b"first", b"second"):
        parsers.run(text, timeout_s=60)
    waiting = parsers._waiting
    child = os.fork()
    if child == 0:  # no assertion of pytest may run in the child
        own = parsers.run(b"child", timeout_s=60).stdout
        os._exit(0 if pid_of(own) != waiting.pid and own.endswith(b"child") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pid_of(parsers.run(b"parent", timeout_s=60).stdout) == waiting.pid


def test_the_one_that_waits_ends_when_the_program_is_killed():
    program = f"""
import os, signal, sys
from cellwall.parsing.shell.parser_process import ParserProcesses
parsers = ParserProcesses([sys.executable, "-I", "-S", "-c", {_CAT!r}])
parsers.run(b"first", timeout_s=60); parsers.run(b"second", timeout_s=60)
os.set_inheritable(1, True)
print(parsers._waiting.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    waiting = int(done.stdout)
    try:
        pidfd = os.pidfd_open(waiting)
    except ProcessLookupError:
        return  # ended already
    with os.fdopen(pidfd):
        assert select.select([pidfd], [], [], 60)[0]
