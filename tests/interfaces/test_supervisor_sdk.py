"""`cellwall.run_code` and `run_command` through the supervisor: no caller can tell the ways apart."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import cellwall
from cellwall import Execution, run_code, run_command
from cellwall.core.frames import FrameReader
from cellwall.interfaces.sdk import single_runs
from cellwall.interfaces.supervisor import requests
from cellwall.interfaces.supervisor.requests import command_message
from cellwall.runtime import wiring
from conftest import need
from interfaces.both_ways import CONFIGURED, count_ways, records, seen
from interfaces.test_cli_process import cellwall as command
from interfaces.test_supervisor import PATIENCE_S, until

CASES: dict[str, Callable[[], Execution]] = {
    "value": lambda: run_code("print('é')\n6 * 7"),
    "bytes": lambda: run_code(b"print(1)", language="py"),
    "raises": lambda: run_code("def f(): 1 / 0\nf()"),
    "results": lambda: run_code("display = 1\n[1.5, None, {'a': 'b'}]"),
    "shell": lambda: run_code("echo $A", language="bash", envs={"A": "1"}),
    "not text": lambda: run_command(["printf", r"a\377b"]),
    "string": lambda: run_command("echo out; echo err >&2; exit 7"),
    "stdin": lambda: run_command("cat", stdin=bytes(range(256)) * 2000),
    "text on stdin": lambda: run_command("cat", stdin="hé"),
    "signal": lambda: run_command("kill -SEGV $$"),
    "time": lambda: run_command(["sleep", "60"], timeout=0.3),
    "output": lambda: run_command("yes", limits={"output_bytes": 10_000}),
    "limits": lambda: run_command("ulimit -n", limits={"open_files": 77}, memory="64m"),
    "network": lambda: run_command("true", allow_domains=["a.example"]),
    "secret": lambda: run_command("echo ghp_" + "a1B2c3D4e5" * 3 + "123456"),
    "profile": lambda: run_command("true", profile="development"),
}
REFUSALS: dict[str, Callable[[], Execution]] = {
    "not found": lambda: run_command(["no-such-program"]),
    "no user": lambda: run_command("true", user="nobody"),
    "no second user": lambda: run_code("1", user="root"),
    "language": lambda: run_code("1", language="cobol"),
    "option": lambda: run_command("true", memroy=1),  # type: ignore[call-arg]
    "size": lambda: run_command("true", memory="many"),
    "limit": lambda: run_command("true", limits={"wall": 1}),
    "range": lambda: run_command("true", timeout=-1),
    "variable": lambda: run_command("true", envs={"A-B": "1"}),
    "profile": lambda: run_command("true", profile="none"),
    "configuration": lambda: run_command("true", config="/nowhere.toml"),
    "workspace": lambda: run_command("true", workspace="nowhere"),
    "mode": lambda: run_command("true", workspace="/tmp:no"),
    "template": lambda: run_code("1", template="none"),
    "policy": lambda: run_command("true", policy="nowhere.toml"),
    "domain": lambda: run_command("true", allow_domains=["*.com"]),
    "skill": lambda: run_command("true", skills=["none"]),
    "text": lambda: run_command("true", allow_domains="a.example"),
    "words": lambda: run_command(b"true"),  # type: ignore[arg-type]
}


@pytest.mark.requirement("ERR-1", "ERR-2")
@pytest.mark.only_on("warm", reason="how the cell is made is the supervisor's affair")
@pytest.mark.parametrize("name", CASES)
def test_the_outcome_and_the_records_are_the_same_both_ways(ways, name):
    there = seen(CASES[name])
    assert ways.taken == [True]
    written = records(2)
    assert (there, written) == (ways.alone(lambda: seen(CASES[name])), records(2))
    assert {each["interface"] for each in written} == {"sdk"}


@pytest.mark.requirement("ERR-1", "ERR-2")
@pytest.mark.only_on("warm", reason="no cell is made")
@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.sample(8)
def test_the_refusal_is_the_same_both_ways(ways, name):
    there = seen(REFUSALS[name])
    assert there == ways.alone(lambda: seen(REFUSALS[name]))


@pytest.mark.requirement("FS-2")
@pytest.mark.only_on("warm", reason="what is mounted is the supervisor's affair")
def test_workspaces_and_policies_are_those_of_the_caller_s_directory(ways, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("given").write_text("old")
    Path("mine.toml").write_text('[permissions]\nallow = ["Bash(cat *)"]\n')
    assert run_command(["cat", "given"], workspace=".").stdout == "old"
    assert run_command(["cat", "given"], workspace=".", policy="mine.toml").stdout == "old"
    refused = run_command(["touch", "made"], workspace=".:rw", policy="mine.toml")
    assert (refused.status, os.path.exists("made")) == ("denied", False)
    assert run_command(["touch", "made"], workspace=".:rw").exit_code == 0
    assert os.path.exists("made")
    kept = run_command("echo new > given", workspace=".:cow").outcome.workspace_id
    assert Path("given").read_text() == "old"
    assert b"+new" in command("diff", str(kept)).stdout
    assert ways.taken == [True] * 5


@pytest.mark.requirement("POL-7")
@pytest.mark.only_on("warm", reason="the policy judges before a cell is made")
def test_a_project_around_the_caller_forbids_in_the_supervisor_too(own_ways, own_supervisor, tmp_path, monkeypatch):  # fmt: skip
    # The fleet's policy is the administrator's: with it, rules also judge a person's own request.
    (own_supervisor.home / "fleet").mkdir(mode=0o700)
    (own_supervisor.home / "fleet" / "policy.toml").write_text(
        '[permissions]\nallow = ["Bash(uname *)"]\n'
    )
    project = tmp_path / "project"
    (project / ".cellwall").mkdir(parents=True)
    (project / ".cellwall" / "policy.toml").write_text('[permissions]\ndeny = ["Bash(uname *)"]\n')
    words = ["uname", "-s"]

    def found() -> list[object]:
        typed = command("run", "--", *words, CELLWALL_SUPERVISOR="on")
        with cellwall.Sandbox.create(keep_alive=60) as kept:
            live = kept.commands.run(words).status
        return [run_command(words).status, typed.returncode, live]

    with monkeypatch.context() as entered:
        entered.chdir(tmp_path)
        assert found() == ["ok", 0, "ok"]  # the control
        entered.chdir(project)
        assert found() == ["denied", 125, "denied"]
        assert own_ways.taken == [True, True]
        assert own_ways.alone(lambda: run_command(words).status) == "denied"


@pytest.mark.only_on("warm", reason="the client delivers it")
def test_output_comes_as_it_is_made(ways, tmp_path):
    heard: list[str] = []

    def go(text: str) -> None:
        heard.append(text)
        (tmp_path / "go").touch()

    script = "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two; echo err >&2"
    done = run_command(script, workspace=f"{tmp_path}:rw", on_stdout=go, timeout=60)
    assert ("".join(heard), done.stdout, done.stderr) == ("one\ntwo\n", "one\ntwo\n", "err\n")
    assert ways.taken == [True]


@pytest.mark.requirement("ISO-8")
@pytest.mark.only_on("warm", reason="the client ends it")
def test_an_error_of_a_callback_ends_the_run(ways):
    def fail(_text: str) -> None:
        raise RuntimeError("mine")

    for call in (run_command, lambda *a, **k: ways.alone(lambda: run_command(*a, **k))):
        with pytest.raises(RuntimeError, match="mine"):
            call("echo 1; sleep 60", on_stdout=fail, timeout=100)
        assert records(1)[0]["body"]["status"] == "interrupted"
    assert ways.taken == [True]


_INTERRUPTED = """
import sys, time, cellwall
try:
    cellwall.run_command("echo on; sleep 60", on_stdout=lambda _: print("on", flush=True), timeout=100)
except KeyboardInterrupt:
    print("ended", "cellwall.runtime.wiring" in sys.modules)
"""


@pytest.mark.requirement("ISO-8")
def test_ctrl_c_ends_the_run_before_the_caller_knows(supervisor, monkeypatch):
    monkeypatch.delenv("XDG_CONFIG_HOME")
    if CONFIGURED is not None:
        monkeypatch.setenv("XDG_CONFIG_HOME", CONFIGURED)
    with subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "on\n"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert (out, process.returncode) == ("ended False\n", 0)
    assert records(1)[0]["body"]["status"] == "interrupted"


# What stays in the caller's process


@pytest.mark.only_on("warm", reason="no cell of the supervisor is made")
@pytest.mark.parametrize(
    "options",
    [
        {"tools": {"f": len}},
        {"on_question": lambda _question: True},
        {"registries": ["pypi"]},
        {"secrets": ["none"]},
        {"config": "relative.toml"},
        {"envs": {"A": "\udcff"}},
        {"timeout": float("nan")},
        {"limits": {"timeout": 1}},
        {"template": None},
        {"allow_domains": iter(())},
        {"stdin": bytes(65 << 20)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_is_not_the_same_there_is_not_sent(ways, options, monkeypatch):
    monkeypatch.setattr(wiring, "shared_app", lambda *_: (_ for _ in ()).throw(_Here))
    monkeypatch.setattr("cellwall.interfaces.sdk.one_shot.build_packages", lambda _options: None)
    with pytest.raises(_Here):
        run_code("1", **options)
    assert ways.taken == []


class _Here(Exception):
    """The runtime of this process was asked for."""


@pytest.mark.only_on("warm", reason="no cell of the supervisor is made")
def test_a_process_with_a_runtime_uses_it(ways, supervisor, monkeypatch):
    monkeypatch.undo()
    supervisor.enter(monkeypatch)
    counted = count_ways(monkeypatch)
    counted.alone(lambda: run_code("1"))
    monkeypatch.setattr(wiring, "has_shared", lambda: True)
    assert run_code("1").value == 1
    assert counted.taken == []


@pytest.mark.only_on("warm", reason="no cell of the supervisor is made")
def test_it_is_not_started_by_the_sdk(state_home, monkeypatch):
    monkeypatch.setenv("CELLWALL_SUPERVISOR", "")
    monkeypatch.setattr(wiring, "has_shared", lambda: False)
    for _ in range(2):
        assert run_command(["true"]).exit_code == 0
    assert {"supervisor.sock", "last-run"}.isdisjoint(os.listdir(state_home))


# Attacks


@pytest.mark.requirement("ISO-3")
@pytest.mark.only_on("warm", reason="variables travel no further than the request")
def test_no_variable_of_the_caller_reaches_cell_or_supervisor(ways, supervisor, monkeypatch):
    value = "only-the-caller-knows-this"
    monkeypatch.setenv("MY_SECRET", value)
    assert value not in run_command("env; cat /proc/*/environ").stdout
    assert ways.taken == [True]
    pid = supervisor.pid()
    assert value.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    for place in supervisor.home.rglob("*"):
        if place.is_file():
            assert value.encode() not in place.read_bytes()


@pytest.mark.requirement("ISO-10")
@pytest.mark.only_on("warm", reason="where a client is told from its own words")
def test_a_caller_with_other_surroundings_runs_its_action_itself(ways, monkeypatch):
    need(os.geteuid() == 0, "root, to leave a namespace")
    sent = (
        "import cellwall\nfrom cellwall.interfaces.sdk import single_runs as s\n"
        "from cellwall.interfaces.supervisor.requests import command_message\n"
        "print(s._run_in_supervisor(command_message(['true']), b'', {}) is None)"
    )

    def is_refused(*before: str) -> str:
        words = [*before, sys.executable, "-c", sent]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    assert is_refused() == "False"  # the control
    assert is_refused("unshare", "--mount") == "True"
    assert is_refused("unshare", "--net") == "True"
    assert is_refused("setpriv", "--bounding-set=-sys_admin") == "True"
    assert is_refused("setpriv", "--no-new-privs") == "True"
    assert is_refused("env", "HOME=/") == "True"


@pytest.mark.requirement("ISO-10")
@pytest.mark.only_on("warm", reason="a cell has neither the folder nor its socket")
def test_code_in_a_cell_reaches_no_supervisor(ways, supervisor):
    code = (
        "import os, socket, sys\n"
        f"place = {str(supervisor.home / 'supervisor.sock')!r}\n"
        "try:\n socket.socket(socket.AF_UNIX).connect(place)\n"
        "except OSError as error: print(type(error).__name__)"
    )
    assert run_code(code).stdout == "FileNotFoundError\n"
    assert ways.taken == [True]


@pytest.mark.requirement("ERR-2")
@pytest.mark.only_on("warm", reason="the client is told by the end of its connection")
def test_kill_9_in_the_middle_of_a_run_is_an_error_and_the_next_run_is_local(own_ways, own_supervisor):  # fmt: skip
    def kill(_text: str) -> None:
        os.kill(own_supervisor.pid(), signal.SIGKILL)

    with pytest.raises(cellwall.SandboxFailed) as caught:
        run_command("echo on; sleep 60", on_stdout=kill)
    assert caught.value.code == "CW-SUPERVISOR-GONE"
    assert (own_supervisor.home / "supervisor.sock").exists()  # a stale one
    assert run_command(["true"]).exit_code == 0
    assert own_ways.taken in ([True], [True, False])  # it may be about to end


@pytest.mark.requirement("ERR-2")
def test_a_supervisor_that_hangs_has_begun_nothing(state_home, tmp_path, monkeypatch):
    monkeypatch.setenv("CELLWALL_SUPERVISOR", "on")
    monkeypatch.setattr("cellwall.interfaces.supervisor.client._TAKES_WITHIN_S", 0.3)
    ways, words = count_ways(monkeypatch), ["sh", "-c", "echo x >> runs"]
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(os.path.join(state_home, "supervisor.sock"))
        # A client does not wait for itself: the kernel's word is about the process that listens.
        listens, said = os.pipe()
        other = os.fork()
        if other == 0:
            listener.listen()
            os.write(said, b"1")
            signal.pause()
        os.read(listens, 1)
        assert run_command(words, workspace=f"{tmp_path}:rw").exit_code == 0
        # Its answer comes too late: the client is gone, and has not sent what is to be run.
        late, _ = listener.accept()
        with late:
            late.settimeout(PATIENCE_S)
            reader = FrameReader(max_frame_bytes=1 << 20)
            sent = [frame.message["do"] for frame in reader.feed(late.recv(1 << 16))]
            assert (sent, late.recv(1)) == (["single"], b"")
        typed = command("run", "--workspace", f"{tmp_path}:rw", "--", *words)
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
    assert (typed.returncode, ways.taken) == (0, [False])
    assert (tmp_path / "runs").read_text() == "x\nx\n"


def test_the_process_that_serves_the_socket_does_not_wait_for_itself(state_home, monkeypatch):
    ways = count_ways(monkeypatch)
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(os.path.join(state_home, "supervisor.sock"))
        listener.listen()
        assert single_runs._run_in_supervisor(command_message(["true"]), b"", {}) is None
    assert ways.taken == []


@pytest.mark.only_on("warm", reason="no cell of the supervisor is made")
def test_another_version_runs_nothing_for_us(own_ways, own_supervisor, monkeypatch):
    monkeypatch.setattr(requests, "__version__", "0.0.0")
    assert run_command(["true"]).exit_code == 0
    assert own_ways.taken == [False]
    until(lambda: own_supervisor.pid() is None)  # it ends, as for the command line


@pytest.mark.only_on("warm", reason="the supervisor reads it before a cell is made")
def test_a_changed_configuration_is_honoured_by_the_next_run(own_ways, own_supervisor):
    file = own_supervisor.home / "cellwall.toml"
    file.write_text(file.read_text() + "\n[limits]\nwall_s = 0.3\n")
    assert run_command(["sleep", "60"]).limit == "wall"
    file.write_text("[limits]\nwall = 1\n")
    with pytest.raises(cellwall.ConfigError):
        run_command(["true"])
    assert own_ways.taken == [True, True]


@pytest.mark.only_on("warm", reason="each has a connection of its own")
def test_many_callers_at_once(ways):
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: run_code("input()", stdin=f"{n}").value, range(16)))
    assert found == [str(number) for number in range(16)]
    assert ways.taken == [True] * 16


_FORKING = """
import os, stat, sys, threading, cellwall
said = threading.Event()
def on(_text):
    said.set()
    ended.wait(60)
ended = threading.Event()
first = threading.Thread(
    target=lambda: cellwall.run_command("echo on; cat", on_stdout=on, timeout=60)
)
first.start(); said.wait(60)
child = os.fork()
if child == 0:
    assert cellwall.run_code("20 + 1").value == 21
    os._exit(sum(stat.S_ISSOCK(os.fstat(n).st_mode) for n in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{n}")))
print(os.waitpid(child, 0)[1], cellwall.run_code("20 + 2").value, flush=True)
ended.set(); first.join()
print("cellwall.runtime.wiring" in sys.modules)
"""


@pytest.mark.requirement("ISO-8")
@pytest.mark.only_on("warm", reason="the connections are the client's")
def test_a_forked_child_has_connections_of_its_own(ways):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _FORKING], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("0 22\nFalse\n", 0), done.stderr


@pytest.fixture
def _no_threads_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@pytest.mark.usefixtures("_no_threads_left")
@pytest.mark.only_on("warm", reason="what the client imports is no affair of the cell")
def test_a_fresh_process_imports_little(ways):
    script = (
        "import json, sys, cellwall\ncellwall.run_code('1')\ncellwall.run_command(['true'])\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    modules = set(json.loads(done.stdout))
    assert {"anyio", "asyncio", "logging", "pydantic", "subprocess"}.isdisjoint(modules)
    assert not {each for each in modules if each.startswith("cellwall.runtime")}
