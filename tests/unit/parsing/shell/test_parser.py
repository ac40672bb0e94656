"""Commands of plain and quoted words are parsed without a process, into the tree that shfmt gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.core import host_programs
from cellwall.core.errors import LayerMissing
from cellwall.parsing import bounded_cache
from cellwall.parsing.shell import parser, plain_commands
from cellwall.parsing.shell.parser import NotUnderstood, syntax_tree

pytestmark = pytest.mark.requirement("POL-2")

WORDS = st.text("aA0_./:@%+,-=", min_size=1, max_size=6)
BUILTINS = [
    *("[", "test", "eval", "exec", "trap", "alias", "source", ".", ":", "set", "unset", "read"),
    *("printf", "echo", "cd", "command", "builtin", "mapfile", "getopts", "return", "exit"),
]


def tree_or_refusal(parse, text: str) -> object:
    try:
        return parse(text)
    except NotUnderstood as problem:
        return str(problem)


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=4), st.sampled_from([" ", "  "]))
def test_plain_words_have_the_tree_of_the_parser(words, blank):
    text = blank.join(words)
    assert syntax_tree(text) == parser._run_parser(text)


# Quotes with signs that have a meaning outside of them, and words of several parts.
QUOTED = st.sampled_from(
    ["''", '""', "'a b'", '"a b"', "'$x `id` \\'", '"# ; | \' &"', "a'b'\"c\""]
)
COMMANDS = st.lists(WORDS | QUOTED, min_size=1, max_size=3).map(" ".join)
JOINTS = st.sampled_from(["|", " | ", "&&", " && ", "||", " || ", ";", "; ", " ; "])


@settings(max_examples=120, deadline=None)
@given(COMMANDS, st.lists(st.tuples(JOINTS, COMMANDS), max_size=5), st.sampled_from(["", ";", " "]))
def test_joined_commands_have_the_tree_of_the_parser(first, others, end):
    text = first + "".join(joint + command for joint, command in others) + end
    assert tree_or_refusal(syntax_tree, text) == tree_or_refusal(parser._run_parser, text)


@pytest.mark.parametrize(
    "text",
    [
        *("a;;b", "a &&", "| a", "a & b", "a |& b", "a && ! b", "! a", "a; if b; then c; fi"),
        *("a && time b", "'a' b", '"a" b', "a && x=1", "a (b)", "a; { b; }", "a 'b", 'a "$b"'),
        *('a "`b`"', 'a "\\b"', "a é", "a\nb", "a 'b\nc'", "", " ", ";"),
        " && ".join(["a"] * (plain_commands._MAX_JOINED + 2)),
    ],
)
def test_any_other_text_is_left_to_the_parser(text):
    assert plain_commands.plain_tree(text) is None


@pytest.mark.parametrize(
    "word", [*sorted(plain_commands._KEYWORDS), *BUILTINS, "a=1", "a+=1", "123", "-"]
)
def test_every_first_word_has_the_tree_of_the_parser(word):
    text = f"{word} -x b=1 c"
    assert tree_or_refusal(syntax_tree, text) == tree_or_refusal(parser._run_parser, text)


def test_plain_words_start_no_process(monkeypatch):
    monkeypatch.setattr(parser, "_run_parser", lambda _: pytest.fail("a process was started"))
    tree = syntax_tree("git log --format=%H -n 5 src/a.py")
    assert len(tree["Stmts"][0]["Cmd"]["Args"]) == 6
    tree = syntax_tree("cd src && grep -n 'a b' \"x.py\" | head -5; ls")
    assert [each["Cmd"]["Type"] for each in tree["Stmts"]] == ["BinaryCmd", "CallExpr"]


@pytest.mark.parametrize("sign", list("$`'\"\\&<>()*?[]{}~!#^\n\t"))
def test_a_word_with_a_sign_of_the_shell_is_parsed_by_the_parser(sign, monkeypatch):
    monkeypatch.setattr(parser, "_run_parser", lambda text: {"parsed": text})
    assert syntax_tree.__wrapped__(f"plain a{sign}b") == {"parsed": f"plain a{sign}b"}


def test_a_long_plain_command_is_left_to_the_process_and_its_limits(monkeypatch):
    monkeypatch.setattr(parser, "_run_parser", lambda text: {"parsed": text})
    longest = ("a " * plain_commands.MAX_PLAIN_CHARACTERS)[: plain_commands.MAX_PLAIN_CHARACTERS]
    assert syntax_tree.__wrapped__(longest)["Type"] == "File"
    assert syntax_tree.__wrapped__(longest + "a") == {"parsed": longest + "a"}


def test_cached_trees_are_bounded_by_the_size_of_their_texts(monkeypatch):
    monkeypatch.setattr(parser, "_run_parser", lambda text: {"parsed": text})
    syntax_tree.cache_clear()
    for number in range(20):
        syntax_tree(f"{number} " + "a " * 30_000)
        assert syntax_tree.characters <= bounded_cache.MAX_CHARACTERS
    assert syntax_tree.characters > bounded_cache.MAX_CHARACTERS // 2
    syntax_tree.cache_clear()


def test_a_cached_result_is_that_of_the_same_arguments():
    calls = []

    @bounded_cache.TextCache
    def join(text, *rest, **named):
        calls.append(text)
        return text, rest, named

    wanted = [("a", (), {}), ("a", (("b", 1),), {}), ("a", (), {"b": 1}), ("b", (), {"b": 1})]
    for _ in range(2):
        assert [join(text, *rest, **named) for text, rest, named in wanted] == wanted
    assert calls == ["a", "a", "a", "b"]


@pytest.mark.requirement("ERR-1", "ISO-4")
def test_an_installation_without_its_parser_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    text = "echo broken | cat installation"
    info = tmp_path / "shfmt_py-1.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("../bin/shfmt,sha256=AAAA,1\n")  # and the program was removed
    parser._processes.cache_clear()
    try:
        with monkeypatch.context() as broken:
            broken.setattr(host_programs, "_own_places", lambda: [str(tmp_path)])
            with pytest.raises(LayerMissing) as refused:
                parser._run_parser(text)
        assert refused.value.code == "CW-SHELL-PARSER"
        assert "not installed" in refused.value.message
        assert "pip install shfmt-py" in refused.value.hint
        assert parser._run_parser(text)  # the control
    finally:
        parser._processes.cache_clear()
