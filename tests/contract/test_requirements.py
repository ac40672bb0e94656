"""The manifest of promises and the tests agree, in both directions."""

from __future__ import annotations

import ast
import functools
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
MANIFEST = tomllib.loads((ROOT / "docs/requirements.toml").read_text("utf-8"))


@functools.cache
def claimed() -> dict[str, set[str]]:
    """Every requirement id named by a marker, with the files that name it."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            is_marker = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if is_marker and node.func.attr == "requirement":
                for argument in node.args:
                    assert isinstance(argument, ast.Constant), f"{path}: ids are written out"
                    found.setdefault(argument.value, set()).add(path.name)
    return found


def test_every_promise_that_is_kept_has_a_test():
    kept = {name for name, entry in MANIFEST.items() if entry["state"] in ("kept", "partly")}
    assert kept - claimed().keys() == set()


def test_no_test_claims_a_promise_that_is_not_made():
    made = {name for name, entry in MANIFEST.items() if entry["state"] in ("kept", "partly")}
    assert claimed().keys() - made == set()


def test_every_partly_kept_promise_says_which_part():
    missing = [
        name
        for name, entry in MANIFEST.items()
        if (entry["state"] == "partly") != ("note" in entry)
    ]
    assert missing == []
