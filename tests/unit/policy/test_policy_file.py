"""Policy files: all mistakes at once, each with its place; files that cannot be trusted refused."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from cellwall.config.settings_file import MAX_BYTES
from cellwall.core.errors import ConfigError
from cellwall.core.verdict import Verdict
from cellwall.policy.policy_file import PolicyFile, builtin_rules, load_policy_file, parse_policy
from cellwall.policy.rules import Layer, Rule, Source

ALLOW, ASK, DENY = Verdict.ALLOW, Verdict.ASK, Verdict.DENY


def parse(text: str, name: str = "policy.toml") -> PolicyFile:
    return parse_policy(text, file=name, name=name, layer=Layer.USER, folder="/conf")


def refused(text: str, name: str = "policy.toml") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, name)
    assert caught.value.hint
    return caught.value.message.splitlines()


def load(path: Path, layer: Layer = Layer.USER, home: str = "/nonexistent") -> PolicyFile:
    return load_policy_file(str(path), layer, home=home, shown=path.name)


@pytest.mark.requirement("POL-1")
def test_a_toml_policy_is_read_with_the_place_of_every_rule() -> None:
    text = """
[permissions]
allow = ["Bash(git status)", "Read"]
deny = [
  "Read(.env)",
]

[[rule]]
verdict = "ask"
rule = "Bash(git push *)"
reason = "others see it"
match = ["Bash(git push origin)"]
not_match = ["Bash(git pull)"]
"""
    found = parse(text).rules
    assert found == (
        Rule(DENY, "Read", ".env", Source("policy.toml", 5, 3, "/conf"), Layer.USER),
        Rule(ALLOW, "Bash", "git status", Source("policy.toml", 3, 10, "/conf"), Layer.USER),
        Rule(ALLOW, "Read", None, Source("policy.toml", 3, 30, "/conf"), Layer.USER),
        Rule(
            ASK,
            "Bash",
            "git push *",
            Source("policy.toml", 10, 8, "/conf"),
            Layer.USER,
            "others see it",
            ("Bash(git push origin)",),
            ("Bash(git pull)",),
        ),
    )


@pytest.mark.requirement("POL-1")
def test_json_says_the_same_as_toml() -> None:
    value = {
        "permissions": {"allow": ["Read"], "ask": ["Bash(git push *)"]},
        "rule": [{"verdict": "deny", "rule": "Read(.env)", "reason": "secret"}],
    }
    found = parse(json.dumps(value, indent=1), "policy.json")
    assert not found.is_claude
    assert [(each.verdict, each.text, each.reason, each.source.line) for each in found.rules] == [
        (ASK, "Bash(git push *)", "", 7),
        (ALLOW, "Read", "", 4),
        (DENY, "Read(.env)", "secret", 13),
    ]


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("settings.json", {}),
        ("settings.local.json", {"x": 1}),
        ("team.json", {"env": {"A": "b"}}),
    ],
)
def test_settings_of_claude_code_are_read_as_they_are(name: str, extra: dict[str, object]) -> None:
    value = {
        "permissions": {
            "allow": ["Bash(npm run test:*)", "Skill(deploy *)"],
            "deny": ["Agent(Explore)", "Read(./.env)"],
            "defaultMode": "bypassPermissions",
            "additionalDirectories": ["/"],
            "nonsense": [1],
        },
        **extra,
    }
    found = parse(json.dumps(value), name)
    assert found.is_claude
    assert [(each.verdict, each.text) for each in found.rules] == [
        (DENY, "Agent(Explore)"),
        (DENY, "Read(./.env)"),
        (ALLOW, "Bash(npm run test:*)"),
        (ALLOW, "Skill(deploy *)"),
    ]


def test_settings_without_permissions_say_nothing() -> None:
    assert parse('{"hooks": {}}', "settings.json").rules == ()
    assert parse("", "policy.toml").rules == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[permissions]\nalow = []\n", "2:1: permissions.alow: unknown key. Did you mean allow?"),
        ("[permission]\n", "1:1: permission: unknown key. Did you mean permissions?"),
        ("zzz = 1\n", "1:1: zzz: unknown key. Known here: permissions, rule, $schema."),
        (
            '[[rule]]\nverdict = "deny"\nrule = "Read"\nexcept = "x"\n',
            "4:10: rule[0].except: unknown key. Known here: verdict, rule, reason, match, ",
        ),
        (
            '[permissions]\ndeny = ["Read(a", "Read(b)"]\n',
            '2:14: permissions.deny[0]: "Read(a": the parentheses do not balance',
        ),
        ('permissions = "x"\n', "1:15: permissions: this is not a table. "),
        ("[permissions]\nallow = 'Bash'\n", "2:9: permissions.allow: this is not a list. "),
        ("[permissions]\nallow = [5]\n", "2:1: permissions.allow[0]: this is not a string. "),
        ("rule = 5\n", "1:1: rule: this is not a list of tables. "),
        ("rule = [5]\n", "1:1: rule[0]: this is not a table. "),
        ('[[rule]]\nrule = "Read"\n', "1:1: rule[0].verdict: the verdict is missing or unknown. "),
        ('[[rule]]\nverdict = "no"\nrule = "Read"\n', "2:11: rule[0].verdict: "),
        ('[[rule]]\nverdict = ["deny"]\nrule = "Read"\n', "2:1: rule[0].verdict: "),
        ('[[rule]]\nverdict = "deny"\n', "1:1: rule[0].rule: the rule is missing or not a text. "),
        (
            '[[rule]]\nverdict = "deny"\nrule = "Read"\nreason = "a\\u001bb"\n',
            "4:1: rule[0].reason: this is not one line of plain text. ",
        ),
        (
            '[[rule]]\nverdict = "deny"\nrule = "Read"\nmatch = "Read(x)"\n',
            "4:9: rule[0].match: this is not a list. ",
        ),
        ("[permissions\n", "1:13: not valid TOML: "),
        ("a = " + "[" * 50 + "\n", "1:1: nested more than 32 deep"),
        ('[permissions]\n"\\u001b" = 1\n', '2:1: permissions."\\u001b": unknown key. '),
    ],
)
def test_a_mistake_is_told_with_place_and_hint(text: str, told: str) -> None:
    (line,) = refused(text)
    assert line.startswith(f"policy.toml:{told}")
    assert line.isprintable()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "1:1: this is not a table. "),
        ('{"permissions": []}', "1:17: permissions: this is not a table. "),
        ('{"permissions": {"deny": "Read"}}', "1:26: permissions.deny: this is not a list. "),
        ('{"permissions": {"deny": ["Read(!x)"]}}', '1:33: permissions.deny[0]: "Read(!x)": '),
        ('{"permissions": {}, "permissions": {}}', "1:21: not valid JSON: duplicate key"),
        ('{"permissions": {} // x\n}', "1:20: not valid JSON: "),
    ],
)
@pytest.mark.parametrize("name", ["policy.json", "settings.json"])
def test_json_is_no_less_strict(text: str, told: str, name: str) -> None:
    (line,) = refused(text, name)
    assert line.startswith(f"{name}:{told}")


def test_all_mistakes_are_told_together_in_their_order() -> None:
    lines = refused('x = 1\n[permissions]\nask = ["Read(["]\nallow = [1, "bash(x)"]\n')
    assert [line.split(": ")[0] for line in lines] == [
        "policy.toml:1:1",
        "policy.toml:3:13",
        "policy.toml:4:1",
        "policy.toml:4:13",
    ]


def test_a_flood_of_mistakes_is_told_in_part_and_counted() -> None:
    lines = refused("".join(f"k{number} = 1\n" for number in range(500)))
    assert (len(lines), lines[-1]) == (101, "policy.toml: and 400 more")


def test_too_many_rules_or_examples_are_refused() -> None:
    many = json.dumps({"permissions": {"allow": ["Read"] * 10_001}})
    assert refused(many, "p.json") == [
        "p.json:1:1: more than 10000 rules. Write fewer and wider rules."
    ]
    rule = {"verdict": "deny", "rule": "Read", "match": ["Read(x)"] * 65}
    assert "more than 64 examples" in refused(json.dumps({"rule": [rule]}), "p.json")[0]


# The file itself


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("")
    path.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.code == "CW-POLICY-UNSAFE"


def test_the_group_of_a_project_may_write_its_rules_but_not_everybody(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("")
    path.chmod(0o664)
    assert load(path, Layer.PROJECT).rules == ()
    path.chmod(0o666)
    with pytest.raises(ConfigError):
        load(path, Layer.PROJECT)


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("")
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(ConfigError, match="belongs to another user"):
        load(path)


@pytest.mark.parametrize(
    "kind", ["fifo", "socket", "directory", "device", "missing", "loop", "nul"]
)
def test_what_is_not_a_regular_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "thing.toml"
    match kind:
        case "fifo":
            os.mkfifo(path, 0o600)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
        case "directory":
            path.mkdir()
        case "device":
            path = Path("/dev/zero")
        case "loop":
            path.symlink_to(path)
        case "nul":
            path = tmp_path / "x\0y"
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.code == "CW-POLICY-FILE"
    assert caught.value.hint


def test_size_and_text_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load(path)
    path.write_bytes(b"#" * MAX_BYTES)
    assert load(path).rules == ()
    path.write_bytes(b"# x\n\xff")
    with pytest.raises(ConfigError, match=r"policy.toml:2: not UTF-8 text"):
        load(path)


def test_paths_are_taken_from_the_folder_of_the_file_or_of_the_project(tmp_path: Path) -> None:
    text = '{"permissions": {"allow": ["Read(/src/**)"]}}'
    (tmp_path / ".claude").mkdir()
    path = tmp_path / ".claude/settings.json"
    path.write_text(text)
    path.chmod(0o600)
    folders = [load(path, layer).rules[0].source.folder for layer in (Layer.USER, Layer.PROJECT)]
    assert folders == [str(tmp_path / ".claude"), str(tmp_path)]
    named = load_policy_file(str(path), Layer.USER, home="/nonexistent", folder="/other")
    assert named.rules[0].source.folder == "/other"


def test_the_home_folder_is_not_told(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('[permissions]\nallow = ["Read"]\n')
    path.chmod(0o600)
    found = load_policy_file(str(path), Layer.USER, home=str(tmp_path))
    assert str(found.rules[0].source) == "~/policy.toml:2"


# What is built in


@pytest.mark.requirement("POL-4")
def test_the_built_in_rules_all_deny_with_a_reason_and_an_example() -> None:
    rules = builtin_rules()
    assert {(each.verdict, each.layer, str(each.source)) for each in rules} == {
        (DENY, Layer.BUILT_IN, "built-in")
    }
    assert [each.text for each in rules if not (each.reason and each.match)] == []
    assert len({each.text for each in rules}) == len(rules)
    assert builtin_rules() is rules


@pytest.mark.parametrize("text", ['otherwise = "allow"', "otherwise = 1", 'otherwise = "no"'])
def test_otherwise_is_ask_or_deny_and_never_allow(text):
    with pytest.raises(ConfigError, match="neither ask nor deny"):
        parse_policy(
            f"[permissions]\n{text}\n", file="p.toml", name="p.toml", layer=Layer.USER, folder="/"
        )


def test_only_a_denial_has_exceptions():
    text = '[[rule]]\nverdict = "{}"\nrule = "Read(*.x)"\nunless = ["a.x"]\n'
    words = {"file": "p.toml", "name": "p.toml", "layer": Layer.USER, "folder": "/"}
    (rule,) = parse_policy(text.format("deny"), **words).rules
    assert (rule.excepts("/b/a.x"), rule.excepts("/b/c.x")) == (True, False)
    with pytest.raises(ConfigError, match="only a rule that denies has exceptions"):
        parse_policy(text.format("allow"), **words)
