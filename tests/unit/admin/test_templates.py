"""Builds and removals of environments are in the record, before and after."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellwall.admin import audit_queries
from cellwall.admin.templates import Templates
from cellwall.core.errors import AuditFailed, BadInput, CellwallError, Denied
from cellwall.core.events import EventKind
from cellwall.core.types import Principal
from cellwall.interfaces.cli import main as cli
from cellwall.interfaces.cli import output
from cellwall.sandbox.templates import environments
from conftest import audit_records
from unit.sandbox import tiny_template

ANN = Principal("ann", "cli")
NAME = "python-data"


def ignore(_: str) -> None:
    return


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    tiny_template.offline(monkeypatch, tmp_path, tiny_template.wheel(tmp_path))
    return tmp_path


def changes() -> list[tuple[str, str, str, str]]:
    return [
        (entry["kind"], entry["principal"], entry["body"]["step"], entry["body"]["message"])
        for entry in audit_records(kind=EventKind.TEMPLATE)
    ]


@pytest.mark.requirement("RBAC-1")
@pytest.mark.slow
def test_who_may_not_install_packages_may_not_remove_them_either(shelf, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('[roles]\nusers = { bob = "user" }\n')
    templates = Templates(config=str(config))
    templates.build(NAME, principal=ANN, on_progress=ignore)
    with pytest.raises(Denied):
        templates.remove(NAME, principal=Principal("bob", "cli"), on_progress=ignore)
    assert templates.find(NAME) is not None
    assert templates.remove(NAME, principal=ANN, on_progress=ignore) == 1


@pytest.mark.requirement("AUD-1")
@pytest.mark.slow
def test_builds_and_removals_are_recorded_and_what_changes_nothing_is_not(shelf):
    templates = Templates()
    assert templates.find(NAME) is None
    assert templates.build(NAME, principal=ANN, on_progress=ignore).is_new
    assert not templates.build(NAME, principal=ANN, on_progress=ignore).is_new
    assert templates.remove(NAME, principal=ANN, on_progress=ignore) == 1
    with pytest.raises(BadInput) as told:
        templates.remove(NAME, principal=ANN, on_progress=ignore)
    assert told.value.code == "CW-TEMPLATE-NOT-BUILT"
    assert changes() == [
        ("template", "ann", "intent", f"build template {NAME}: begins"),
        ("template", "ann", "outcome", f"build template {NAME}: ok"),
        ("template", "ann", "intent", f"remove template {NAME}: begins"),
        ("template", "ann", "outcome", f"remove template {NAME}: ok"),
    ]
    first = audit_records(kind=EventKind.TEMPLATE)[0]["body"]
    assert first["python"] == environments.interpreter().version
    assert len(first["requirements_sha256"]) == 64
    assert audit_queries.check().ok


@pytest.mark.slow
def test_a_failed_build_is_recorded_with_the_installers_last_words(shelf):
    os.unlink(next(shelf.glob("*.whl")))
    with pytest.raises(CellwallError):
        Templates().build(NAME, principal=ANN, on_progress=ignore)
    *_, last = audit_records()
    assert (last["body"]["status"], last["body"]["error_code"]) == (
        "failed",
        "CW-TEMPLATE-NO-WHEELS",
    )
    assert "No matching distribution" in last["body"]["detail"]


@pytest.mark.slow
def test_an_interrupted_build_is_recorded(shelf):
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Templates().build(NAME, principal=ANN, on_progress=interrupt)
    *_, last = audit_records()
    assert (last["body"]["status"], last["body"]["reason"]) == ("failed", "interrupted")


@pytest.mark.requirement("AUD-1")
def test_without_a_record_nothing_is_built(shelf, state_home):
    Path(state_home, "audit").write_text("not a directory")
    with pytest.raises(AuditFailed):
        Templates().build(NAME, principal=ANN, on_progress=ignore)
    assert environments.count(state_home, NAME) == 0


# What the command prints; with the small template, so in this process


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.slow
def test_progress_is_one_line_on_a_terminal_and_one_line_each_elsewhere(
    shelf, monkeypatch, capfd, terminal
):
    monkeypatch.setattr(output, "is_terminal", lambda _: terminal)
    assert cli.cli.main(["template", "build"], standalone_mode=False) == 0
    told = capfd.readouterr()
    words = ["tiny 1.0", "unpacking", "compiling"]
    if terminal:
        assert told.err == "".join(f"\r\x1b[Kcellwall: {each}" for each in words) + "\r\x1b[K"
    else:
        assert told.err == "".join(f"cellwall: {each}\n" for each in words)
    assert told.out.startswith(f"{NAME} built: Python 3.")
