"""Names, texts and lists of Python code, as far as the code spells them out. Pure.

Names are followed through imports, assignments, `getattr`, `__import__`, `sys.modules[…]` and
`vars(…)`; texts through `+`, `%`, f-strings, `join`, `format`, `split`, `os.path.join` and `/` of
paths. Everything else is unknown. Order and scope are not followed: a name that once stands for
`os.system` stands for it everywhere, which errs on the safe side and keeps the time linear.
"""

from __future__ import annotations

import ast
import posixpath
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from cellwall.parsing.budget import checked
from cellwall.parsing.python.syntax import (
    ChainStep,
    assignments,
    changed_names,
    number,
    stored_names,
    takes_all_names,
    unwind,
)
from cellwall.parsing.python.texts import (
    concatenate,
    convert_percent,
    expand_user,
    format_braces,
    join_path,
)
from cellwall.parsing.shell.words import UNKNOWN

UNKNOWN_NAME: Final = "_not_known_"
"""Stands in parsed code for a part of it that is not known."""
UNKNOWN_PATH: Final = "?"
"""The dotted name of an object that is not known; `?.run` is an attribute of one."""
IMPORTS: Final = frozenset(["__import__", "import_module"])
RESOLVERS: Final = frozenset(["pydoc.locate", "pkgutil.resolve_name"])
"""Functions that return the object which a dotted name in a text stands for."""
_ITEM_GETTERS: Final = frozenset(["get", "pop", "__getitem__", "__getattribute__"])
_NAMESPACES: Final = frozenset(["sys.modules", "__dict__", "__builtins__"])
_BUILTINS: Final = ("builtins", "__builtins__")
_KNOWN_VALUES: Final = {"HOME": "~", "sys.executable": "python3"}
_PATH_MAKERS: Final = frozenset(
    ["expanduser", "Path", "PosixPath", "str", "abspath", "realpath", "resolve"]
)
_MAX_STEPS: Final = 48
_MAX_CALLS: Final = 4
_MAX_DEPTH: Final = 16
_MAX_LIST_DEPTH: Final = 8
_MAX_PATH: Final = 400
_MAX_PATHS: Final = 4
_MAX_TEXT_STEPS: Final = 500_000


class PythonNames:
    """The dotted names and values that the names of one piece of code stand for.

    `held_modules`: modules that others hold as an attribute: `glob.os` is `os`.
    `starred`: for a module, the names that `from module import *` binds.
    `follows`: decides which dotted names are followed through assignments; all are without it.
    `is_any_item`: an item of any container stands for its key (`handlers["system"]`), not only
    one of a namespace (`sys.modules["os"]`, `vars(os)["system"]`).
    `is_decoding`: texts are also followed through `chr` and reversed slices.
    """

    def __init__(
        self,
        nodes: Sequence[ast.AST],
        *,
        held_modules: frozenset[str],
        starred: Mapping[str, Iterable[str]],
        follows: Callable[[str], bool] | None = None,
        is_any_item: bool = False,
        is_decoding: bool = False,
    ) -> None:
        self._held_modules = held_modules
        self._starred = starred
        self._follows = follows
        self._is_any_item = is_any_item
        self._is_decoding = is_decoding
        self._text_steps = 0
        self._followed: set[str] = set()
        """Names whose text is being worked out."""
        self.paths_of_names: dict[str, tuple[str, ...]] = {}
        """The dotted names that a name may stand for: `s` -> `os.system`."""
        self.values: dict[str, ast.expr] = {}
        """The value of a name that is set once."""
        self.aliased: set[int] = set()
        """Expressions that are given another name which is followed."""
        self._changed = frozenset(name for node in nodes for name in changed_names(node))
        """Names of lists that may not hold any more what was written into them."""
        self._bind_imports(nodes)
        self._bind_values(nodes)
        assigned = list(assignments(nodes))
        for _ in range(2):  # a name can be assigned before the name that it stands for
            for target, value in checked(assigned):
                self._bind_target(target, value)

    def _bind_imports(self, nodes: Sequence[ast.AST]) -> None:
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    self._add_paths(alias.asname or top, (alias.name if alias.asname else top,))
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                for alias in node.names:
                    if alias.name == "*":
                        for name in self._starred.get(module, ()):
                            self._add_paths(name, (f"{module}.{name}",))
                    paths = self._join((module,), alias.name)
                    self._add_paths(alias.asname or alias.name, paths)

    def _bind_values(self, nodes: Sequence[ast.AST]) -> None:
        if any(map(takes_all_names, nodes)):
            return  # it may give any name another value
        stored = Counter(name for node in nodes for name in stored_names(node))
        # What a class holds is reached by the class's name, which is not followed.
        held = {id(each) for node in nodes if isinstance(node, ast.ClassDef) for each in node.body}
        for node in nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and id(node) not in held:
                target = node.targets[0]
                if isinstance(target, ast.Name) and stored[target.id] == 1:
                    self.values[target.id] = node.value

    def _bind_target(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=False):
                if isinstance(one, ast.Name):
                    self._bind_target(one, other)
        elif isinstance(target, ast.Name) and isinstance(value, ast.Name | ChainStep):
            paths = tuple(path for path in self.paths(value) if not is_unknown(path))
            if self._follows is not None:
                paths = tuple(filter(self._follows, paths))
                if paths and self.values.get(target.id) is value:
                    self.aliased.add(id(value))
            if paths:
                self._add_paths(target.id, paths)

    def _add_paths(self, name: str, paths: tuple[str, ...]) -> None:
        known = self.paths_of_names.get(name, ())
        fresh = [path for path in paths if path not in known]
        # A flood of harmless paths pushes out none that is followed.
        if self._follows is not None:
            known = tuple(path for path in known if self._follows(path)) or known[-1:]
            self.paths_of_names[name] = (*known, *fresh)
        else:
            self.paths_of_names[name] = (*known, *fresh)[:_MAX_PATHS]

    # --- names

    def path(self, node: ast.expr) -> str:
        """The first dotted name of an expression that is followed, or else the last."""
        paths = self.paths(node)
        follows = self._follows or (lambda _: True)
        return next(filter(follows, paths), paths[-1])

    def paths(self, node: ast.expr, calls: int = 0) -> tuple[str, ...]:
        """The dotted names that an expression may stand for; never empty."""
        chain = unwind(node, _MAX_STEPS)
        paths = self.base_paths(chain.base)
        for step in chain.steps:
            paths = self.paths_after(paths, step, calls)
        return paths

    def base_paths(self, node: ast.expr) -> tuple[str, ...]:
        match node:
            case ast.Name(id=name) | ast.NamedExpr(value=ast.Name(id=name)):
                return self.paths_of_names.get(name) or (name,)
            case ast.NamedExpr(value=ast.Attribute() as value):
                return self.paths(value)
            case _:
                return (UNKNOWN_PATH,)

    def paths_after(
        self, paths: tuple[str, ...], step: ChainStep, calls: int = 0
    ) -> tuple[str, ...]:
        """The dotted names one step on."""
        found: tuple[str, ...] = ()
        match step:
            case ast.Attribute(attr=name):
                found = self._join(paths, name)
            case ast.Subscript(slice=item):
                if text := self.known_text(item):
                    found = self._items(paths, text)
            case ast.Call(args=args) if calls < _MAX_CALLS:
                found = self._results(paths, args, calls + 1)
        return found or (UNKNOWN_PATH,)

    def _results(self, paths: tuple[str, ...], args: list[ast.expr], calls: int) -> tuple[str, ...]:
        """What a call of one of these functions returns."""
        first = args[0] if args else None
        for path in paths:
            owner, _, last = path.rpartition(".")
            if last == "getattr" and len(args) > 1 and first is not None:
                attribute = self.known_text(args[1])
                return self._join(self.paths(first, calls), attribute) if attribute else ()
            if last in ("globals", "locals", "vars") and owner in ("", *_BUILTINS):
                paths_inside = self.paths(first, calls) if first and last == "vars" else ("",)
                return self._join(paths_inside, "__dict__")
            name = self.known_text(first)
            if not name:
                continue
            if last in IMPORTS:
                return (name.partition(".")[0] if last == "__import__" else name,)
            if path in RESOLVERS:
                return (name.replace(":", "."),)
            if last in _ITEM_GETTERS and owner:
                return self._items((owner,), name, is_any=False)
        return ()

    def _items(
        self, paths: tuple[str, ...], key: str, *, is_any: bool | None = None
    ) -> tuple[str, ...]:
        """What stands under a key of a namespace: `sys.modules`, `vars(os)`, `__builtins__`."""
        owners = [
            "" if path in _NAMESPACES else path.removesuffix(".__dict__")
            for path in paths
            if path in _NAMESPACES or path.endswith(".__dict__")
        ]
        if owners:
            return self._join(tuple(owners), key)
        return (key,) if (self._is_any_item if is_any is None else is_any) else ()

    def _join(self, paths: tuple[str, ...], name: str) -> tuple[str, ...]:
        if (held := name.lstrip("_")) in self._held_modules:
            return (held,)
        if name == "environb" and "os" in paths:
            name = "environ"
        return tuple(
            f"{UNKNOWN_PATH if len(path) > _MAX_PATH else path}.{name}" if path else name
            for path in paths
        )

    # --- texts

    def known_text(self, node: ast.expr | None) -> str | None:
        """The text of an expression if all of it is known."""
        text = self.text(node)
        return None if text is None or UNKNOWN in text else text

    def text(  # noqa: PLR0911  # a table of forms
        self, node: ast.expr | None, depth: int = 0
    ) -> str | None:
        """The text of an expression, unknown parts marked; None if it may be no text at all.

        Raises `ValueError` for code whose texts are made of too many pieces: names that stand for
        sums of names that stand for sums take exponential time.
        """
        self._text_steps += 1
        if self._text_steps > _MAX_TEXT_STEPS:
            raise ValueError("the texts of the code are made of too many pieces")
        if node is None or depth > _MAX_DEPTH:
            return None
        match node:
            case ast.Constant(value=str(text)):
                return text.replace(UNKNOWN_NAME, UNKNOWN)
            case ast.Constant(value=bytes(data)):
                return data.decode("utf-8", "replace").replace(UNKNOWN_NAME, UNKNOWN)
            case ast.Name(id=name):
                return self._value_text(name, depth + 1)
            case ast.JoinedStr(values=values):
                parts = [
                    each.value if isinstance(each, ast.FormattedValue) else each for each in values
                ]
                return concatenate([self.text(part, depth + 1) for part in parts])
            case ast.BinOp():
                return self._operator_text(node, depth + 1)
            case ast.Call():
                return self._call_text(node, depth + 1)
            case ast.Subscript(value=value, slice=ast.Slice(None, None, ast.UnaryOp())):
                reversed_text = self.text(value, depth + 1) if self._is_decoding else None
                return None if reversed_text is None else reversed_text[::-1]
            case ast.Subscript() | ast.Attribute():
                return _KNOWN_VALUES.get(self.path(node))
            case _:
                return None

    def _value_text(self, name: str, depth: int) -> str | None:
        if name not in self.values or name in self._followed:
            return None
        self._followed.add(name)  # `x = table[x]` stands for itself
        try:
            return self.text(self.values[name], depth)
        finally:
            self._followed.discard(name)

    def _operator_text(self, node: ast.BinOp, depth: int) -> str | None:
        left, right = self.text(node.left, depth), self.text(node.right, depth)
        if isinstance(node.op, ast.Add) and not (left is None and right is None):
            return concatenate([left, right])
        if isinstance(node.op, ast.Div) and not (left is None and right is None):
            return posixpath.join(left or UNKNOWN, right or UNKNOWN)
        if isinstance(node.op, ast.Mod) and left is not None:
            values = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            return convert_percent(left, [self.text(each, depth) for each in values])
        return None

    def _call_text(self, node: ast.Call, depth: int) -> str | None:
        name = self.path(node.func).rpartition(".")[2]
        texts = [self.text(each, depth) for each in node.args]
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name in _PATH_MAKERS:
            path = join_path(texts) if texts or owner is None else self.text(owner, depth)
            return expand_user(path) if name == "expanduser" else path
        if name == "format" and owner is not None:
            template = self.text(owner, depth)
            named = {each.arg: self.text(each.value, depth) for each in node.keywords if each.arg}
            return None if template is None else format_braces(template, texts, named)
        if (name == "home" and not texts) or (name in ("getenv", "get") and texts[:1] == ["HOME"]):
            return "~"
        if name == "join" and owner is not None:
            glue = self.text(owner, depth)
            if glue is None:
                return join_path(texts)
            words = self.list_of(node.args[0]) if node.args else None
            return None if words is None else concatenate(words, glue)
        if self._is_decoding and name == "chr" and owner is None and node.args:
            code = number(node.args[0])
            return chr(code) if code is not None and 0 <= code < 0x110000 else None
        return None

    def list_of(self, node: ast.expr, depth: int = 0) -> list[str | None] | None:
        """The elements of a list of texts; None if it may be any list."""
        if depth > _MAX_LIST_DEPTH:
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
        if isinstance(node, ast.Call) and self.path(node.func).rpartition(".")[2] == "split":
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            text = self.known_text(node.args[0] if node.args else owner)
            with suppress(ValueError):  # a quote is not closed
                return None if text is None else list(shlex.split(text))
        return None


def is_unknown(path: str) -> bool:
    """Whether a dotted name begins with an object that is not known."""
    return path.startswith(UNKNOWN_PATH)


def bare(path: str) -> str:
    """A built-in function without its module: `builtins.eval` is `eval`."""
    head, _, rest = path.partition(".")
    return rest if rest and head in _BUILTINS else path
