"""The official conformance suite against a running service, and what of it does not apply."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import need
from interfaces.mcp_service import serving

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / ".tools/inspector/node_modules/.bin"
REVISIONS = ("2026-07-28", "2025-11-25")
_WITHIN_S = 300
_ROW = re.compile(r"\| `([a-z0-9-]+)` \| (.+) \|")
_STAMP = re.compile(r"-\d{4}-\d\d-\d\dT[\d-]+Z$")
pytestmark = pytest.mark.only_on("warm", reason="the service makes its own cells")

Check = tuple[str, str]
"""A scenario and the id of a check."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[Check, set[str]]]:
    """The states of each check, by revision; the suites of both run at the same time."""
    need((PROGRAMS / "conformance").exists(), "the MCP conformance suite (./dev test installs it)")
    home = tmp_path_factory.mktemp("conformance")
    home.chmod(0o700)
    found = {}
    with serving(home) as service, service.signed_in(service.token("ann")[0]) as url:
        started = {each: _start(url, each, home / each) for each in REVISIONS}
        for revision, process in started.items():
            with process:
                said, _ = process.communicate(timeout=_WITHIN_S)
            found[revision] = _read(home / revision)
            assert found[revision], said.decode()
    return found


def _start(url: str, revision: str, place: Path) -> subprocess.Popen[bytes]:
    words = ["server", "--url", url, "--requirements", revision, "-o", str(place)]
    return subprocess.Popen(
        [PROGRAMS / "conformance", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
        cwd=place.parent,
    )


def _read(place: Path) -> dict[Check, set[str]]:
    found: dict[Check, set[str]] = {}
    for file in place.rglob("checks.json"):
        scenario = _STAMP.sub("", file.parent.name).removeprefix("server-")
        for check in json.loads(file.read_text()):
            found.setdefault((scenario, check["id"]), set()).add(check["status"])
    return found


def _documented() -> set[Check]:
    def rows() -> Iterator[Check]:
        for line in (ROOT / "docs/mcp-conformance.md").read_text().splitlines():
            if row := _ROW.fullmatch(line):
                yield from ((row[1], name) for name in re.findall(r"`([^`]+)`", row[2]))

    return set(rows())


@pytest.mark.requirement("SRV-1")
def test_all_that_applies_passes_and_the_rest_is_documented(
    results: dict[str, dict[Check, set[str]]],
) -> None:
    failed = {
        check
        for checks in results.values()
        for check, states in checks.items()
        if "FAILURE" in states
    }
    assert failed == _documented()


@pytest.mark.requirement("SRV-1")
@pytest.mark.parametrize(
    ("revision", "scenario"),
    [
        ("2026-07-28", "server-stateless"),
        ("2026-07-28", "http-header-validation"),
        ("2026-07-28", "dns-rebinding-protection"),
        ("2026-07-28", "caching"),
        ("2026-07-28", "tools-list"),
        ("2025-11-25", "server-initialize"),
        ("2025-11-25", "server-session-lifecycle"),
        ("2025-11-25", "server-sse-polling"),
        ("2025-11-25", "dns-rebinding-protection"),
        ("2025-11-25", "tools-list"),
        ("2025-11-25", "ping"),
    ],
)
def test_the_scenarios_for_real_servers_have_run(
    results: dict[str, dict[Check, set[str]]], revision: str, scenario: str
) -> None:
    """Else the test above would pass with a suite that tests nothing."""
    states = [states for (name, _), states in results[revision].items() if name == scenario]
    assert {"SUCCESS"} in states
