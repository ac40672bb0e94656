"""A call that is no shell text, compared with rules: an allow is sure, a denial wide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from cellwall.core.errors import BadInput
from cellwall.core.types import Json
from cellwall.core.verdict import Verdict
from cellwall.policy.calls import ToolCall, parse_call
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import Layer, Rule, Source
from cellwall.policy.subjects import look, matches

CWD, HOME = "/home/u/app", "/home/u"


def rule(text: str, verdict: Verdict, *, is_foreign: bool = False) -> Rule:
    source = Source("p.toml", 1, 1, CWD)
    return parse_rule(text, verdict=verdict, source=source, layer=Layer.USER, is_foreign=is_foreign)


def hits(text: str, call: str | ToolCall, verdict: Verdict = Verdict.DENY) -> bool:
    made = parse_call(call, cwd=CWD, home=HOME) if isinstance(call, str) else call
    return matches(rule(text, verdict), look(made))


def call(tool: str, given: Mapping[str, Json]) -> ToolCall:
    return ToolCall(tool, given, CWD, HOME)


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize(
    ("text", "asked", "is_hit"),
    [
        ("Read(./.env)", "Read(.env)", True),
        ("Read(./.env)", "Read(/home/u/app/.env)", True),
        ("Read(./.env)", "Read(src/../.env)", True),
        ("Read(.env)", "Write(.env)", False),
        ("Edit(src/**)", "Write(src/a.py)", True),
        ("Write(src/**)", "NotebookEdit(src/a.ipynb)", True),
        ("Read(src/**)", "Grep(src)", True),
        ("Read(src/**)", "LS(lib)", False),
        ("Read(src/**)", "Glob(src/**/*.py)", True),
        ("Read(src/**)", "Glob(**/*.py)", False),
        ("Read(~/x)", "Read(~/x)", True),
        ("WebFetch(domain:x.org)", "WebFetch(https://x.org/a)", True),
        ("WebFetch(domain:x.org)", "WebFetch(https://y.org/a)", False),
        ("WebFetch", "WebFetch(https://y.org/a)", True),
        ("Code(python)", "Code(py)", True),
        ("Code(python)", "Code(sh)", False),
        ("mcp__git", "mcp__git__push", True),
        ("Task", "Task", True),
        ("Read", "Read(/anything)", True),
    ],
)
def test_a_rule_and_a_call(text: str, asked: str, is_hit: bool, verdict: Verdict) -> None:
    assert hits(text, asked, verdict) is is_hit


@pytest.mark.requirement("POL-1")
def test_a_link_must_be_allowed_at_both_ends_and_is_denied_by_either() -> None:
    def leads(path: str) -> Iterable[str]:
        return ("/home/u/app/link", "/etc/shadow") if path.endswith("link") else (path,)

    subject = look(parse_call("Read(link)", cwd=CWD, home=HOME), targets=leads)
    assert not matches(rule("Read(./**)", Verdict.ALLOW), subject)
    assert not matches(rule("Read(//etc/**)", Verdict.ALLOW), subject)
    assert matches(rule("Read(//etc/**)", Verdict.DENY), subject)
    assert matches(rule("Read(./link)", Verdict.DENY), subject)


def test_a_tilde_that_a_tool_may_not_expand_is_denied_both_ways() -> None:
    assert hits("Read(~/x)", "Read(~/x)", Verdict.ALLOW)
    assert hits("Read(./~/x)", "Read(~/x)", Verdict.DENY)
    assert not hits("Read(./~/x)", "Read(~/x)", Verdict.ALLOW)


def test_a_folder_that_is_taken_whole_is_denied_for_what_is_in_it() -> None:
    made = rule("Read(~/.ssh/**)", Verdict.DENY)
    plain = look(parse_call("Read(~)", cwd=CWD, home=HOME))
    assert not matches(made, plain)
    assert matches(made, replace(plain, is_whole=True))
    allow = rule("Read(~/.ssh/**)", Verdict.ALLOW)
    assert not matches(allow, replace(plain, is_whole=True))


def test_every_key_that_holds_a_path_counts() -> None:
    both = call("Edit", {"file_path": "src/a", "path": "/etc/passwd"})
    assert hits("Edit(//etc/**)", both)
    assert not hits("Edit(src/**)", both, Verdict.ALLOW)


@pytest.mark.parametrize(
    ("glob", "is_hit"),
    [
        (".env", True),
        (".e*", True),
        ("**/.env", True),
        ("{.env,x}", True),
        ("{a,b}.{c,d}", False),
        ("{a" * 50, False),
        ("{a,b}" * 9, True),
        ("{a/.env,x}", True),
        ("*.py", False),
        ("*.{ts,js}", False),
        ("*.py .env", True),
        ("!.env", False),
        (5, True),
    ],
)
def test_what_a_search_picks_by_name_is_denied_by_name(glob: Json, is_hit: bool) -> None:
    asked = call("Grep", {"pattern": "x", "glob": glob})
    assert hits("Read(.env)", asked) is is_hit


@pytest.mark.parametrize(
    "asked",
    [
        call("Read", {}),
        call("Read", {"file_path": ""}),
        call("Read", {"file_path": 5}),
        call("Read", {"file_path": "a\0b"}),
        call("Read", {"file_path": "a" * 5000}),
        call("Edit", {"file_path": "a", "path": ["b"]}),
        call("Glob", {}),
        call("Glob", {"pattern": "*/../../etc/*"}),
        call("Glob", {"pattern": "{..,x}/y"}),
        call("WebFetch", {}),
        call("WebFetch", {"url": "https://a@b"}),
        call("Code", {"language": "cobol"}),
        call("Code", {}),
    ],
)
def test_a_call_without_what_rules_speak_of_is_refused(asked: ToolCall) -> None:
    with pytest.raises(BadInput):
        look(asked)


@pytest.mark.parametrize(("verdict", "is_hit"), [("ALLOW", False), ("ASK", True), ("DENY", True)])
def test_a_specifier_that_we_cannot_read_allows_nothing(verdict: str, is_hit: bool) -> None:
    made = rule("Skill(deploy *)", Verdict[verdict], is_foreign=True)
    assert matches(made, look(call("Skill", {"command": "deploy"}))) is is_hit
