"""A state folder of their own for the suites, and the examples of the guide and the cookbook."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cellwall import CellwallError, Sandbox, Status
from tiny_index import tiny_index, use_config

_GUIDE = Path(__file__).parents[3] / "docs/guides/frameworks.md"


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No state and no configuration of the developer's own."""
    folder = tmp_path_factory.mktemp("home")
    os.environ |= {"CELLWALL_HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "none")}
    os.environ.pop("CELLWALL_CONFIG", None)
    yield folder
    stop = [Path(sys.executable).with_name("cellwall"), "supervisor", "stop"]
    subprocess.run(stop, capture_output=True, timeout=60, check=False)


PRIMES = "print(sum(all(n % d for d in range(2, n)) for n in range(2, 100)))"


@pytest.fixture
def primes() -> str:
    """A program that counts the prime numbers below 100: 25."""
    return PRIMES


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A registry on loopback with one package, `tiny`; it is the only source of packages."""
    with tiny_index(tmp_path):
        use_config(monkeypatch, tmp_path)
        yield


@pytest.fixture
def run_example() -> Callable[..., dict[str, Any]]:
    """Runs the program under a heading of the guide, with the names that the guide presumes."""

    def run(heading: str, **names: Any) -> dict[str, Any]:
        text = _GUIDE.read_text("utf-8")
        (section,) = re.findall(
            rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
        )
        (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        exec(compile(program, str(_GUIDE), "exec"), names)
        return names

    return run


@pytest.fixture
def example() -> Callable[[str], str]:
    """Runs an example of the cookbook as a reader does; returns what it prints."""

    def run(name: str) -> str:
        program = [sys.executable, _GUIDE.parents[2] / "examples" / name]
        return subprocess.run(
            program, capture_output=True, text=True, timeout=300, check=True
        ).stdout

    return run


@pytest.fixture
def policy(tmp_path: Path) -> str:
    """Allows ordinary work, and denies one program by name."""
    file = tmp_path / "policy.toml"
    file.write_text(
        '[permissions]\nallow = ["Bash(*)", "Read(*)", "Write(*)", "Code(*)"]\n'
        'deny = ["Bash(curl:*)"]\n',
        "utf-8",
    )
    return str(file)


@pytest.fixture
def watch_sandboxes(monkeypatch: pytest.MonkeyPatch) -> Callable[[ModuleType], list[Sandbox]]:
    """Keeps each sandbox that an integration makes from now on."""

    def watch(integration: ModuleType) -> list[Sandbox]:
        made: list[Sandbox] = []

        def create(**options: Any) -> Sandbox:
            made.append(Sandbox.create(**options))
            return made[-1]

        monkeypatch.setattr(integration, "Sandbox", SimpleNamespace(create=create))
        return made

    return watch


@pytest.fixture
def is_live() -> Callable[[Sandbox], bool]:
    """Whether a sandbox still runs commands."""

    def look(sandbox: Sandbox) -> bool:
        try:
            return sandbox.commands.run("true").status is Status.OK
        except CellwallError:
            return False

    return look
