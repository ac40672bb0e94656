"""Probes contradict a blast radius that is not true (CFG-3). tests/interfaces/test_cli_blast_radius.py
has the one that is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from cellwall.admin.blast_radius import BlastRadius, ProbeResult, ProbeState, configured_radius
from cellwall.admin.blast_radius_probe import probe_radius
from cellwall.core.types import Principal
from cellwall.runtime.wiring import open_app

CONFIG = """
[limits]
output_bytes = "64k"
open_files = 128
"""


def probe(config: Path, *lines: str, **changes: object) -> dict[str, ProbeResult]:
    """The results for these lines, each changed to a lie."""
    app = open_app(config=str(config), environ=None)
    try:
        true = configured_radius(app.settings, environ={})
        chosen = [each for each in true.abilities if each.id in lines]
        assert len(chosen) == len(lines)
        lies = tuple(
            replace(
                each,
                is_possible=each.is_possible if changes else not each.is_possible,
                amount=None if each.amount is None else each.amount * changes.get("factor", 1),  # type: ignore[operator]  # a number
            )
            for each in chosen
        )
        radius = BlastRadius(true.profile, lies, ())
        who = Principal("ann", "cli")
        return anyio.run(
            lambda: probe_radius(app, radius, who=who, on_progress=lambda _: None)
        )
    finally:
        app.close()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return path


@pytest.mark.requirement("CFG-3")
def test_a_line_that_says_the_opposite_is_contradicted(config: Path) -> None:
    lines = (
        *("read.programs", "read.etc", "read.devices", "read.workspace", "read.protected-names"),
        *("read.host-files", "read.environment", "read.processes"),
        *("write.given-directory", "write.read-only-directory", "write.root"),
        *("execute.programs", "execute.root", "execute.kernel", "execute.unmatched-calls"),
        *("reach.hosts", "reach.private-addresses", "reach.this-machine", "keep.files"),
    )
    found = probe(config, *lines)
    assert {name: each for name, each in found.items() if each.state is not ProbeState.CONTRADICTED} == {}


@pytest.mark.requirement("CFG-3")
@pytest.mark.parametrize("factor", [0.25, 4])
def test_an_amount_that_is_not_the_limit_is_contradicted(config: Path, factor: float) -> None:
    found = probe(config, "spend.output", "spend.open-files", factor=factor)
    assert {each.state for each in found.values()} == {ProbeState.CONTRADICTED}, found
