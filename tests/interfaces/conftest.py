"""Both paths for those who ask: `pytestmark = pytest.mark.usefixtures("path")`.

A test for which both are the same says so: `@pytest.mark.only_on("warm", reason="…")`.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from adversarial.leftovers import uid_of
from cellwall.runtime import wiring
from cellwall.sandbox.linux import layers, pool
from interfaces import prepared_program
from interfaces.both_ways import own_ways, ways  # noqa: F401  # fixtures
from interfaces.test_cli_process import DEADLINE_S, cellwall, until

UIDS_EACH = 500
# Below those of tests/adversarial/leftovers.py: a supervisor that ends late is none of their cells.
_UID_BASE = 600_000_000 + os.getpid() % 17_000 * 30_000
_NUMBERS = itertools.count()
_SUPERVISOR = """
import sys
from cellwall.interfaces.supervisor.server import main
sys.exit(main())
"""
PATHS = ("cold", "warm")
_FIXTURES = {"path": "function", "own_supervisor": "function", "shared_supervisor": "module"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "only_on(path, reason): the other path has no such thing")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    only = metafunc.definition.get_closest_marker("only_on")
    if only is not None:
        assert only.kwargs["reason"], "say why both paths are the same here"
    own = str([mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")])
    for name in _FIXTURES.keys() & set(metafunc.fixturenames):
        if f"'{name}'" in own:
            continue
        paths = PATHS if only is None else only.args
        metafunc.parametrize(name, paths, indirect=True, scope=_FIXTURES[name])


@pytest.fixture(scope="module")
def warm_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One for all warm tests of a module: a template for each would cost 0.2 s and a zygote."""
    home = tmp_path_factory.mktemp("cellwall-warm-home")
    home.chmod(0o700)
    yield home
    wiring.close_shared(str(home))
    pool.close_all()


@pytest.fixture
def path(
    request: pytest.FixtureRequest,
    state_home: str,
    warm_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """How cells are made; for a user both are the same."""
    if request.param == "warm":
        monkeypatch.setenv("CELLWALL_HOME", str(warm_home))
    monkeypatch.setenv("CELLWALL_PATH", request.param)
    return request.param


def start_supervisor(changes: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """The program that `supervisor start` starts, without the time that its imports take."""
    nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    environment = {**os.environ, **changes}
    process = prepared_program.Popen(
        [], code=_SUPERVISOR, env=environment, cwd="/", start_new_session=True, **nowhere
    )
    socket = Path(environment["CELLWALL_HOME"], "supervisor.sock")
    until(lambda: socket.exists() or process.poll() is not None)
    done = cellwall("supervisor", "start", **changes)  # which waits for its answer
    assert done.returncode == 0, done.stderr
    return process


def stop_supervisor(process: subprocess.Popen[bytes], changes: Mapping[str, str]) -> None:
    cellwall("supervisor", "stop", **changes)
    try:
        process.wait(DEADLINE_S)
    finally:
        process.kill()


@dataclass
class Supervised:
    """A supervisor of the test's own, and how its clients are told to find it."""

    home: Path
    path: str
    uid_base: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {
            "CELLWALL_HOME": str(self.home),
            "CELLWALL_CONFIG": str(self.home / "cellwall.toml"),
            "CELLWALL_PATH": self.path,
            "CELLWALL_SUPERVISOR": "on",
        }

    @classmethod
    def begin(cls, home: Path, path: str) -> Supervised:
        home.chmod(0o700)
        # Uids that no other Cellwall on this machine uses: what is found alive is ours.
        found = cls(home, path, _UID_BASE + next(_NUMBERS) % 19 * UIDS_EACH)
        (home / "cellwall.toml").write_text(f"[sandbox]\nuid_base = {found.uid_base}\n")
        found.process = start_supervisor(found.environment)
        return found

    def enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)

    def pid(self) -> int | None:
        return json.loads(cellwall("supervisor", "status", "--json", **self.environment).stdout)[
            "pid"
        ]

    def alive(self) -> list[int]:
        """Processes of its cells and templates; only root can tell."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                # One-shot cells have uids from the base on, what lives longer from `layers.FIRST_LEASED_UID` on.
                offset = uid_of(pid) - self.uid_base
                if 0 <= offset < UIDS_EACH or 0 <= offset - layers.FIRST_LEASED_UID < UIDS_EACH:
                    found.append(int(pid))
        return found

    def end(self) -> None:
        assert self.process is not None
        stop_supervisor(self.process, self.environment)


@pytest.fixture(scope="module")
def shared_supervisor(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Supervised]:
    found = Supervised.begin(tmp_path_factory.mktemp("cellwall-supervised"), request.param)
    yield found
    found.end()


@pytest.fixture
def supervisor(
    shared_supervisor: Supervised, state_home: str, monkeypatch: pytest.MonkeyPatch
) -> Supervised:
    """One for all tests of a module that leave it as it was."""
    shared_supervisor.enter(monkeypatch)
    return shared_supervisor


@pytest.fixture
def own_supervisor(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    state_home: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Supervised]:
    """One that the test may do anything to."""
    found = Supervised.begin(tmp_path_factory.mktemp("cellwall-supervised"), request.param)
    found.enter(monkeypatch)
    yield found
    found.end()
