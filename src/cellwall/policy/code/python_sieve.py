"""Python code by its syntax tree: what it may import, name and ask for is listed. Pure.

1. Modules are those of the list, with the attributes of the list. Any other module may be
   imported and asked for its version, no more.
2. A module's name stands only before a dot, so that it cannot be handed on under another name.
3. No name and no attribute that makes code of text, or reaches the interpreter's insides.
4. Files are opened for reading, and their names are written out.
5. A name that the code does not bind itself is a built-in of the list; names that are known here
   (modules, `open`, `Path`) are bound by their import only.
6. No classes but plain ones, no patterns that take attributes by position, no call of what a call
   or an index gives: each of them reaches an attribute whose name is put together.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cellwall.parsing.python.syntax import parse_python, stored_names

_READ_MODES: Final = frozenset(("r", "rb", "rt", "br", "tr"))
_PATH_READS: Final = frozenset(("read_text", "read_bytes"))
_CALLED_ONLY: Final = _PATH_READS | {"replace"}
_KNOWN_NAMES: Final = frozenset(("open", "Path", "type", "dict", "len", "list", "sorted"))
_TYPE_TELLERS: Final = frozenset(("print", "str", "repr"))
_inside_name = re.compile(r"__\w+__").findall
_ENVIRONMENT: Final = ("os", "environ")
_TELLERS: Final = frozenset(("dict", "len", "list", "sorted"))
_ENVIRONMENT_TELLS: Final = frozenset(("get", "items", "keys", "values", "copy"))


@dataclass(frozen=True, slots=True)
class PythonLists:
    """The lists for Python, as they stand in `languages.toml`."""

    names: frozenset[str]
    builtins: frozenset[str]
    bases: frozenset[str]
    texts: frozenset[str]
    attributes: frozenset[str]
    prefixes: tuple[str, ...]
    tells: frozenset[str]
    modules: Mapping[str, frozenset[str]]

    @staticmethod
    def of(table: Mapping[str, Any]) -> PythonLists:
        return PythonLists(
            names=frozenset(table["names"].split()),
            builtins=frozenset(table["builtins"].split()),
            bases=frozenset(table["bases"].split()),
            texts=frozenset(table["texts"].split()),
            attributes=frozenset(table["attributes"].split()),
            prefixes=tuple(table["prefixes"].split()),
            tells=frozenset(table["tells"].split()),
            modules={key: frozenset(text.split()) for key, text in table["modules"].items()},
        )


class _CodeRefused(Exception):
    """The code is not harmless; the text says why."""


def look_at_python(text: str, rules: PythonLists) -> tuple[str | None, tuple[str, ...]]:
    """Why the code is not harmless, if so; and the files that it reads."""
    try:
        tree = parse_python(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "the Python code cannot be parsed", ()
    visit = _SieveVisitor(rules)
    try:
        visit.run(tree)
    except _CodeRefused as refused:
        return str(refused), ()
    return None, tuple(visit.reads)


class _SieveVisitor:
    """One walk over all nodes, none of them twice, without recursion."""

    def __init__(self, rules: PythonLists) -> None:
        self._rules = rules
        self._modules: dict[str, str] = {}
        """What a name stands for, if it was imported: `np` -> `numpy`."""
        self._called: set[int] = set()
        self._dotted: set[int] = set()
        self._looked_at: set[int] = set()
        """What is only asked for something, not changed or handed on."""
        self._bound_names: set[str] = set()
        self._classes: set[str] = set()
        self._shown_types: set[int] = set()
        """Calls of `type` whose result is only shown or compared."""
        self.reads: list[str] = []

    def run(self, tree: ast.AST) -> None:
        nodes = list(ast.walk(tree))
        for node in nodes:
            self._bind(node)
        for node in nodes:
            self._bind_names(node)
        for node in nodes:
            self._shape(node)
        for node in nodes:
            self._look_at(node)
            if isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Attribute):
                self._attribute(node)
        for node in nodes:
            self._words(node)

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                self._bound(alias.asname or top, alias.name if alias.asname else top)
                if "." in alias.name:
                    self._ask(alias.name.rpartition(".")[0], alias.name.rpartition(".")[2])
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module = node.module or ""
                if node.level or alias.name == "*":
                    raise _CodeRefused("the Python code imports what it does not name")
                self._ask(module, alias.name)
                if (module, alias.name) == _ENVIRONMENT:
                    raise _CodeRefused("the Python code hands on the environment")
                whole = f"{module}.{alias.name}"
                if whole in self._rules.modules:
                    self._bound(alias.asname or alias.name, whole)
                elif alias.asname and alias.asname in self._rules.names | {"open", "Path"}:
                    raise _CodeRefused("the Python code hides a name behind another one")

    def _bind_names(self, node: ast.AST) -> None:
        """Each name that the code gives a value of its own."""
        if isinstance(node, ast.ClassDef):
            self._classes.add(node.name)
        for name in _given_names(node):
            if name in _KNOWN_NAMES or name in self._modules:
                raise _CodeRefused(f"the Python code gives {name} another meaning")
            self._bound_names.add(name)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = alias.asname or alias.name
                is_path = (node.module, alias.name) == ("pathlib", "Path")
                if (name in _KNOWN_NAMES and not is_path) or (is_path and name != "Path"):
                    raise _CodeRefused("the Python code hides a name behind another one")
                self._bound_names.add(name)
        elif isinstance(node, ast.Import) and _KNOWN_NAMES & self._modules.keys():
            raise _CodeRefused("the Python code hides a name behind another one")

    def _shape(self, node: ast.AST) -> None:
        """Forms that reach an attribute without its name."""
        if isinstance(node, ast.ClassDef):
            plain = self._rules.bases | self._classes
            if node.keywords or not all(
                isinstance(base, ast.Name) and base.id in plain for base in node.bases
            ):
                raise _CodeRefused("the Python code makes a class that is not plain")
        elif isinstance(node, ast.MatchClass) and (
            node.patterns or _CALLED_ONLY & set(node.kwd_attrs)
        ):
            raise _CodeRefused("the Python code takes attributes by a pattern")
        elif isinstance(node, ast.Constant):
            text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
            if isinstance(text, str) and set(_inside_name(text)) - self._rules.texts:
                raise _CodeRefused(
                    "a text of the Python code names what is inside of the interpreter"
                )
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Call | ast.Subscript):
            raise _CodeRefused("the Python code calls what is put together while it runs")
        self._show_type(node)

    def _show_type(self, node: ast.AST) -> None:
        shown: Sequence[ast.expr] = ()
        if (isinstance(node, ast.Attribute) and node.attr == "__name__") or isinstance(
            node, ast.FormattedValue
        ):
            shown = (node.value,)
        elif isinstance(node, ast.Compare):
            shown = (node.left, *node.comparators)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _TYPE_TELLERS - self._bound_names
        ):
            shown = node.args
        self._shown_types.update(map(id, shown))

    def _bound(self, name: str, module: str) -> None:
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names and top not in self._rules.modules:
            raise _CodeRefused(f"the Python code imports {module}")
        # One name for two modules would be judged by the wrong one.
        if self._modules.setdefault(name, module) != module:
            raise _CodeRefused("the Python code gives one name to two modules")

    def _ask(self, module: str, attribute: str) -> None:
        """Whether this attribute of this module may be used."""
        listed = self._rules.modules.get(module)
        if attribute in self._rules.tells or f"{module}.{attribute}" in self._rules.modules:
            return
        if listed is None:
            raise _CodeRefused(f"the Python code uses {module}.{attribute}")
        if attribute not in listed:
            raise _CodeRefused(f"the Python code uses {module}.{attribute}")

    def _refuse_attribute(self, name: str) -> None:
        if name in self._rules.tells:
            return
        if name in self._rules.attributes or name.startswith(self._rules.prefixes):
            raise _CodeRefused(f"the Python code uses .{name}")

    def _module_of(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return self._modules.get(node.id)
        if isinstance(node, ast.Attribute) and (module := self._module_of_name(node)):
            return module
        return None

    def _module_of_name(self, node: ast.Attribute) -> str | None:
        if not isinstance(node.value, ast.Name) or node.value.id not in self._modules:
            return None
        whole = f"{self._modules[node.value.id]}.{node.attr}"
        return whole if whole in self._rules.modules else None

    def _attribute(self, node: ast.Attribute) -> None:
        module = self._module_of(node.value)
        if isinstance(node.value, ast.Name):
            self._dotted.add(id(node.value))
        if module is None:
            if node.attr in _CALLED_ONLY and id(node) not in self._called:
                raise _CodeRefused(f"the Python code hands on .{node.attr}")
            if node.attr not in _PATH_READS:
                self._refuse_attribute(node.attr)
            return
        self._ask(module, node.attr)
        if (module, node.attr) == _ENVIRONMENT and id(node) not in self._looked_at:
            raise _CodeRefused("the Python code changes the environment, or hands it on")
        if not isinstance(node.ctx, ast.Load):
            raise _CodeRefused(f"the Python code changes {module}.{node.attr}")

    def _look_at(self, node: ast.AST) -> None:
        if isinstance(node, ast.Subscript):
            if isinstance(node.ctx, ast.Load):
                self._looked_at.add(id(node.value))
            elif isinstance(node.value, ast.Attribute) and self._module_of(node.value.value):
                raise _CodeRefused("the Python code changes what belongs to a module")
        elif isinstance(node, ast.Attribute) and node.attr in _ENVIRONMENT_TELLS:
            self._looked_at.add(id(node.value))
        elif isinstance(node, ast.Compare):
            self._looked_at.update(map(id, node.comparators))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            self._looked_at.update(map(id, node.args if node.func.id in _TELLERS else ()))

    def _call(self, node: ast.Call) -> None:
        function = node.func
        self._called.add(id(function))
        if isinstance(function, ast.Name) and function.id == "type":
            is_asked = len(node.args) == 1 and not isinstance(node.args[0], ast.Starred)
            if not is_asked or node.keywords or id(node) not in self._shown_types:
                raise _CodeRefused("the Python code uses a type for more than to show it")
        elif isinstance(function, ast.Name) and function.id == "open":
            self._open(node)
        elif isinstance(function, ast.Attribute) and function.attr in _PATH_READS:
            self._read_path(function.value)
        elif isinstance(function, ast.Attribute) and function.attr == "replace":
            # Of text it takes two values; of a path one, and then it moves a file.
            if len(node.args) < 2:
                raise _CodeRefused("the Python code uses .replace, which can move a file")
        elif isinstance(function, ast.Attribute) and self._is_search_path(function.value):
            raise _CodeRefused("the Python code changes where modules come from")

    def _is_search_path(self, node: ast.expr) -> bool:
        return (
            isinstance(node, ast.Attribute)
            and node.attr == "path"
            and self._module_of(node.value) == "sys"
        )

    def _open(self, node: ast.Call) -> None:
        mode: ast.expr | None = node.args[1] if len(node.args) > 1 else None
        for keyword in node.keywords:
            if keyword.arg == "mode":
                mode = keyword.value
            elif keyword.arg not in ("encoding", "errors", "newline", "buffering"):
                raise _CodeRefused("the Python code opens a file in a way that is not plain")
        if mode is not None and not (isinstance(mode, ast.Constant) and mode.value in _READ_MODES):
            raise _CodeRefused("the Python code opens a file for more than reading")
        self._read(node.args[:1])

    def _read_path(self, node: ast.expr) -> None:
        is_path = isinstance(node, ast.Call) and (
            (isinstance(node.func, ast.Name) and node.func.id == "Path")
            or (
                isinstance(node.func, ast.Attribute)
                and node.func.attr == "Path"
                and self._module_of(node.func.value) == "pathlib"
            )
        )
        if not (is_path and isinstance(node, ast.Call)):
            raise _CodeRefused("the Python code reads a file whose name is not written out")
        self._read(node.args)

    def _read(self, names: Sequence[ast.expr]) -> None:
        if len(names) != 1 or not isinstance(names[0], ast.Constant):
            raise _CodeRefused("the Python code reads a file whose name is not written out")
        name = names[0].value
        if isinstance(name, str) and "\0" not in name:
            self.reads.append(name)
        elif name != 0:
            raise _CodeRefused("the Python code reads a descriptor")

    def _words(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            self._name(node)
        for name in _plain_names(node):
            self._refuse_name(name)
        if isinstance(node, ast.MatchClass):
            for name in node.kwd_attrs:
                self._refuse_attribute(name)

    def _name(self, node: ast.Name) -> None:
        self._refuse_name(node.id)
        if node.id in ("open", "type") and id(node) not in self._called:
            raise _CodeRefused(f"the Python code hands on `{node.id}`")
        is_own = node.id in self._bound_names or node.id in self._modules
        if not is_own and node.id not in self._rules.builtins:
            raise _CodeRefused(f"the Python code uses {node.id}")
        if node.id in self._modules and id(node) not in self._dotted:
            raise _CodeRefused(f"the Python code hands on the module {node.id}")

    def _refuse_name(self, name: str) -> None:
        is_inside = name.startswith("__") and name not in ("__name__", "__file__", "__doc__")
        if name in self._rules.names or is_inside:
            raise _CodeRefused(f"the Python code uses {name}")


def _given_names(node: ast.AST) -> Iterator[str]:
    """Names that a node binds, other than by an import."""
    if isinstance(node, ast.Global | ast.Nonlocal):
        yield from node.names
    elif not isinstance(node, ast.alias):
        yield from stored_names(node)


def _plain_names(node: ast.AST) -> Iterator[str]:
    """Names that stand in a node as text."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Global | ast.Nonlocal):
        yield from node.names
    elif isinstance(node, ast.alias):
        yield node.asname or "name"
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar | ast.MatchMapping):
        yield from _given_names(node)
