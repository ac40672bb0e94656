"""What goes into a call of a live sandbox and comes out of it: variables, input, output."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cellwall import Sandbox, Status

pytestmark = pytest.mark.usefixtures("path")


@pytest.fixture
def sbx() -> Iterator[Sandbox]:
    with Sandbox.create(envs={"OURS": "0"}) as sandbox:
        yield sandbox


# Variables

_TELL = "import os\n[os.environ.get(name) for name in ('OURS', 'CALLS', 'CODES')]"


@pytest.mark.requirement("ISO-3", "ISO-7")
def test_variables_of_a_call_are_that_call_s_and_those_of_the_code_stay(sbx):
    assert sbx.run_code(_TELL).value == ["0", None, None]
    assert sbx.run_code(_TELL, envs={"CALLS": "1", "OURS": "1"}).value == ["1", "1", None]
    assert sbx.run_code(_TELL).value == ["0", None, None]
    sbx.run_code("os.environ['CODES'] = '2'", envs={"CALLS": "2"})
    assert sbx.run_code(_TELL).value == ["0", None, "2"]
    sbx.run_code("os.environ['CALLS'] = 'set by the code'", envs={"CALLS": "3"})
    assert sbx.run_code(_TELL).value == ["0", "set by the code", "2"]


@pytest.mark.requirement("ISO-3")
def test_variables_of_the_very_first_call_are_that_call_s_as_well(sbx):
    # sessions.py sends them as the interpreter's own (`base`), and nobody takes them back.
    sbx.run_code("1", envs={"CALLS": "1", "OURS": "1"})
    assert sbx.run_code(_TELL).value == ["0", None, None]


def test_the_code_may_change_a_variable_of_the_sandbox(sbx):
    # Each call sets it again: `action.env` holds the sandbox's variables and the call's as one.
    sbx.run_code("import os\nos.environ['OURS'] = 'changed'")
    assert sbx.run_code(_TELL).value == ["changed", None, None]


def test_programs_that_the_code_starts_have_its_variables(sbx):
    sbx.run_code("import os, subprocess\nos.environ['CODES'] = '2'")
    code = "subprocess.check_output(['sh', '-c', 'echo $OURS $CALLS $CODES'], text=True)"
    assert sbx.run_code(code, envs={"CALLS": "1"}).value == "0 1 2\n"
    assert sbx.run_code(code).value == "0 2\n"
    assert sbx.commands.run("echo $OURS $CALLS $CODES").stdout == "0\n"


# Input


def test_input_is_of_one_call_and_ends(sbx):
    assert sbx.run_code("import sys\nsys.stdin.read()", stdin="one\ntwo").value == "one\ntwo"
    assert sbx.run_code("[input(), input()]", stdin="1\n2\n").value == ["1", "2"]
    assert sbx.run_code("sys.stdin.buffer.read()", stdin=b"\xff\0").text == r"b'\xff\x00'"
    assert sbx.run_code("len(sys.stdin.read())", stdin="é" * 300_000).value == 300_000
    assert sbx.run_code("input()").error["type"] == "EOFError"
    assert sbx.run_code("1", stdin="nobody reads it").value == 1


@pytest.mark.requirement("ISO-7")
def test_input_that_one_call_has_left_is_not_the_next_one_s(sbx):
    # runner.py puts a file in the place of standard input and leaves it there.
    sbx.run_code("1", stdin="for the first\n")
    assert sbx.run_code("input()").error["type"] == "EOFError"


@pytest.mark.parametrize("code", ["import subprocess\nsubprocess.check_output(['cat'], text=True)"])
def test_programs_that_the_code_starts_read_its_input(sbx, code):
    assert sbx.run_code(code, stdin="hi").value == "hi"
    assert sbx.run_code("1").value == 1
    assert sbx.run_code(code, stdin="again").value == "again"


# Output


def test_output_of_each_call_is_its_own_and_comes_as_it_is_made(sbx):
    assert sbx.run_code("print('one')").stdout == "one\n"
    seen = []
    code = "import sys\nprint('é' * 3, end='', flush=True)\nprint('err', file=sys.stderr)"
    done = sbx.run_code(code, on_stdout=seen.append, on_stderr=seen.append)
    assert (done.stdout, done.stderr) == ("ééé", "err\n")
    assert sorted(seen) == ["err\n", "ééé"]
    assert sbx.run_code("1").stdout == ""


def test_huge_output_comes_whole_and_in_order(sbx):
    seen = []
    done = sbx.run_code("for n in range(60_000): print(n)", on_stdout=seen.append)
    assert done.status is Status.OK
    assert done.stdout == "".join(f"{n}\n" for n in range(60_000))
    assert "".join(seen) == done.stdout


def test_binary_output_is_kept_as_it_is(sbx):
    code = "import sys\n_ = sys.stdout.buffer.write(bytes(range(256)) * 100)"
    assert sbx.run_code(code).outcome.stdout_bytes == bytes(range(256)) * 100


@pytest.mark.requirement("LIM-2")
def test_an_output_flood_is_cut_and_told_and_ends(sbx):
    with Sandbox.create(limits={"output_bytes": 10_000}) as small:
        small.run_code("x = 1")
        done = small.run_code("while True: print('y' * 100)")
        assert (done.status, done.limit) == (Status.LIMIT, "output")
        assert done.exit_code not in (0, None)
        assert done.outcome.truncated
        assert len(done.outcome.stdout_bytes) + len(done.outcome.stderr_bytes) <= 10_000
        assert small.run_code("print(1)").stdout == "1\n"  # each call has the whole of it again


def test_a_listener_that_raises_ends_the_call_and_the_sandbox_goes_on(sbx):
    def listener(_text: str) -> None:
        raise LookupError("mine")

    sbx.run_code("x = 1")
    with pytest.raises(LookupError, match="mine"):
        sbx.run_code("while True: print('y')", on_stdout=listener, timeout=20)
    assert sbx.run_code("x").value == 1


def test_output_of_a_program_left_behind_does_not_hold_a_call(sbx):
    done = sbx.run_code(
        "import subprocess\nleft = subprocess.Popen(['sh', '-c', 'sleep 60; echo late'])\nprint(1)"
    )
    assert (done.status, done.stdout) == (Status.OK, "1\n")
    assert sbx.run_code("left.poll() is None").value is True
