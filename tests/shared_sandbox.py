"""One sandbox for the tests of a module, with a state folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import cellwall
from cellwall.runtime import wiring


@contextmanager
def shared_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cellwall.Sandbox]:
    """For a fixture with the scope of a module; the homes of single tests are made later."""
    home = tmp_path_factory.mktemp("cellwall-shared")
    home.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLWALL_HOME", str(home))
        patch.setenv("XDG_CONFIG_HOME", str(home / "no-config"))
        patch.setenv("CELLWALL_SUPERVISOR", "off")
        patch.setenv("CELLWALL_PATH", "cold")
        sandbox = cellwall.Sandbox.create()
    try:
        yield sandbox
    finally:
        sandbox.kill()
        wiring.close_shared(str(home))
