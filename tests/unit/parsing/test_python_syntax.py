"""Sources are parsed by many threads at once, and none of them fails for the others' sake."""

from __future__ import annotations

import ast
from concurrent.futures import ThreadPoolExecutor

import pytest

from cellwall.parsing import python_syntax
from cellwall.parsing.python_syntax import parse_python


@pytest.mark.slow
def test_many_threads_parse_at_once():
    sources = [f"x = {'(' * depth}1{')' * depth}\n" * 200 for depth in range(1, 17)]
    with ThreadPoolExecutor(8) as threads:
        trees = list(threads.map(parse_python, sources * 4))
    assert [len(tree.body) for tree in trees] == [200] * 64


@pytest.mark.parametrize("source", ["x = (", "\0", "def"])
def test_no_python_raises_as_ast_does(source):
    with pytest.raises((SyntaxError, ValueError)):
        parse_python(source)


def test_a_parser_that_is_in_use_is_tried_again(monkeypatch):
    left = [1, 2, 3]

    def busy(source):
        if left.pop():
            raise SystemError("AST constructor recursion depth mismatch")

    real = ast.parse
    monkeypatch.setattr(
        python_syntax.ast, "parse", lambda source: busy(source) if left else real(source)
    )
    assert len(parse_python("x = 1").body) == 1
