"""Screens Python by its syntax tree (GRD-9).

Two passes, both without recursion, since trees can be thousands deep: the first learns the values
of names, the second checks every chain of attributes, items and calls.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import count

from cellwall.guard.code import python_calls
from cellwall.guard.code.findings import Findings, check_name, check_words
from cellwall.guard.code.python_names import (
    AttributeChain,
    Marks,
    PythonNames,
    folded,
    is_whole,
    unwind,
)
from cellwall.parsing.budget import checked
from cellwall.parsing.python.syntax import parse_python

_MAX_INSIDE = 300
_LINE_END = re.compile(r"\r\n|\r|\n")
_SURROGATES = re.compile("[\ud800-\udfff]")
_MAX_DOTS = 2_000
# Possessive, and each run is consumed once: the time is a straight line.
_DOTTED = re.compile(r"\w++(?:[ \t\f\\\r\n]*+\.[ \t\f\\\r\n]*+\w++)*+")
# The interpreter is given bytes and obeys this line (PEP 263); we are given a text. UTF-7 and its
# like turn a comment into code.
_CODING = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_PLAIN_CODINGS = frozenset(
    {"utf-8", "utf8", "ascii", "us-ascii", "latin-1", "latin1", "iso-8859-1", "iso8859-1",
     "iso-8859-15", "utf-8-unix", "cp1252"}
)  # fmt: skip
_FORMAT = re.compile(
    r"\{[^{}]{0,200}__(?:globals|subclasses|mro|bases|base|builtins|init|code)__[^{}]{0,200}\}"
)


def screen_python(code: str, findings: Findings) -> None:
    """Add what is found in it; code that does not parse is a finding."""
    shift = code.startswith("\ufeff")
    # A lone half of a pair can stand in no file that Python reads; the rest is still looked at.
    source = _SURROGATES.sub("?", code[shift:])
    tree = _parse(source)
    if tree is None:
        findings.add("text.unparsable", 0, len(code))
        check_words(code, findings)
        return
    _PythonScreener(tree, _SourcePositions(source, int(shift)), findings).run()


def _parse(source: str) -> ast.Module | None:
    if _is_coded(source) or _has_endless_name(source):
        return None
    try:
        return parse_python(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return None


def _is_coded(source: str) -> bool:
    for line in _LINE_END.split(source, maxsplit=2)[:2]:
        if found := _CODING.match(line):
            return found[1].lower().replace("_", "-") not in _PLAIN_CODINGS
    return False


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


_ASSIGNING = (
    ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.AugAssign
)  # fmt: skip


class _SourcePositions:
    """Turns the parser's lines and bytes into characters of the code."""

    def __init__(self, source: str, shift: int) -> None:
        self._source = source
        self._shift = shift
        self._starts = [0, *(match.end() for match in _LINE_END.finditer(source))]
        self._columns: dict[int, list[int]] = {}

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


class _PythonScreener:
    def __init__(self, tree: ast.Module, places: _SourcePositions, findings: Findings) -> None:
        self._tree = tree
        self._places = places
        self._findings = findings
        self._names = PythonNames()
        self._is_plain = places.text(0, 1 << 30).isascii()

    def run(self) -> None:
        nodes = list(checked(ast.walk(self._tree)))
        assigning = [node for node in nodes if isinstance(node, _ASSIGNING)]
        for each in checked(assigning):
            self._learn(each)
        trails = dict(self._names.trails)
        for each in checked(assigning):
            self._learn(each)  # again: a name can be given on before what it stands for is met
        self._names.trails = trails
        self._marks = Marks(nodes, self._names)
        self._check_names(nodes)
        stack: list[ast.AST] = [self._tree]
        for _ in checked(count()):
            if not stack:
                break
            node = stack.pop()
            if isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
                stack.extend(self._chain(unwind(node)))
                continue
            self._other(node)
            stack.extend(ast.iter_child_nodes(node))

    def _add(self, rule: str, node: ast.expr | ast.stmt) -> None:
        if not self._findings.is_full(rule):
            self._findings.add(rule, *self._places.of(node))

    def _learn(self, node: ast.AST) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self._names.learn_import(node)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._learn_assigned(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._learn_assigned(target, value)
            case ast.NamedExpr(target=target, value=value):
                self._learn_assigned(target, value)
            case ast.AugAssign(target=target, value=value):
                self._learn_assigned(target, value)

    def _learn_assigned(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=False):
                if isinstance(one, ast.Name):
                    self._learn_assigned(one, other)
            return
        if not isinstance(target, ast.Name):
            return
        if isinstance(value, ast.Name | ast.Attribute | ast.Subscript | ast.Call):
            chain = unwind(value)
            if meanings := self._names.of(value):
                self._names.learn(target.id, meanings)
            if trail := tuple(name for name in self._trail(chain) if name in python_calls.CLIMBS):
                self._names.trails[target.id] = trail[-8:]

    def _trail(self, chain: AttributeChain) -> Iterator[str]:
        """Names that a chain goes through: attributes, items, and those given to `getattr`."""
        if isinstance(chain.base, ast.Name):
            yield from self._names.trails.get(chain.base.id, ())
            if chain.base.id in python_calls.LOOKS:
                yield chain.base.id
        is_getattr = isinstance(chain.base, ast.Name) and chain.base.id == "getattr"
        for number, step in enumerate(chain.steps):
            match step:
                case ast.Attribute(attr=name):
                    yield name
                case ast.Subscript(slice=item):
                    if found := folded(item):
                        yield found
                case ast.Call(args=[first, second, *_]) if is_getattr and number == 0:
                    yield from self._trail(unwind(first))
                    if found := folded(second):
                        yield found
                case ast.Call(args=[first, *_]) if number:
                    before = chain.steps[number - 1]
                    is_get = isinstance(before, ast.Attribute) and before.attr in {
                        "get", "__getitem__", "__getattribute__", "pop"
                    }  # fmt: skip
                    if is_get and (found := folded(first)):
                        yield found

    def _chain(self, chain: AttributeChain) -> Iterator[ast.AST]:
        """Look at one chain; gives back what stands inside it and was not looked at."""
        self._climbing(chain)
        paths = self._names.of_base(chain.base)
        for step in chain.steps:
            match step:
                case ast.Call(args=args, keywords=keywords):
                    if paths:
                        self._call(step, paths)
                    elif self._marks.joins_characters(step):
                        self._add("python.characters", step)
                    yield from args
                    yield from (keyword.value for keyword in keywords)
                case ast.Subscript(slice=item):
                    self._hidden(item)
                    yield item
                case _:
                    pass
            paths = self._names.after(paths, step, 0) if paths else ()
        if isinstance(chain.steps[-1], ast.Attribute | ast.Subscript):
            self._handed(chain.steps[-1], paths)
        # A name that is called at once was looked at with its call.
        if not isinstance(chain.base, ast.Name) or not isinstance(chain.steps[0], ast.Call):
            yield chain.base

    def _handed(self, node: ast.expr, paths: tuple[str, ...]) -> None:
        """`map(os.system, …)`: what is not called here is called there."""
        for path in paths:
            if (known := python_calls.shortened(path)) in python_calls.HANDED:
                self._add(python_calls.SIMPLE[known], node)

    def _climbing(self, chain: AttributeChain) -> None:
        trail = tuple(self._trail(chain))
        base = chain.base.id if isinstance(chain.base, ast.Name) else ""
        last = chain.steps[-1]
        climbed = tuple(
            name for name in trail if name in python_calls.CLIMBS or not name.startswith("_")
        )
        if python_calls.is_escape(climbed[:_MAX_INSIDE], base):
            self._add("python.introspection-chain", last)
        elif not python_calls.LOOKS.isdisjoint(trail):
            self._add("python.introspection", last)
        elif not python_calls.FRAMES.isdisjoint(trail):
            self._add("python.frames", last)

    def _call(self, node: ast.Call, paths: tuple[str, ...]) -> None:
        for path in map(python_calls.shortened, paths):
            rule = python_calls.SIMPLE.get(path)
            if rule is not None:
                self._add(rule, node)
            if path in python_calls.RUNS:
                self._running(node)
            elif path in python_calls.IMPORTS:
                self._importing(node)
            elif path in python_calls.RESOLVERS and node.args and folded(node.args[0]) is None:
                self._add("python.dynamic-import", node)
            elif path in python_calls.GETTERS:
                self._named(node)
            elif path == "getattr" and len(node.args) > 1:
                self._getting(node)
            elif path.startswith("subprocess.") and _is_true(node, "shell"):
                self._add("python.shell", node)
            elif _reads_objects(path, node):
                self._add("python.deserialise", node)
            elif path.partition(".")[0] in python_calls.NATIVE_MODULES:
                self._add("python.native", node)
            elif path.endswith(("mmap.mmap", ".mprotect", ".VirtualAlloc", ".VirtualProtect")):
                self._mapping(node, path)

    def _running(self, node: ast.Call) -> None:
        if self._marks.has("decoded", node.args):
            self._add("python.decode-exec", node)
        if self._marks.has("fetched", node.args):
            self._add("python.download-exec", node)

    def _importing(self, node: ast.Call) -> None:
        name = node.args[0] if node.args else None
        if folded(name) is None:
            self._add("python.dynamic-import", node)
        elif name is not None:
            self._hidden(name)
            if (folded(name) or "").partition(".")[0] in python_calls.NATIVE_MODULES:
                self._add("python.native", node)

    def _named(self, node: ast.Call) -> None:
        """`operator.attrgetter("system")(os)`"""
        for each in node.args:
            if not python_calls.HIDDEN.isdisjoint((folded(each) or "").split(".")):
                self._add("python.hidden-name", each)

    def _getting(self, node: ast.Call) -> None:
        owners = self._names.of(node.args[0])
        if folded(node.args[1]) is not None:
            self._hidden(node.args[1])
        elif not {"builtins", "__builtins__"}.isdisjoint(owners):
            self._add("python.builtins", node)

    def _hidden(self, node: ast.expr) -> None:
        if not is_whole(node) and folded(node) in python_calls.HIDDEN:
            self._add("python.hidden-name", node)

    def _mapping(self, node: ast.Call, path: str) -> None:
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if not path.endswith("mmap.mmap") or self._marks.has("executable", given):
            self._add("python.executable-memory", node)

    def _read(self, node: ast.Name, name: str) -> None:
        if not {"eval", "exec", "__import__"}.isdisjoint(self._names.of_base(node)):
            self._add("python.exec" if name == "exec" else "python.eval", node)
        elif name == "__builtins__":
            self._add("python.builtins", node)
        elif name in self._names.meanings:
            self._handed(node, self._names.meanings[name])

    def _other(self, node: ast.AST) -> None:
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                self._read(node, name)
            case ast.Import(names=names):
                if any(
                    alias.name.partition(".")[0] in python_calls.NATIVE_MODULES for alias in names
                ):
                    self._add("python.native", node)
            case ast.ImportFrom(module=str(module), level=0):
                if module.partition(".")[0] in python_calls.NATIVE_MODULES:
                    self._add("python.native", node)
            case ast.Constant(value=str(value)) if "__" in value and "{" in value:
                if _FORMAT.search(value):
                    self._add("python.format-introspection", node)
            case ast.Assign(targets=targets):
                if any(
                    isinstance(each, ast.Attribute) and each.attr == "__code__" for each in targets
                ):
                    self._add("python.code-object", node)

    def _check_names(self, nodes: list[ast.AST]) -> None:
        """As they are written: the parser itself makes dressed-up letters plain."""
        if self._is_plain:
            return
        for node in checked(nodes):
            if isinstance(node, ast.Name):
                start, end = self._places.of(node)
                check_name(self._places.text(start, end), start, self._findings)
            elif isinstance(node, ast.Attribute):
                _, end = self._places.of(node)
                written = re.search(r"\w+$", self._places.text(max(0, end - 80), end))
                if written:
                    check_name(written[0], end - len(written[0]), self._findings)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                start, _ = self._places.of(node)
                check_name(node.name, start, self._findings)


def _is_true(node: ast.Call, name: str) -> bool:
    return any(
        keyword.arg == name
        and isinstance(keyword.value, ast.Constant)
        and bool(keyword.value.value)
        for keyword in node.keywords
    )


def _reads_objects(path: str, node: ast.Call) -> bool:
    is_yaml = path in {"yaml.load", "yaml.load_all"} and not _loads_safely(node)
    return is_yaml or (path == "numpy.load" and _is_true(node, "allow_pickle"))


def _loads_safely(node: ast.Call) -> bool:
    given = [*node.args[1:2], *(each.value for each in node.keywords if each.arg == "Loader")]
    names = [
        each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in given
    ]
    return any("Safe" in name or "Base" in name for name in names)
