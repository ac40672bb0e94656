"""Attacks on what stays after a run: given directories, applied changes, Cellwall itself."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import cellwall
from cellwall.core.ids import new_id
from cellwall.sandbox.protection.host_directory import cellwall_paths_below
from cellwall.sandbox.run_ledger import RunLedger
from conftest import audit_records, need, ordinary_user
from interfaces import prepared_program


def cli(*words: str) -> subprocess.CompletedProcess[bytes]:
    return prepared_program.run(words, stdin=b"", env=os.environ, timeout_s=60)


@pytest.mark.requirement("FS-1", "FS-2")
@pytest.mark.parametrize("swap", [True, False])
def test_changes_are_never_applied_through_a_parent_that_became_a_link(tmp_path: Path, swap: bool):
    (tmp_path / "p" / "a" / "b").mkdir(parents=True)
    (tmp_path / "victim" / "b").mkdir(parents=True)
    ran = cli("run", "--json", "--workspace", f"{tmp_path}/p/a/b:cow", "--", "touch", "evil")
    found = json.loads(ran.stdout)["workspace_id"]
    if swap:
        shutil.rmtree(tmp_path / "p" / "a")
        (tmp_path / "p" / "a").symlink_to("../victim")
    done = cli("apply", "--yes", found)
    if not swap:  # the control: the same changes are taken over where they belong
        assert (done.returncode, (tmp_path / "p/a/b/evil").exists()) == (0, True)
        return
    assert (done.returncode, b"CW-WORKSPACE-MOVED" in done.stderr) == (125, True)
    assert list((tmp_path / "victim" / "b").iterdir()) == []


PLANT = "mkdir -p z/.vscode; echo x > z/.vscode/tasks.json; echo y > z/ordinary; "


@pytest.mark.requirement("FS-4")
@pytest.mark.parametrize("and_then", ["", "deep", "odd-name"])
def test_nothing_keeps_a_plant_from_being_moved_out(tmp_path: Path, and_then: str):
    tricks = {
        "": "",
        "deep": "n=$(printf 'd%.0s' $(seq 200)); for i in $(seq 30); do mkdir $n; cd $n; done",
        "odd-name": "touch $(printf '\\377%.0s' $(seq 100)).lnk",
    }
    done = cellwall.run_command(PLANT + tricks[and_then], workspace=f"{tmp_path}:rw")
    assert done.error is None
    assert not (tmp_path / "z" / ".vscode").exists()
    assert (tmp_path / "z" / "ordinary").exists()  # the control: other files stay
    assert [name for name in os.listdir(tmp_path) if name != "z" and "ddd" not in name] == []
    assert any("z/.vscode" in finding.message for finding in done.outcome.findings)
    again = cellwall.run_command("true", workspace=f"{tmp_path}:rw")
    assert again.status.value == "ok"  # the directory can be used as before


@pytest.mark.requirement("FS-4")
@pytest.mark.parametrize("mode", ["rw", "cow"])
def test_an_ordinary_user_s_closed_directory_hides_nothing_and_is_no_limit(
    tmp_path: Path, mode: str
):
    need(os.geteuid() == 0, "root, to become an ordinary user")
    ordinary_user()  # which can read this clone
    script = (
        "import os, sys, tempfile\n"
        "os.setgroups([]); os.setgid(1234); os.setuid(1234); os.environ['HOME'] = '/'\n"
        "folder = tempfile.mkdtemp(); home = tempfile.mkdtemp(); os.environ['CELLWALL_HOME'] = home\n"
        "config = home + '/c.toml'\n"
        "open(config, 'w').write('[sandbox]\\ndangerously_without_cgroup = true\\n')\n"
        "os.chmod(config, 0o600)\n"
        "import cellwall\n"
        f"run = lambda c: cellwall.run_command(c, config=config, workspace=folder + ':{mode}')\n"
        "one = run('mkdir d; chmod 0 d; sleep 0.2')\n"
        f"two = run({PLANT!r} + 'chmod 0 /workspace')\n"
        "print(one.status.value, two.status.value, one.error, two.error)\n"
        "print(oct(os.stat(folder).st_mode & 0o700), sorted(os.listdir(folder)),\n"
        "      os.path.exists(folder + '/z/.vscode'))\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with prepared_program.Popen([], code=script, cwd="/", text=True, **pipes) as process:
        out, err = process.communicate(timeout=60)
    assert err == ""
    kept = "['d', 'z']" if mode == "rw" else "[]"
    assert out.splitlines() == ["ok ok None None", f"0o700 {kept} False"]


@pytest.mark.requirement("ISO-6")
def test_code_cannot_write_where_cellwall_itself_is_installed(tmp_path: Path):
    package = Path(cellwall.__file__).parent
    copy = tmp_path / "lib" / "cellwall"
    shutil.copytree(package, copy)  # with what is compiled: a first start takes seconds
    script = (
        "import cellwall, sys\n"
        f"done = cellwall.run_command('echo evil >> lib/cellwall/__init__.py; echo new > lib/other;'\n"
        f"    ' mv lib gone; echo x > own', workspace={str(tmp_path) + ':rw'!r})\n"
        "print(cellwall.__file__, done.status.value)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "lib")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.startswith(str(copy))  # the control: that copy is the one that runs
    assert (copy / "__init__.py").read_text() == (package / "__init__.py").read_text()
    assert (tmp_path / "own").exists()  # the control: the rest of the directory is writable


def test_own_places_are_those_below_the_given_directory():
    package = os.path.realpath(Path(cellwall.__file__).parent)
    above, name = os.path.split(package)
    assert name in cellwall_paths_below(above)
    assert cellwall_paths_below(package + "/core") == ()


def _run_in_child(queue: multiprocessing.Queue[str]) -> None:
    queue.put(cellwall.run_command("echo child").stdout)


@pytest.mark.requirement("INT-1")
def test_a_fork_harms_neither_the_parent_s_calls_nor_the_child_s():
    assert cellwall.run_command("echo before").stdout == "before\n"
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    for _ in range(2):
        child = fork.Process(target=_run_in_child, args=(queue,))
        child.start()
        assert queue.get(timeout=30) == "child\n"
        child.join(30)
        assert cellwall.run_command("echo after").stdout == "after\n"


def test_kill_from_another_thread_ends_what_runs():
    sandbox = cellwall.Sandbox.create()
    started = threading.Event()
    done = []
    worker = threading.Thread(
        target=lambda: done.append(
            sandbox.commands.run("echo on; sleep 60", on_stdout=lambda _text: started.set())
        )
    )
    worker.start()
    assert started.wait(30)
    sandbox.kill()
    worker.join(30)
    assert (done[0].status.value, done[0].error.code) == ("error", "CW-SANDBOX-ENDED")


@pytest.mark.requirement("LIM-1")
def test_a_deep_tree_under_a_small_descriptor_limit_is_no_limit():
    done = cellwall.run_command(
        "mkdir -p $(printf 'a/%.0s' $(seq 50))", timeout=60, limits={"open_files": 32}
    )
    assert (done.status.value, done.limit) == ("ok", None)


@pytest.mark.requirement("LIM-1")
@pytest.mark.parametrize("name", ["output_bytes", "open_files", "processes", "disk_bytes"])
def test_a_limit_that_is_no_whole_number_is_refused(name: str):
    with pytest.raises(cellwall.BadInput) as caught:
        cellwall.run_code("1", limits={name: 100_000.5})
    assert caught.value.code == "CW-BAD-LIMIT"


@pytest.mark.requirement("AUD-1")
def test_a_flood_of_names_does_not_push_the_command_out_of_the_record(state_home: str):
    envs = {f"N{number:03}_{'x' * 240}": "1" for number in range(500)}
    ran = cellwall.run_command(["echo", "the command"], envs=envs)
    intent = audit_records(action_id=ran.outcome.action_id)[0]["body"]
    assert intent["command"] == ["echo", "the command"]


def _sweep_for_a_while(directory: str, stop: multiprocessing.Event) -> None:
    ledger = RunLedger(directory)
    while not stop.is_set():
        ledger.sweep()


@pytest.mark.requirement("ISO-8")
def test_a_live_entry_is_never_swept(tmp_path: Path):
    stop = multiprocessing.Event()
    sweeper = multiprocessing.Process(target=_sweep_for_a_while, args=(str(tmp_path), stop))
    sweeper.start()
    ledger = RunLedger(str(tmp_path))
    try:
        for _ in range(3000):
            with ledger.open(new_id("act")) as entry:
                assert (tmp_path / entry.id).exists()
    finally:
        stop.set()
        sweeper.join(30)
