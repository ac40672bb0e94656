"""What a project allows counts only while a person trusts that very content (POL-7)."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from cellwall.admin.policy_trust import PolicyTrust
from cellwall.core.errors import CellwallError
from cellwall.core.types import Principal
from cellwall.core.verdict import Verdict
from cellwall.runtime.policies import effective_policy, set_aside
from cellwall.runtime.policy_places import user_policy
from conftest import audit_records

ME = Principal("ann", "cli")
POLICY = '[permissions]\nallow = ["Bash(ls)"]\ndeny = ["Bash(pwd)"]\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "project"
    (place / ".cellwall").mkdir(parents=True)
    (place / ".cellwall" / "policy.toml").write_text(POLICY)
    monkeypatch.chdir(place)
    return place


def verdict(call: str, project: Path) -> Verdict:
    policy = effective_policy(grants=None, cwd=str(project), environ=os.environ)
    return policy.check(call, cwd=str(project)).verdict


def trust(project: Path, *paths: str) -> None:
    book = PolicyTrust()
    for offered in book.offered(paths, cwd=str(project)):
        book.trust(offered, who=ME)


def listed(state_home: str) -> Path:
    return Path(state_home, "policy", "trusted.json")


@pytest.mark.requirement("POL-7")
def test_a_projects_allow_counts_only_when_it_is_trusted(project, state_home):
    assert verdict("Bash(ls)", project) is Verdict.DENY
    assert set_aside(grants=None, cwd=str(project), environ=os.environ) == (
        str(project / ".cellwall" / "policy.toml"),
    )
    trust(project)
    assert verdict("Bash(ls)", project) is Verdict.ALLOW
    assert verdict("Bash(pwd)", project) is Verdict.DENY
    assert set_aside(grants=None, cwd=str(project), environ=os.environ) == ()
    assert listed(state_home).stat().st_mode & 0o777 == 0o600


@pytest.mark.requirement("POL-7")
@pytest.mark.parametrize("change", ["# a comment", '[[rule]]\nverdict="allow"\nrule="Bash"', " "])
def test_any_change_of_the_content_ends_the_trust(change, project):
    trust(project)
    file = project / ".cellwall" / "policy.toml"
    file.write_text(POLICY + change)
    assert verdict("Bash(ls)", project) is Verdict.DENY
    file.write_text(POLICY)
    assert verdict("Bash(ls)", project) is Verdict.ALLOW


@pytest.mark.requirement("POL-7")
def test_the_same_content_elsewhere_is_not_trusted(project, tmp_path):
    trust(project)
    other = tmp_path / "other"
    (other / ".cellwall").mkdir(parents=True)
    (other / ".cellwall" / "policy.toml").write_text(POLICY)
    assert verdict("Bash(ls)", other) is Verdict.DENY


def test_another_file_of_the_project_is_not_trusted_with_it(project):
    trust(project)
    (project / ".claude").mkdir()
    settings = project / ".claude" / "settings.json"
    settings.write_text('{"permissions": {"allow": ["Bash(id)"], "deny": ["Bash(date)"]}}')
    assert verdict("Bash(ls)", project) is Verdict.ALLOW
    assert verdict("Bash(id)", project) is Verdict.DENY
    assert verdict("Bash(date)", project) is Verdict.DENY
    trust(project)
    assert verdict("Bash(id)", project) is Verdict.ALLOW
    assert len(PolicyTrust().entries()) == 2


@pytest.mark.requirement("POL-7")
def test_trust_never_loosens_what_the_users_own_rules_say(project):
    trust(project)
    own = Path(user_policy(os.environ))
    own.parent.mkdir(parents=True)
    own.write_text('[permissions]\nallow = ["Bash(id)"]\n')
    assert verdict("Bash(ls)", project) is Verdict.DENY


def test_untrust_ends_it_also_for_a_file_that_is_gone(project):
    trust(project)
    book = PolicyTrust()
    file = project / ".cellwall" / "policy.toml"
    file.rename(project / "elsewhere")
    assert book.untrust(".", cwd=str(project), who=ME) == [str(file)]
    assert book.entries() == []
    (project / "elsewhere").rename(file)
    assert verdict("Bash(ls)", project) is Verdict.DENY
    with pytest.raises(CellwallError) as raised:
        book.untrust(".", cwd=str(project), who=ME)
    assert raised.value.code == "CW-NOT-TRUSTED"


@pytest.mark.requirement("AUD-1")
def test_each_change_is_on_the_record_with_the_digest(project):
    trust(project)
    PolicyTrust().untrust(".", cwd=str(project), who=ME)
    bodies = [each["body"] for each in audit_records(principal="ann")]
    assert [(each["change"], each["status"]) for each in bodies] == [
        *(("trust", "begins"), ("trust", "ok"), ("untrust", "begins"), ("untrust", "ok"))
    ]
    assert len(bodies[0]["sha256"]) == 64
    assert bodies[0]["config"] == str(project / ".cellwall" / "policy.toml")


@pytest.mark.requirement("AUD-1")
def test_without_a_record_nothing_is_trusted(project, state_home):
    book = PolicyTrust()
    offered = book.offered((), cwd=str(project))[0]
    Path(state_home, "audit").write_text("in the way")
    with pytest.raises(CellwallError):
        book.trust(offered, who=ME)
    assert not listed(state_home).exists()


GOOD = {"path": "/p", "sha256": "0" * 64, "when": ""}


@pytest.mark.parametrize(
    "content",
    [
        *("", "nonsense", "[]", "{}", '{"version": 2, "trusted": []}', "[" * 100_000),
        json.dumps({"version": 1, "trusted": [{**GOOD, "more": 1}]}),
        json.dumps({"version": 1, "trusted": [{**GOOD, "sha256": "x"}]}),
        json.dumps({"version": 1, "trusted": [{**GOOD, "path": "relative"}]}),
        json.dumps({"version": 1, "trusted": [{**GOOD, "path": 3}]}),
        json.dumps({"version": 1, "trusted": [GOOD] * 1025}),
        json.dumps({"version": 1, "trusted": [3], "x": " " * (1 << 20)}),
    ],
)
def test_a_broken_list_trusts_nothing_and_is_told(content, project, state_home):
    trust(project)
    listed(state_home).write_text(content)
    assert verdict("Bash(ls)", project) is Verdict.DENY
    for use in (lambda: PolicyTrust().entries(), lambda: trust(project)):
        with pytest.raises(CellwallError) as raised:
            use()
        assert raised.value.code == "CW-POLICY-TRUST"
        assert raised.value.hint


@pytest.mark.parametrize("spoil", ["mode", "folder", "link", "second name"])
def test_a_list_that_others_could_write_trusts_nothing(spoil, project, state_home, tmp_path):
    trust(project)
    file = listed(state_home)
    match spoil:
        case "mode":
            file.chmod(0o660)
        case "folder":
            file.parent.chmod(0o770)
        case "link":
            file.rename(tmp_path / "list")
            file.symlink_to(tmp_path / "list")
        case "second name":
            os.link(file, tmp_path / "list")
    os.utime(file)
    assert verdict("Bash(ls)", project) is Verdict.DENY
    with pytest.raises(CellwallError) as raised:
        PolicyTrust().entries()
    assert raised.value.code == "CW-POLICY-TRUST"


def test_what_is_trusted_is_what_was_read(project):
    book = PolicyTrust()
    offered = book.offered((), cwd=str(project))[0]
    (project / ".cellwall" / "policy.toml").write_text(POLICY.replace("Bash(ls)", "Bash"))
    book.trust(offered, who=ME)
    assert verdict("Bash(ls)", project) is Verdict.DENY
    assert not book.offered((), cwd=str(project))[0].is_trusted


def test_a_project_reached_by_a_link_is_the_same_project(project, tmp_path):
    (tmp_path / "link").symlink_to(project)
    trust(tmp_path / "link")
    assert verdict("Bash(ls)", project) is Verdict.ALLOW


def test_the_project_is_found_from_a_folder_in_it(project):
    (project / "src").mkdir()
    assert len(PolicyTrust().offered((), cwd=str(project / "src"))) == 1


def test_where_no_project_is_that_is_told(tmp_path):
    with pytest.raises(CellwallError) as raised:
        PolicyTrust().offered([str(tmp_path)], cwd=str(tmp_path))
    assert raised.value.code == "CW-NO-POLICY"


def test_a_file_that_is_no_policy_cannot_be_trusted(project):
    (project / ".cellwall" / "policy.toml").write_text("permission = 1")
    with pytest.raises(CellwallError) as raised:
        PolicyTrust().offered((), cwd=str(project))
    assert raised.value.code == "CW-POLICY"


def test_several_at_once_are_all_kept(tmp_path):
    def one(number: int) -> None:
        place = tmp_path / str(number) / ".cellwall"
        place.mkdir(parents=True)
        (place / "policy.toml").write_text(POLICY)
        trust(place.parent, str(place.parent))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(PolicyTrust().entries()) == 4
