"""A state folder of their own for the suites, and the examples of the guide."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

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
def policy(tmp_path: Path) -> str:
    """Allows ordinary work, and denies one program by name."""
    file = tmp_path / "policy.toml"
    file.write_text(
        '[permissions]\nallow = ["Bash(*)", "Read(*)", "Write(*)", "Code(*)"]\n'
        'deny = ["Bash(curl:*)"]\n',
        "utf-8",
    )
    return str(file)
