"""Environments are built whole or not at all, out of what was locked, and run nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.packages import Package
from cellwall.sandbox.templates import definitions, environments
from cellwall.sandbox.templates.definitions import TemplateDefinition
from cellwall.sandbox.templates.environments import TargetPython

NAME = "python-data"
TINY = (Package("tiny", "1.0"),)


def ignore(_: object) -> None:
    return


def install_tiny(definition, python, staging) -> tuple[Package, ...]:
    """What a cell leaves: the package, its program, and files with other modes."""
    site = Path(staging, "site-packages")
    for path in ("tiny/__init__.py", "tiny-1.0.dist-info/METADATA", "bin/tiny", ".lock"):
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text("ANSWER = 42\n")
        (site / path).chmod(0o777)
    return TINY


def build(home: str, install=install_tiny, on_progress=ignore, **more) -> environments.Environment:
    return environments.build(home, NAME, install=install, on_progress=on_progress, **more)


def remains(home: str) -> list[str]:
    folder = Path(home, "templates", NAME)
    return sorted(os.listdir(folder)) if folder.exists() else []


@pytest.mark.requirement("LANG-2")
def test_what_was_built_is_found_again_and_everybody_inside_can_read_it(state_home):
    assert environments.environment_of(state_home, NAME) is None
    assert environments.find(state_home, NAME) is None
    before = os.umask(0o077)
    try:
        built = build(state_home)
    finally:
        os.umask(before)
    assert (built.name, built.packages, built.is_new) == (NAME, (("tiny", "1.0"),), True)
    assert environments.environment_of(state_home, NAME) == built.path
    found = sorted(Path(built.path).rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in found if path.is_dir()} == {0o755}
    assert {path.stat().st_mode & 0o777 for path in found if path.is_file()} == {0o644}
    assert built.size_bytes == sum(path.stat().st_size for path in found if path.is_file())
    assert sorted(os.listdir(built.path)) == ["tiny", "tiny-1.0.dist-info"]
    again = build(state_home, install=None)
    assert again == environments.find(state_home, NAME) == replace(built, is_new=False)


def failure(home: str, install=install_tiny) -> CellwallError:
    with pytest.raises(CellwallError) as told:
        build(home, install)
    assert told.value.hint
    assert home not in str(told.value)
    assert remains(home) == []
    assert environments.environment_of(home, NAME) is None
    return told.value


def test_a_tree_with_packages_that_the_lock_does_not_have_is_refused(state_home):
    def install(*given):
        install_tiny(*given)
        return (Package("other", "1.0"),)

    assert failure(state_home, install).code == "CW-TEMPLATE-FAILED"


def test_an_empty_tree_is_refused(state_home):
    def install(_definition, _python, staging):
        os.mkdir(os.path.join(staging, "site-packages"))
        return TINY

    assert failure(state_home, install).code == "CW-TEMPLATE-FAILED"


def test_a_disk_without_space_is_told_before_anything_is_loaded(monkeypatch, state_home):
    monkeypatch.setattr(environments, "_NEEDED_BYTES", 1 << 62)
    assert failure(state_home, install=None).code == "CW-TEMPLATE-NO-SPACE"


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "CW-TEMPLATE-NO-SPACE"), (errno.EACCES, "CW-STATE")]
)
def test_a_disk_that_fails_meanwhile_is_told(state_home, number, code):
    def fail(*_):
        raise OSError(number, os.strerror(number), "/secret/path")

    assert failure(state_home, fail).code == code


@pytest.mark.parametrize("version", ["3.10", "3.15", "unknown"])
def test_a_python_without_wheels_is_told(monkeypatch, state_home, version):
    python = TargetPython("/usr/bin/python3", version)
    monkeypatch.setattr(environments, "interpreter", lambda: python)
    assert failure(state_home).code == "CW-TEMPLATE-NO-WHEELS"


@pytest.mark.parametrize("name", ["", "python", "../../etc", "python-data/.."])
def test_other_names_are_refused_before_they_become_paths(state_home, name):
    for ask in (environments.environment_of, environments.find, environments.count):
        with pytest.raises(BadInput) as told:
            ask(state_home, name)
        assert told.value.code == "CW-NO-TEMPLATE"
    with pytest.raises(BadInput):
        environments.build(state_home, name, install=install_tiny, on_progress=ignore)
    with pytest.raises(BadInput):
        environments.remove(state_home, name, on_progress=ignore)
    assert os.listdir(state_home) == []


def test_an_interrupted_build_leaves_nothing(state_home):
    def interrupt(*given):
        install_tiny(*given)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(state_home, interrupt)
    assert os.listdir(f"{state_home}/templates") == []


def test_remains_of_a_killed_build_are_no_environment_and_go_with_the_next(state_home):
    killed = Path(state_home, "templates", NAME, ".unfinished-0", "site-packages")
    killed.mkdir(parents=True)
    assert environments.environment_of(state_home, NAME) is None
    assert environments.count(state_home, NAME) == 0
    build(state_home)
    assert remains(state_home) == [
        environments.digest(definitions.read(state_home, NAME).text, environments.interpreter())
    ]


def test_remains_of_other_killed_builds_go_with_the_next_unless_they_go_on(state_home):
    folder = Path(state_home, "templates")
    for name in ("killed", "going-on"):
        (folder / name / ".unfinished-0" / "site-packages").mkdir(parents=True)
        (folder / f"{name}.lock").touch()
    with open(folder / "going-on.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build(state_home)
    assert not (folder / "killed").exists()
    assert not (folder / "killed.lock").exists()
    assert (folder / "going-on" / ".unfinished-0").exists()


def test_two_builds_at_once_build_once(state_home):
    os.makedirs(f"{state_home}/templates/{NAME}")
    waits = threading.Event()
    built = []

    def build_once() -> None:
        done = build(
            state_home, on_progress=lambda told: waits.set() if "waiting" in told else None
        )
        built.append(done.is_new)

    with open(f"{state_home}/templates/{NAME}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=build_once)
        thread.start()
        assert waits.wait(30)
    thread.join(60)
    build_once()
    assert built == [True, False]


def test_a_lock_whose_file_was_removed_is_not_taken(tmp_path):
    with open(tmp_path / "x.lock", "w") as lock:
        assert environments._try_lock(lock.fileno())
        os.unlink(lock.name)
        assert not environments._try_lock(lock.fileno())


def test_an_environment_belongs_to_its_packages_python_and_machine(monkeypatch, state_home):
    built = build(state_home)
    python = environments.interpreter()
    monkeypatch.setattr(environments, "interpreter", lambda: replace(python, version="3.99"))
    assert environments.environment_of(state_home, NAME) is None
    monkeypatch.setattr(environments, "interpreter", lambda: python)
    assert environments.environment_of(state_home, NAME) == built.path
    monkeypatch.setattr(definitions, "read", lambda *_: TemplateDefinition((), b"other"))
    assert environments.environment_of(state_home, NAME) is None


def test_removal_takes_every_version(state_home):
    build(state_home)
    Path(state_home, "templates", NAME, "0" * 32).mkdir()
    assert environments.count(state_home, NAME) == 2
    assert environments.remove(state_home, NAME, on_progress=ignore) == 2
    assert os.listdir(f"{state_home}/templates") == []  # nor the lock file


def test_a_damaged_environment_is_told(state_home):
    built = build(state_home)
    Path(built.path, "..", "built.json").write_text("{")
    with pytest.raises(CellwallError) as told:
        environments.find(state_home, NAME)
    assert told.value.code == "CW-TEMPLATE-DAMAGED"


@pytest.mark.parametrize("name", list(definitions.SHIPPED))
def test_every_package_that_we_ship_is_pinned_with_hashes_of_wheels(name):
    text = definitions.shipped_requirements(name).decode()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+ \\|    --hash=sha256:[0-9a-f]{64}( \\)?", line)
    pinned = re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE)
    assert {"numpy", "pandas", "matplotlib"} <= set(pinned)
    assert len(set(pinned)) == len(pinned)
