"""The steps of an installation inside a cell: at any moment the environment is the old or the new."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cellwall.core.host_programs import wheel_program
from cellwall.sandbox.inside import install


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(install, "WORKSPACE", str(tmp_path))
    monkeypatch.setattr(install, "STAGING", f"{tmp_path}/.cellwall-install")
    return tmp_path


def managed(monkeypatch, files, code=0):
    """A package manager that writes these files into the copy."""

    def write(folder, _requirements):
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
    return install.main(step, "pypi", name, f"{place}/.cellwall-packages", "zebra")


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
