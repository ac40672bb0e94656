"""The first policy is put in place whole, over nothing, and is trusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellwall.admin import policy_init
from cellwall.admin.policy_trust import PolicyTrust
from cellwall.core.errors import CellwallError, Denied
from cellwall.core.types import Principal
from cellwall.core.verdict import Verdict
from cellwall.runtime.policies import effective_policy
from cellwall.runtime.policy_places import user_policy

ME = Principal("ann", "cli")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def place(project: Path, **given: object) -> str:
    wanted = {"is_user": False, "path": None, **given}
    return policy_init.place_of(cwd=str(project), environ=os.environ, **wanted)


def write(project: Path, *, is_forced: bool = False, **given: object) -> policy_init.Written:
    found = policy_init.begin(str(project))
    return policy_init.write(found, place(project, **given), is_forced=is_forced, who=ME)


def code_of(raised: pytest.ExceptionInfo[CellwallError]) -> str:
    assert raised.value.hint
    return raised.value.code


def test_the_policy_is_written_trusted_and_counts_at_once(project):
    (project / "package.json").write_text('{"scripts": {"lint": "x"}}')
    written = write(project)
    file = project / ".cellwall" / "policy.toml"
    assert (written.path, written.is_trusted) == (str(file), True)
    assert file.stat().st_mode & 0o777 == 0o644
    assert os.listdir(file.parent) == ["policy.toml"]
    policy = effective_policy(grants=None, cwd=str(project), environ=os.environ)
    calls = {"Bash(npm run lint)": Verdict.ALLOW, "Bash(git push)": Verdict.ASK}
    assert {call: policy.check(call, cwd=str(project)).verdict for call in calls} == calls


def test_a_policy_that_is_there_stays_unless_forced(project):
    write(project)
    file = project / ".cellwall" / "policy.toml"
    file.write_text("[permissions]\n")
    with pytest.raises(CellwallError) as raised:
        write(project)
    assert (code_of(raised), file.read_text()) == ("CW-POLICY-THERE", "[permissions]\n")
    write(project, is_forced=True)
    assert "Bash(ls *)" in file.read_text()
    assert PolicyTrust().offered((), cwd=str(project))[0].is_trusted
    assert os.listdir(file.parent) == ["policy.toml"]


@pytest.mark.parametrize("is_forced", [True, False])
@pytest.mark.parametrize("what", ["file", "dangling", "folder", "directory"])
def test_links_are_never_written_through(what, is_forced, project, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "policy.toml").write_text("precious")
    if what == "folder":
        (project / ".cellwall").symlink_to(victim)
    else:
        (project / ".cellwall").mkdir()
        target = project / ".cellwall" / "policy.toml"
        if what == "directory":
            target.mkdir()
        else:
            target.symlink_to(victim / ("policy.toml" if what == "file" else "none"))
    with pytest.raises(CellwallError) as raised:
        write(project, is_forced=is_forced)
    assert code_of(raised) in {"CW-POLICY-THERE", "CW-POLICY-UNWRITTEN"}
    assert (victim / "policy.toml").read_text() == "precious"
    assert os.listdir(victim) == ["policy.toml"]
    assert PolicyTrust().entries() == []


def test_a_folder_that_cannot_be_written_is_told(project, monkeypatch):
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(policy_init.os, "mkdir", refuse)
    with pytest.raises(CellwallError) as raised:
        write(project)
    assert code_of(raised) == "CW-POLICY-UNWRITTEN"
    assert raised.value.message == "the policy could not be written: Permission denied"


def test_a_named_file_is_written_and_needs_no_trust(project):
    written = write(project, path="deep/er/ci.toml")
    assert (project / "deep/er/ci.toml").exists()
    assert (written.is_trusted, PolicyTrust().entries()) == (False, [])


def test_a_users_own_has_no_rules_of_a_project(project):
    (project / "Cargo.toml").write_text("")
    found = policy_init.begin(None)
    path = place(project, is_user=True)
    assert path == user_policy(os.environ)
    assert not policy_init.write(found, path, is_forced=False, who=ME).is_trusted
    assert "cargo" not in Path(path).read_text()


def test_the_home_folder_is_no_project(project, monkeypatch):
    monkeypatch.setenv("HOME", str(project))
    with pytest.raises(CellwallError) as raised:
        place(project)
    assert code_of(raised) == "CW-NO-PROJECT"


@pytest.mark.parametrize("kind", ["huge", "binary", "fifo", "dangling", "folder"])
def test_files_of_the_project_that_cannot_be_read_are_noted(kind, project):
    file = project / "package.json"
    match kind:
        case "huge":
            file.write_text('{"scripts": {"x": "' + "y" * (1 << 20) + '"}}')
        case "binary":
            file.write_bytes(b"\xff\xfe\x00")
        case "fifo":
            os.mkfifo(file)
        case "dangling":
            file.symlink_to("nowhere")
        case "folder":
            file.mkdir()
    found = policy_init.begin(str(project))
    assert found.notes == ("package.json was left out: not readable as text, or too large",)
    assert "npm" in found.kinds


def test_what_else_counts_is_told(project):
    write(project)
    (project / ".claude").mkdir()
    (project / ".claude" / "settings.json").write_text("{}")
    inner = project / "inner"
    inner.mkdir()
    write(inner)
    own = Path(user_policy(os.environ))
    own.parent.mkdir(parents=True)
    own.write_text("")
    notes = policy_init.beside(place(inner), environ=os.environ)
    assert [note.split(" ")[0] for note in notes] == [
        str(project / ".cellwall" / "policy.toml"),
        str(project / ".claude" / "settings.json"),
        "your",
    ]
    assert policy_init.beside(place(project), environ=os.environ)[0].startswith(".claude/")


def test_makefiles_are_found_by_the_name_that_make_takes(project):
    (project / "Makefile").write_text("one:\n")
    (project / "GNUmakefile").write_text("two:\n")
    text = policy_init.begin(str(project)).text
    assert ("make two" in text, "make one" in text) == (True, False)


@pytest.mark.requirement("RBAC-1")
@pytest.mark.parametrize("given", [{}, {"path": "deep/ci.toml"}, {"is_user": True}])
def test_who_may_not_change_the_policy_touches_nothing(given, project, tmp_path, monkeypatch):
    config = tmp_path / "config" / "config.toml"
    config.parent.mkdir()
    config.write_text('[roles.users]\nann = "guest"\n')
    config.chmod(0o600)
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    with pytest.raises(Denied):
        write(project, is_forced=True, **given)
    assert os.listdir(project) == []
    assert os.listdir(config.parent) == ["config.toml"]
    config.write_text('[roles.users]\nann = "owner"\n')
    assert Path(write(project, **given).path).exists()
