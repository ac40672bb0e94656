"""Python source to its syntax tree, and the forms in it. Pure.

`ast.parse` is one call into C that holds the interpreter lock: no other sandbox of the process goes
on meanwhile. It takes some microseconds for each token, so the number of tokens is bounded.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import threading
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from cellwall.parsing.budget import checkpoint

MAX_TOKENS = 50_000
"""More than ordinary code of 128 KB has; a quarter of a second on a slow machine."""
_ATTEMPTS = 5
_TOKEN = re.compile(r"[0-9]+\.[0-9]+|\w+|[^\w\s]|\n")
_COUNTED_AT_ONCE = 16 * 1024
_MAX_DOTS = 2_000
# Each run is consumed once, and nothing behind it can fail: the time is a straight line.
_DOTTED = re.compile(r"\w++(?:[ \t\f\\\r\n]*+\.[ \t\f\\\r\n]*+\w++)*")
_LINE_END = re.compile(r"\r\n|\r|\n")
# Before Python 3.11.5, two threads inside `ast.parse` at once share a counter, and one of them gets
# SystemError (gh-106905). One parse at a time keeps our own threads apart; a parse by another
# library in the same process is met by trying again.
_one_at_a_time = threading.Lock()


def parse_python(source: str, *, max_tokens: int = MAX_TOKENS) -> ast.Module:
    """Raises what `ast.parse` raises for source that is no Python, and `ValueError` for source of
    more than `max_tokens`; nothing else."""
    if _has_too_many_tokens(source, max_tokens) or _has_endless_name(source):
        raise ValueError("the source has more tokens than are parsed at once")
    for _ in range(_ATTEMPTS):
        with _one_at_a_time:
            try:
                # Within the lock: the filters of warnings belong to the whole process, and two
                # threads that restore them in turn would leave those of one of them.
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    return ast.parse(source)
            except SystemError:
                continue
    raise ValueError("the parser is in use by other threads")


def _has_too_many_tokens(source: str, most: int) -> bool:
    # At least as many as the parser's: words of comments and texts are counted one by one.
    if len(source) <= most:
        return False
    count = start = 0
    while start < len(source) and count <= most:
        checkpoint()
        # To the end of a line, which no token spans; a longer line is cut, and counts one more.
        end = source.find("\n", start + _COUNTED_AT_ONCE) + 1
        end = end if 0 < end <= start + 2 * _COUNTED_AT_ONCE else start + _COUNTED_AT_ONCE
        count += len(_TOKEN.findall(source, start, end))
        start = end
    return count > most


def _has_endless_name(source: str) -> bool:
    # CPython joins the names of `import a.a.a…` two by two: 200 KB of it take a minute.
    if source.count(".") <= _MAX_DOTS or "import" not in source:
        return False
    if not any(run[0].count(".") > _MAX_DOTS for run in _DOTTED.finditer(source)):
        return False
    # In a comment or a text it costs nothing, and must not turn the screening off.
    dots = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.OP and token.string in {".", "..."}:
                dots += 1
            elif token.type != tokenize.NAME:
                dots = 0
            if dots > _MAX_DOTS:
                return True
    except (tokenize.TokenError, SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    return False


class SourcePositions:
    """Turns the parser's lines and bytes into characters of the code."""

    def __init__(self, source: str, shift: int) -> None:
        self._source = source
        self._shift = shift
        self._starts = [0, *(match.end() for match in _LINE_END.finditer(source))]
        self._columns: dict[int, list[int]] = {}
        self.is_ascii = source.isascii()

    def of(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        last_line = node.end_lineno or node.lineno
        last_column = node.end_col_offset or node.col_offset
        return self._at(node.lineno, node.col_offset), self._at(last_line, last_column)

    def text(self, start: int, end: int) -> str:
        return self._source[start - self._shift : end - self._shift]

    def _at(self, line: int, column: int) -> int:
        line = min(line, len(self._starts))
        columns = self._columns.get(line)
        if columns is None:
            columns = self._columns[line] = self._counted(line)
        start = self._starts[line - 1]
        at = column if not columns else columns[min(column, len(columns) - 1)]
        return start + at + self._shift

    def _counted(self, line: int) -> list[int]:
        """For each byte of a line its character; nothing for a line where they are the same.
        Once for each line: all of a script can stand on one."""
        start = self._starts[line - 1]
        end = self._starts[line] if line < len(self._starts) else len(self._source)
        piece = self._source[start:end]
        if piece.isascii():
            return []
        counted: list[int] = []
        for number, sign in enumerate(piece):
            counted += [number] * len(sign.encode())
        return [*counted, len(piece)]


_NAMING: Final = (
    ast.FunctionDef
    | ast.AsyncFunctionDef
    | ast.ClassDef
    | ast.ExceptHandler
    | ast.MatchAs
    | ast.MatchStar
)
_READING_METHODS: Final = frozenset(["count", "index", "copy"])
"""Methods of a list that do not change it."""
ChainStep = ast.Attribute | ast.Subscript | ast.Call


@dataclass(slots=True)
class AttributeChain:
    """`base.name["item"](…)…`, from the inside out."""

    base: ast.expr
    steps: list[ChainStep]


def unwind(node: ast.expr, max_steps: int | None = None) -> AttributeChain:
    """The chain that ends with this node, or its last steps."""
    steps: list[ChainStep] = []
    while isinstance(node, ChainStep) and len(steps) != max_steps:
        steps.append(node)
        node = node.func if isinstance(node, ast.Call) else node.value
    steps.reverse()
    return AttributeChain(node, steps)


def number(node: ast.expr | None) -> int | None:
    """A whole number that is written out."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        positive = number(node.operand)
        return None if positive is None else -positive
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def dictionary_items(node: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Keys and values that are written out in a dictionary: `{…}`, `dict(a=…)`, `a | b`."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None:
                yield key, value
            else:
                yield from dictionary_items(value)
    elif isinstance(node, ast.Call):
        for argument in node.args:
            yield from dictionary_items(argument)
        for keyword in node.keywords:
            if keyword.arg:
                yield ast.Constant(keyword.arg), keyword.value
    elif isinstance(node, ast.BinOp):
        yield from dictionary_items(node.left)
        yield from dictionary_items(node.right)


def stored_names(node: ast.AST) -> Iterator[str]:
    """Names that a node binds or deletes, those of imports included."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, _NAMING):
        yield from (node.name,) if node.name else ()
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def changed_names(node: ast.AST) -> Iterator[str]:
    """Names whose list a node may change: by an index, a method, or under another name."""
    is_set = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
    is_called = isinstance(node, ast.Attribute) and node.attr not in _READING_METHODS
    if is_set or is_called or isinstance(node, ast.Assign | ast.NamedExpr | ast.Return):
        value = getattr(node, "value", None)
        yield from (value.id,) if isinstance(value, ast.Name) else ()


def takes_all_names(node: ast.AST) -> bool:
    """`from app import *`, of a module whose names are not known."""
    if not isinstance(node, ast.ImportFrom) or node.names[0].name != "*":
        return False
    return (node.module or "").partition(".")[0] not in sys.stdlib_module_names


def assignments(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets and values of all assignments, `+=` and `:=` included."""
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from ((target, value) for target in targets)
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.NamedExpr(target=target, value=value)
                | ast.AugAssign(target=target, value=value)
            ):
                yield target, value
