"""The policy denies writing what tools run and agents obey, by the sandbox's own list (FS-8)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cellwall.core.protected_names import load
from cellwall.core.verdict import Verdict
from cellwall.policy.engine import Policy
from cellwall.policy.links import targets
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.protected_rules import protected_rules, starter_rules
from cellwall.policy.rules import Layer, Rule, Source
from cellwall.policy.starter import ProjectFiles, start

TOOLS = ("Bash", "Read", "Write")
ALL = Policy(Rule(Verdict.ALLOW, tool, None, Source("all.toml", 1), Layer.USER) for tool in TOOLS)
STARTER = Policy(
    parse_policy(
        start(ProjectFiles()).text, file="p", name="p.toml", layer=Layer.PROJECT, folder="/proj"
    ).rules
)
DENIED = [entry for entry in load().entries if entry.policy == "deny"]
OF_STARTER = [entry for entry in load().entries if entry.policy == "starter"]


def example(pattern: str) -> str:
    return pattern.replace("*", "x").replace("@git", ".git")


def verdict(policy: Policy, call: str, cwd: str = "/proj") -> Verdict:
    return policy.check(call, cwd=cwd, home="/home/u").verdict


COMMANDS = (
    "echo x > {}", "echo x >> sub/{}", "cat a | tee -a {}", "cp a {}", "mv a sub/{}", "ln -s a {}",
    "touch ./x/../{}", "cd sub && sed -i s/a/b/ {}", "dd if=a of={}",
)  # fmt: skip


@pytest.mark.requirement("FS-8")
@pytest.mark.parametrize(
    ("entry", "command"),
    [(entry, COMMANDS[at % len(COMMANDS)]) for at, entry in enumerate(DENIED)],
    ids=[entry.pattern for entry in DENIED],
)
def test_a_protected_name_is_denied_on_every_way_to_write_it(entry, command):
    path = example(entry.pattern)
    calls = (
        f"Write({path})",
        f"Edit(deep/er/{path})",
        f"Edit(/elsewhere/{path.upper()})",
        f"Bash({command.format(path)})",
    )
    assert [call for call in calls if verdict(ALL, call) is not Verdict.DENY] == []
    control = path.replace(".", "_").replace("HEAD", "head")
    if control != path:
        assert verdict(ALL, f"Write({control}~)") is Verdict.ALLOW


@pytest.mark.requirement("FS-8")
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_writes_is_denied_for_git_configurations(command):
    assert verdict(ALL, f"Bash({command.format('a/.git/modules/b/c/config')})") is Verdict.DENY
    assert verdict(ALL, f"Bash({command.format('a/git/modules/b/c/config')})") is Verdict.ALLOW


@pytest.mark.requirement("FS-8", "SKL-1")
@pytest.mark.parametrize("entry", OF_STARTER, ids=lambda entry: entry.pattern)
def test_the_starter_policy_denies_what_agents_obey_and_installed_hooks_run(entry):
    path = example(entry.pattern)
    for call in (f"Write({path})", f"Edit(deep/{path})"):
        assert verdict(STARTER, call) is Verdict.DENY
        assert verdict(ALL, call) is Verdict.ALLOW  # the control: a person may allow it
    assert verdict(STARTER, f"Read({path})") is Verdict.ALLOW


@pytest.mark.requirement("FS-8", "SKL-1")
@pytest.mark.parametrize("command", COMMANDS[:4])
def test_the_starter_policy_denies_commands_that_write_instructions(command):
    assert verdict(STARTER, f"Bash({command.format('CLAUDE.md')})") is Verdict.DENY
    assert verdict(ALL, f"Bash({command.format('CLAUDE.md')})") is Verdict.ALLOW


@pytest.mark.requirement("FS-8")
def test_policy_and_sandbox_agree_about_every_name():
    for rule in protected_rules():
        path = example((rule.specifier or "").removeprefix("//**/").replace("**", "x"))
        if not path.endswith("HEAD"):  # there the sandbox looks at the directory around
            assert load().treatment_of(path) is not None, path
    for text in starter_rules():
        path = example(text.removeprefix("Edit(**/").removesuffix(")"))
        assert load().treatment_of(path) is not None, path


@pytest.mark.parametrize(
    "call",
    [
        "Write(config/settings.yml)", "Write(src/config)", "Write(head)", "Write(src/HEAD.py)",
        "Write(.git/info/exclude)", "Write(.gitattributes)", "Write(Makefile)", "Write(.gitignore)",
        "Write(package.json)", "Write(conftest.py)", "Write(objects/refs)", "Write(hooks/use.ts)",
        "Write(.github/workflows/ci.yml)", "Write(docs/git/config)", "Write(src/modules/config)",
        "Bash(rm -rf .git)", "Bash(rm .git/index.lock)", "Bash(rm -f .git/*.lock)",
        "Bash(mkdir .cargo)", "Bash(git checkout -b config)", "Bash(git reset --hard HEAD)",
        "Bash(git commit -m x)", "Bash(git add -A)", "Bash(rm build/*)", "Bash(mv docs/*.md old/)",
        "Read(.git/config)", "Read(CLAUDE.md)", "Read(.vscode/tasks.json)",
    ],
)  # fmt: skip
def test_everyday_work_is_not_hit(call):
    assert verdict(ALL, call) is Verdict.ALLOW


@pytest.mark.requirement("FS-8")
def test_a_repository_cannot_be_put_together_out_of_ordinary_files():
    pieces = ("mkdir -p x/objects x/refs", "echo 'ref: refs/heads/m' > x/HEAD", "echo y > x/config")
    assert verdict(ALL, f"Bash({'; '.join(pieces)})") is Verdict.DENY
    assert verdict(ALL, f"Bash({'; '.join(p for p in pieces if 'HEAD' not in p)})") is Verdict.ALLOW


@pytest.mark.requirement("FS-8")
@pytest.mark.parametrize("name", ["config", "hooks/post-commit", "commondir", "info/attributes"])
def test_a_git_directory_of_another_name_counts_as_one(tmp_path: Path, name: str):
    subprocess.run(["git", "init", "-q", "--bare", tmp_path / "fixture"], check=True)
    (tmp_path / "link").symlink_to("fixture")
    (tmp_path / "other").mkdir()
    cwd = str(tmp_path)
    assert verdict(ALL, f"Write(fixture/{name})", cwd) is Verdict.DENY
    assert verdict(ALL, f"Bash(echo x > link/{name})", cwd) is Verdict.DENY
    assert verdict(ALL, f"Bash(cd fixture && echo x > {name})", cwd) is Verdict.DENY
    assert verdict(ALL, f"Write(other/{name})", cwd) is Verdict.ALLOW  # the control
    assert verdict(ALL, "Write(fixture/refs/heads/x)", cwd) is Verdict.ALLOW


@pytest.mark.slow
@pytest.mark.requirement("FS-8", "SKL-1")
def test_wildcards_are_denied_where_they_find_a_protected_file(tmp_path: Path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").touch()
    (tmp_path / "CLAUDE.md").touch()
    (tmp_path / ".npmrc").touch()
    cwd = str(tmp_path)
    assert verdict(STARTER, "Bash(cp evil *.md)", cwd) is Verdict.DENY
    assert verdict(STARTER, "Bash(cp evil docs/*.md)", cwd) is Verdict.ALLOW
    assert verdict(ALL, "Bash(cp evil .n*)", cwd) is Verdict.DENY
    assert verdict(ALL, "Bash(cp evil .x*)", cwd) is Verdict.ALLOW
    assert str(tmp_path / "CLAUDE.md") in targets("*.md", cwd)


@pytest.mark.requirement("FS-8")
@pytest.mark.parametrize(
    "command",
    [
        "cp evil .git/commondi$(cat x)", "cp evil */*/*/.git/commondi?", "cp evil .git/commondi$1",
        "cp evil $(cat x)/.git/commondir",
    ],
)  # fmt: skip
def test_a_name_that_is_only_known_in_part_is_taken_for_a_protected_one(tmp_path, command):
    assert verdict(ALL, f"Bash({command})", str(tmp_path)) is Verdict.DENY
