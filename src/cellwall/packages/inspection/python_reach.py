"""Which statements of a Python module run when it is imported, or when it is installed. Pure.

Statements outside of functions run, except those below `if __name__ == "__main__"` and
`if TYPE_CHECKING`. A function runs too if code that runs calls it, or hands it to a call
(`Thread(target=f)`, `atexit.register(f)`). Names are compared without scopes, which errs on the
safe side; calls of imported functions are not followed into other files, except those in `called`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import count

from cellwall.parsing.budget import checked

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
# Run by setuptools for `cmdclass`, or by the front end of PEP 517.
_INSTALL_FUNCTIONS = frozenset({
    "run", "initialize_options", "finalize_options", "__init__", "build_extension",
    "build_extensions", "build_wheel", "build_sdist", "build_editable", "initialize",
    "get_requires_for_build_wheel", "get_requires_for_build_sdist",
    "get_requires_for_build_editable",
    "prepare_metadata_for_build_wheel", "prepare_metadata_for_build_editable",
})  # fmt: skip
# Run by pytest in every plugin that is installed, before any test.
_PLUGIN_FUNCTIONS = frozenset({
    "pytest_configure", "pytest_addoption", "pytest_load_initial_conftests", "pytest_sessionstart",
    "pytest_cmdline_main", "pytest_cmdline_parse", "pytest_cmdline_preparse", "pytest_addhooks",
    "pytest_plugin_registered", "pytest_collection",
})  # fmt: skip
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_OF_INSTANCES = frozenset({"__init__", "__new__", "__call__", "__enter__", "__post_init__"})


def reached_nodes(
    tree: ast.Module, *, is_install: bool, called: Iterable[str] = ()
) -> tuple[Mapping[ast.AST, None], list[ast.AST]]:
    """All nodes that run by themselves, in order, and the imports of the whole module.

    `called`: functions that other files call.
    """
    reach = _ImportReach(tree, is_install=is_install)
    return reach.run(called), reach.imports


class _ImportReach:
    def __init__(self, tree: ast.Module, *, is_install: bool) -> None:
        self._tree = tree
        self._is_install = is_install
        self._functions: defaultdict[str, list[ast.AST]] = defaultdict(list)
        self._classes: dict[str, ast.ClassDef] = {}
        self._imported: set[str] = set()
        self.imports: list[ast.AST] = []
        self._collect()
        self._reached: dict[ast.AST, None] = {}
        self._stack: list[ast.AST] = []

    def _collect(self) -> None:
        """The definitions and imports, from statements only: most nodes are expressions."""
        statements: list[ast.AST] = list(self._tree.body)
        while statements:
            node = statements.pop()
            if isinstance(node, _FUNCTIONS):
                self._functions[node.name].append(node)
            elif isinstance(node, ast.ClassDef):
                self._classes[node.name] = node
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self.imports.append(node)
                for alias in node.names:
                    self._imported.add((alias.asname or alias.name).partition(".")[0])
            for field in _BLOCKS:
                statements.extend(getattr(node, field, ()))

    def run(self, called: Iterable[str]) -> dict[ast.AST, None]:
        self._stack.extend(self._tree.body)
        outside = _PLUGIN_FUNCTIONS.union(called)
        for each in self._tree.body:
            if isinstance(each, _FUNCTIONS) and each.name in outside:
                self._stack.extend(each.body)
        for name in _INSTALL_FUNCTIONS if self._is_install else ():
            self._call(name)
        for _ in checked(count()):
            if not self._stack:
                break
            node = self._stack.pop()
            if node not in self._reached:
                self._reached[node] = None
                self._visit(node)
        return self._reached

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, _FUNCTIONS):
            self._stack.extend((*node.decorator_list, node.args))
            for each in node.decorator_list:
                if self._runs_decorated(each):
                    self._call(node.name)
            return
        if isinstance(node, ast.If) and self._is_guard(node.test):
            self._stack.extend(node.orelse)
            return
        if isinstance(node, ast.Call):
            for called in _handed_names(node):
                self._call(called)
            match node.func:
                case ast.Attribute(value=ast.Name(id=owner), attr=name):
                    if owner not in self._imported:
                        self._call(name)
                case ast.Attribute(attr=name):
                    self._call(name)
        self._stack.extend(ast.iter_child_nodes(node))

    def _call(self, name: str) -> None:
        for function in self._functions.get(name, ()):
            body = getattr(function, "body", ())
            self._stack.extend(each for each in body if each not in self._reached)
        if (found := self._classes.get(name)) is not None:
            for each in found.body:
                if isinstance(each, _FUNCTIONS) and each.name in _OF_INSTANCES:
                    self._stack.extend(each.body)

    def _runs_decorated(self, decorator: ast.expr) -> bool:
        """`@f` with a function of the same file may call what it decorates."""
        match decorator:
            case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
                return name in self._functions
            case ast.Attribute(value=ast.Name(id="atexit"), attr="register"):
                return True
            case _:
                return False

    def _is_guard(self, test: ast.expr) -> bool:
        match test:
            case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
                return True
            case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()]):
                return not self._is_install  # a setup.py is the main program
            case _:
                return False


def _handed_names(node: ast.Call) -> Iterator[str]:
    for each in (node.func, *node.args, *(keyword.value for keyword in node.keywords)):
        if isinstance(each, ast.Name):
            yield each.id
