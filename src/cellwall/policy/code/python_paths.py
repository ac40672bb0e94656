"""Whether Python code puts the name of a file together, or takes it as it stands. Pure.

A text of the code is judged as a name wherever it stands (`Files.named_in`), so a name that is
chosen among texts hides nothing. Neither does one that a listing of a folder gave (`glob.glob`,
`os.walk`, `Path.iterdir`), or one of the command's own arguments. All others could be any name.
"""

from __future__ import annotations

import ast
import posixpath
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from cellwall.parsing.budget import AttemptBudget
from cellwall.parsing.python.names import PythonNames
from cellwall.parsing.shell.words import UNKNOWN

_MAX_DEPTH: Final = 12
_MAX_STEPS: Final = 10_000
"""For all questions about one piece of code: names with several values each that lead to names
with several values take exponential time. Beyond it, every name is put together."""
_LISTINGS: Final = frozenset(
    ["glob.glob", "glob.iglob", "os.listdir", "os.walk", "os.scandir", "os.fwalk"]
)
_LISTING_METHODS: Final = frozenset(["glob", "rglob", "iterdir"])
_PASSING: Final = frozenset(
    ["sorted", "list", "tuple", "set", "reversed", "enumerate", "zip", "iter", "filter", "next"]
)
"""They hand on what they are given."""
_JOINING: Final = frozenset(
    {
        *("Path", "PosixPath", "PurePath", "str", "join", "joinpath", "abspath", "realpath"),
        *("resolve", "expanduser", "absolute", "normpath", "relpath", "fspath", "as_posix"),
        *("with_suffix", "with_name", "relative_to", "items", "values", "keys", "dirname"),
        "basename",
    }
)
"""They make a path of what they are given, and of nothing else."""
_PARTS: Final = frozenset(["parent", "path", "name", "parents", "stem", "suffix", "filename"])
_TEMPORARY: Final = frozenset(
    {
        *("mkdtemp", "mkstemp", "gettempdir", "TemporaryDirectory", "NamedTemporaryFile"),
        *("getcwd", "cwd"),
    }
)


class Paths:
    """The paths in one piece of code."""

    def __init__(self, nodes: Sequence[ast.AST], names: PythonNames) -> None:
        self._names = names
        self._steps = AttemptBudget(_MAX_STEPS)
        self._bound: dict[str, list[ast.expr | None]] = defaultdict(list)
        """What each name may stand for; None: an unknown value."""
        for node in nodes:
            self._bind(node)
        for name, given in _parameters(nodes):
            self._bound[name].append(given)

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._set(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            self._set(node.target, node.value)
        elif isinstance(node, ast.AugAssign):
            self._set(node.target, None)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            self._set(node.target, node.iter)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._set(node.optional_vars, node.context_expr)

    def _set(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self._bound[target.id].append(value)
        elif isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._set(each, value)
        elif isinstance(target, ast.Starred):
            self._set(target.value, value)

    def is_put_together(self, node: ast.expr | None, depth: int = 0) -> bool:
        """Whether it may be a name that neither stands in the code nor was listed."""
        if node is None or depth > _MAX_DEPTH or not self._steps.spend():
            return True
        text = self._names.text(node)
        if text is not None and UNKNOWN not in text:
            return False
        choices = self._choices(node)
        if choices is not None:
            return self._any(choices, depth)
        return not self._is_listed(node, depth)

    def _choices(  # noqa: PLR0911  # a table of forms
        self, node: ast.expr
    ) -> Sequence[ast.expr | None] | None:
        """The expressions that it is one of; None: it is none of several."""
        match node:
            case ast.Constant():
                return ()
            case ast.Name():
                return self._bound.get(node.id, [None])
            case ast.List() | ast.Tuple() | ast.Set():
                return node.elts
            case ast.Dict():
                return [*node.keys, *node.values]
            case ast.IfExp():
                return [node.body, node.orelse]
            case ast.BoolOp():
                return node.values
            case ast.NamedExpr() | ast.Starred():
                return [node.value]
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                return [node.elt]
            case ast.Subscript() if not isinstance(node.slice, ast.Slice):
                return self._chosen_among(node.value)
        return None

    def _chosen_among(self, node: ast.expr) -> Sequence[ast.expr | None] | None:
        """The elements of a list or a table that is written out."""
        if isinstance(node, ast.Name):
            node = self._names.values.get(node.id, node)
        if isinstance(node, ast.List | ast.Tuple):
            return node.elts
        return [*node.keys, *node.values] if isinstance(node, ast.Dict) else None

    def _any(self, nodes: Sequence[ast.expr | None], depth: int) -> bool:
        return any(self.is_put_together(each, depth + 1) for each in nodes)

    def _is_listed(self, node: ast.expr | None, depth: int) -> bool:
        """Whether each part of it that is not known comes from a listing or an argument."""
        if node is None or depth > _MAX_DEPTH or not self._steps.spend():
            return False
        text = self._names.text(node)
        if (text is not None and UNKNOWN not in text) or isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Name):
            bound = self._bound.get(node.id, [])
            return bool(bound) and all(self._is_listed(each, depth + 1) for each in bound)
        if isinstance(node, ast.Attribute):
            if self._names.path(node) == "sys.argv":
                return True
            is_part = node.attr in _PARTS and self._names.text(node.value) is None
            return is_part and self._is_listed(node.value, depth + 1)
        if isinstance(node, ast.Subscript):  # a part of a text would be another text
            is_part = self._names.text(node.value) is None
            return is_part and self._is_listed(node.value, depth + 1)
        if isinstance(node, ast.Call):
            return self._is_listing(node, depth)
        return all(self._is_listed(each, depth + 1) for each in _parts(node)) and _has_parts(node)

    def _is_listing(self, node: ast.Call, depth: int) -> bool:
        name = self._names.path(node.func)
        last = name.rpartition(".")[2]
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name in _LISTINGS or last in _LISTING_METHODS:
            places = [*node.args, *([] if name in _LISTINGS else [owner])]
            return not self._any(places, depth)
        if last in _TEMPORARY or name in ("range", "len", "int"):
            return True
        if last in _PASSING and owner is None:
            given = node.args[-1:] if last == "filter" else node.args
            return all(self._is_listed(each, depth + 1) for each in given)
        if last in _JOINING:
            is_method = owner is not None and not name.startswith(("os.", "pathlib.", "posixpath."))
            given = [*node.args, *([owner] if is_method and owner is not None else [])]
            return bool(given) and all(self._is_listed(each, depth + 1) for each in given)
        return False

    def listed_below(self, node: ast.expr | None, depth: int = 0) -> str | None:
        """The folder that a listing begins in, with an unknown name behind it."""
        if node is None or depth > _MAX_DEPTH or not self._steps.spend():
            return None
        if isinstance(node, ast.Name):
            starts = (self.listed_below(each, depth + 1) for each in self._bound.get(node.id, ()))
            return next((start for start in starts if start is not None), None)
        if isinstance(node, ast.Call):
            name = self._names.path(node.func)
            last = name.rpartition(".")[2]
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            place: ast.expr | None = owner if last in _LISTING_METHODS else None
            if name in _LISTINGS:
                place = node.args[0] if node.args else None
            if place is not None and (text := self._names.text(place)) is not None:
                return posixpath.join(text, UNKNOWN) if name not in _GLOBS else text
            inner = [*node.args, *([owner] if owner is not None else [])]
        else:
            inner = list(_parts(node))
        starts = (self.listed_below(each, depth + 1) for each in inner)
        return next((start for start in starts if start is not None), None)


_GLOBS: Final = frozenset(["glob.glob", "glob.iglob"])


def _has_parts(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp | ast.JoinedStr | ast.IfExp | ast.Starred | ast.BoolOp)


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """The expressions that a text is made of."""
    if isinstance(node, ast.BinOp):
        yield node.left
        yield from node.right.elts if isinstance(node.right, ast.Tuple) else (node.right,)
    elif isinstance(node, ast.JoinedStr):
        for each in node.values:
            yield each.value if isinstance(each, ast.FormattedValue) else each
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.BoolOp):
        yield from node.values
    elif isinstance(node, ast.Starred | ast.Attribute | ast.Subscript):
        yield node.value


def _parameters(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, ast.expr | None]]:
    """What the parameters of the code's own functions are given, by all calls of that name."""
    functions = _functions(nodes)
    called: set[int] = set()
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        for arguments in functions.get(_last_name(node.func), ()):
            called.add(id(arguments))
            yield from _given(arguments, node)
    for node in nodes:
        if isinstance(node, ast.arguments) and id(node) not in called:
            every = (*node.posonlyargs, *node.args, *node.kwonlyargs)
            yield from ((each.arg, None) for each in every)


def _functions(nodes: Sequence[ast.AST]) -> dict[str, list[ast.arguments]]:
    found: dict[str, list[ast.arguments]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name].append(node.args)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            for target in node.targets:
                found[_last_name(target)].append(node.value.args)
    return found


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _given(arguments: ast.arguments, call: ast.Call) -> Iterator[tuple[str, ast.expr | None]]:
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    yield from zip(names, call.args, strict=False)
    yield from ((each.arg, each.value) for each in call.keywords if each.arg)
    if any(isinstance(each, ast.Starred) for each in call.args):
        yield from ((each, None) for each in names)
