"""The outline finds every command with its place, whatever the parser rejects beside it."""

from __future__ import annotations

import pytest

from cellwall.parsing.shell import outline as module
from cellwall.parsing.shell.outline import Outline, ParseBudget, outline
from cellwall.parsing.shell.parser import syntax_tree


def _read(code: str) -> Outline:
    return outline(code, ParseBudget())


def _commands(code: str) -> list[str]:
    return sorted(code[each.start : each.end] for each in _read(code).commands)


@pytest.mark.parametrize(
    ("code", "commands"),
    [
        ("a b; c", ["a b", "c"]),
        ("é ü; a", ["a", "é ü"]),
        ("x=$(a `b`)", ["a `b`", "b", "x=$(a `b`)"]),
        ("if a; then b; elif c; then d; else e; fi", ["a", "b", "c", "d", "e"]),
        ("for i in $(a); do b; done", ["a", "b"]),
        ("case $(a) in x) b;; esac", ["a", "b"]),
        ("f() { a; }; function g { b; }", ["a", "b"]),
        ("[[ -f $(a) ]]; (( x = $(b) ))", ["a", "b"]),
        ("{ a; } > f", ["a", "f"]),
        ("coproc a; time b; ! c", ["a", "b", "c"]),
        ("export A=$(a) B", ["a", "export A=$(a) B"]),
        ("a <<E\n$(b)\nE\n", ["a <<E", "b"]),
        ("a\r\nb\r\n", ["a", "b"]),
    ],
)
def test_every_command_is_found_at_its_place(code: str, commands: list[str]) -> None:
    assert _commands(code) == commands
    assert _read(code).unread == []


def test_words_lose_their_quotes_and_keep_their_marks() -> None:
    (command,) = _read("""e'v'al "a$IFS" $'\\x41' \\ls <(:)""").commands[1:]
    assert [word.text for word in command.words] == ["eval", "a", "A", "ls", ""]
    assert [word.is_split for word in command.words] == [True, False, False, False, False]
    assert command.words[1].has_ifs
    assert command.words[1].is_fully_quoted
    assert command.words[4].is_fed


def test_a_here_document_ends_before_its_delimiter() -> None:
    code = "sh <<-E\n\ta\n\tE\nb"
    (document,) = [each.document for each in _read(code).commands if each.document]
    assert code[slice(*document)] == "\ta\n"


def test_stages_of_a_pipeline_hold_the_commands_of_groups() -> None:
    code = "{ a; b; } | (c) | d"
    (pipeline,) = _read(code).pipelines
    stages = [[code[each.start : each.end] for each in stage] for stage in pipeline]
    assert stages == [["a", "b"], ["c"], ["d"]]


@pytest.mark.parametrize(
    "code", ["a | sh )", "if x; then a | sh )", "a | sh\nfi\nb", "x(1)\na | sh", "a | sh\n'"]
)
def test_a_part_that_the_parser_rejects_hides_no_other(code: str) -> None:
    found = _read(code)
    assert found.unread
    assert ["a", "sh"] in [
        [code[each.start : each.end] for stage in pipeline for each in stage]
        for pipeline in found.pipelines
    ]


def test_what_the_budget_does_not_cover_is_unread() -> None:
    budget = ParseBudget(1)
    assert outline("a", budget).unread == []
    assert outline("a", budget).unread == [], "the same text again costs nothing"
    assert outline("b", budget).unread == [(0, 1)]


def test_a_tree_that_is_too_large_is_read_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "a 1\n" * 400
    monkeypatch.setattr("cellwall.parsing.shell.parser._MAX_TREE_BYTES", 400_000)
    syntax_tree.cache_clear()
    found = outline(code, ParseBudget())
    syntax_tree.cache_clear()
    assert (len(found.commands), found.unread) == (400, [])


def test_a_text_that_is_rejected_everywhere_ends() -> None:
    found = _read(") " * 1_000)
    assert len(found.unread) == module._MAX_REJECTED + 1
