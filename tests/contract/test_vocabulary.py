"""Identifiers and docstrings use the terms of the glossary; the exceptions are data."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "cellwall"
LIST = Path(__file__).with_name("vocabulary.toml")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def identifiers(nodes: list[ast.AST]) -> Iterator[str]:
    """Names that a module defines: definitions, arguments, variables and attributes."""
    for node in nodes:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case _:
                pass


def types(tree: ast.Module, nodes: list[ast.AST]) -> Iterator[str]:
    """Names of classes and of type aliases at the top of a module."""
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_")
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id.lstrip("_")


def docstrings(nodes: list[ast.AST]) -> Iterator[str]:
    """Docstrings, and the strings that document a variable or a field."""
    for node in nodes:
        for child in node.body if isinstance(node, _DOCUMENTED) else ():
            match child:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield text
                case _:
                    pass


def spaced(name: str) -> str:
    """An identifier as lower-case words between spaces."""
    return f" {' '.join(_WORD.findall(name)).lower()} "


def found_terms(source: str, rules: dict[str, list[dict[str, str]]]) -> set[str]:
    """The glossary's left column, as far as a source text uses it."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    names = set(identifiers(nodes))
    where = {
        "identifier": "".join(spaced(name) for name in names),
        "constant": "".join(spaced(name) for name in names if name.isupper()),
        "docstring": "".join(
            f" {' '.join(re.findall(r'[a-z]+', text.lower()))} " for text in docstrings(nodes)
        ),
    }
    both = where["identifier"] + where["docstring"]
    found = {
        rule["term"]
        for rule in rules["words"]
        if f" {rule['term']} " in (where[rule["where"]] if "where" in rule else both)
    }
    defined = set(types(tree, nodes))
    return found | {rule["term"] for rule in rules["types"] if rule["term"] in defined}


def may_use_a_term(source: str, rules: dict[str, list[dict[str, str]]]) -> bool:
    """False only where no term is used: to parse all sources takes seconds."""
    lowered = source.lower()
    return any(rule["term"] in source for rule in rules["types"]) or any(
        rule["term"].upper() in source
        if rule.get("where") == "constant"
        else re.search("[^a-z]*".join(rule["term"].split()), lowered)
        for rule in rules["words"]
    )


def uses() -> dict[str, list[str]]:
    """Every use in the source, by file."""
    rules = tomllib.loads(LIST.read_text())
    found: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        terms = found_terms(text, rules) if may_use_a_term(text, rules) else ()
        if terms:
            found[path.relative_to(SOURCE).as_posix()] = sorted(terms)
    return found


def test_sources_use_the_glossary_except_where_listed() -> None:
    listed = tomllib.loads(LIST.read_text())["exceptions"]
    assert uses() == listed


@pytest.mark.parametrize(
    ("source", "terms"),
    [
        ("def mend_it(): ...", {"mend"}),
        ("class _Crowd: ...", {"Crowd"}),
        ("MOST_BYTES = 1", {"most"}),
        ("def f(way_out): ...", {"way out"}),
        ('"""Nothing on the way out."""', {"way out"}),
        ("class Recommendation: ...", set()),
        ("at_most = 1", set()),
        ("def visit_Name(self): ...", set()),
    ],
)
def test_terms_are_found_as_whole_words(source: str, terms: set[str]) -> None:
    rules = tomllib.loads(LIST.read_text())
    assert found_terms(source, rules) == terms
    assert may_use_a_term(source, rules) or not terms


def rewrite() -> None:
    """Write the uses that are left into the list."""
    head = LIST.read_text().partition("[exceptions]\n")[0]
    rows = [f'"{path}" = {str(terms).replace(chr(39), chr(34))}' for path, terms in uses().items()]
    LIST.write_text(head + "[exceptions]\n" + "".join(f"{row}\n" for row in rows))


if __name__ == "__main__":
    rewrite()
