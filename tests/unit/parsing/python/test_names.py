"""Names, texts and lists of Python code are followed as far as the code spells them out."""

from __future__ import annotations

import ast

import pytest

from cellwall.parsing.python.names import PythonNames
from cellwall.parsing.shell.words import UNKNOWN


def read(code: str, **options: bool) -> tuple[PythonNames, ast.expr]:
    """The names of a piece of code, and its last expression."""
    tree = ast.parse(code)
    last = tree.body[-1]
    assert isinstance(last, ast.Expr)
    names = PythonNames(
        list(ast.walk(tree)),
        held_modules=frozenset({"os"}),
        starred={"os": ["system"]},
        **options,
    )
    return names, last.value


@pytest.mark.parametrize(
    ("code", "paths"),
    [
        ("os.system", {"os.system"}),
        ("import os as o\no.system", {"os.system"}),
        ("from os import *\nsystem", {"os.system"}),
        ("from os import system as s\ns", {"os.system"}),
        ("shutil._os.system", {"os.system"}),
        ("s = os.system\nt = s\nt", {"os.system"}),
        ("t = s\ns = os.system\nt", {"s", "os.system"}),
        ("a, b = eval, exec\nb", {"exec"}),
        ("(q := eval)", {"eval"}),
        ("s = print\ns = os.system\ns", {"print", "os.system"}),
        ("getattr(os, 'sys' + 'tem')", {"os.system"}),
        ("name = 'system'\ngetattr(os, name)", {"os.system"}),
        ("__import__('os.path').system", {"os.system"}),
        ("importlib.import_module('os.path').join", {"os.path.join"}),
        ("pydoc.locate('os.system')", {"os.system"}),
        ("sys.modules['os'].system", {"os.system"}),
        ("vars(os)['system']", {"os.system"}),
        ("os.__dict__.get('system')", {"os.system"}),
        ("handlers['system']", {"?"}),
        ("f().system", {"?.system"}),
        ("getattr(os, name)", {"?"}),
    ],
)
def test_a_name_stands_for_these(code: str, paths: set[str]) -> None:
    names, node = read(code)
    assert set(names.paths(node)) == paths


def test_an_item_of_any_container_stands_for_its_key_where_that_is_asked() -> None:
    names, node = read("handlers['system']", is_any_item=True)
    assert names.path(node) == "system"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("'a' + 'b'", "ab"),
        ("x = 'a'\nf'{x}/{y}'", f"a/{UNKNOWN}"),
        ("'%s-%d' % ('a', 1)", f"a-{UNKNOWN}"),
        ("'{}{b}'.format('a', b='c')", "ac"),
        ("'-'.join(['a', 'b'])", "a-b"),
        ("' '.join('a b'.split())", "a b"),
        ("' '.join(\"don't\".split())", None),
        ("os.path.join('a', 'b')", "a/b"),
        ("Path('a') / 'b'", "a/b"),
        ("os.path.expanduser('~bob/x')", "/home/bob/x"),
        ("x = table[x]\nx", None),
        ("chr(97)", None),
        ("'ba'[::-1]", None),
    ],
)
def test_a_text_is_followed(code: str, text: str | None) -> None:
    names, node = read(code)
    assert names.text(node) == text


@pytest.mark.parametrize("code", ["chr(97) + chr(98)", "'ba'[::-1]"])
def test_encoded_texts_are_followed_where_that_is_asked(code: str) -> None:
    names, node = read(code, is_decoding=True)
    assert names.known_text(node) == "ab"


@pytest.mark.slow
@pytest.mark.requirement("POL-2")
def test_sums_of_sums_take_neither_exponential_time_nor_memory() -> None:
    sums = "".join(f"a{i} = f'{f'{{a{i + 1}}}' * 20}'\n" for i in range(9))
    names, node = read(f"{sums}a9 = 'x'\na0")
    with pytest.raises(ValueError, match="too many pieces"):
        names.text(node)
    names, node = read(f"a = '{'x' * 50_000}'\nb = {' + '.join(['a'] * 6)}\nb")
    assert names.text(node) == UNKNOWN
