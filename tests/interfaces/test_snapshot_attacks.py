"""Attacks on snapshots: names and links of code, chains, kills, a full disk (FS-9)."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cellwall
from cellwall import Sandbox
from cellwall.sandbox.snapshots import taking
from cellwall.sandbox.workspace.store import WorkspaceStore

pytestmark = pytest.mark.requirement("FS-9")


def layers_in(home: str) -> list[str]:
    return os.listdir(f"{home}/snapshots/layers")


@pytest.mark.requirement("ISO-6")
@pytest.mark.parametrize("end_processes", [False, True])
def test_links_marks_and_modes_of_code_lead_nowhere(state_home, tmp_path, end_processes):
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    with Sandbox.create() as sbx:
        sbx.run_code(
            "import os, stat\n"
            f"os.symlink({str(secret)!r}, 'out'); os.symlink('../' * 20 + 'etc/shadow', 'up')\n"
            "os.mkdir('closed', 0); os.mkdir('d'); open('d/kept', 'w').write('1')\n"
            "open('suid', 'w').write('#!/bin/sh\\n'); os.chmod('suid', 0o6777)\n"
            "for name, value in ((b'redirect', b'/../../..'), (b'origin', b'x' * 64)):\n"
            "    try: os.setxattr('d', b'user.overlay.' + name, value)\n"
            "    except OSError: pass\n"
            "try: os.mknod('white', stat.S_IFCHR | 0o600, 0)\n"
            "except OSError: pass"
        )
        taken = sbx.snapshot(state=False, end_processes=end_processes)
        assert sbx.commands.run("cat d/kept", timeout=20).stdout in ("1", "")
    with Sandbox.create(from_snapshot=taken.id) as two:
        for path in ("out", "up"):
            assert two.commands.run(["cat", path]).exit_code != 0
            with pytest.raises(cellwall.WorkspaceError):
                two.files.read(path)
        assert two.commands.run("./suid; id -u").stdout == sbx_uid(two)
        assert "nosuid" in two.commands.run("grep ' /workspace ' /proc/self/mountinfo").stdout
        # Neither ids of layers nor paths of the host.
        mounts = two.commands.run("cat /proc/self/mountinfo").stdout
        assert "lay_" not in mounts
        assert state_home not in mounts
    assert secret.read_text() == "of the host"  # the control: it is there to be read


def sbx_uid(sandbox: Sandbox) -> str:
    return sandbox.commands.run("id -u").stdout


def test_a_chain_of_snapshots_stays_within_the_layers_of_a_workspace(state_home, monkeypatch):
    monkeypatch.setattr(taking, "MAX_DEPTH", 3)
    with Sandbox.create() as sbx:
        for number in range(8):
            sbx.files.write(f"f{number}", str(number))
            if number:
                sbx.files.remove(f"f{number - 1}")
            taken = sbx.snapshot(end_processes=True)
            assert taken.layers <= 4
        last = taken.id
    with Sandbox.create(from_snapshot=last) as two:
        assert [(each.path, two.files.read(each.path)) for each in two.files.list(".")] == [
            ("f7", "7")
        ]
    for each in Sandbox.list_snapshots():
        Sandbox.delete_snapshot(each.id)
    assert layers_in(state_home) == []


_KILLED = """
import os, signal, sys
from cellwall import Sandbox
from cellwall.sandbox.snapshots.store import SnapshotStore
sbx = Sandbox.create()
sbx.files.write("a", "1")
kept = sbx.snapshot("kept")
sbx.files.write("b", "2")
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
setattr(SnapshotStore, sys.argv[1], die)
print(kept.id, flush=True)
sbx.snapshot(end_processes=sys.argv[2] == "1")
"""


@pytest.mark.long
@pytest.mark.requirement("ISO-8")
@pytest.mark.parametrize(("step", "ends"), [("save", "0"), ("size_of", "1")])
def test_a_killed_process_leaves_its_snapshots_and_nothing_else(state_home, step, ends):
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, step, ends], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    kept = done.stdout.decode().strip()
    with Sandbox.create(from_snapshot=kept) as sbx:  # sweeps after the dead process
        assert sbx.commands.run("ls").stdout == "a\n"
        store = WorkspaceStore(state_home)
        deadline = time.monotonic() + 20
        while len(layers_in(state_home)) != 1 and time.monotonic() < deadline:
            store.collect_layers()
        assert len(layers_in(state_home)) == 1
    assert [each.id for each in Sandbox.list_snapshots()] == [kept]


@pytest.mark.parametrize("end_processes", [False, True])
def test_a_full_disk_takes_no_snapshot_and_no_file(state_home, monkeypatch, end_processes):
    with Sandbox.create() as sbx:
        sbx.run_code("open('a', 'w').write('kept')")

        def no_space(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "full")

        with monkeypatch.context() as full:
            full.setattr("cellwall.sandbox.snapshots.store._write_json", no_space)
            with pytest.raises(cellwall.WorkspaceError) as refused:
                sbx.snapshot(end_processes=end_processes, state=False)
        assert (refused.value.code, "full" in refused.value.message) == ("CW-SNAPSHOT-FAILED", True)
        assert sbx.run_code("open('a').read()").value == "kept"
        assert layers_in(state_home) == []
        assert sbx.snapshot(end_processes=end_processes).files == 1  # the control
        assert sbx.run_code("open('a').read()").value == "kept"


def test_what_the_interpreter_answers_is_data_and_never_code(state_home):
    """Attack: code forges the answer of the program that writes variables down."""
    forged = (
        "import builtins, json, hashlib\n"
        "class Evil(dict):\n"
        "    def items(self): return [('__builtins__', 1), ('a b', 2), ('x' * 9999999, 3)]\n"
        "hashlib.sha256 = lambda text: type('D', (), {'hexdigest': lambda s: 'f' * 64})()\n"
        'json.dumps = lambda value: \'["module", "os"]\'\nn = 1'
    )
    with Sandbox.create() as sbx:
        sbx.run_code(forged)
        taken = sbx.snapshot()
        assert taken.variables == ()
        assert {"n", "*"} & {each.name for each in taken.not_carried}
    assert not Path(state_home, "snapshots", taken.id, "state.json").exists()
