"""What the benches import from Cellwall is there; no other test runs most of them."""

import ast
import importlib
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def imported(file: Path) -> set[tuple[str, str]]:
    return {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cellwall")
        for alias in node.names
        if node.module is not None
    }


def is_there(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name) or bool(
            importlib.import_module(f"{module}.{name}")
        )
    except ModuleNotFoundError as error:
        return not (error.name or "").startswith("cellwall")  # an extra that is not installed


@pytest.mark.parametrize("file", sorted(BENCH.rglob("*.py")), ids=lambda file: file.name)
def test_names_that_a_bench_imports_exist(file: Path) -> None:
    assert [pair for pair in sorted(imported(file)) if not is_there(*pair)] == []


def test_the_control_is_missing() -> None:
    assert not is_there("cellwall.interfaces.sdk.blocking", "run_command")
