"""No module of Cellwall imports itself through others, imports for type checkers included."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
ROOT = "cellwall"
"""Its `__init__` lists the public names for type checkers, and imports none of their modules."""
IMPORT = re.compile(r"^[ \t]*(?:import|from)[ \t]+cellwall\b[^\n(]*(?:\([^)]*\))?", re.MULTILINE)
"""An import of Cellwall as ruff has it written (E401, E70x, TID252): alone on its line, absolute."""


def _modules() -> dict[str, Path]:
    """Every module by its dotted name; a package is the module of its `__init__`."""
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (SOURCE / "cellwall").rglob("*.py")
    }


def _imported(source: str, known: dict[str, Path]) -> set[str]:
    """The modules that a file names in its imports, at the top, in functions and for types.

    `from package import name` counts for the package only where `name` is not one of its modules.
    Only these statements are parsed: all sources whole would take seconds.
    """
    found: set[str] = set()
    statements = [match.group().strip() for match in IMPORT.finditer(source)]
    for node in ast.parse("\n".join(statements)).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & known.keys()
            if not inner <= known.keys():
                found.add(node.module)
    return found & known.keys()


def _cycle(graph: dict[str, set[str]]) -> list[str]:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_through_others():
    known = _modules()
    graph = {
        name: _imported(path.read_text(encoding="utf-8"), known) - {name}
        for name, path in known.items()
        if name != ROOT
    }
    cycle = _cycle(graph)
    assert not cycle, " imports ".join(reversed(cycle))


def test_the_root_package_imports_its_modules_only_for_type_checkers():
    known = _modules()
    tree = ast.parse(known[ROOT].read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if not isinstance(node, ast.If)]
    assert not _imported(ast.unparse(tree), known)


@pytest.mark.parametrize(
    "source",
    [
        "import cellwall.a",
        "from cellwall.a import name",
        "from cellwall import a",
        "def late():\n    from cellwall.a import name",
        "from cellwall.a import (\n    name,\n    other as another,\n)",
        "if TYPE_CHECKING:\n    from cellwall.a import Name",
    ],
)
def test_every_form_of_an_import_counts(source):
    known = {"cellwall": Path(), "cellwall.a": Path(), "cellwall.b": Path()}
    found = _imported(source, known)
    assert found == {"cellwall.a"}
    assert _cycle({"cellwall.a": {"cellwall.b"}, "cellwall.b": found})
