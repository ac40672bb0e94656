"""What Python code uses that is not known to start nothing. Pure.

Under a rule for everything, what code starts is judged as far as it is written out. Any other way
to a command leads through the standard library, an attribute with underscores, or a package that
runs commands. So the list is of what starts nothing, or is followed elsewhere (languages.toml,
`python.modules` and `python.wide`); a person is asked about all else of the standard library. Other
packages, and the project's own, are files, which rules for files judge.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from cellwall.parsing.python.names import PythonNames
from cellwall.policy.code.sieve import Starts, language_data

MODULES_INSIDE: Final = frozenset(
    {
        *("os", "sys", "subprocess", "builtins", "shutil", "importlib", "posix", "ctypes"),
        *("pty", "runpy"),
    }
)
"""Modules that others hold as an attribute: `glob.os` is `os`."""
_BUILTINS_INSIDE: Final = frozenset(
    ["exec", "eval", "compile", "__import__", "getattr", "setattr", "globals", "locals", "vars"]
)
_PLAIN_DUNDERS: Final = frozenset(
    {
        *("__init__", "__new__", "__name__", "__doc__", "__file__", "__version__", "__len__"),
        *("__path__", "__author__", "__all__", "__enter__", "__exit__", "__iter__"),
        *("__next__", "__str__", "__repr__", "__eq__", "__hash__", "__lt__", "__main__"),
        *("__annotations__", "__qualname__", "__post_init__", "__contains__", "__call__"),
        *("__bool__", "__debug__", "__license__", "__add__", "__mul__", "__sub__"),
        *("__getitem__", "__del__", "__future__"),
    }
)
_ON_ANYTHING: Final = frozenset(
    {
        *("load_module", "exec_module", "runcode", "runsource", "run_cell", "run_cell_magic"),
        *("run_line_magic", "run_string", "enable_load_extension", "load_extension"),
        *("unsafe_load", "exec_command", "find_spec", "modules", "f_globals", "f_builtins"),
        *("f_locals", "f_back", "tb_frame", "gi_frame", "cr_frame", "ag_frame", "settrace"),
        *("setprofile", "addaudithook", "meta_path", "path_hooks", "resolve_name"),
        *("spawn_python", "assert_python_ok"),
    }
)
"""Attributes that lead to code or to the interpreter, on whatever object."""
_SAFE_LOADERS: Final = frozenset(["SafeLoader", "CSafeLoader", "BaseLoader", "CBaseLoader"])


@dataclass(frozen=True, slots=True)
class _ModuleTable:
    whole: frozenset[str]
    """Modules that start nothing, or whose starters are followed."""
    runners: frozenset[str]
    """Packages that start commands, or programs."""
    unpacking: frozenset[str]
    """Functions of packages that make objects, and with them calls, of data."""
    listed: dict[str, frozenset[str]]


@cache
def _table() -> _ModuleTable:
    python = language_data()["python"]
    wide = python["wide"]
    listed = {name: frozenset(text.split()) for name, text in python["modules"].items()}
    for name, text in wide["names"].items():
        listed[name] = listed.get(name, frozenset()) | frozenset(text.split())
    return _ModuleTable(
        whole=frozenset(wide["whole"].split()),
        runners=frozenset(wide["runners"].split()),
        unpacking=frozenset(wide["unpacking"].split()),
        listed=listed,
    )


def ask_about_reach(nodes: Sequence[ast.AST], names: PythonNames, found: Starts) -> None:
    """Has a person asked, or refuses, what code uses beyond what is known."""
    _CodeReach(nodes, names, found).run()


class _CodeReach:
    def __init__(self, nodes: Sequence[ast.AST], names: PythonNames, found: Starts) -> None:
        self._nodes = nodes
        self._names = names
        self._found = found
        self._inner: set[int] = set()
        """Parts of a longer dotted name, or of a call that is looked at as a whole."""

    def run(self) -> None:
        for node in self._nodes:
            if isinstance(node, ast.Attribute):
                self._inner.add(id(node.value))
            elif isinstance(node, ast.Call):
                self._check_call(node)
        for node in self._nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self._dotted(f"{node.module or ''}.{alias.name}")
            elif isinstance(node, ast.Attribute | ast.Name):
                self._name(node)
            else:
                self._form(node)

    def _form(self, node: ast.AST) -> None:
        """Forms that reach an attribute or a variable without naming it."""
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            if isinstance(node.value, ast.Call) and self._is_scope(node.value):
                self._found.doubt("it sets variables by names that are put together")
        elif isinstance(node, ast.MatchClass):
            for name in node.kwd_attrs:
                self._attribute(name)

    def _check_call(self, node: ast.Call) -> None:
        name = self._names.path(node.func)
        module, _, last = name.rpartition(".")
        if isinstance(node.func, ast.Name) and node.func.id in _BUILTINS_INSIDE | {"type"}:
            self._inner.add(id(node.func))
            self._inner.update(map(id, node.args[:1]))  # `getattr(os, "name")` is followed
        if module == "sys.path" and last in ("append", "insert", "extend"):
            for given in node.args[-1:]:
                text = self._names.text(given)
                if text is None or text.startswith(("/", "~")) or ".." in text.split("/"):
                    self._ask("changes where modules come from")
        if name in _table().unpacking and not self._is_safe(node):
            self._found.doubt(f"it uses {name}, which can start what is not written out")

    def _is_scope(self, node: ast.Call) -> bool:
        return self._names.path(node.func) in ("globals", "locals", "vars")

    def _is_safe(self, node: ast.Call) -> bool:
        """`yaml.load(x, Loader=yaml.SafeLoader)`, `torch.load(x, weights_only=True)`."""
        given = [*node.args[1:], *(each.value for each in node.keywords)]
        names = [self._names.path(each).rpartition(".")[2] for each in given]
        is_told = any(each.arg == "weights_only" for each in node.keywords) and any(
            isinstance(each.value, ast.Constant) and each.value.value is True
            for each in node.keywords
        )
        return is_told or bool(_SAFE_LOADERS & set(names))

    def _name(self, node: ast.Attribute | ast.Name) -> None:
        if isinstance(node, ast.Attribute):
            self._attribute(node.attr)
            is_scope = isinstance(node.value, ast.Call) and self._is_scope(node.value)
            if is_scope and node.attr not in ("get", "items", "keys", "values"):
                self._ask("changes variables by names that are put together")
        if id(node) in self._inner or not isinstance(node.ctx, ast.Load):
            return
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        dotted = self._names.path(node)
        if isinstance(node, ast.Name):
            if node.id in _BUILTINS_INSIDE and dotted == node.id and not self._is_followed(node):
                self._found.doubt(f"it hands on {node.id}, which makes code of text")
            if dotted in MODULES_INSIDE and not self._is_followed(node):
                self._ask(f"hands on the module {dotted}")
        is_imported = isinstance(root, ast.Name) and root.id in self._names.paths_of_names
        if is_imported or isinstance(root, ast.Call) or dotted.partition(".")[0] in MODULES_INSIDE:
            self._dotted(dotted)

    def _is_followed(self, node: ast.expr) -> bool:
        return id(node) in self._names.aliased

    def _attribute(self, name: str) -> None:
        is_dunder = name.startswith("__") and name.endswith("__") and name not in _PLAIN_DUNDERS
        if is_dunder or name in _ON_ANYTHING:
            self._ask(f"uses .{name}")

    def _module(self, name: str) -> None:
        top = name.partition(".")[0]
        table = _table()
        if top in table.runners:
            self._found.doubt(f"it uses {top}, which starts commands that are not judged")
        elif _is_of_library(top) and not self._is_listed(name):
            self._ask(f"uses {name}, which is not known to start nothing")

    def _is_listed(self, name: str) -> bool:
        table = _table()
        parts = name.split(".")
        heads = {".".join(parts[: at + 1]) for at in range(len(parts))}
        is_below = any(each.startswith(f"{name}.") for each in table.listed)
        return bool(heads & table.whole) or name in table.listed or is_below

    def _dotted(self, name: str) -> None:
        """A module's attribute, as deep as the module is known."""
        top, table = name.partition(".")[0], _table()
        if top in table.runners:
            self._found.doubt(f"it uses {top}, which starts commands that are not judged")
        if not _is_of_library(top):
            return
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            module = ".".join(parts[:end])
            rest = parts[end : end + 1]
            if module in table.listed and rest and rest[0] in table.listed[module]:
                return
            if module in table.whole:
                inside = any(each.startswith("_") or each in MODULES_INSIDE for each in parts[end:])
                if inside and not all(each in _PLAIN_DUNDERS for each in rest):
                    self._ask(f"uses {name}")
                return
            if module in table.listed and (not rest or rest[0] in _PLAIN_DUNDERS):
                return
        self._ask(f"uses {name}, which is not known to start nothing")

    def _ask(self, why: str) -> None:
        self._found.ask(f"it {why}")


def _is_of_library(top: str) -> bool:
    """Of the standard library of this Python, or an inner module of another one's."""
    return top in sys.stdlib_module_names or (top.startswith("_") and not top.startswith("_not"))
