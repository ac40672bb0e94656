"""Both paths for those who ask: `pytestmark = pytest.mark.usefixtures("path")`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.sandbox.native import pool


@pytest.fixture(scope="module")
def warm_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One for all warm tests of a module: a template for each would cost 0.2 s and a zygote."""
    home = tmp_path_factory.mktemp("holdfast-warm-home")
    home.chmod(0o700)
    yield home
    pool.close_all()


@pytest.fixture(params=["cold", "warm"])
def path(
    request: pytest.FixtureRequest,
    state_home: str,
    warm_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """How cells are made; for a user both are the same."""
    if request.param == "warm":
        monkeypatch.setenv("HOLDFAST_HOME", str(warm_home))
    monkeypatch.setenv("HOLDFAST_PATH", request.param)
    return request.param
