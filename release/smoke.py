"""Smoke tests of an installed wheel: in an empty environment, away from the repository.

Each test is a command of the installed program and what has to come of it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from pathlib import Path

PYTHONS = ("3.11", "3.12", "3.13")
_WITHIN_S = 300


class SmokeFailed(Exception):
    """A command did something else; the text says which and what."""


@dataclass(frozen=True, slots=True)
class SmokeTest:
    """One command; `shows` is a regular expression for its output."""

    arguments: tuple[str, ...]
    shows: str
    exit_code: int = 0


TESTS = (
    SmokeTest(("--version",), r"\d+\.\d+"),
    SmokeTest(("code", "-c", "import os; print(6 * 7, os.getuid() != 0)"), r"42 True"),
    SmokeTest(("run", "--", "sh", "-c", "cat /etc/shadow"), r"No such file|Permission denied", 1),
    SmokeTest(("policy", "check", "Bash(rm -rf /)"), r"^deny ", 4),
    SmokeTest(("audit", "verify"), r"^ok: \d+ records"),
)


def find_pythons() -> dict[str, str]:
    """The interpreters of this host by version: of the distribution, on PATH, or of pyenv."""
    found: dict[str, str] = {}
    for version in PYTHONS:
        places = [f"/usr/bin/python{version}", shutil.which(f"python{version}") or ""]
        places += sorted(glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python3")))
        for place in places:
            if place and _version_of(place) == version:
                found[version] = place
                break
    return found


def _version_of(python: str) -> str:
    question = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        asked = subprocess.run(
            [python, "-I", "-c", question], capture_output=True, text=True, check=False, timeout=60
        )
    except OSError:
        return ""
    return asked.stdout.strip() if asked.returncode == 0 else ""


@contextmanager
def installed(uv: str, python: str, wheel: Path) -> Iterator[Path]:
    """An environment with nothing in it but the wheel and what it needs; its `bin` folder."""
    with tempfile.TemporaryDirectory(prefix="cellwall-smoke-") as folder:
        place = Path(folder, "env")
        install = [uv, "pip", "install", "--quiet", "--python", place / "bin/python", wheel]
        for command in ([uv, "venv", "--quiet", "--python", python, place], install):
            subprocess.run(command, check=True, cwd=folder, timeout=900)
        yield place / "bin"


def run_smoke_tests(programs: Path) -> int:
    """Runs all of them in one state folder; returns how many passed."""
    with tempfile.TemporaryDirectory(prefix="cellwall-smoke-home-") as home:
        environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": home,
            "CELLWALL_HOME": f"{home}/state",
        }
        for test in TESTS:
            done = subprocess.run(
                [programs / "cellwall", *test.arguments],
                env=environment,
                cwd=home,
                capture_output=True,
                text=True,
                check=False,
                timeout=_WITHIN_S,
            )
            shown = done.stdout + done.stderr
            if done.returncode != test.exit_code or re.search(test.shows, shown) is None:
                command = " ".join(("cellwall", *test.arguments))
                raise SmokeFailed(f"{command}: exit {done.returncode}\n{shown[-2000:]}")
    return len(TESTS)
