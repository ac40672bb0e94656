"""The first policy of a project loads, allows its work, and takes no hostile name into a rule."""

from __future__ import annotations

import functools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.core.verdict import Verdict
from cellwall.policy.calls import parse_call
from cellwall.policy.engine import Policy
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.rules import Layer, Rule
from cellwall.policy.starter import (
    MAX_NAMES,
    ProjectFiles,
    StarterPolicy,
    make_targets,
    package_manager,
    recipes,
    start,
    starters,
)
from cellwall.policy.subjects import only_itself

CWD, HOME = "/home/u/app", "/home/u"


def rules_of(found: StarterPolicy) -> tuple[Rule, ...]:
    name = "policy.toml"
    return parse_policy(found.text, file=name, name=name, layer=Layer.PROJECT, folder=CWD).rules


def verdict(policy: Policy, call: str) -> str:
    found = policy.check(parse_call(call, cwd=CWD, home=HOME), links=only_itself)
    return found.verdict.word


@pytest.mark.slow
@pytest.mark.parametrize("starter", starters(), ids=lambda each: each.name)
def test_every_kind_loads_with_comments_and_is_chosen_by_its_files(starter):
    files = {name.replace("*", "main") for name in starter.when[:1]} | {"package.json"}
    found = start(ProjectFiles(frozenset(files)))
    assert starter.name in found.kinds
    loaded = rules_of(found)
    Policy.of(loaded)
    assert len(loaded) == found.rules
    for each in Verdict:
        assert starter.because[each]
        assert set(starter.rules[each]) <= {rule.text for rule in loaded if rule.verdict is each}
    assert not any(name in found.kinds for name in ("rust", "ruby") if name != starter.name)


def test_an_empty_folder_gives_what_is_good_everywhere():
    found = start(ProjectFiles())
    wanted = ("reading", "files", "agent", "inside", "steering", "secrets", "network")
    assert found.kinds == wanted
    policy = Policy.of(rules_of(found))
    assert verdict(policy, "Bash(cargo test)") == "ask"


EVERYDAY = {
    "allow": [
        *(
            "Bash(ls -la src)",
            "Bash(cat README.md | head -20)",
            "Bash(rg TODO src)",
            "Read(src/a.py)",
        ),
        *(
            "Bash(find . -name '*.py')",
            "Bash(git status)",
            "Bash(git diff HEAD~1)",
            "Edit(src/a.py)",
        ),
        *("Bash(git log --oneline -5)", "Bash(git add -A && git commit -m done)", "Bash(wc -l a)"),
        *("Bash(npm run lint)", "Bash(npm run test -- --watch=false)", "Bash(npm ci)"),
        *("Bash(pytest -q)", "Bash(ruff check .)", "Bash(cargo test)", "Bash(go test ./...)"),
        *(
            "TodoWrite",
            "Task",
            "ExitPlanMode",
            "AskUserQuestion",
            "BashOutput",
            "KillShell",
            "Skill",
        ),
        *("Glob(**/*.py)", "Grep(src)", "LS(.)", "NotebookRead(a.ipynb)", "ToolSearch"),
        *("mcp__cellwall__run_code", "mcp__cellwall__run_command", "mcp__cellwall__read_file"),
        *("Code(python)", "Code(javascript)", "Read(.env.example)", "Bash(echo x > /tmp/x)"),
        *("Bash(make test)", "Bash(just build)", "Bash(mkdir -p out)", "Bash(docker ps)"),
    ],
    "ask": [
        *("Bash(git push)", "Bash(git push --force)", "Bash(git reset --hard)", "Bash(rm -r out)"),
        *("Bash(npm publish)", "Bash(npm install left-pad)", "Bash(pip install requests)"),
        *("Bash(npm run deploy)", "Bash(make release)", "Bash(curl https://example.com)"),
        *("Bash(docker push x)", "WebFetch(https://example.com)", "Bash(find . -name x -delete)"),
        *("Bash(npm run unknown)", "Bash(make unknown)", "Bash(nonsense)", "mcp__github__x"),
        *("Bash(find . -exec nonsense {} \\;)", "Read(/srv/data.txt)", "SomeNewTool"),
        *("Bash(terraform apply)", "Edit(.github/workflows/ci.yml)", "Bash(git branch -D old)"),
    ],
    "deny": [
        *("Read(.env)", "Read(.env.production)", "Read(config/secrets/key)", "Bash(cat .env)"),
        *("Read(certs/server.pem)", "Read(~/.ssh/id_ed25519)", "Edit(.cellwall/policy.toml)"),
        *("Bash(grep KEY .env)", "Read(/etc/shadow)", "Edit(CLAUDE.md)", "Edit(docs/AGENTS.md)"),
        *(
            "Edit(.cursor/rules/x.mdc)",
            "Edit(.github/copilot-instructions.md)",
            "Bash(gh auth token)",
        ),
        *("Bash(sudo ls)", "Bash(curl http://169.254.169.254/)", "Edit(.claude/settings.json)"),
        *("Bash(terraform destroy)", "Bash(npm token create)", "Read(terraform.tfstate)"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expected", "call"), [(word, call) for word, calls in EVERYDAY.items() for call in calls]
)
def test_a_project_of_many_kinds_can_be_worked_in(expected, call):
    assert verdict(policy_of_many_kinds(), call) == expected


@functools.cache
def policy_of_many_kinds() -> Policy:
    files = {
        *(".git", "package.json", "package-lock.json", "pyproject.toml", "Cargo.toml", "go.mod"),
        *("Makefile", "justfile", "Dockerfile", "main.tf"),
    }
    texts = {
        "package.json": json.dumps({"scripts": {"lint": "x", "test": "x", "deploy": "x"}}),
        "Makefile": "test:\n\tx\nrelease: test\n\tx\n",
        "justfile": "build:\n  x\n",
    }
    return Policy.of(rules_of(start(ProjectFiles(frozenset(files), texts))))


HOSTILE = [
    *(
        "*",
        "test *",
        "a) Bash(rm",
        "x; rm -rf /",
        "--prefix=/evil",
        "$(id)",
        'a"',
        "a\\",
        "\x1b[31m",
    ),
    *("", " ", "a\nb", "-x", "é", "\u202etest", "x" * 65, "a)", "(", "#", "../x", "@scope/x"),
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_of_scripts_are_left_out_and_told(name):
    text = json.dumps({"scripts": {name: "x", "fine": "x"}})
    found = start(ProjectFiles(frozenset({"package.json"}), {"package.json": text}))
    without = start(
        ProjectFiles(frozenset({"package.json"}), {"package.json": '{"scripts": {"fine": "x"}}'})
    )
    assert found.text == without.text
    assert found.notes == ("package.json: 1 names are no plain words and were left out",)
    assert '"Bash(npm run fine *)"' in found.text


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text(max_size=20), st.text(max_size=5), max_size=8),
    st.text(max_size=200),
    st.text(max_size=200),
)
def test_whatever_a_project_holds_the_policy_loads(scripts, makefile, justfile):
    texts = {
        "package.json": json.dumps({"scripts": scripts}),
        "Makefile": makefile,
        "justfile": justfile,
    }
    found = start(ProjectFiles(frozenset(texts), texts))
    assert len(rules_of(found)) == found.rules


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "it is not valid JSON"),
        ("[" * 100_000, "it is not valid JSON"),
        ("[]", "it holds no JSON object"),
        ('{"scripts": 3}', "its `scripts` are no object"),
    ],
)
def test_a_broken_package_file_is_noted_and_not_fatal(text, why):
    found = start(ProjectFiles(frozenset({"package.json"}), {"package.json": text}))
    assert found.notes == (f"package.json: {why}; its names were left out",)
    assert "npm" in found.kinds


def test_only_so_many_names_are_taken():
    text = json.dumps({"scripts": {f"s{number}": "x" for number in range(MAX_NAMES + 5)}})
    found = start(ProjectFiles(frozenset({"package.json"}), {"package.json": text}))
    assert found.text.count("Bash(npm run s") == MAX_NAMES
    assert found.notes == (f"package.json: only the first 100 of {MAX_NAMES + 5} names are in",)


@pytest.mark.parametrize(
    ("files", "text", "manager"),
    [
        ({"package.json"}, "{}", "npm"),
        ({"package.json", "yarn.lock"}, "{}", "yarn"),
        ({"package.json", "pnpm-lock.yaml"}, "{}", "pnpm"),
        ({"package.json", "bun.lock"}, "{}", "bun"),
        ({"package.json"}, '{"packageManager": "pnpm@9.1.0"}', "pnpm"),
        ({"package.json"}, '{"packageManager": "evil@1"}', "npm"),
        ({"package.json"}, "broken", "npm"),
    ],
)
def test_the_lock_file_or_the_package_file_says_which_manager(files, text, manager):
    kinds = start(ProjectFiles(frozenset(files), {"package.json": text})).kinds
    assert set(kinds) & {"npm", "pnpm", "yarn", "bun"} == {manager}


def test_a_lock_file_alone_is_no_project():
    assert "yarn" not in start(ProjectFiles(frozenset({"yarn.lock"}))).kinds


def test_package_manager_of_odd_values_is_none():
    assert [package_manager(text) for text in ('{"packageManager": 3}', "[]", "{")] == [""] * 3


def test_targets_are_those_a_person_would_type():
    text = (
        "CC := gcc\nX = y: z\n.PHONY: all\nall: out/prog test\n\techo a: b\nlint fmt:\n\tx\n"
        "out/prog: a.c\n%.o: %.c\n$(OBJ): x\n# no: comment\nifeq (a,b)\nlong \\\nname: x\n"
    )
    assert make_targets(text) == ["all", "lint", "fmt", "long", "name"]


def test_recipes_are_the_public_ones():
    text = "set shell := ['sh']\nx := 'y'\nbuild target='a':\n  x\n@quiet:\n  x\n_private:\n  x\ntest: build\n"
    assert recipes(text) == ["build", "quiet", "test"]
