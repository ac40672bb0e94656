"""What names mean: imports, aliases and names in texts are followed where that is simple.

Order and scope are not: a name that once means `eval` is taken for it everywhere. That is advice
on the safe side, and it keeps the time a straight line.
"""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cellwall.guard.code import python_calls
from cellwall.guard.code.python_calls import RESOLVERS, starred
from cellwall.parsing.budget import checked

STARRED: dict[str, tuple[str, ...]] = starred()
_MAX_STEPS = 48
_DEEPEST = 4
_MAX_TEXT = 4_096
_MAX_MEANINGS = 4


@dataclass(slots=True)
class AttributeChain:
    """`base.name["item"](…)…`, from the inside out."""

    base: ast.expr
    steps: list[ast.Attribute | ast.Subscript | ast.Call]


def unwind(node: ast.expr, max_steps: int | None = None) -> AttributeChain:
    """The chain that ends with this node, or the last steps of it."""
    steps: list[ast.Attribute | ast.Subscript | ast.Call] = []
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        if len(steps) == max_steps:
            break
        steps.append(node)
        node = node.func if isinstance(node, ast.Call) else node.value
    steps.reverse()
    return AttributeChain(node, steps)


@dataclass(slots=True)
class PythonNames:
    """What the names of one piece of code stand for."""

    meanings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    trails: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Attributes that were climbed through to get what a name holds."""

    def learn(self, name: str, meanings: tuple[str, ...]) -> None:
        known = self.meanings.get(name, ())
        fresh = tuple(each for each in meanings if each not in known and each != name)
        self.meanings[name] = (*known, *fresh)[:_MAX_MEANINGS]

    def learn_import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                if node.module and not node.level:
                    self._learn_from(node.module, alias)
            elif alias.asname:
                self.learn(alias.asname, (alias.name,))

    def _learn_from(self, module: str, alias: ast.alias) -> None:
        if alias.name != "*":
            self.learn(alias.asname or alias.name, _joined((module,), alias.name))
            return
        for name in STARRED.get(module, ()):
            self.learn(name, _joined((module,), name))

    def of(self, node: ast.expr, depth: int = 0) -> tuple[str, ...]:
        """Dotted names that an expression may stand for; none where it is not simple."""
        chain = unwind(node, _MAX_STEPS)
        paths = self.of_base(chain.base)
        for step in chain.steps:
            if not paths:
                break
            paths = self.after(paths, step, depth)
        return paths

    def of_base(self, node: ast.expr) -> tuple[str, ...]:
        match node:
            case ast.Name(id=name):
                return self.meanings.get(name) or (name,)
            case ast.NamedExpr(value=ast.Name(id=name)):
                return self.meanings.get(name) or (name,)
            case ast.NamedExpr(value=ast.Attribute() as value):
                return self.of(value)
            case _:
                return ()

    def after(
        self, paths: tuple[str, ...], step: ast.Attribute | ast.Subscript | ast.Call, depth: int
    ) -> tuple[str, ...]:
        """What it stands for one step on."""
        match step:
            case ast.Attribute(attr=name):
                return _joined(paths, name)
            case ast.Subscript(slice=item):
                text = folded(item)
                return _joined(_spaces(paths), text) if text else ()
            case ast.Call(args=args) if depth < _DEEPEST:
                return self._called(paths, args, depth + 1)
            case _:
                return ()

    def _called(self, paths: tuple[str, ...], args: list[ast.expr], depth: int) -> tuple[str, ...]:
        first = args[0] if args else None
        text = folded(args[1]) if len(args) > 1 else None
        for path in paths:
            if path == "getattr" and first is not None and text:
                return _joined(self.of(first, depth), text)
            if path in {"__import__", "importlib.import_module", "importlib.__import__"}:
                name = folded(first) if first is not None else None
                return (
                    (name.split(".")[0] if path.endswith("__import__") else name,) if name else ()
                )
            if path in RESOLVERS:
                name = folded(first)
                return (name.replace(":", "."),) if name else ()
            if path == "vars" and first is not None:
                return _joined(self.of(first, depth), "__dict__")
            if path in {"globals", "locals"}:
                return ("__dict__",)
            if path.endswith((".get", ".pop", ".__getitem__", ".__getattribute__")) and first:
                name = folded(first)
                return _joined(_spaces((path.rpartition(".")[0],)), name) if name else ()
        return ()


def _joined(paths: tuple[str, ...], name: str) -> tuple[str, ...]:
    joined: list[str] = []
    for path in paths:
        # All ways to the built-in functions are one.
        if path in {"builtins", "__builtins__", ""}:
            joined.append(name)
        else:
            joined.append(f"{path}.{name}")
    return tuple(joined)


def _spaces(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Of dictionaries that hold attributes or modules: whose they are."""
    found: list[str] = []
    for path in paths:
        if path in {"sys.modules", "__dict__", "__builtins__"}:
            found.append("")
        elif path.endswith(".__dict__"):
            found.append(path.removesuffix(".__dict__"))
    return tuple(found)


def folded(node: ast.expr | None, depth: int = 0) -> str | None:
    """A text that stands there, also in pieces; None where it is not simple."""
    if depth > _DEEPEST * 2 or node is None:
        return None
    match node:
        case ast.Constant(value=str(text)):
            return text if len(text) <= _MAX_TEXT else None
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = [folded(left, depth + 1), folded(right, depth + 1)]
        case ast.JoinedStr(values=values) if len(values) < 64:
            parts = [folded(value, depth + 1) for value in values]
        case ast.FormattedValue(value=value):
            return folded(value, depth + 1)
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(glue)), attr="join"),
            args=[ast.List(elts=each) | ast.Tuple(elts=each)],
        ) if len(each) < 64:
            parts = [folded(value, depth + 1) for value in each]
            return None if None in parts else glue.join(part for part in parts if part is not None)
        case ast.Call(func=ast.Name(id="chr"), args=[ast.Constant(value=int(sign))]):
            return chr(sign) if 0 <= sign < 0x110000 else None
        case ast.Subscript(
            value=value, slice=ast.Slice(lower=None, upper=None, step=ast.UnaryOp())
        ):
            turned = folded(value, depth + 1)
            return None if turned is None else turned[::-1]
        case _:
            return None
    return None if None in parts else "".join(part for part in parts if part is not None)


def is_whole(node: ast.expr | None) -> bool:
    """Whether a text stands there in one piece."""
    return isinstance(node, ast.Constant)


# Where something is decoded, downloaded or made executable.
#
# Kept as sorted places, so that "is it inside this call?" costs a search and no walk: calls inside
# calls inside calls would otherwise be walked again for each of them.

Mark = Literal["decoded", "fetched", "executable", "chr"]
_ROUNDS = 2
"""How often what a name holds is handed on to names that are given it."""
_MIN_NUMBERS = 4


class Marks:
    """The places of one piece of code."""

    def __init__(self, nodes: Sequence[ast.AST], names: PythonNames) -> None:
        self._places: dict[Mark, list[tuple[int, int]]] = {
            "decoded": [], "fetched": [], "executable": [], "chr": []
        }  # fmt: skip
        self._find(nodes, names)
        for _ in range(_ROUNDS):
            self._hand_on(nodes)

    def has(self, mark: Mark, within: Iterable[ast.expr]) -> bool:
        """Whether it stands inside one of the expressions."""
        places = self._places[mark]
        for node in within:
            at = bisect_left(places, (node.lineno, node.col_offset))
            end = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
            if at < len(places) and places[at] < end:
                return True
        return False

    def _find(self, nodes: Sequence[ast.AST], names: PythonNames) -> None:
        for node in checked(nodes):
            match node:
                case ast.Name(id="chr"):
                    self._put("chr", node)
                case ast.Attribute(attr="PROT_EXEC"):
                    self._put("executable", node)
                case ast.Name(id=name):
                    known = names.meanings.get(name, (name,))
                    if any(path.endswith("PROT_EXEC") for path in known):
                        self._put("executable", node)
                case ast.Call(func=func):
                    paths = names.of(func)
                    if not python_calls.DECODERS.isdisjoint(paths):
                        self._put("decoded", node)
                    if not python_calls.FETCHERS.isdisjoint(paths):
                        self._put("fetched", node)
        self._sort()
        for node in checked(nodes):
            if isinstance(node, ast.Call) and self.joins_characters(node):
                self._put("decoded", node)
        self._sort()

    def joins_characters(self, node: ast.Call) -> bool:
        """`"".join(chr(x) for …)`, `"".join(map(chr, …))`, `bytes([1, 2, …])`."""
        match node:
            case ast.Call(func=ast.Attribute(attr="join"), args=[argument]):
                return self.has("chr", [argument])
            case ast.Call(func=ast.Name(id="bytes" | "bytearray"), args=[ast.List(elts=each)]):
                return len(each) >= _MIN_NUMBERS
            case _:
                return False

    def _hand_on(self, nodes: Sequence[ast.AST]) -> None:
        for mark in ("decoded", "fetched"):
            holding: set[str] = set()
            for node in checked(nodes):
                match node:
                    case ast.Assign(targets=[ast.Name(id=name), *_], value=value):
                        pass
                    case ast.NamedExpr(target=ast.Name(id=name), value=value):
                        pass
                    case _:
                        continue
                if self.has(mark, [value]):
                    holding.add(name)
            for node in checked(nodes):
                if isinstance(node, ast.Name) and node.id in holding:
                    self._put(mark, node)
        self._sort()

    def _put(self, mark: Mark, node: ast.expr) -> None:
        self._places[mark].append((node.lineno, node.col_offset))

    def _sort(self) -> None:
        for places in self._places.values():
            places.sort()
