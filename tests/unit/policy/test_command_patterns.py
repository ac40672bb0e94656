"""Command patterns mean what agents' users know, and a denial is not slipped past by spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.parsing.shell.words import UNKNOWN, Word, literals
from cellwall.policy.command_patterns import CommandPattern

pytestmark = pytest.mark.requirement("POL-1")


def pattern(text: str) -> CommandPattern:
    return CommandPattern.parse(text)


def words(text: str) -> tuple[Word, ...]:
    return literals(text.split())


@pytest.mark.parametrize(
    ("rule", "yes", "no"),
    [
        ("git status", ["git status"], ["git status -s", "git", "git statusx"]),
        ("git status *", ["git status", "git status -s x"], ["git statusx", "git"]),
        ("git:*", ["git", "git x y"], ["gitx", "git-x"]),
        ("ls *", ["ls", "ls -la"], ["lsof"]),
        ("ls*", ["ls", "lsof", "ls -la"], ["l"]),
        ("git * main", ["git push origin main", "git checkout main"], ["git main", "git push"]),
        ("* --version", ["node --version"], ["node -v", "--version"]),
        ("npm run test:*", ["npm run test", "npm run test -- x"], ["npm run test:unit"]),
        ("npm run test*", ["npm run test:unit"], ["npm run build"]),
        ("*", ["anything at all"], []),
        ("echo 'a b'", [], ["echo a b"]),
    ],
)
def test_patterns_match_words(rule, yes, no):
    assert [text for text in yes if not pattern(rule).matches(words(text))] == []
    assert [text for text in no if pattern(rule).matches(words(text))] == []


def test_a_word_with_a_blank_is_not_two_words():
    assert not pattern("git status").matches((Word("git status"),))
    assert pattern("echo 'a b'").matches((Word("echo"), Word("a b")))


def test_what_is_not_known_is_matched_by_a_wildcard_alone():
    unknown = (Word("git"), Word("push"), Word(UNKNOWN))
    assert pattern("git push *").matches(unknown)
    assert not pattern("git push origin").matches(unknown)
    assert not pattern("git push").matches(unknown)


@pytest.mark.parametrize(
    ("rule", "yes", "no"),
    [
        (
            "rm -rf *",
            ["rm -rf x", "rm -fr x", "rm -r -f x", "rm x -rf", "/bin/rm -f x -r", "rm -vrf x"],
            ["rm -r x", "rmx -rf", "rm x"],
        ),
        (
            "git push --force *",
            [
                "git push --force",
                "git push origin main --force",
                "git push --forc x",
                "git push --force=1",
            ],
            ["git push", "git pull --force"],
        ),
        ("rm -rf /", ["rm -rf /", "rm -fr foo /"], ["rm -rf foo"]),
        ("npm publish *", ["npm publish", "npm publish x"], ["npm run publish"]),
        ("sudo *", ["sudo ls", "/usr/bin/sudo x"], ["sudox"]),
        ("dd of=/dev/*", ["dd if=x of=/dev/sda", "dd of=/dev/sda bs=1"], ["dd if=/dev/zero of=x"]),
    ],
)
def test_a_denial_also_meets_what_means_the_same(rule, yes, no):
    assert [text for text in yes if not pattern(rule).forbids(words(text))] == []
    assert [text for text in no if pattern(rule).forbids(words(text))] == []


def test_a_denial_meets_what_could_become_it():
    assert pattern("rm -rf /").forbids((Word("rm"), Word("-rf"), Word(UNKNOWN)))
    assert pattern("git push --force *").forbids(
        (Word("git"), Word("push"), Word(UNKNOWN, is_split=True))
    )
    assert not pattern("rm -rf /").forbids((Word("rm"), Word("-rf"), Word(f"x{UNKNOWN}")))


def test_only_what_is_spelled_out_is_meant():
    assert pattern("python -c *").spells("-c")
    assert not pattern("python *").spells("-c")


_WORDS = st.lists(
    st.sampled_from(["rm", "-r", "-f", "-rf", "x", "/", "--force", "a b", ""]),
    min_size=1,
    max_size=6,
)


@given(_WORDS, _WORDS)
def test_what_a_pattern_matches_it_forbids(rule, given_words):
    text = " ".join(word for word in rule if " " not in word and word) or "rm"
    found = literals(given_words)
    assert not pattern(text).matches(found) or pattern(text).forbids(found)


@given(st.permutations(["-r", "-f", "-v", "x", "y"]))
def test_no_order_of_flags_slips_past_a_denial(arguments):
    assert pattern("rm -r -f *").forbids(literals(["rm", *arguments]))


def test_many_wildcards_cost_no_more_than_the_text_is_long():
    rule = pattern("a" + "*a" * 200 + "b")
    assert not rule.matches(literals(["a" * 20_000]))


@pytest.mark.parametrize(
    ("command", "is_meant"),
    [
        ("curl http://localhost", True),
        ("curl http://localhost:8000/x?y", True),
        ("curl http://localhost/x -o y", True),
        ("curl http://localhost.evil.example/", False),
        ("curl http://localhost@evil.example/", False),
        ("curl http://localhost:8000@evil.example/", False),
        ("curl http://localhost-evil.example/", False),
        ("curl http://localhost/ http://evil.example/", False),
        ("curl http://localhost/ --url=http://evil.example/", False),
        (r"curl http://localhost\@evil.example/", False),
        ("curl http://localhost{.evil.example,}/", False),
    ],
)
def test_a_wildcard_behind_a_host_does_not_make_another_host(command, is_meant):
    assert pattern("curl http://localhost*").matches(words(command)) is is_meant


def test_an_address_is_looked_for_in_linear_time():
    rule = pattern("curl http://localhost*")
    assert rule.matches(literals(["curl", "http://localhost/", "x" * 100_000]))
