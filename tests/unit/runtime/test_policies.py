"""Which policy files count, and what none of them can do."""

from __future__ import annotations

import os

import pytest

from cellwall.core.errors import CellwallError
from cellwall.core.home import shaping
from cellwall.core.tool_servers import CallServerTool
from cellwall.core.types import Action, CallTool, Principal, UseTool
from cellwall.runtime import policies, policy_places
from cellwall.runtime.policies import effective_policy
from cellwall.runtime.rule_judging import judge_by_rules

CLONE = '{"permissions": {"allow": ["Bash"], "deny": ["Read(.env)"]}}'


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A project, and folders for the user's and the administrator's rules."""
    monkeypatch.setattr(policy_places, "ADMINISTRATOR", str(tmp_path / "admin" / "policy.toml"))
    for name in ("admin", "config/cellwall", "project/sub"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def environ(place) -> dict[str, str]:
    return {
        "XDG_CONFIG_HOME": str(place / "config"),
        "HOME": str(place),
        "CELLWALL_HOME": str(place / "state"),
    }


def verdict(place, call: str, *, cwd: str = "project", named=()) -> str:
    folder = str(place / cwd)
    policy = effective_policy(grants=None, named=named, cwd=folder, environ=environ(place))
    return policy.check(call, cwd=folder, home=str(place)).verdict.word


def user(place, text: str) -> None:
    (place / "config/cellwall/policy.toml").write_text(text)


def project(place, text: str, folder: str = "project") -> None:
    (place / folder / ".claude").mkdir(exist_ok=True)
    (place / folder / ".claude/settings.json").write_text(text)


@pytest.mark.requirement("POL-7")
def test_a_cloned_project_allows_nothing_by_itself(place):
    project(place, CLONE)
    assert verdict(place, "Bash(ls)") == "deny"
    user(place, '[permissions]\nallow = ["Bash(ls)"]\n')
    assert verdict(place, "Bash(ls)") == "allow"
    assert verdict(place, "Bash(curl x)") == "deny"


@pytest.mark.requirement("POL-7")
def test_a_cloned_project_turns_no_denial_into_a_question(place):
    folder = place / "project" / ".cellwall"
    folder.mkdir(parents=True)
    (folder / "policy.toml").write_text('[permissions]\notherwise = "ask"\nallow = ["Bash(ls)"]\n')
    assert [verdict(place, call) for call in ("Bash(ls)", "Bash(make)")] == ["deny", "deny"]
    user(place, '[permissions]\notherwise = "ask"\nallow = ["Bash(ls)"]\n')
    assert [verdict(place, call) for call in ("Bash(ls)", "Bash(make)")] == ["allow", "ask"]


def test_an_answer_of_the_user_does_not_open_projects(place):
    project(place, CLONE)
    user(place, '[[rule]]\nverdict = "allow"\nrule = "Bash(git push)"\nanswers = "Bash(git *)"\n')
    assert verdict(place, "Bash(curl https://evil.example/x)") == "deny"


@pytest.mark.requirement("POL-7", "POL-8")
def test_a_project_does_not_answer_the_users_questions(place):
    user(place, '[permissions]\nallow = ["Bash(git *)"]\nask = ["Bash(git push *)"]\n')
    (place / "project/.cellwall").mkdir()
    answer = '[[rule]]\nverdict = "allow"\nrule = "Bash(git *)"\nanswers = "Bash(git push *)"\n'
    (place / "project/.cellwall/policy.toml").write_text(answer)
    assert verdict(place, "Bash(git push origin main)") == "ask"
    user(
        place,
        '[permissions]\nallow = ["Bash(git *)"]\nask = ["Bash(git push *)"]\n' + answer,
    )
    assert verdict(place, "Bash(git push origin main)") == "allow"


@pytest.mark.requirement("POL-7")
def test_a_project_inside_of_another_hides_none_of_its_denials(place):
    user(place, '[permissions]\nallow = ["Bash", "Read"]\n')
    project(place, '{"permissions": {"deny": ["Bash(make deploy)", "Read(.env)"]}}')
    project(place, "{}", "project/sub")
    for cwd in ("project", "project/sub"):
        assert verdict(place, "Bash(make deploy)", cwd=cwd) == "deny"
        assert verdict(place, "Bash(make test)", cwd=cwd) == "allow"


@pytest.mark.requirement("POL-4")
def test_what_judges_an_agent_cannot_be_written_by_it(place):
    rules = place / "project/agent.toml"
    rules.write_text('[permissions]\nallow = ["Bash", "Write", "Edit"]\n')
    named = (str(rules),)
    package = os.path.dirname(policies.__file__)
    for path in (
        rules,
        place / "config/cellwall/policy.toml",
        place / "config/cellwall/config.toml",
        place / "state/policy/trusted.json",
        place / "state/approvals/x.answer",
        f"{package}/policies.py",
        place / "admin/policy.toml",
    ):
        if "admin" in str(path):
            (place / "admin/policy.toml").write_text('[permissions]\ndeny = ["Bash(x)"]\n')
        assert verdict(place, f"Write({path})", named=named) == "deny", path
        assert verdict(place, f"Bash(cp x {path})", named=named) == "deny", path
    assert verdict(place, f"Write({place}/project/a.txt)", named=named) == "allow"


@pytest.mark.requirement("POL-7")
def test_rules_of_the_administrator_that_cannot_be_looked_at_are_not_taken_for_none(
    place, monkeypatch
):
    def no_access(path, *more, **options):
        if str(path) == policy_places.ADMINISTRATOR:
            raise PermissionError(13, "no")
        return real(path, *more, **options)

    real = os.lstat
    monkeypatch.setattr(os, "lstat", no_access)
    assert policy_places.is_given((), {})
    with pytest.raises(CellwallError):
        verdict(place, "Bash(ls)")


@pytest.mark.requirement("POL-7")
def test_a_policy_with_the_old_time_of_change_is_read_again(place):
    user(place, '[permissions]\nallow = ["Bash(ls)"]\n')
    assert verdict(place, "Bash(ls)") == "allow"
    file = place / "config/cellwall/policy.toml"
    before = file.stat()
    user(place, '[permissions]\nallow = ["Bash(id)"]\n')
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    now = file.stat()
    same = (before.st_mtime_ns, before.st_size, before.st_ino)
    assert (now.st_mtime_ns, now.st_size, now.st_ino) == same
    assert verdict(place, "Bash(ls)") != "allow"


@pytest.mark.requirement("POL-7")
@pytest.mark.parametrize("is_remote", [False, True], ids=["here", "supervisor"])
@pytest.mark.parametrize("folder", ["", "elsewhere"])
def test_no_rule_lets_an_agent_write_the_cache_of_compiled_rules(
    place, monkeypatch, folder, is_remote
):
    """A rule set planted there, with the digest that belongs to it, would blind the guard."""
    monkeypatch.setenv("HOME", str(place))
    cache = f"{place}/{folder or '.cache'}"
    user(place, '[permissions]\nallow = ["Bash(*)", "Write(~/**)"]\n')
    given = environ(place) | ({"XDG_CACHE_HOME": cache} if folder else {})
    if is_remote:  # the variables that a client sends to the supervisor
        given = shaping(given)
    policy = effective_policy(grants=None, cwd=str(place / "project"), environ=given)

    def verdict_of(call: str) -> str:
        return policy.check(call, cwd=str(place / "project"), home=str(place)).verdict.word

    planted = f"{cache}/cellwall/prepared/x"
    for call in (f"Write({planted})", f"Bash(cp x {planted})", f"Bash(mv x {cache})"):
        assert verdict_of(call) == "deny", call
    assert verdict_of(f"Write({cache}/other/x)") == "allow"
    assert verdict_of(f"Bash(cp x {cache}/other)") == "allow"


@pytest.mark.requirement("PKG-2")
def test_a_tool_named_install_or_port_is_not_allowed_by_what_needs_no_rule_inside(place):
    user(place, '[permissions]\nallow = ["Install"]\n')
    who = Principal("agent", "hook")
    for operation in (
        UseTool("Install", {"package": "pypi:x"}, cwd=str(place / "project")),
        CallTool("Install", (), {"package": "pypi:x"}),
        UseTool("Port", {"port": "8000"}, cwd=str(place / "project")),
        CallTool("Port", (), {"port": "8000"}),
    ):
        found = judge_by_rules(
            Action(principal=who, operation=operation),
            named=(),
            environ=environ(place),
            is_observing=False,
            grants=None,
        )
        assert found.verdict.word == "deny"


@pytest.mark.requirement("PKG-2")
def test_a_cloned_project_allows_no_package_and_denies_one(place):
    text = '{"permissions": {"allow": ["Install(pypi:x)"], "deny": ["Install(pypi:y)"]}}'
    project(place, text)
    assert verdict(place, "Install(pypi:x)") == "allow"
    folder = str(place / "project")
    policy = effective_policy(grants=None, named=(), cwd=folder, environ=environ(place))
    assert policy.about_package("pypi", "x").ruling(None).decision is None
    assert verdict(place, "Install(pypi:y)") == "deny"


@pytest.mark.requirement("POL-5", "SRV-7")
def test_tool_of_a_server_gets_no_file_of_cellwall_by_any_key_that_names_files(place):
    user(place, '[permissions]\nallow = ["mcp__disk"]\n')
    state = place / "state"
    state.mkdir()

    def judged(arguments):
        action = Action(
            principal=Principal("agent", "mcp"),
            operation=CallServerTool("disk", "save", arguments, None),
        )
        found = judge_by_rules(
            action, named=(), environ=environ(place), is_observing=False, grants=None
        )
        return found.verdict.word

    named = str(state / "audit" / "lock")
    for arguments in (
        {"path": named},
        {"options": [{"target_file": f"file://{named}"}]},
        {"directory": str(state), "name": "audit/lock"},
    ):
        assert judged(arguments) == "deny", arguments
    assert judged({"path": "/elsewhere/lock"}) == "allow"
    assert judged({"text": f"the lock is {named}"}) == "allow", "a mention is no path"
