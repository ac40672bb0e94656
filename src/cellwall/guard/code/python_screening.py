"""Screens Python by its syntax tree (GRD-9).

Two passes, both without recursion, since trees can be thousands deep: the first learns the values
of names, the second checks every chain of attributes, items and calls.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import count

from cellwall.guard.code import python_calls
from cellwall.guard.code.findings import Findings, check_name, check_words
from cellwall.parsing.budget import checked
from cellwall.parsing.python.calls import HELD_MODULES, RUNS, Marks
from cellwall.parsing.python.names import RESOLVERS, PythonNames, bare, is_unknown
from cellwall.parsing.python.syntax import (
    AttributeChain,
    ChainStep,
    SourcePositions,
    assignments,
    parse_python,
    unwind,
)

_MAX_INSIDE = 300
_LINE_END = re.compile(r"\r\n|\r|\n")
_SURROGATES = re.compile("[\ud800-\udfff]")
# The interpreter decodes bytes by this line (PEP 263); the screening reads a text. UTF-7 and
# similar encodings turn a comment into code.
_CODING = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_PLAIN_CODINGS = frozenset(
    {"utf-8", "utf8", "ascii", "us-ascii", "latin-1", "latin1", "iso-8859-1", "iso8859-1",
     "iso-8859-15", "utf-8-unix", "cp1252"}
)  # fmt: skip
_FORMAT = re.compile(
    r"\{[^{}]{0,200}__(?:globals|subclasses|mro|bases|base|builtins|init|code)__[^{}]{0,200}\}"
)


def screen_python(code: str, findings: Findings) -> None:
    """Add the findings of a piece of code; code that does not parse is a finding."""
    shift = code.startswith("\ufeff")
    # A lone half of a pair can stand in no file that Python reads; the rest is still looked at.
    source = _SURROGATES.sub("?", code[shift:])
    tree = _parse(source)
    if tree is None:
        findings.add("text.unparsable", 0, len(code))
        check_words(code, findings)
        return
    try:
        _PythonScreener(tree, SourcePositions(source, int(shift)), findings).run()
    except (ValueError, RecursionError):  # texts of too many pieces
        findings.add("text.unparsable", 0, len(code))


def _parse(source: str) -> ast.Module | None:
    if _is_coded(source):
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


class _PythonScreener:
    def __init__(self, tree: ast.Module, places: SourcePositions, findings: Findings) -> None:
        self._tree = tree
        self._places = places
        self._findings = findings
        self._nodes = list(checked(ast.walk(tree)))
        self._names = PythonNames(
            self._nodes,
            held_modules=HELD_MODULES,
            starred=python_calls.STARRED,
            is_decoding=True,
        )
        self._marks = Marks(self._nodes, self._names)
        self._trails: dict[str, tuple[str, ...]] = {}
        """Attributes that lead to the object which a name holds."""

    def run(self) -> None:
        for target, value in checked(assignments(self._nodes)):
            self._learn_trail(target, value)
        if not self._places.is_ascii:
            self._check_names()
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

    def _learn_trail(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=False):
                self._learn_trail(one, other)
        elif isinstance(target, ast.Name) and isinstance(value, ast.Name | ChainStep):
            trail = [name for name in self._trail(unwind(value)) if name in python_calls.CLIMBS]
            if trail:
                self._trails[target.id] = tuple(trail[-8:])

    def _trail(self, chain: AttributeChain) -> Iterator[str]:
        """Names that a chain goes through: attributes, items, and those given to `getattr`."""
        if isinstance(chain.base, ast.Name):
            yield from self._trails.get(chain.base.id, ())
            if chain.base.id in python_calls.LOOKS:
                yield chain.base.id
        is_getattr = isinstance(chain.base, ast.Name) and chain.base.id == "getattr"
        for number, step in enumerate(chain.steps):
            match step:
                case ast.Attribute(attr=name):
                    yield name
                case ast.Subscript(slice=item):
                    if found := self._names.known_text(item):
                        yield found
                case ast.Call(args=[first, second, *_]) if is_getattr and number == 0:
                    yield from self._trail(unwind(first))
                    if found := self._names.known_text(second):
                        yield found
                case ast.Call(args=[first, *_]) if number:
                    before = chain.steps[number - 1]
                    is_get = isinstance(before, ast.Attribute) and before.attr in {
                        "get", "__getitem__", "__getattribute__", "pop"
                    }  # fmt: skip
                    if is_get and (found := self._names.known_text(first)):
                        yield found

    def _chain(self, chain: AttributeChain) -> Iterator[ast.AST]:
        """Check one chain. Yields the nodes inside it that are still to be checked."""
        self._climbing(chain)
        paths = self._names.base_paths(chain.base)
        for step in chain.steps:
            match step:
                case ast.Call(args=args, keywords=keywords):
                    self._call(step, paths)
                    if all(map(is_unknown, paths)) and self._marks.joins_characters(step):
                        self._add("python.characters", step)
                    yield from args
                    yield from (keyword.value for keyword in keywords)
                case ast.Subscript(slice=item):
                    self._hidden(item)
                    yield item
                case _:
                    pass
            paths = self._names.paths_after(paths, step)
        if isinstance(chain.steps[-1], ast.Attribute | ast.Subscript):
            self._handed(chain.steps[-1], paths)
        # A name that is called at once was looked at with its call.
        if not isinstance(chain.base, ast.Name) or not isinstance(chain.steps[0], ast.Call):
            yield chain.base

    def _handed(self, node: ast.expr, paths: tuple[str, ...]) -> None:
        """`map(os.system, …)`: a function that is passed on is called elsewhere."""
        for path in paths:
            if path in python_calls.HANDED:
                self._add(python_calls.SIMPLE[path], node)

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
        for path in map(bare, paths):
            rule = python_calls.SIMPLE.get(path)
            if rule is not None:
                self._add(rule, node)
            if path in RUNS:
                self._running(node)
            elif path in python_calls.IMPORTS:
                self._importing(node)
            elif path in RESOLVERS and node.args and self._names.known_text(node.args[0]) is None:
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
        if self._names.known_text(name) is None:
            self._add("python.dynamic-import", node)
        elif name is not None:
            self._hidden(name)
            if (self._names.known_text(name) or "").partition(".")[
                0
            ] in python_calls.NATIVE_MODULES:
                self._add("python.native", node)

    def _named(self, node: ast.Call) -> None:
        """`operator.attrgetter("system")(os)`"""
        for each in node.args:
            if not python_calls.HIDDEN.isdisjoint((self._names.known_text(each) or "").split(".")):
                self._add("python.hidden-name", each)

    def _getting(self, node: ast.Call) -> None:
        owners = self._names.paths(node.args[0])
        if self._names.known_text(node.args[1]) is not None:
            self._hidden(node.args[1])
        elif not {"builtins", "__builtins__"}.isdisjoint(owners):
            self._add("python.builtins", node)

    def _hidden(self, node: ast.expr) -> None:
        is_pieced = not isinstance(node, ast.Constant | ast.Name)
        if is_pieced and self._names.known_text(node) in python_calls.HIDDEN:
            self._add("python.hidden-name", node)

    def _mapping(self, node: ast.Call, path: str) -> None:
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if not path.endswith("mmap.mmap") or self._marks.has("executable", arguments):
            self._add("python.executable-memory", node)

    def _read(self, node: ast.Name, name: str) -> None:
        if not {"eval", "exec", "__import__"}.isdisjoint(map(bare, self._names.base_paths(node))):
            self._add("python.exec" if name == "exec" else "python.eval", node)
        elif name == "__builtins__":
            self._add("python.builtins", node)
        else:
            self._handed(node, self._names.base_paths(node))

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

    def _check_names(self) -> None:
        """As they are written: the parser itself makes dressed-up letters plain."""
        for node in checked(self._nodes):
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
    loaders = [*node.args[1:2], *(each.value for each in node.keywords if each.arg == "Loader")]
    names = [
        each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "")
        for each in loaders
    ]
    return any("Safe" in name or "Base" in name for name in names)
