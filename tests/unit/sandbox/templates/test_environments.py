"""Environments are built whole or not at all, out of what was pinned, and run nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.core.errors import BadInput, CellwallError
from cellwall.sandbox.templates import definitions, environments, installer
from cellwall.sandbox.templates.environments import TargetPython
from unit.sandbox import tiny_template

pytestmark = pytest.mark.slow  # each builds an environment

NAME = "python-data"


def ignore(_: object) -> None:
    return


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A folder with the one wheel that the template is made of."""
    tiny_template.offline(monkeypatch, tmp_path, tiny_template.wheel(tmp_path))
    return tmp_path


def remains(home: str) -> list[str]:
    folder = Path(home, "templates", NAME)
    return sorted(os.listdir(folder)) if folder.exists() else []


@pytest.mark.requirement("LANG-2")
def test_what_was_built_can_be_imported_and_is_found_again(shelf, state_home):
    assert environments.environment_of(state_home, NAME) is None
    assert environments.find(state_home, NAME) is None
    heard: list[str] = []
    built = environments.build(state_home, NAME, may_install=ignore, on_progress=heard.append)
    assert heard == ["tiny 1.0", "unpacking", "compiling"]
    assert (built.name, built.packages, built.is_new) == (NAME, (("tiny", "1.0"),), True)
    assert environments.environment_of(state_home, NAME) == built.path
    code = f"import sys; sys.path[:0] = [{built.path!r}]; import tiny; print(tiny.ANSWER)"
    python = environments.interpreter().path
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, check=True)
    assert done.stdout == b"42\n"
    again = environments.build(state_home, NAME, may_install=ignore, on_progress=heard.append)
    assert again == environments.find(state_home, NAME) == replace(built, is_new=False)


def test_everybody_inside_can_read_it_and_it_tells_nothing_of_the_host(shelf, state_home):
    before = os.umask(0o077)
    try:
        built = environments.build(state_home, NAME, may_install=ignore, on_progress=ignore)
    finally:
        os.umask(before)
    found = sorted(Path(built.path).rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in found if path.is_dir()} == {0o755}
    assert {path.stat().st_mode & 0o777 for path in found if path.is_file()} == {0o644}
    assert built.size_bytes == sum(path.stat().st_size for path in found if path.is_file())
    assert [path.name for path in found if path.suffix == ".pyc"]
    assert not [
        path for path in found if path.is_file() and state_home.encode() in path.read_bytes()
    ]
    assert not Path(built.path, "bin").exists()


def test_nothing_of_a_package_is_executed(tmp_path, monkeypatch, state_home):
    mark = tmp_path / "executed"
    attack = f"import pathlib; pathlib.Path({str(mark)!r}).touch()\n"
    files = dict.fromkeys(("tiny/__init__.py", "evil.pth", "sitecustomize.py", "setup.py"), attack)
    requirements = tiny_template.wheel(tmp_path, files=files)
    tiny_template.offline(monkeypatch, tmp_path, requirements)
    built = environments.build(state_home, NAME, may_install=ignore, on_progress=ignore)
    assert not mark.exists()
    # The control: the attack is one.
    subprocess.run(
        [sys.executable, "-c", "import tiny"], env={"PYTHONPATH": built.path}, check=True
    )
    assert mark.exists()


def failure(home: str) -> CellwallError:
    with pytest.raises(CellwallError) as told:
        environments.build(home, NAME, may_install=ignore, on_progress=ignore)
    assert told.value.hint
    assert home not in str(told.value)
    assert remains(home) == []
    assert environments.environment_of(home, NAME) is None
    return told.value


def test_a_package_with_another_hash_is_refused(shelf, state_home):
    tiny_template.wheel(shelf, files={"tiny/__init__.py": "ANSWER = 43\n"})
    assert failure(state_home).code == "CW-TEMPLATE-HASH"


def test_a_package_without_a_hash_is_refused(shelf, monkeypatch, state_home):
    tiny_template.offline(monkeypatch, shelf, b"tiny==1.0\n")
    assert failure(state_home).code == "CW-TEMPLATE-FAILED"


def test_what_is_no_wheel_is_refused(shelf, state_home):
    (wheel,) = shelf.glob("*.whl")
    wheel.rename(shelf / "tiny-1.0.tar.gz")
    assert failure(state_home).code == "CW-TEMPLATE-NO-WHEELS"


def test_an_index_out_of_reach_is_told(shelf, monkeypatch, state_home):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "https://127.0.0.1:9/simple")
    assert failure(state_home).code == "CW-TEMPLATE-NETWORK"


def test_an_installer_that_never_ends_is_ended(shelf, monkeypatch, state_home):
    monkeypatch.setattr(installer, "INSTALL_WITHIN_S", 0.0)
    assert failure(state_home).code == "CW-TEMPLATE-NETWORK"


def test_a_disk_without_space_is_told_before_anything_is_loaded(shelf, monkeypatch, state_home):
    monkeypatch.setattr(environments, "_NEEDED_BYTES", 1 << 62)
    monkeypatch.setattr(installer, "install", None)
    assert failure(state_home).code == "CW-TEMPLATE-NO-SPACE"


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "CW-TEMPLATE-NO-SPACE"), (errno.EACCES, "CW-STATE")]
)
def test_a_disk_that_fails_meanwhile_is_told(shelf, monkeypatch, state_home, number, code):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number), "/secret/path")

    monkeypatch.setattr(installer, "precompile", fail)
    assert failure(state_home).code == code


def test_without_any_installer_it_is_told_which_to_get(shelf, monkeypatch, state_home):
    monkeypatch.setattr(installer, "installer_candidates", lambda _: [(["/no/such/pip"], ())])
    assert failure(state_home).code == "CW-TEMPLATE-NO-PIP"


@pytest.mark.parametrize("version", ["3.10", "3.15", "unknown"])
def test_a_python_without_wheels_is_told(shelf, monkeypatch, state_home, version):
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
        environments.build(state_home, name, may_install=ignore, on_progress=ignore)
    with pytest.raises(BadInput):
        environments.remove(state_home, name, on_progress=ignore)
    assert os.listdir(state_home) == []


@pytest.mark.parametrize("moment", ["tiny 1.0", "unpacking", "compiling"])
def test_an_interrupted_build_leaves_nothing(shelf, state_home, moment):
    def interrupt(told: str) -> None:
        if told == moment:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        environments.build(state_home, NAME, may_install=ignore, on_progress=interrupt)
    assert os.listdir(f"{state_home}/templates") == []


def test_remains_of_a_killed_build_are_no_environment_and_go_with_the_next(shelf, state_home):
    killed = Path(state_home, "templates", NAME, ".unfinished-0", "site-packages")
    killed.mkdir(parents=True)
    assert environments.environment_of(state_home, NAME) is None
    assert environments.count(state_home, NAME) == 0
    environments.build(state_home, NAME, may_install=ignore, on_progress=ignore)
    assert remains(state_home) == [
        environments.digest(definitions.requirements(state_home, NAME), environments.interpreter())
    ]


def test_remains_of_other_killed_builds_go_with_the_next_unless_they_go_on(shelf, state_home):
    folder = Path(state_home, "templates")
    for name in ("killed", "going-on"):
        (folder / name / ".unfinished-0" / "site-packages").mkdir(parents=True)
        (folder / f"{name}.lock").touch()
    with open(folder / "going-on.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        environments.build(state_home, NAME, may_install=ignore, on_progress=ignore)
    assert not (folder / "killed").exists()
    assert not (folder / "killed.lock").exists()
    assert (folder / "going-on" / ".unfinished-0").exists()


def test_two_builds_at_once_build_once(shelf, state_home):
    os.makedirs(f"{state_home}/templates/{NAME}")
    waits = threading.Event()
    built = []

    def build() -> None:
        done = environments.build(
            state_home,
            NAME,
            may_install=ignore,
            on_progress=lambda told: waits.set() if "waiting" in told else None,
        )
        built.append(done.is_new)

    with open(f"{state_home}/templates/{NAME}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=build)
        thread.start()
        assert waits.wait(30)
    thread.join(60)
    build()
    assert built == [True, False]


def test_a_lock_whose_file_was_removed_is_not_taken(tmp_path):
    with open(tmp_path / "x.lock", "w") as lock:
        assert environments._try_lock(lock.fileno())
        os.unlink(lock.name)
        assert not environments._try_lock(lock.fileno())


def test_an_environment_belongs_to_its_packages_python_and_machine(shelf, monkeypatch, state_home):
    built = environments.build(state_home, NAME, may_install=ignore, on_progress=ignore)
    python = environments.interpreter()
    monkeypatch.setattr(environments, "interpreter", lambda: replace(python, version="3.99"))
    assert environments.environment_of(state_home, NAME) is None
    monkeypatch.setattr(environments, "interpreter", lambda: python)
    assert environments.environment_of(state_home, NAME) == built.path
    monkeypatch.setattr(definitions, "requirements", lambda *_: b"other")
    assert environments.environment_of(state_home, NAME) is None


def test_removal_takes_every_version(shelf, state_home):
    environments.build(state_home, NAME, may_install=ignore, on_progress=ignore)
    Path(state_home, "templates", NAME, "0" * 32).mkdir()
    assert environments.count(state_home, NAME) == 2
    assert environments.remove(state_home, NAME, on_progress=ignore) == 2
    assert os.listdir(f"{state_home}/templates") == []  # nor the lock file


def test_a_damaged_environment_is_told(shelf, state_home):
    built = environments.build(state_home, NAME, may_install=ignore, on_progress=ignore)
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


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_27_aarch64.whl (14.3 MB)",
            "numpy 2.4.6 (14.3 MB)",
        ),
        ("  Using cached six-1.17.0-py2.py3-none-any.whl (11 kB)", "six 1.17.0 (11 kB)"),
        ("Processing /home/ann/wheels/six-1.17.0-py2.py3-none-any.whl", "six 1.17.0"),
        ("Downloading pandas (10.1MiB)", "pandas (10.1MiB)"),
        ("  Downloading six-1.17.0-py2.py3-none-any.whl.metadata (1.7 kB)", ""),
        ("Downloading six-1.0\x1b[2J\x07-py3-none-any.whl (1 kB)", ""),
        ("Downloading six-1.0-py3-none-any.whl (\x1b[2J)", ""),
        ("Collecting numpy==2.4.6", ""),
        ("Installing collected packages: six", "unpacking"),
    ],
)
def test_progress_is_told_in_words_of_ours(line, told):
    assert installer.progress_of(line) == told


@pytest.mark.parametrize(
    ("output", "code"),
    [
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
            "CW-TEMPLATE-HASH",
        ),
        ("  Hash mismatch for `numpy==2.4.6`", "CW-TEMPLATE-HASH"),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "CW-TEMPLATE-NO-SPACE",
        ),
        (
            "WARNING: Retrying (Retry(total=1, ...)) after\nNo matching distribution found",
            "CW-TEMPLATE-NETWORK",
        ),
        ("error: Failed to fetch: `https://pypi.org/simple/numpy/`", "CW-TEMPLATE-NETWORK"),
        ("ERROR: No matching distribution found for numpy==2.4.6", "CW-TEMPLATE-NO-WHEELS"),
        ("Traceback (most recent call last):", "CW-TEMPLATE-FAILED"),
    ],
)
def test_failures_are_told_apart(output, code):
    assert installer.failure_of(output.splitlines()).code == code


def test_an_installer_sees_nothing_else_of_our_environment(shelf, monkeypatch, state_home):
    seen = {}

    def stream(words, *, env, **_):
        seen.update(env)
        return 0

    monkeypatch.setattr(installer, "stream_lines", stream)
    environ = {"AWS_SECRET_ACCESS_KEY": "x", "PIP_TARGET": "/etc", "HTTPS_PROXY": "http://p"}
    candidates, place = installer.installer_candidates("/p"), state_home
    installer.install(
        "r",
        "t",
        candidates=candidates,
        temporary=place,
        environ=environ,
        on_progress=ignore,
        limits={},
    )
    assert seen.keys() - {"LC_ALL", "PATH", "PIP_ROOT_USER_ACTION", "PYTHONDONTWRITEBYTECODE"} == {
        "HTTPS_PROXY",
        "TMPDIR",
    }
