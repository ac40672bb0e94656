"""kill -9 at any moment: the vault is the old one or the new one, and whole (SEC-6)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]


def crashing(place: Path, *words: str) -> dict:
    # A process of its own: whoever forks here has one thread.
    done = subprocess.run(
        [sys.executable, "-m", "unit.secrets.crashing", str(place), *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory: nobody cuts the power here, so nothing has to reach a disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        yield Path(place)


@pytest.mark.requirement("SEC-6")
@pytest.mark.slow
def test_whoever_is_killed_at_any_step_leaves_the_old_vault_or_the_new_one(memory):
    found = crashing(memory)
    assert len(found) == 9
    for name, seen in found.items():
        # Each was ended before it had an effect, after it, and not at all.
        assert seen["old"] >= 2, (name, seen)
        assert seen["new"] >= 3, (name, seen)
        assert seen["old"] + seen["new"] == seen["steps"], (name, seen)


@pytest.mark.requirement("SEC-6")
@pytest.mark.slow
def test_a_rekey_that_was_acknowledged_is_not_lost_by_a_kill(memory):
    found = crashing(memory, "kill")
    assert found["rounds"] == 12
    assert found["rekeys"] >= 12
