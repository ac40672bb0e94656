"""The rules that a person is offered: the narrowest, and never one that means more than it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.verdict import Decision, Verdict
from cellwall.runtime.rule_proposals import asking_parts, propose

ASK = Decision(Verdict.ASK, "rule", "because")


def rules(tool: str, text: str, decision: Decision = ASK) -> list[str]:
    return [proposal.rule for proposal in propose(tool, text, decision)]


@pytest.mark.parametrize(
    ("tool", "text", "expected"),
    [
        ("Bash", "git push origin main", ["Bash(git push origin main)", "Bash(git push *)"]),
        ("Bash", "git push", ["Bash(git push)", "Bash(git push *)"]),
        ("Bash", "ls", ["Bash(ls)"]),
        ("Bash", "ls -la src", ["Bash(ls -la src)"]),
        ("Bash", "make test", ["Bash(make test)"]),
        ("Bash", "npm run build", ["Bash(npm run build)"]),
        ("Bash", "git config core.pager x", ["Bash(git config core.pager x)"]),
        ("Bash", "git -C x push", ["Bash(git -C x push)"]),
        ("Bash", "python a.py", ["Bash(python a.py)"]),
        ("Read", "/etc/hosts", ["Read(//etc/hosts)"]),
        ("Edit", "/srv/a b.txt", ["Edit(//srv/a b.txt)"]),
        ("WebFetch", "https://docs.example.org/x?y", ["WebFetch(domain:docs.example.org)"]),
        ("mcp__github__search", "{}", ["mcp__github__search"]),
        ("Port", "connect to port 8000 of the sandbox", ["Port(8000)"]),
    ],
)
def test_the_narrowest_rule_comes_first(tool: str, text: str, expected: list[str]) -> None:
    assert rules(tool, text) == expected


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        *(("Bash", text) for text in ("", " ", "a  b", " ls", "ls ", "ls\nrm", "rm *", "rm $x")),
        *(("Bash", text) for text in ("a && b", "a;b", "a | b", "echo 'x'", 'echo "x"', "a\\ b")),
        *(
            ("Bash", text)
            for text in ("echo (x)", "ls ~", "cat <x", "X=1 ls", "ls `x`", "a\u202eb")
        ),
        *(("Bash", text) for text in ("ls é", "rm {a,b}", "ls #", "ls:", "a" * 400, "git push:*")),
        *(("Read", text) for text in ("a.txt", "//x", "/a/../b", "/a/*", "/a[b]", "/a\nb", "~/x")),
        *(("WebFetch", text) for text in ("ftp://a.b", "https://1.2.3.4/", "https://u@a.b/", "x")),
        ("WebFetch", "https://EVIL\u0430.com/"),
        ("Code", "# python\n1"),
        ("Process", "list"),
        ("Port", "every port"),
        ("a tool", "x"),
        ("Tool(", "x"),
        ("", "x"),
    ],
)
def test_nothing_is_proposed_for_what_no_literal_rule_means(tool: str, text: str) -> None:
    assert rules(tool, text) == []


@given(st.text(max_size=40))
def test_a_proposed_rule_holds_the_words_that_were_seen_and_no_pattern(text: str) -> None:
    for rule in rules("Bash", text)[:1]:
        assert rule == f"Bash({text})"
        assert not set(text) & set("*?[]{}()$`'\"\\;&|<>~#!\n\r\t")


def test_each_says_what_it_would_also_allow() -> None:
    narrow, wide = propose("Bash", "git push origin main", ASK)
    assert narrow.also_allows == "this exact command again, in every session and folder"
    assert wide.also_allows == "every command that begins with `git push`, whatever follows"


def test_of_a_compound_command_the_one_part_that_asks_is_proposed() -> None:
    push = Decision(Verdict.ASK, subject="git push")
    cd = Decision(Verdict.ALLOW, subject="cd x")
    whole = Decision(Verdict.ASK, parts=(cd, Decision(Verdict.ASK, subject="(…)", parts=(push,))))
    assert asking_parts(whole) == (push,)
    assert rules("Bash", "cd x && (git push)", whole) == ["Bash(git push)", "Bash(git push *)"]


def test_where_two_parts_ask_one_rule_would_not_do() -> None:
    parts = (Decision(Verdict.ASK, subject="git push"), Decision(Verdict.ASK, subject="rm x"))
    assert rules("Bash", "git push && rm x", Decision(Verdict.ASK, parts=parts)) == []
