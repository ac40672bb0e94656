"""What all tests share: a state folder of their own, and skips that CI forbids."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime import reading, wiring


def need(condition: object, feature: str) -> None:
    """Skip for a missing kernel feature, by name; where everything must work, fail instead."""
    if condition:
        return
    if os.environ.get("HOLDFAST_MUST_WORK") == "1":
        pytest.fail(f"HOLDFAST_MUST_WORK=1, but this host lacks: {feature}")
    pytest.skip(f"this host lacks: {feature}")


def audit_records(**wanted: Any) -> list[dict[str, Any]]:
    """What the record of this test holds, the oldest first."""
    return [found.record for found in reading.everything(reading.Query(**wanted))]


def growing_segment(home: str | os.PathLike[str]) -> Path:
    """The file of records that is being written."""
    return max(Path(home, "audit").glob("*.jsonl"))


@pytest.fixture(autouse=True)
def state_home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Every test has its own HOLDFAST_HOME and no configuration of the developer's."""
    home = tmp_path_factory.mktemp("holdfast-home")
    home.chmod(0o700)
    monkeypatch.setenv("HOLDFAST_HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "no-config"))
    monkeypatch.delenv("HOLDFAST_CONFIG", raising=False)
    monkeypatch.setenv("HOLDFAST_SUPERVISOR", "off")
    # Most tests are not about warmth, and a template for each of them would cost minutes.
    monkeypatch.setenv("HOLDFAST_PATH", os.environ.get("HOLDFAST_PATH", "cold"))
    yield str(home)
    wiring.close_shared(str(home))
