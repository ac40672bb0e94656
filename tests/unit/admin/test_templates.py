"""Builds of environments by uv in a cell: from a request, from a lock, recorded, cleaned up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cellwall.admin import audit_queries
from cellwall.admin.package_locks import Ecosystem, PackageLocks
from cellwall.admin.templates import Templates
from cellwall.core.errors import AuditFailed, BadInput, CellwallError, Denied
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Principal
from cellwall.interfaces.cli import output
from cellwall.interfaces.cli.commands import cli
from cellwall.runtime.approvals import CallbackApprover
from cellwall.sandbox.templates import environments
from conftest import audit_records
from tiny_index import tiny_index, use_config, write_config, write_config_without_feed

pytestmark = pytest.mark.slow  # each starts cells

ANN = Principal("ann", "cli")
NAME = "web"
REQUEST = ["tiny"]


def ignore(_: str) -> None:
    return


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    with tiny_index(folder) as registries:
        registries.folder = folder
        yield registries


@pytest.fixture
def index(served, monkeypatch):
    use_config(monkeypatch, served.folder)
    return served


def build(on_progress=ignore, **more) -> environments.Environment:
    given = {"packages": REQUEST, **more} if "lock" not in more else more
    return Templates().build(NAME, principal=ANN, on_progress=on_progress, **given)


def changes() -> list[tuple[str, str, str, str]]:
    return [
        (entry["kind"], entry["principal"], entry["body"]["step"], entry["body"]["message"])
        for entry in audit_records(kind=EventKind.TEMPLATE)
    ]


@pytest.mark.requirement("PKG-4", "PKG-5", "AUD-1", "LANG-2")
def test_a_template_is_resolved_locked_installed_and_recorded(index, state_home):
    templates, heard = Templates(), list[str]()
    built = build(heard.append)
    assert heard == ["resolving", "installing 1 package", "compiling"]
    assert (built.is_new, built.packages) == (True, (("tiny", "1.0"),))
    assert not build().is_new
    # Nothing of a program, a cache or the host is in the environment; bytecode is.
    found = [path.relative_to(built.path).as_posix() for path in Path(built.path).rglob("*")]
    assert any(each.endswith(".pyc") for each in found)
    assert not any(each.startswith(("bin", ".")) for each in found)
    for path in Path(built.path).rglob("*.pyc"):
        assert state_home.encode() not in path.read_bytes()
    # The lock lies beside the packages, and builds the same again.
    lock = Path(built.path).parent.joinpath("pylock.toml").read_bytes()
    assert build(lock=lock).packages == built.packages
    assert templates.remove(NAME, principal=ANN, on_progress=ignore) == 2
    assert [(kind, step) for kind, _, step, _ in changes()] == [
        ("template", "intent"),
        ("template", "outcome"),
    ] * 3
    first, second = (each["body"] for each in audit_records(kind=EventKind.TEMPLATE)[:2])
    assert (first["packages"], first["python"]) == (["tiny"], environments.interpreter().version)
    assert len(first["requirements_sha256"]) == 64
    assert second["installed"] == ["tiny==1.0"]
    packages = [r["body"]["package"] for r in audit_records() if "package" in r["body"]]
    assert set(packages) == {"pkg:pypi/tiny@1.0"}
    assert os.listdir(os.path.join(state_home, "workspaces")) == []
    assert audit_queries.check().ok


@pytest.mark.requirement("PKG-5")
def test_a_file_that_is_not_the_locked_one_is_refused(index, state_home):
    lock = PackageLocks(ANN).resolve(Ecosystem.PYPI, REQUEST, on_progress=ignore).content
    digest = index.pypi["tiny"]["files"][0]["hashes"]["sha256"]
    with pytest.raises(CellwallError) as told:
        build(lock=lock.replace(digest.encode(), b"00" * 32))
    assert told.value.code == "CW-TEMPLATE-HASH", told.value.detail
    with pytest.raises(BadInput):
        build(lock=lock, packages=REQUEST)
    assert not Path(state_home, "templates", NAME).exists()
    *_, last = audit_records(kind=EventKind.TEMPLATE)
    assert (last["body"]["status"], last["body"]["error_code"]) == ("failed", "CW-TEMPLATE-HASH")


@pytest.mark.requirement("PKG-1", "PKG-2")
def test_a_refused_package_is_told_with_the_reason_and_what_to_do(index, tmp_path, monkeypatch):
    with pytest.raises(CellwallError) as told:
        build(packages=["reqeusts"])
    assert told.value.code == "CW-PACKAGE-REFUSED"
    assert "did you mean requests" in told.value.message
    # On a fresh machine there is no feed yet.
    write_config_without_feed(tmp_path / "config.toml", index.base)
    use_config(monkeypatch, tmp_path)
    with pytest.raises(CellwallError) as told:
        build()
    assert "feed of malicious packages is missing" in told.value.message
    for words in ("packages feed update", "packages feed import", "without_feed"):
        assert words in told.value.hint


@pytest.mark.requirement("PKG-2", "POL-8")
def test_a_question_about_a_package_reaches_a_person_once_for_a_build(index, tmp_path, monkeypatch):
    write_config_without_feed(tmp_path / "config.toml", index.base)
    use_config(monkeypatch, tmp_path)
    asked = []

    def answer(question):
        asked.append(question.reason)
        return "deny" if len(asked) == 1 else "session"

    with pytest.raises(CellwallError, match="feed of malicious packages is missing"):
        build(ask=CallbackApprover(answer))
    assert build(ask=CallbackApprover(answer)).packages == (("tiny", "1.0"),)
    lock = PackageLocks(ANN, ask=CallbackApprover(answer))
    assert lock.resolve(Ecosystem.PYPI, REQUEST, on_progress=ignore).packages
    assert len(asked) == 3, "the steps of one build are one session"


def test_an_index_out_of_reach_and_a_version_that_is_not_there_are_told(
    index, tmp_path, monkeypatch
):
    with pytest.raises(CellwallError) as told:
        build(packages=["tiny==9.0"])
    assert told.value.code == "CW-PACKAGE-NOT-FOUND", told.value.detail
    write_config(tmp_path / "config.toml", "http://127.0.0.1:9")
    use_config(monkeypatch, tmp_path)
    with pytest.raises(CellwallError) as told:
        build()
    assert told.value.code == "CW-TEMPLATE-NETWORK", told.value.detail


@pytest.mark.requirement("RBAC-1", "AUD-1")
def test_who_may_not_install_may_not_build_or_remove_and_nothing_is_built_unrecorded(
    index, tmp_path, state_home
):
    config = tmp_path / "config.toml"
    write_config(config, index.base, '[roles]\nusers = { bob = "user" }\n')
    templates, bob = Templates(config=str(config)), Principal("bob", "cli")
    for change in (
        lambda: templates.build(NAME, principal=bob, on_progress=ignore, packages=REQUEST),
        lambda: templates.remove("python-data", principal=bob, on_progress=ignore),
    ):
        Path(state_home, "templates/python-data/0").mkdir(parents=True, exist_ok=True)
        with pytest.raises(Denied):
            change()
    assert Path(state_home, "templates/python-data/0").exists()
    with pytest.raises(Denied):
        PackageLocks(bob, config=str(config)).resolve(Ecosystem.PYPI, REQUEST, on_progress=ignore)
    Path(state_home, "audit").rename(Path(state_home, "audit-before"))
    Path(state_home, "audit").write_text("not a directory")
    with pytest.raises(AuditFailed):
        build()
    assert not Path(state_home, "templates", NAME).exists()


@pytest.mark.requirement("PKG-3")
def test_a_build_that_is_killed_or_interrupted_leaves_no_environment(index, state_home):
    def interrupt(told: str) -> None:
        if told == "compiling":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(interrupt)
    *_, last = audit_records(kind=EventKind.TEMPLATE)
    assert (last["body"]["status"], last["body"]["reason"]) == ("failed", "interrupted")
    assert os.listdir(f"{state_home}/templates") == []
    # kill -9 while the packages are being copied out of the cell.
    script = """
import os, signal
from cellwall.admin import package_cells
from cellwall.admin.templates import Templates
from cellwall.core.types import Principal
unpack = package_cells.unpack
def die(*given, **named):
    unpack(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)
package_cells.unpack = die
Templates().build("web", principal=Principal("ann", "cli"), on_progress=print, packages=["tiny"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (left,) = Path(state_home, "templates", NAME).iterdir()
    assert left.name.startswith(".unfinished-")
    assert (left / "site-packages/tiny/__init__.py").exists(), "it was killed in the midst"
    with pytest.raises(BadInput):  # there is no definition either
        Templates().find(NAME)
    assert build().is_new
    assert not left.exists()
    assert os.listdir(os.path.join(state_home, "workspaces")) == []


def test_progress_is_one_line_on_a_terminal(index, monkeypatch, capfd):
    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    words = ["template", "build", NAME, "--with", "tiny"]
    assert cli.main(words, standalone_mode=False) == 0
    told = capfd.readouterr()
    steps = ["resolving", "installing 1 package", "compiling"]
    assert told.err == "".join(f"\r\x1b[Kcellwall: {each}" for each in steps) + "\r\x1b[K"
    assert told.out.startswith(f"{NAME} built: Python 3.")
    assert "tiny 1.0" in told.out
