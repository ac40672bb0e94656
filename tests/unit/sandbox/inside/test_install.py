"""The steps of an installation inside a cell: at any moment the environment is the old or the new."""

from __future__ import annotations

import hmac
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cellwall.core.host_programs import wheel_program
from cellwall.sandbox.inside import install

MEMORY_BYTES = str(1 << 30)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(install, "WORKSPACE", str(tmp_path))
    monkeypatch.setattr(install, "STAGING", f"{tmp_path}/.cellwall-install")
    given(monkeypatch, b"")
    return tmp_path


def given(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def packed(place, monkeypatch):
    """The archive of a tree that a package manager made in /tmp, with its MAC."""
    tree = place.parent / "tree"
    monkeypatch.setattr(install, "_NEW_TREE", str(tree))
    made = {f"{install._site_packages('.')}/zebra.py": "1", "bin/zebra run": "#!", ".lock": ""}
    for name, text in made.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (tree / "bin/zebra run").chmod(0o755)
    os.makedirs(place / "copy")
    install._take_new_tree(str(place / "copy"), b"key")
    archive = (place / "copy.tree").read_bytes()
    assert {str(each.relative_to(place / "copy")) for each in (place / "copy").rglob("*.py")}
    return archive[:-32], archive[-32:]


def managed(monkeypatch, files, code=0):
    """A package manager that writes these files into the copy."""

    def write(folder, *_):
        for name, text in files.items():
            path = os.path.join(install._site_packages(folder), name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if os.path.exists(path):
                os.unlink(path)  # as package managers do
            with open(path, "w") as file:
                file.write(text)
        return code

    monkeypatch.setattr(install, "_run_uv", write)


def run(place, step, name="one"):
    return install.main(step, "pypi", name, f"{place}/.cellwall-packages", MEMORY_BYTES, "zebra")


def environment(place):
    folder = Path(install._site_packages(f"{place}/.cellwall-packages"))
    return {each.name: each.read_text() for each in folder.iterdir()} if folder.is_dir() else None


@pytest.mark.requirement("PKG-5")
def test_the_environment_changes_only_when_all_is_there(place, monkeypatch):
    managed(monkeypatch, {"zebra.py": "1", "../../../bin/zebra": "#!"})
    assert run(place, "stage") == 0
    assert environment(place) is None
    assert run(place, "commit") == 0
    assert environment(place) == {"zebra.py": "1"}
    assert (place / ".cellwall-packages/bin/zebra").read_text() == "#!"
    assert (place / ".cellwall-packages/.gitignore").read_text() == "*\n"
    managed(monkeypatch, {"zebra.py": "2", "quagga.py": "1"})
    run(place, "stage")
    assert environment(place) == {"zebra.py": "1"}
    assert run(place, "commit") == 0
    assert environment(place) == {"zebra.py": "2", "quagga.py": "1"}
    assert not (place / ".cellwall-install").exists()


@pytest.mark.parametrize("step", ["failed", "discard"])
def test_a_failure_leaves_nothing_of_the_copy(place, monkeypatch, step):
    managed(monkeypatch, {"zebra.py": "1"}, code=1 if step == "failed" else 0)
    run(place, "stage")
    if step == "discard":
        run(place, "discard")
    assert os.listdir(place) == []


def test_an_environment_that_changed_meanwhile_is_not_overwritten(place, monkeypatch, capsys):
    managed(monkeypatch, {"zebra.py": "1"})
    run(place, "stage", "one")
    managed(monkeypatch, {"okapi.py": "1"})
    run(place, "stage", "two")
    assert (run(place, "commit", "two"), run(place, "commit", "one")) == (0, 1)
    assert environment(place) == {"okapi.py": "1"}
    assert "install again" in capsys.readouterr().err
    assert not (place / ".cellwall-install").exists()


def test_copies_of_killed_installations_are_removed_after_an_hour(place, monkeypatch):
    managed(monkeypatch, {"zebra.py": "1"})
    for name, age_s in (("old", 7200), ("new", 60)):
        run(place, "stage", name)
        moment = os.stat(place).st_mtime - age_s
        os.utime(place / ".cellwall-install" / name, (moment, moment))
    run(place, "stage")
    assert sorted(os.listdir(place / ".cellwall-install")) == ["new", "new.base", "one", "one.base"]


@pytest.mark.requirement("PKG-5")
def test_a_data_file_of_a_wheel_is_not_taken_for_the_state_of_the_installation(place, monkeypatch):
    for name in ("base", ".base", ".cache"):
        managed(monkeypatch, {"zebra.py": name, f"../../../{name}": "1 1"})
        assert run(place, "stage") == 0
        assert run(place, "commit") == 0
        assert environment(place) == {"zebra.py": name}
    assert not (place / ".cellwall-install").exists()


@pytest.mark.requirement("PKG-5")
def test_programs_that_cannot_be_placed_do_not_hide_what_was_installed(place, monkeypatch, capfd):
    (place / ".cellwall-packages").mkdir()
    (place / ".cellwall-packages/bin").symlink_to("/proc/self/nowhere")
    managed(monkeypatch, {"zebra.py": "1", "../../../bin/zebra": "#!"})
    assert run(place, "stage") == 0
    assert run(place, "commit") == 0
    assert environment(place) == {"zebra.py": "1"}
    assert "programs of the packages are missing" in capfd.readouterr().err


@pytest.mark.requirement("PKG-3")
def test_the_interpreter_that_uv_gets_runs_no_script(tmp_path, monkeypatch):
    """uv writes its query into a cache that code in the workspace can change."""
    monkeypatch.setattr(install, "_PROGRAMS", str(tmp_path / "programs"))
    monkeypatch.setattr(install, "_UV", wheel_program("uv", "uv"))
    script = f"open({str(tmp_path / 'ran')!r}, 'w').close()"
    python = install._described_python()
    described = subprocess.run([python, "-I", "-c", script], check=True, stdout=subprocess.PIPE)
    assert json.loads(described.stdout)["sys_executable"] == sys.executable
    assert not (tmp_path / "ran").exists()
    # The control: the Python that the answer is about runs the script.
    subprocess.run([sys.executable, "-I", "-c", script], check=True)
    assert (tmp_path / "ran").exists()


@pytest.mark.requirement("PKG-3")
def test_programs_of_the_workspace_are_not_on_the_path():
    path = "/usr/bin:/bin:/workspace/.local/bin"
    assert install._system_path(path) == "/usr/bin:/bin"


@pytest.mark.requirement("PKG-5")
def test_an_archive_becomes_the_environment_in_one_step(place, monkeypatch):
    archive, mac = packed(place, monkeypatch)
    assert mac == hmac.digest(b"key", archive, "sha256")
    given(monkeypatch, archive)
    assert run(place, "fill") == 0
    assert environment(place) == {"zebra.py": "1"}
    program = place / ".cellwall-packages/bin/zebra run"
    assert (program.read_text(), program.stat().st_mode & 0o777) == ("#!", 0o755)
    assert not (place / ".cellwall-packages/.lock").exists()
    # A second one finds an environment, and changes nothing.
    given(monkeypatch, archive.replace(b"#!", b"??"))
    assert run(place, "fill", "two") == install.NOT_EMPTY
    assert program.read_text() == "#!"
    assert not (place / ".cellwall-install").exists()


@pytest.mark.requirement("PKG-5")
def test_a_fill_that_is_killed_leaves_no_environment(place, monkeypatch):
    archive, _ = packed(place, monkeypatch)
    changes = f"import sys; from cellwall.sandbox.inside import install; install.WORKSPACE = {str(place)!r}; "
    changes += "install.STAGING = install.WORKSPACE + '/.cellwall-install'; "
    words = "fill", "pypi", "one", f"{place}/.cellwall-packages", MEMORY_BYTES
    code = f"{changes} print('ready', flush=True); sys.exit(install.main(*{words!r}))"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdout.readline() == b"ready\n"
        process.stdin.write(archive[:-1])  # it waits for the last byte
        process.stdin.flush()
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert environment(place) is None
    # The control: the same process with the whole archive makes the environment.
    given(monkeypatch, archive)
    assert run(place, "fill", "two") == 0
    assert environment(place) == {"zebra.py": "1"}


def test_an_archive_that_ends_early_leaves_nothing(place, monkeypatch):
    archive, _ = packed(place, monkeypatch)
    given(monkeypatch, archive[:-1])
    with pytest.raises(OSError, match="ended"):
        run(place, "fill")
    assert environment(place) is None
    assert not (place / ".cellwall-install").exists()
