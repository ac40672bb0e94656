"""What a process inherits without asking: environment, descriptors, terminal (ISO-3, ISO-9)."""

from __future__ import annotations

import json
import os
import pty
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cellwall
from adversarial.conftest import source
from interfaces import prepared_program

_MARK = "cellwall-secret-of-the-parent"
# Supervisor and control at once: it holds secrets open in every way, then looks from both sides.
_PARENT = """
import json, os, socket, subprocess, sys
import cellwall
code, secret, target = sys.argv[1:]
held = [os.open(secret, os.O_RDONLY), os.open("/", os.O_RDONLY | os.O_DIRECTORY)]
pair = socket.socketpair()
held += [end.fileno() for end in pair]
held += os.pipe()
for number in list(held):
    os.set_inheritable(number, True)
    os.dup2(number, number + 200)
    os.set_inheritable(number + 200, True)
text = open(code).read()
plain = subprocess.run([sys.executable, "-c", text], close_fds=False, stdout=subprocess.PIPE, check=True)
walled = cellwall.run_code(text)
command = None
with cellwall.Sandbox.create() as sandbox:
    sandbox.files.write("code.py", text)
    command = sandbox.commands.run(["/usr/bin/env", "python3", "/workspace/code.py"])
    shell = sandbox.commands.run("env")
seen = {"outside": plain.stdout.decode(), "code": walled.stdout, "command": command.stdout,
        "shell": shell.stdout, "errors": [walled.stderr, command.stderr],
        "paths": [ran.outcome.sandbox_path for ran in (walled, command, shell)]}
with open(target, "w") as file:
    json.dump(seen, file)
"""


@pytest.fixture(scope="module")
def seen_on() -> dict[str, dict[str, object]]:
    return {}


@pytest.fixture
def seen(
    path: str, seen_on: dict[str, dict[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, object]:
    if path not in seen_on:
        seen_on[path] = _look(path, tmp_path_factory.mktemp("inheritance"))
    return seen_on[path]


def _look(path: str, folder: Path) -> dict[str, object]:
    """The same program outside and inside, with a parent that has a terminal and secrets."""
    code, secret, target, home = (folder / name for name in ("code", "secret", "seen", "home"))
    code.write_text(source("descriptors"))
    secret.write_text(_MARK)
    home.mkdir(mode=0o700)
    master, terminal = pty.openpty()

    done = prepared_program.Popen(
        [str(code), str(secret), str(target)],
        code=_PARENT,
        env={
            "PATH": os.environ["PATH"],
            "CELLWALL_HOME": str(home),
            "CELLWALL_PATH": path,
            "XDG_CONFIG_HOME": str(folder),
            "AWS_SECRET_ACCESS_KEY": _MARK,
            "SSH_AUTH_SOCK": f"/run/{_MARK}",
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path=/run/{_MARK}",
            "XDG_RUNTIME_DIR": f"/run/{_MARK}",
            "PYTHONSTARTUP": _MARK,
            "BASH_ENV": f"/{_MARK}",
            "GLIBC_TUNABLES": _MARK,
        },
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        on_terminal=True,
    )
    os.close(terminal)
    try:
        code_seen = done.wait(60)
    finally:
        done.kill()
        words = b""
        os.set_blocking(master, False)
        try:
            words = os.read(master, 65_536)
        except OSError:
            pass
        os.close(master)
    assert code_seen == 0, words.decode()
    found = json.loads(target.read_text())
    assert found.pop("errors") == ["", ""]
    assert found.pop("paths") == [path] * 3
    shell = found.pop("shell")
    parsed: dict[str, object] = {name: json.loads(text) for name, text in found.items()}
    parsed["shell"] = dict(line.split("=", 1) for line in shell.splitlines())
    return parsed


@pytest.mark.requirement("ISO-3")
@pytest.mark.parametrize("way", ["code", "command"])
def test_environment_is_built_from_nothing(way: str, seen: dict[str, dict[str, object]]) -> None:
    outside = seen["outside"]["variables"]
    assert isinstance(outside, dict)
    assert outside["AWS_SECRET_ACCESS_KEY"] == _MARK, "outside, children inherit it"
    # Once (warm): the zygote's own variables (OMP_NUM_THREADS, MPLBACKEND, …) stay in the
    # interpreter's, and go on to whatever it starts; no caller named them, and cold has none.
    assert seen[way]["variables"] == {
        "PATH": "/opt/python/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
        ":/.cellwall/bin:/workspace/.local/bin",
        "HOME": "/workspace",
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "SHELL": "/bin/sh",
        "CELLWALL": "1",
        "GIT_TEMPLATE_DIR": "/.cellwall/empty",
    }


@pytest.mark.requirement("ISO-3")
def test_shell_sees_no_variable_of_the_parent(seen: dict[str, dict[str, str]]) -> None:
    assert set(seen["shell"]) - {"PWD", "OLDPWD", "SHLVL", "_"} == set(seen["code"]["variables"])
    assert [name for name, value in seen["shell"].items() if _MARK in value] == []


@pytest.mark.requirement("ISO-3", "ISO-5")
@pytest.mark.parametrize("way", ["code", "command"])
def test_secret_of_the_parent_is_in_no_proc_file(
    way: str, seen: dict[str, dict[str, object]]
) -> None:
    assert seen["outside"]["environments"] == ["environ"], "outside, it can be read there"
    assert seen[way]["environments"] == []


@pytest.mark.requirement("ISO-9")
@pytest.mark.parametrize("way", ["code", "command"])
def test_only_the_standard_streams_and_the_result_are_open(
    way: str, path: str, seen: dict[str, dict[str, object]]
) -> None:
    outside = seen["outside"]["descriptors"]
    assert isinstance(outside, dict)
    assert {"file", "directory", "socket", "pipe"} <= set(outside.values()), "they are inheritable"
    stdin = "pipe"  # one whose other end is closed; not a device of the host
    channel = {"3": "pipe", "4": "pipe"} if way == "code" else {}
    assert seen[way]["descriptors"] == {"0": stdin, "1": "pipe", "2": "pipe", **channel}


@pytest.mark.requirement("ISO-9")
@pytest.mark.parametrize("way", ["code", "command"])
def test_secret_file_of_the_parent_is_in_no_descriptor(
    way: str, seen: dict[str, dict[str, object]]
) -> None:
    assert seen["outside"]["secrets"] != [], "outside, the file is read through its number"
    assert seen[way]["secrets"] == []


@pytest.mark.requirement("ISO-6", "ISO-9")
@pytest.mark.parametrize("way", ["code", "command"])
def test_terminal_of_the_parent_is_out_of_reach(
    way: str, seen: dict[str, dict[str, object]]
) -> None:
    outside = seen["outside"]["terminal"]
    assert isinstance(outside, dict)
    number = outside["number"]
    assert number != 0
    assert outside == {"number": number, "open": True, "group": True, "name": True}
    assert seen[way]["terminal"] == {"number": 0, "open": False, "group": False, "name": False}


@pytest.mark.requirement("ISO-3")
def test_named_variables_reach_the_code_and_only_they() -> None:
    ran = cellwall.run_code("import os\nos.environ.get('GIVEN')", envs={"GIVEN": "x=y\n z"})
    assert ran.value == "x=y\n z"


@pytest.mark.requirement("ISO-9")
def test_cell_that_may_only_read_cannot_talk_to_one_in_the_same_workspace(tmp_path: Path) -> None:
    """A socket in a shared directory carries words and descriptors, whatever the mount says."""
    server = (
        "import socket\n"
        "line = socket.socket(socket.AF_UNIX)\n"
        "line.bind('/workspace/meet')\n"
        "line.listen()\n"
        "print('ready', flush=True)\n"
        "line.accept()\n"  # the control
        "line.accept()[0].recv(10).decode()\n"
    )
    client = (
        "import socket\n"
        "line = socket.socket(socket.AF_UNIX)\n"
        "try:\n"
        "    line.connect('/workspace/meet')\n"
        "    line.send(b'x')\n"
        "    met = True\n"
        "except OSError:\n"
        "    met = False\n"
        "met\n"
    )
    ready = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(
            cellwall.run_code, server, workspace=f"{tmp_path}:rw", on_stdout=lambda _: ready.set()
        )
        assert ready.wait(60)
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(tmp_path / "meet"))  # the socket is alive
        second = cellwall.run_code(client, workspace=f"{tmp_path}:ro")
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(tmp_path / "meet"))
            last.sendall(b"host")
        assert first.result(60).value == "host"  # nobody came before
    assert second.value is False
