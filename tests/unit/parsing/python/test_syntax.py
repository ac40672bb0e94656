"""Sources are parsed by many threads at once, and none of them fails for the others' sake."""

from __future__ import annotations

import ast
import sysconfig
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cellwall.parsing.python import syntax
from cellwall.parsing.python.syntax import parse_python


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
    monkeypatch.setattr(syntax.ast, "parse", lambda source: busy(source) if left else real(source))
    assert len(parse_python("x = 1").body) == 1


@pytest.mark.requirement("GRD-11")
@pytest.mark.parametrize("unit", ["x=1\n", "a[a:a,a]\n", "a;", "f(a)\n", "a.a.a\n"])
def test_more_tokens_than_a_moment_allows_are_not_parsed(unit, monkeypatch):
    """The parser holds the interpreter lock: while it works, no other sandbox goes on."""
    source = unit * ((1 << 17) // len(unit))
    parsed: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(syntax.ast, "parse", lambda each: parsed.append(len(each)))
        with pytest.raises(ValueError, match="more tokens"):
            parse_python(source)
    assert not parsed


@pytest.mark.requirement("GRD-11")
def test_ordinary_code_of_the_longest_kind_is_parsed():
    folder = Path(sysconfig.get_path("stdlib"))
    names = ("argparse.py", "typing.py", "inspect.py", "tarfile.py")
    for name in names:
        source = folder.joinpath(name).read_text("utf-8")
        assert parse_python(source[: (1 << 17)].rpartition("\ndef ")[0]).body
    numbers = "rows = [" + "0.12345, " * 12_000 + "]"
    assert len(numbers) > 100_000
    assert parse_python(numbers).body


def test_warnings_about_the_source_of_others_are_not_shown(recwarn):
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(parse_python, ["1if 1else 0\n'\\d'\n"] * 64))
    assert not recwarn.list
    warnings.warn("after", stacklevel=1)
    assert len(recwarn.list) == 1, "the filters are what they were"
