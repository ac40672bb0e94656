"""The manifest of promises and the tests agree, in both directions, clause by clause."""

from __future__ import annotations

import ast
import functools
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
MANIFEST = tomllib.loads((ROOT / "docs/requirements.toml").read_text("utf-8"))


def _ids(nodes: list[ast.expr]) -> set[str]:
    """The ids of every `requirement` marker in these expressions."""
    found: set[str] = set()
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "requirement":
            for argument in node.args:
                assert isinstance(argument, ast.Constant), "ids are written out"
                found.add(argument.value)
    return found


@functools.cache
def claimed() -> dict[str, set[str]]:
    """Every test of the files with a marker, as `path::name` or `path::Class::name`: the ids of its,
    its class's and its module's."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text("utf-8")
        if "mark.requirement" not in text:
            continue
        body = ast.parse(text).body
        module_ids = {
            one
            for node in body
            if isinstance(node, ast.Assign)
            and any(getattr(target, "id", "") == "pytestmark" for target in node.targets)
            for one in _ids([node.value])
        }
        place = str(path.relative_to(ROOT / "tests"))
        found |= _tests_in(body, place, module_ids)
        for node in body:
            if isinstance(node, ast.ClassDef):
                ids = module_ids | _ids(node.decorator_list)
                found |= _tests_in(node.body, f"{place}::{node.name}", ids)
    return found


def _tests_in(body: list[ast.stmt], place: str, ids: set[str]) -> dict[str, set[str]]:
    return {
        f"{place}::{node.name}": ids | _ids(node.decorator_list)
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def test_every_clause_names_its_test_or_says_what_is_missing():
    wrong = [
        f"{name}: {clause['says']}"
        for name, promise in MANIFEST.items()
        for clause in promise["clauses"]
        if len(clause.keys() & {"test", "missing"}) != 1
        or not all(isinstance(value, str) and value.strip() for value in clause.values())
    ]
    assert wrong == []
    assert all(promise["clauses"] for promise in MANIFEST.values())


def test_the_test_of_a_clause_exists_and_carries_the_id():
    wrong = [
        f"{name}: {clause['test']}"
        for name, promise in MANIFEST.items()
        for clause in promise["clauses"]
        if "test" in clause and name not in claimed().get(clause["test"], ())
    ]
    assert wrong == []


def test_no_test_claims_a_promise_that_no_clause_keeps():
    kept = {
        name
        for name, promise in MANIFEST.items()
        if any("test" in clause for clause in promise["clauses"])
    }
    claims = {one for ids in claimed().values() for one in ids}
    assert claims - kept == set()
