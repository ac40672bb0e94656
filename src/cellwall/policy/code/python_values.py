"""Names, texts and lists of Python code, as far as the code spells them out. Pure.

Names are followed through imports and plain assignments, texts through `+`, `%`, f-strings, `join`,
`split`, `os.path.join` and `/` of paths. Everything else is unknown.
"""

from __future__ import annotations

import ast
import posixpath
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from cellwall.parsing.shell.words import UNKNOWN

DOUBTED: Final = frozenset(
    [
        "ctypes",
        "_ctypes",
        "cffi",
        "code",
        "codeop",
        "doctest",
        "runpy",
        "marshal",
        "_posixsubprocess",
        "imp",
        "dill",
        "cloudpickle",
        "multiprocessing.util",
        "types.FunctionType",
        "types.CodeType",
        "antigravity",
    ]
)
MODULES_INSIDE: Final = frozenset(
    {
        *("os", "sys", "subprocess", "builtins", "shutil", "importlib", "posix", "ctypes"),
        *("pty", "runpy"),
    }
)
"""Modules that others hold as an attribute: `glob.os` is `os`."""
RUN_TEXT: Final = frozenset(("pexpect.run", "pexpect.runu"))
"""Their first argument is a command line."""
CODE_MODULES: Final = frozenset(("timeit", "cProfile", "profile", "pdb", "bdb"))
CODE_NAMES: Final = frozenset(
    [
        "timeit",
        "repeat",
        "Timer",
        "run",
        "runctx",
        "runeval",
        "runsource",
        "runcode",
        "push",
        "interact",
        "exec_module",
        "Profile",
        "Trace",
        "Pdb",
    ]
)
INTERPRETER_NAMES: Final = frozenset(("runsource", "runcode", "InteractiveConsole"))
COMMAND_SECOND: Final = frozenset(("subprocess_shell", "pipepager", "tempfilepager"))
BROWSERS: Final = frozenset(
    ("GenericBrowser", "BackgroundBrowser", "UnixBrowser", "register", "Mozilla", "Chrome")
)
UNPICKLERS: Final = frozenset(("loads", "load", "Unpickler", "read_pickle"))
PICKLES: Final = frozenset(("pickle", "_pickle", "cPickle", "jsonpickle", "shelve", "pandas"))
_SPECIAL_BITS: Final = 0o6000
_conversion = re.compile(r"%(?:\((\w+)\))?([-#0 +]*\d*(?:\.\d+)?[a-zA-Z%])")
_field = re.compile(r"\{\{|\}\}|\{(\w*)([^{}]*)\}")


def number(node: ast.expr | None) -> int | None:
    """A whole number that is written out."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def mode_words(path: str | None, mode: ast.expr | None) -> list[str | None] | None:
    """`chmod 4755 path` for `os.chmod(path, 0o4755)`; None for a mode without special bits."""
    value = number(mode)
    if value is None or not value & _SPECIAL_BITS:
        return None
    return ["chmod", f"{value & 0o7777:o}", path]


def of_user(path: str | None) -> str | None:
    """`~bob/x` as `expanduser` has it; `~/x` is left, for the home is known elsewhere."""
    if path is None or not path.startswith("~") or path == "~" or path.startswith("~/"):
        return path
    return "/root" + path[5:] if path.split("/")[0] == "~root" else f"/home/{path[1:]}"


def filled(template: str, values: Sequence[str | None]) -> str:
    """`template % values`; what is not a plain `%s` of a known text is unknown."""
    rest = iter(values)

    def one(found: re.Match[str]) -> str:
        if found[2] == "%":
            return "%"
        value = None if found[1] else next(rest, None)
        return value if value is not None and found[2] == "s" else UNKNOWN

    return _conversion.sub(one, template)


def formatted(template: str, values: Sequence[str | None], named: dict[str, str | None]) -> str:
    """`template.format(*values, **named)`."""
    count = iter(range(len(values)))

    def one(found: re.Match[str]) -> str:
        if found[0] in ("{{", "}}"):
            return found[0][0]
        key, value = found[1], None
        if key.isdecimal():
            value = values[int(key)] if int(key) < len(values) else None
        elif key:
            value = named.get(key)
        elif (at := next(count, None)) is not None:
            value = values[at]
        return value if value is not None and not found[2] else UNKNOWN

    return _field.sub(one, template)


def pairs_of(node: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Keys and values that are written out in a dictionary: `{…}`, `dict(a=…)`, `a | b`."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None:
                yield key, value
            else:
                yield from pairs_of(value)
    elif isinstance(node, ast.Call):
        for argument in node.args:
            yield from pairs_of(argument)
        for keyword in node.keywords:
            if keyword.arg:
                yield ast.Constant(keyword.arg), keyword.value
    elif isinstance(node, ast.BinOp):
        yield from pairs_of(node.left)
        yield from pairs_of(node.right)


# What names, texts and lists of Python code stand for, as far as that is written out.
#
# Names are followed through imports and plain assignments, texts through `+`, `%`, f-strings,
# `join`, `split`, `os.path.join` and `/` of paths. What is not followed is unknown.

UNKNOWN_NAME: Final = "_not_known_"
"""Stands in parsed code for a part of it that is not known."""
_KEEPING: Final = frozenset(["count", "index", "copy"])
_NAMING: Final = ast.ExceptHandler | ast.MatchAs | ast.MatchStar
_KNOWN_VALUES: Final = {"HOME": "~", "sys.executable": "python3"}


class PythonValues:
    """The values of names in one piece of code."""

    def __init__(
        self,
        nodes: Sequence[ast.AST],
        *,
        modules: frozenset[str],
        starters: frozenset[str],
        evaluators: frozenset[str],
    ) -> None:
        self._nodes = nodes
        self._modules = modules
        self._starters = starters
        self._evaluators = evaluators
        self.names: dict[str, str] = {}
        """What a name stands for, as a dotted name: `s` -> `os.system`."""
        self.values: dict[str, ast.expr] = {}
        """What a name is set to, where it is set once."""
        self._changed = frozenset(name for node in nodes for name in changed_names(node))
        """Names of lists that may not hold any more what was written into them."""
        self.aliased: set[int] = set()
        """Expressions that are given another name which is followed."""
        self._bind()

    def _bind(self) -> None:
        self._bind_imports()
        stored = Counter(name for node in self._nodes for name in stored_names(node))
        if any(map(_takes_all_names, self._nodes)):
            return  # it may give any name another value
        # What a class holds is reached by the class's name, which is not followed.
        held = {
            id(each) for node in self._nodes if isinstance(node, ast.ClassDef) for each in node.body
        }
        for node in self._nodes:
            if id(node) in held:
                continue
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = node.targets[0]
                if isinstance(target, ast.Name) and stored[target.id] == 1:
                    self.values[target.id] = node.value
                    if (name := self.resolve(node.value)) and self._is_telling(name):
                        self.names[target.id] = name
                        self.aliased.add(id(node.value))

    def _bind_imports(self) -> None:
        for node in self._nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    self._name(alias.asname or top, alias.name if alias.asname else top)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    whole = f"{node.module or ''}.{alias.name}"
                    self._name(alias.asname or alias.name, whole)
                    if alias.name == "*" and node.module in self._modules:
                        self.names |= {each: f"{node.module}.{each}" for each in self._starters}

    def _name(self, name: str, meaning: str) -> None:
        """One name for two modules stands for the one that starts commands."""
        if not self._is_telling(self.names.get(name, "")):
            self.names[name] = meaning

    def _is_telling(self, name: str) -> bool:
        """A module or a function that starts commands, or the environment they get."""
        module, _, last = name.rpartition(".")
        is_known = module in self._modules or not module
        return name in self._modules | {"os.environ"} or (
            is_known and last in self._starters | self._evaluators
        )

    # --- names

    def resolve(self, node: ast.expr, depth: int = 0) -> str | None:
        """The dotted name that an expression stands for; `?` for an object that is not known."""
        if depth > 16:
            return None
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            if node.attr.lstrip("_") in MODULES_INSIDE:  # `glob.os`, `random._os`
                return node.attr.lstrip("_")
            name = f"{self.resolve(node.value, depth + 1) or '?'}.{node.attr}"
            return "os.environ" if name == "os.environb" else name
        if isinstance(node, ast.Call):
            called = self.resolve(node.func, depth + 1) or "?"
            last = called.rpartition(".")[2]
            first = self.text(node.args[0]) if node.args else None
            if last in ("__import__", "import_module") and first and UNKNOWN not in first:
                return first
            if last == "getattr" and len(node.args) > 1:
                attribute = self.text(node.args[1])
                whole = self.resolve(node.args[0], depth + 1) or "?"
                is_known = attribute and UNKNOWN not in attribute
                return f"{whole}.{attribute}" if is_known else None
        if isinstance(node, ast.Subscript):
            index = self.text(node.slice)
            return index if index and UNKNOWN not in index else None
        return None

    # --- texts

    def text(self, node: ast.expr | None, depth: int = 0) -> str | None:
        """The text of an expression, unknown parts marked; None if it may be no text at all."""
        if node is None or depth > 16:
            return None
        if isinstance(node, ast.Constant):
            value = node.value
            text = value if isinstance(value, str) else _decoded(value)
            return None if text is None else text.replace(UNKNOWN_NAME, UNKNOWN)
        if isinstance(node, ast.Name):
            return self.text(self.values.get(node.id), depth + 1)
        if isinstance(node, ast.JoinedStr):
            parts = [
                self.text(each.value if isinstance(each, ast.FormattedValue) else each, depth + 1)
                for each in node.values
            ]
            return "".join(UNKNOWN if part is None else part for part in parts)
        if isinstance(node, ast.BinOp):
            return self._sum(node, depth + 1)
        if isinstance(node, ast.Call):
            return self._called_text(node, depth + 1)
        if isinstance(node, ast.Subscript | ast.Attribute):
            return _KNOWN_VALUES.get(self.resolve(node) or "")
        return None

    def _sum(self, node: ast.BinOp, depth: int) -> str | None:
        left, right = self.text(node.left, depth), self.text(node.right, depth)
        if isinstance(node.op, ast.Add) and not (left is None and right is None):
            return (UNKNOWN if left is None else left) + (UNKNOWN if right is None else right)
        if isinstance(node.op, ast.Div) and not (left is None and right is None):
            return posixpath.join(left or UNKNOWN, right or UNKNOWN)
        if isinstance(node.op, ast.Mod) and left is not None:
            values = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            return filled(left, [self.text(each, depth) for each in values])
        return None

    def _called_text(self, node: ast.Call, depth: int) -> str | None:
        name = (self.resolve(node.func) or "?").rpartition(".")[2]
        texts = [self.text(each, depth) for each in node.args]
        if name in ("expanduser", "Path", "PosixPath", "str", "abspath", "realpath", "resolve"):
            if isinstance(node.func, ast.Attribute) and not texts:
                path = self.text(node.func.value, depth)
                return of_user(path) if name == "expanduser" else path
            path = posixpath.join(*(each or UNKNOWN for each in texts)) if texts else None
            return of_user(path) if name == "expanduser" else path
        if name == "format" and isinstance(node.func, ast.Attribute):
            template = self.text(node.func.value, depth)
            named = {each.arg: self.text(each.value, depth) for each in node.keywords if each.arg}
            return None if template is None else formatted(template, texts, named)
        if name == "home" and not texts:
            return "~"
        if name in ("getenv", "get") and texts[:1] == ["HOME"]:
            return "~"
        if name == "join" and isinstance(node.func, ast.Attribute):
            glue = self.text(node.func.value, depth)
            if glue is None:
                return posixpath.join(*(each or UNKNOWN for each in texts)) if texts else None
            words = self.list_of(node.args[0]) if node.args else None
            return None if words is None else glue.join(each or UNKNOWN for each in words)
        return None

    def list_of(self, node: ast.expr, depth: int = 0) -> list[str | None] | None:
        """The elements of a list of texts; None if it may be any list."""
        if depth > 8:
            return None
        if isinstance(node, ast.Name) and node.id in self.values:
            is_changed = node.id in self._changed
            return None if is_changed else self.list_of(self.values[node.id], depth + 1)
        if isinstance(node, ast.List | ast.Tuple):
            if any(isinstance(each, ast.Starred) for each in node.elts):
                return None
            return [self.text(each) for each in node.elts]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self.list_of(node.left, depth + 1), self.list_of(node.right, depth + 1)
            return None if left is None or right is None else [*left, *right]
        if isinstance(node, ast.Call):
            name = (self.resolve(node.func) or "?").rpartition(".")[2]
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            text = self.text(node.args[0] if node.args else owner)
            if name == "split" and text is not None and UNKNOWN not in text:
                return list(shlex.split(text))
        return None


def stored_names(node: ast.AST) -> Iterator[str]:
    """Names that a node gives a value, or takes it away."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | _NAMING):
        yield from (node.name,) if node.name else ()
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def _takes_all_names(node: ast.AST) -> bool:
    """`from app import *`, of a module whose names are not known."""
    if not isinstance(node, ast.ImportFrom) or node.names[0].name != "*":
        return False
    return (node.module or "").partition(".")[0] not in sys.stdlib_module_names


def changed_names(node: ast.AST) -> Iterator[str]:
    """Names whose list a node may change: by an index, a method, or under another name."""
    is_set = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
    is_called = isinstance(node, ast.Attribute) and node.attr not in _KEEPING
    if is_set or is_called or isinstance(node, ast.Assign | ast.NamedExpr | ast.Return):
        value = getattr(node, "value", None)
        yield from (value.id,) if isinstance(value, ast.Name) else ()


def _decoded(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None
