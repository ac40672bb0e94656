"""Cells in containers of a real engine pass the conformance suite, as native cells do."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from cellwall.core.outcomes import Outcome
from cellwall.core.types import Action, RunCode, RunCommand, WorkspaceRequest
from cellwall.runtime import wiring
from cellwall.sandbox.conformance import CheckResult, checks, run_conformance
from unit.sandbox.containers.docker_daemon import docker_daemon

pytestmark = [pytest.mark.long, pytest.mark.slow]


@pytest.fixture(scope="module")
def remapped() -> Iterator[str]:
    """An engine that gives containers a user namespace."""
    with docker_daemon("--userns-remap=nobody:nogroup") as socket:
        yield socket


def open_app(tmp_path: Path, socket: str, *lines: str) -> wiring.App:
    config = tmp_path / "config.toml"
    settings = ['backend = "container"', f'engine_socket = "{socket}"', *lines]
    config.write_text("[sandbox]\n" + "\n".join(settings) + "\n")
    config.chmod(0o600)
    return wiring.open_app(config=str(config))


def run(app: wiring.App, operation: RunCode | RunCommand, **fields: object) -> Outcome:
    action = Action(
        principal=wiring.principal("sdk"), operation=operation, limits=app.limits, **fields
    )
    return anyio.run(app.runtime.perform, action)


@pytest.mark.requirement("ISO-11", "ISO-1", "ISO-2", "ISO-7", "LIM-2", "NET-1")
def test_containers_of_docker_pass_every_check(remapped: str, tmp_path: Path) -> None:
    used: set[str] = set()

    async def work() -> list[CheckResult]:
        app = open_app(tmp_path, remapped)

        async def perform(action: Action) -> Outcome:
            outcome = await app.runtime.perform(action)
            used.add(outcome.sandbox_path)
            return outcome

        with app.session(WorkspaceRequest(), wiring.principal("sdk")) as session_id:
            return await run_conformance(
                perform,
                principal=wiring.principal("sdk"),
                session_id=session_id,
                limits=app.limits,
            )

    results = anyio.run(work)
    assert [result for result in results if not result.passed] == []
    assert len(results) == len(checks())
    assert used == {"container"}
    assert containers(remapped) == []


def containers(socket: str) -> list[str]:
    listed = subprocess.run(
        ["docker", "--host", f"unix://{socket}", "ps", "--all", "--quiet"],
        capture_output=True,
        check=True,
        text=True,
    )
    return listed.stdout.split()
