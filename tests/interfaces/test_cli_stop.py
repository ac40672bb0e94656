"""`cellwall stop`: everything at once, with a record of who and why (OBS-3)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from cellwall.core.outcomes import EventKind
from conftest import audit_records
from interfaces.test_cli_process import cellwall, error_code, person

pytestmark = pytest.mark.requirement("OBS-3")


@pytest.fixture(autouse=True)
def lifted() -> Iterator[None]:
    yield
    person("stop", "--lift")


@pytest.mark.usefixtures("supervisor")
def test_a_stop_ends_live_sandboxes_and_says_who_and_why() -> None:
    sandbox = cellwall("create", "--timeout", "60").stdout.decode().strip()
    assert cellwall("exec", sandbox, "--", "true").returncode == 0
    done = cellwall("stop", "--all", "--reason", "a \x1b[31mred\ntext", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["cells"]
    assert (report["left"], report["problems"], report["revoked_tokens"]) == ([], [], False)
    for words in (["run", "--", "true"], ["create"], ["exec", sandbox, "--", "true"]):
        assert error_code(cellwall(*words)) == "CW-STOPPED"
    shown = cellwall("stop", "--status").stdout
    assert b"stopped by" in shown
    assert b"\x1b" not in shown
    assert b"0 sandboxes and templates are alive" in shown
    record = audit_records(kind=EventKind.STOP)[-1]
    assert record["body"]["reason"] == "a \x1b[31mred\ntext"
    assert record["body"]["cells"] == report["cells"]
    assert record["principal"]
    assert person("stop", "--lift", "--reason", "done").returncode == 0
    assert audit_records(kind=EventKind.STOP)[-1]["body"]["stopped"]["reason"].startswith("a ")
    assert cellwall("exec", sandbox, "--", "echo", "back").stdout == b"back\n"
    cellwall("kill", sandbox)


def test_a_stop_is_lifted_by_no_agent() -> None:
    assert cellwall("stop", "--all").returncode == 0
    refused = cellwall("stop", "--lift", CLAUDECODE="1")
    assert error_code(refused) == "CW-AGENT-SHELL"
    assert error_code(cellwall("run", "--", "true")) == "CW-STOPPED"
    assert b"accepted again" in person("stop", "--lift").stdout
    assert b"no stop is in effect" in person("stop", "--lift").stdout


@pytest.mark.parametrize(
    "words",
    [[], ["--all", "--lift"], ["--freeze"], ["--lift", "--revoke-tokens"], ["--reason", "x"]],
)
def test_what_to_do_must_be_said(words: list[str]) -> None:
    assert error_code(cellwall("stop", *words)) == "CW-USAGE"
    assert cellwall("run", "--", "true").returncode == 0


def test_a_reason_has_a_bound() -> None:
    assert error_code(cellwall("stop", "--all", "--reason", "x" * 501)) == "CW-BAD-INPUT"
    assert cellwall("run", "--", "true").returncode == 0
