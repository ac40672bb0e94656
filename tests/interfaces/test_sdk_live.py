"""Code in a live sandbox: what stays between calls, what is told, and how each call can end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

import cellwall
from cellwall import Sandbox, Status
from cellwall.sandbox.linux import live_runs, run_monitor

pytestmark = pytest.mark.usefixtures("path")


@pytest.fixture
def sbx() -> Iterator[Sandbox]:
    with Sandbox.create() as sandbox:
        yield sandbox


# State


@pytest.mark.requirement("LANG-2")
@pytest.mark.smoke
def test_variables_imports_and_functions_live_on(sbx, path):
    assert sbx.run_code("import math\nx = 20\ndef f(n): return n + x").state == "kept"
    done = sbx.run_code("x += 1\nf(1) + math.floor(0.5)")
    assert (done.value, done.state, done.outcome.sandbox_path) == (22, "kept", path)
    assert sbx.run_code("_ + 1").value == 23


@pytest.mark.requirement("LANG-2")
def test_the_working_directory_and_open_files_live_on(sbx):
    sbx.run_code("import os\nos.mkdir('deep')\nos.chdir('deep')\nfile = open('a', 'w+')")
    sbx.run_code("_ = file.write('one')")
    assert sbx.run_code("file.flush()\nos.getcwd()").value == "/workspace/deep"
    assert sbx.files.read("deep/a") == "one"
    assert sbx.run_code("file.seek(0)\nfile.read()").value == "one"


@pytest.mark.requirement("LANG-2")
def test_threads_and_programs_of_the_code_live_on(sbx):
    sbx.run_code(
        "import subprocess, threading\n"
        "go, seen = threading.Event(), []\n"
        "thread = threading.Thread(target=lambda: (go.wait(20), seen.append(1)))\n"
        "thread.start()\n"
        "cat = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)"
    )
    done = sbx.run_code("go.set()\nthread.join()\n(seen, cat.communicate(b'hi')[0].decode())")
    assert done.value == [[1], "hi"]


def test_what_ends_within_the_time_of_a_short_run_is_not_watched(sbx, monkeypatch):
    watched = []
    monkeypatch.setattr(run_monitor, "_SHORT_RUN_S", 60.0)
    for kind in (live_runs.CommandRun, live_runs.CodeRun):
        monkeypatch.setattr(
            kind, "begin_watching", lambda _, name=kind.__name__: watched.append(name)
        )
    assert sbx.commands.run(["true"]).exit_code == 0
    assert sbx.run_code("1 + 1").value == 2
    assert watched == []
    monkeypatch.setattr(run_monitor, "_SHORT_RUN_S", 0.001)
    assert sbx.commands.run("sleep 0.05").exit_code == 0  # the control
    assert watched == ["CommandRun"]


@pytest.mark.requirement("ISO-7")
def test_two_sandboxes_share_no_state(sbx):
    sbx.run_code("import json\nx = json.marked = 1\nopen('a', 'w').close()")
    sbx.run_code("import os\nos.environ['LEFT'] = '1'")
    with Sandbox.create() as other:
        code = "import json, os\n['x' in dir(), 'json' in dir(), hasattr(json, 'marked')]"
        assert other.run_code(code).value == [False, True, False]
        assert other.run_code("[os.listdir(), os.environ.get('LEFT')]").value == [[], None]
    assert sbx.run_code("x").value == 1


@pytest.mark.requirement("FS-7")
@pytest.mark.smoke
def test_code_commands_and_the_file_api_see_the_same_files(sbx):
    sbx.run_code("open('by-code', 'w').write('1')")
    sbx.commands.run("printf 2 > by-command")
    sbx.files.write("by-api", "3")
    assert sbx.commands.run("cat by-code by-command by-api").stdout == "123"
    assert sbx.run_code("''.join(open(n).read() for n in ('by-command', 'by-api'))").value == "23"
    assert [sbx.files.read(name) for name in ("by-code", "by-command")] == ["1", "2"]


_JAVASCRIPT = """
const fs = require('fs');
process.stdout.write(fs.readFileSync('made', 'utf8'));
fs.writeFileSync('made', '2\\n');
"""


@pytest.mark.requirement("LANG-1", "FS-7")
@pytest.mark.parametrize(
    ("language", "code", "state"),
    [("shell", "cat made; echo 2 > made", None), ("javascript", _JAVASCRIPT, "kept")],
)
def test_other_languages_run_in_the_same_workspace(sbx, language, code, state):
    sbx.run_code("x = open('made', 'w').write('1\\n')")
    done = sbx.run_code(code, language=language)
    assert (done.status, done.stdout, done.state) == (Status.OK, "1\n", state)
    assert sbx.run_code("[x, open('made').read()]").value == [2, "2\n"]


# What comes back


@pytest.mark.requirement("LANG-2")
@pytest.mark.parametrize(
    ("code", "value", "text"),
    [
        ("{'a': [1, 2.5, None, True]}", {"a": [1, 2.5, None, True]}, None),
        ("'é\\ud800'", "é\ufffd", None),
        ("float('nan')", None, "nan"),
        ("{1, 2}", None, "{1, 2}"),
        ("object", None, "<class 'object'>"),
        ("10 ** 400", 10**400, None),
        ("None", None, None),
        ("x = 1", None, None),
        ("# nothing", None, None),
        ("", None, None),
    ],
)
def test_values_as_json_where_they_can_be_and_as_text(sbx, code, value, text):
    done = sbx.run_code(code)
    assert (done.status, done.value) == (Status.OK, value)
    assert text is None or done.text == text
    assert (done.text is None) == (value is None and text is None)


_RICH = """
class Rich:
    def __init__(self, name): self.name = name
    def __repr__(self): return f"Rich {self.name}"
    def _repr_html_(self): return f"<b>{self.name}</b>"
    def _repr_png_(self): return b"png"
"""


@pytest.mark.requirement("LANG-2")
def test_rich_forms_of_the_value_and_of_what_is_displayed(sbx):
    sbx.run_code(_RICH)
    done = sbx.run_code("display(Rich('one'), 5)\nRich('two')")
    assert (done.value, done.text) == (None, "Rich two")
    forms = [{key: shown[key] for key in shown if key != "png"} for shown in done.results]
    assert forms == [
        {"text": "Rich one", "html": "<b>one</b>"},
        {"text": "5"},
        {"text": "Rich two", "html": "<b>two</b>"},
    ]
    assert done.results[0]["png"] == "cG5n"
    assert sbx.run_code("1").results == ()  # shown once, by the run that made it


@pytest.mark.requirement("LANG-2")
def test_a_long_text_is_a_value_however_many_commas_it_has(sbx):
    # core/frames.py takes the commas inside of strings for values, and the state is lost.
    done = sbx.run_code("','.join(map(str, range(250_000)))")
    assert (done.status, done.state, done.value[:5]) == (Status.OK, "kept", "0,1,2")


@pytest.mark.requirement("ERR-1")
@pytest.mark.parametrize(
    ("code", "kind", "lines"),
    [
        ("def f():\n    return 1 / 0\nf()", "ZeroDivisionError", ["f()", "return 1 / 0"]),
        ("x = = 1", "SyntaxError", ["x = = 1"]),
        (
            "raise KeyError('k') from ValueError('v')",
            "KeyError",
            ["ValueError: v", "KeyError: 'k'"],
        ),
        ("import nothing_of_this_name", "ModuleNotFoundError", ["import nothing_of_this_name"]),
        ("def f(): f()\nf()", "RecursionError", ["f()"]),
        ("class E(Exception):\n    def __str__(self): 1 / 0\nraise E", "E", ["raise E"]),
        ("eval('1 +')", "SyntaxError", ["eval('1 +')"]),
    ],
)
def test_errors_are_told_by_the_lines_of_the_code_alone(sbx, code, kind, lines):
    sbx.run_code("before = 1")
    done = sbx.run_code(code)
    assert (done.status, done.exit_code, done.state) == (Status.FAILED, 1, "kept")
    assert done.error["type"] == kind
    assert done.error["traceback"] == done.stderr
    assert all(line in done.stderr for line in lines)
    assert 'File "<code 2>"' in done.stderr
    for hidden in ("cellwall", "runner", "/src/", "site-packages", "exec("):
        assert hidden not in done.stderr
    assert sbx.run_code("before").value == 1


@pytest.mark.requirement("LANG-2")
def test_a_traceback_shows_lines_of_earlier_calls(sbx):
    sbx.run_code("def early():\n    raise LookupError('here')")
    done = sbx.run_code("early()")
    assert "raise LookupError('here')" in done.stderr
    assert ('File "<code>"' in done.stderr, 'File "<code 2>"' in done.stderr) == (True, True)


# Ends


@pytest.mark.requirement("LIM-2")
@pytest.mark.parametrize("code", ["import time; time.sleep(60)", "while True: pass"])
def test_a_time_out_interrupts_and_keeps_the_state(sbx, code):
    sbx.run_code("x = 1")
    done = sbx.run_code(code, timeout=0.3)
    assert (done.status, done.limit, done.exit_code) == (Status.LIMIT, "wall", 124)
    assert (done.state, done.error["type"]) == ("kept", "KeyboardInterrupt")
    assert sbx.run_code("x").value == 1


@pytest.mark.requirement("LIM-2")
@pytest.mark.parametrize(
    "deaf",
    [
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)",
        "import time\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass",
    ],
)
def test_code_that_does_not_listen_loses_its_state_and_the_next_call_works(sbx, deaf):
    sbx.run_code("x = open('file', 'w').write('kept')")
    done = sbx.run_code(deaf, timeout=0.3)
    assert (done.status, done.limit, done.exit_code) == (Status.LIMIT, "wall", 124)
    assert done.state == "lost"
    after = sbx.run_code("['x' in dir(), open('file').read()]")
    assert (after.value, after.state) == ([False, "kept"], "kept")


def _while_it_runs(sbx: Sandbox, code: str, work, **options) -> cellwall.Execution:
    """Runs the code in a thread of its own, and the work as soon as it has said something."""
    said = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(sbx.run_code, code, on_stdout=lambda _: said.set(), **options)
        assert said.wait(20)
        work()
        return running.result(20)


# Not one long sleep: Python misses a signal that comes on the way into one.
_LONG = "import time\nprint('on', flush=True)\nwhile True: time.sleep(0.05)"


def test_interrupt_from_another_thread(sbx):
    assert sbx.interrupt() is False
    sbx.run_code("x = 1")
    told = []
    done = _while_it_runs(sbx, _LONG, lambda: told.append(sbx.interrupt()))
    assert told == [True]
    assert (done.status, done.limit, done.exit_code) == (Status.FAILED, None, 1)
    assert (done.error["type"], done.state) == ("KeyboardInterrupt", "kept")
    assert (sbx.run_code("x").value, sbx.interrupt()) == (1, False)


def test_code_may_catch_an_interrupt(sbx):
    code = """
import time
try:
    print('on', flush=True)
    while True: time.sleep(0.05)
except KeyboardInterrupt:
    x = 2
x"""
    assert _while_it_runs(sbx, code, sbx.interrupt).value == 2


@pytest.mark.requirement("LIM-2")
def test_a_memory_bomb_loses_the_state_and_the_next_call_works():
    with Sandbox.create(memory="64m") as sbx:
        sbx.run_code("x = open('file', 'w').write('kept')")
        done = sbx.run_code("hoard = []\nwhile True: hoard.append(bytearray(1 << 20))")
        assert (done.status, done.limit, done.exit_code) == (Status.LIMIT, "memory", 137)
        assert done.state == "lost"
        assert sbx.run_code("['x' in dir(), open('file').read()]").value == [False, "kept"]


@pytest.mark.parametrize(
    ("code", "exit_code", "stderr", "state"),
    [
        ("import sys; sys.exit()", 0, "", "kept"),
        ("import sys; sys.exit(7)", 7, "", "kept"),
        ("import sys; sys.exit(-1)", 255, "", "kept"),
        ("import sys; sys.exit('why')", 1, "why\n", "kept"),
        ("raise SystemExit(True)", 1, "", "kept"),
        ("import os; os._exit(9)", 9, "", "lost"),
        ("import os; os._exit(0)", 0, "", "lost"),
        ("import os; os.kill(os.getpid(), 9)", 137, "", "lost"),
        ("import os; os.abort()", 134, "", "lost"),
    ],
)
def test_exit_codes_are_the_code_s_own(sbx, code, exit_code, stderr, state):
    sbx.run_code("x = 1")
    done = sbx.run_code(code)
    status = Status.OK if exit_code == 0 else Status.FAILED
    assert (done.status, done.exit_code, done.stderr) == (status, exit_code, stderr)
    assert done.state == state
    assert sbx.run_code("'x' in dir()").value is (state == "kept")


def test_a_cancelled_call_leaves_a_sandbox_that_works():
    async def main() -> object:
        async with cellwall.AsyncSandbox.create() as sbx:
            await sbx.run_code("x = 1")
            with anyio.move_on_after(0.3) as scope:
                await sbx.run_code("import time\ntime.sleep(60)")
            assert scope.cancelled_caught
            return (await sbx.run_code("x")).value

    assert anyio.run(main) == 1


@pytest.mark.parametrize("code", ["time.sleep(60)", "while True: print('old'), time.sleep(0.001)"])
def test_what_a_cancelled_call_has_printed_is_not_the_next_one_s(code):
    async def main() -> tuple[object, ...]:
        async with cellwall.AsyncSandbox.create() as sbx:
            await sbx.run_code("import time; x = 1")
            with anyio.move_on_after(0.3) as scope:
                await sbx.run_code(code)
            assert scope.cancelled_caught
            done = await sbx.run_code("print('new', x)")
            return done.stdout, done.stderr, done.state

    assert anyio.run(main) == ("new 1\n", "", "kept")


def test_calls_of_two_threads_take_turns(sbx):
    code = "import time\nbusy = globals().get('busy', 0) + 1\ntime.sleep(0.1)\nseen = busy\nbusy -= 1\nseen"
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: sbx.run_code(code).value, range(4)))
    assert found == [1, 1, 1, 1]


@pytest.mark.requirement("ISO-8")
def test_kill_ends_a_call_that_runs_and_every_later_call():
    sbx = Sandbox.create()
    done = _while_it_runs(sbx, _LONG, sbx.kill)
    assert (done.status, done.error.code) == (Status.ERROR, "CW-SANDBOX-ENDED")
    sbx.kill()
    for call in (
        lambda: sbx.run_code("1"),
        lambda: sbx.commands.run("true"),
        lambda: sbx.commands.run("true", background=True),
        sbx.commands.list,
        sbx.interrupt,
        lambda: sbx.files.read("a"),
    ):
        with pytest.raises(cellwall.BadInput) as caught:
            call()
        assert caught.value.code == "CW-SANDBOX-ENDED"
