"""The supervisor among strangers, nonsense, upgrades and kill -9."""

from __future__ import annotations

import json
import os
import resource
import secrets
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

import cellwall
from adversarial.leftovers import groups, recorded
from cellwall import Sandbox
from cellwall.core.frames import FrameReader, encode
from conftest import audit_records, need, ordinary_user
from interfaces import prepared_program
from interfaces.conftest import Supervised
from interfaces.test_cli_process import DEADLINE_S
from interfaces.test_cli_process import cellwall as command
from interfaces.test_supervisor import PATIENCE_S, answer, until


@contextmanager
def line(home: Path) -> Iterator[socket.socket]:
    """A connection by hand."""
    with closing(socket.socket(socket.AF_UNIX)) as ours:
        ours.settimeout(PATIENCE_S)
        folder = os.open(home, os.O_PATH)
        try:
            ours.connect(f"/proc/self/fd/{folder}/supervisor.sock")
        finally:
            os.close(folder)
        yield ours


def ask(home: Path, message: dict, blob: bytes = b"") -> dict | None:
    with line(home) as ours:
        ours.sendall(encode({"version": cellwall.__version__, **message}, blob))
        reader = FrameReader(max_frame_bytes=1 << 24)
        while chunk := ours.recv(65536):
            for frame in reader.feed(chunk):
                return dict(frame.message)
    return None


def marked(mark: str) -> list[int]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if mark.encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                found.append(int(entry))
    return found


# Its end


@pytest.mark.requirement("ISO-8")
def test_kill_9_of_the_supervisor_ends_every_cell(own_supervisor, tmp_path):
    need(os.geteuid() == 0, "root, to tell processes by their uid")
    old, home = Sandbox.create(keep_alive=60), str(own_supervisor.home)
    old.run_code("x = 1")
    old.commands.run(["sleep", "60"], background=True)
    Sandbox.create(keep_alive=60, workspace=f"{tmp_path}:cow").commands.run("sleep 60 &")
    held = recorded(home)
    assert own_supervisor.alive()  # the control
    os.kill(own_supervisor.pid(), signal.SIGKILL)
    until(lambda: own_supervisor.alive() == [])
    for call in (lambda: old.run_code("x"), lambda: Sandbox.connect(old.id)):
        with pytest.raises(cellwall.SandboxFailed) as caught:
            call()
        assert caught.value.code == "CW-SUPERVISOR-GONE"
    new = Sandbox.create(keep_alive=60)  # starts another one
    assert new.run_code("'x' in dir()").value is False
    with pytest.raises(cellwall.CellwallError) as caught:
        old.run_code("x")
    assert caught.value.code == "CW-NO-SANDBOX"
    assert groups(held) == []
    assert os.listdir(own_supervisor.home / "workspaces") == [new.id]


@pytest.mark.requirement("ERR-2")
@pytest.mark.only_on("warm", reason="the client is told by the end of its connection")
def test_kill_9_in_the_middle_of_a_call_is_told_to_whoever_waits(own_supervisor):
    sbx, said = Sandbox.create(keep_alive=60), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        code = "import time\nprint(1, flush=True)\ntime.sleep(60)"
        running = threads.submit(sbx.run_code, code, on_stdout=lambda _: said.set())
        words = ["run", "--", "sh", "-c", "echo on; sleep 60"]
        with prepared_program.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as typed:
            assert typed.stdout.readline() == b"on\n"
            assert said.wait(PATIENCE_S)
            os.kill(own_supervisor.pid(), signal.SIGKILL)
            _out, err = typed.communicate(timeout=PATIENCE_S)
        with pytest.raises(cellwall.SandboxFailed) as caught:
            running.result(PATIENCE_S)
    assert caught.value.code == "CW-SUPERVISOR-GONE"
    assert (typed.returncode, b"[CW-SUPERVISOR-GONE]" in err) == (125, True)


# Strangers


def _stranger(home: Path) -> str:
    """What somebody else's process gets for an honest request."""
    script = (
        "import socket, sys\n"
        "line = socket.socket(socket.AF_UNIX); line.settimeout(20)\n"
        "try: line.connect(sys.argv[1])\n"
        "except OSError as error: print(type(error).__name__); sys.exit()\n"
        "try: line.sendall(bytes.fromhex(sys.argv[2])); print(len(line.recv(4096)))\n"
        "except ConnectionError: print(0)"
    )
    request = encode({"version": cellwall.__version__, "do": "status"}).hex()
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, str(home / "supervisor.sock"), request],
        capture_output=True,
        **ordinary_user(),
        check=False,
        cwd="/",
    )
    return done.stdout.decode().strip()


@pytest.mark.requirement("ISO-10")
def test_another_user_is_stopped_by_the_folder_and_by_the_kernel_s_word(monkeypatch):
    need(os.geteuid() == 0, "root, to be somebody else")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as parent:
        os.chmod(parent, 0o755)
        home = Path(parent, "h")
        home.mkdir()
        found = Supervised.begin(home, "cold")  # no cell is made
        try:
            assert _stranger(home) == "PermissionError"
            home.chmod(0o755)
            assert _stranger(home) == "PermissionError"  # the socket's own mode
            os.chmod(home / "supervisor.sock", 0o666)
            assert _stranger(home) == "0"  # received, and nothing was said
            assert ask(home, {"do": "status"})["sandboxes"] == []  # the control: we are answered
            # And our own clients do not trust a folder that others may have written to.
            done = command("supervisor", "status", "--json", **found.environment)
            assert json.loads(done.stdout) == {"running": False, "pid": None}
            with monkeypatch.context() as entered:
                found.enter(entered)
                with pytest.raises(cellwall.CellwallError) as caught:
                    Sandbox.create(keep_alive=5)
                assert caught.value.code == "CW-STATE-UNSAFE"
        finally:
            home.chmod(0o700)
            found.end()


# Nonsense


def _nonsense() -> Iterator[bytes]:
    request = encode({"version": cellwall.__version__, "do": "status"})
    yield b""
    yield request[:5]
    yield request[:-1]
    yield struct.pack(">II", 2**32 - 1, 2**32 - 1)
    yield struct.pack(">II", 1 << 20, 0) + b"{"
    yield struct.pack(">II", 4, 0) + b"}}}}"
    yield struct.pack(">II", 100_000, 0) + b"[" * 100_000
    yield struct.pack(">II", 2, 0) + b"[]"
    yield secrets.token_bytes(300_000)
    yield encode({})
    yield encode({"version": cellwall.__version__})


@pytest.mark.requirement("RED-2")
@pytest.mark.only_on("warm", reason="no cell is made for nonsense")
def test_nonsense_on_the_socket_ends_nothing(supervisor):
    pid = supervisor.pid()
    with Sandbox.create(keep_alive=60) as sbx, ExitStack() as stack:
        sbx.run_code("x = 1")
        for data in _nonsense():
            ours = stack.enter_context(line(supervisor.home))  # stays open until the end
            with suppress(ConnectionError):
                ours.sendall(data)
            assert sbx.run_code("x").value == 1
        for data in _nonsense():
            with line(supervisor.home) as ours, suppress(ConnectionError):
                ours.sendall(data)
        assert sbx.run_code("x").value == 1
    assert supervisor.pid() == pid


SINGLE = {"operation": {}, "shaping": {}, "stdin": None, "cwd": "/"}


@pytest.mark.requirement("ERR-1")
@pytest.mark.parametrize(
    "message",
    [
        {"do": "nothing"},
        {"do": ["single"]},
        {"do": "single"},
        {"do": "single", "options": 5, **SINGLE},
        {
            "do": "single",
            "options": {"env": [], "allow_domain": []},
            "operation": {},
            "shaping": {},
        },
        {"do": "single", "options": {}, **SINGLE, "cwd": "here"},
        {"do": "single", "options": {}, **SINGLE, "stdin": -1},
        {"do": "single", "options": {}, **SINGLE, "stdin": True},
        {"do": "single", "options": {}, **SINGLE, "operation": []},
        {"do": "single", "options": {"memroy": 1}, **SINGLE},
        {"do": "single", "choices": {}, **SINGLE},
        {"do": "single", "choices": {"tools": []}, **SINGLE, "surroundings": [], "streams": False},
        {"do": "single", "choices": {"envs": {"A": 1}}, **SINGLE, "surroundings": [], "streams": 1},
        {"do": "create", "keep_alive_s": 5},
        {"do": "create", "keep_alive_s": "x", "options": {}, "shaping": {}},
        {"do": "create", "keep_alive_s": 5, "options": {"a": 1}, "shaping": {}},
        {"do": "perform", "id": 5},
        {"do": "perform", "id": {"a": []}},
        {"do": "kill"},
        {"do": "logs", "id": None},
        {"do": "attach", "id": "sbx_x"},
    ],
    ids=str,
)
@pytest.mark.only_on("warm", reason="no cell is made for them")
@pytest.mark.sample(10)
def test_requests_of_the_wrong_form_are_refused_in_words(supervisor, message):
    told = ask(supervisor.home, message)
    assert told["error"]["code"] in {"CW-BAD-INPUT", "CW-NO-SANDBOX"}
    assert "Traceback" not in str(told)


@pytest.mark.requirement("RED-2")
@pytest.mark.parametrize(
    "change",
    [
        {"operation": {}},
        {
            "operation": {
                "kind": "command",
                "argv": "ls",
                "cwd": "/",
                "background": False,
                "terminal": None,
            }
        },
        {
            "operation": {
                "kind": "file",
                "name": "watch",
                "path": ".",
                "target": "",
                "recursive": True,
                "skip_links": False,
            }
        },
        {
            "operation": {
                "kind": "process",
                "name": "explode",
                "process": 1,
                "number": 1,
                "size": [0, 0],
            }
        },
        {"operation": {"kind": "tool", "name": "x"}},
        {"timeout": "soon"},
        {"timeout": -1},
        {"envs": 5},
        {"stdin": "x"},
    ],
    ids=str,
)
@pytest.mark.only_on("warm", reason="refused before the cell hears of them")
def test_wants_of_the_wrong_form_leave_the_sandbox_as_it_was(supervisor, change):
    with Sandbox.create(keep_alive=60) as sbx:
        sbx.run_code("x = 1")
        honest = {
            "do": "perform",
            "id": sbx.id,
            "operation": {"kind": "code", "language": "python"},
            "timeout": None,
            "envs": {},
            "stdin": None,
            "streams": False,
        }
        assert ask(supervisor.home, honest, b"x + 1")["outcome"]["value"] == 2  # the control
        told = ask(supervisor.home, {**honest, **change}, b"x + 1")
        assert told["error"]["code"] in {"CW-BAD-INPUT", "CW-BAD-LIMIT"}
        assert sbx.run_code("x").value == 1


def test_no_descriptor_left_ends_nothing(own_supervisor):
    sbx = Sandbox.create(keep_alive=60)
    sbx.run_code("x = 1")
    pid = own_supervisor.pid()
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    open_now = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_now + 4, before[1]))
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(line(own_supervisor.home))
        log = own_supervisor.home / "supervisor.log"
        until(lambda: "accept failed" in log.read_text())
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert (own_supervisor.pid(), sbx.run_code("x").value) == (pid, 1)


# Clients that leave


@pytest.mark.requirement("ISO-8")
@pytest.mark.parametrize("how", ["run", "code", "sandbox"])
def test_a_client_that_is_gone_takes_its_run_along(supervisor, how):
    mark = f"{secrets.randbelow(10**9) + 10**9}.5"
    code = f"import subprocess; print(1, flush=True); subprocess.run(['sleep', '{mark}'])"
    sbx = Sandbox.create(keep_alive=60)
    remote = f"import cellwall; s = cellwall.Sandbox.connect('{sbx.id}'); s.run_code(\"{code}\", on_stdout=lambda text: print(text, flush=True))"
    words = {
        "run": ["run", "--", "sh", "-c", f"echo 1; sleep {mark}"],
        "code": ["code", "-c", code],
        "sandbox": [],
    }[how]
    program = remote if how == "sandbox" else None
    with prepared_program.Popen(words, code=program, stdout=subprocess.PIPE) as client:
        assert client.stdout.readline().strip() == b"1"
        until(lambda: any(pid != client.pid for pid in marked(mark)))
        client.kill()
    until(lambda: marked(mark) == [])
    until(lambda: audit_records()[-1]["body"].get("status") == "interrupted")
    assert sbx.run_code("1").value == 1
    sbx.kill()


# Upgrades

_OTHER = """
import sys
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] == "cellwall" and hasattr(module, "__version__"):
        module.__version__ = "0.0.0"
from cellwall.interfaces.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def other_version(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess:
    return prepared_program.run(
        words, code=_OTHER, stdin=stdin, env=os.environ, timeout_s=DEADLINE_S
    )


@pytest.mark.only_on("warm", reason="an upgrade is about the connection")
def test_another_version_runs_without_the_old_supervisor_which_makes_room(own_supervisor):
    pid = own_supervisor.pid()
    sbx = Sandbox.create(keep_alive=600)
    sbx.run_code("x = 1")
    done = other_version("run", "--", "echo", "hi")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"hi\n", b"")
    assert other_version("code", "-c", "print(1)").stdout == b"1\n"
    fed = other_version("run", "--stdin", "--", "cat", stdin=b"x")
    assert (fed.returncode, b"CW-SUPERVISOR-STALE" in fed.stderr) == (125, True)
    for words in (["kill", sbx.id], ["logs", sbx.id]):
        done = other_version(*words)
        assert (done.returncode, b"CW-SUPERVISOR-STALE" in done.stderr) == (125, True)
    assert sbx.id.encode() in other_version("ps").stdout
    # While a sandbox lives in it, it stays; then it goes.
    assert (own_supervisor.pid(), sbx.run_code("x").value) == (pid, 1)
    sbx.kill()
    until(lambda: own_supervisor.pid() is None)


@pytest.mark.only_on("warm", reason="an upgrade is about the connection")
def test_another_version_can_stop_it(own_supervisor):
    Sandbox.create(keep_alive=600).run_code("1")
    assert other_version("supervisor", "stop").stderr == b"cellwall: the supervisor ended\n"
    assert own_supervisor.pid() is None


@pytest.mark.only_on("warm", reason="an upgrade is about the connection")
def test_another_version_does_not_end_a_run_of_somebody_else(own_supervisor):
    words = ["run", "--", "sh", "-c", "echo on; sleep 1; echo over"]
    with prepared_program.Popen(words, stdout=subprocess.PIPE) as typed:
        assert typed.stdout.readline() == b"on\n"
        assert other_version("run", "--", "true").returncode == 0
        assert (typed.stdout.read(), typed.wait(PATIENCE_S)) == (b"over\n", 0)
    until(lambda: own_supervisor.pid() is None)


def test_a_sandbox_survives_changes_of_the_configuration(own_supervisor):
    sbx = Sandbox.create(keep_alive=60)
    sbx.run_code("x = 1")
    file = own_supervisor.home / "cellwall.toml"
    text = file.read_text()
    for number in range(4):
        file.write_text(f"{text}\n# change {number}\n")
        assert command("run", "--", "true").returncode == 0
    assert sbx.run_code("x").value == 1
    assert len(answer("ps")["sandboxes"]) == 1
