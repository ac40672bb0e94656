"""The reference of the Python interface, from the code: every name of `cellwall.__all__`."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import cellwall
from cellwall.core.errors import CellwallError
from cellwall.interfaces.sdk import asynchronous, blocking

PARTS = {
    "sbx.commands": blocking.Commands,
    "sbx.files": blocking.Files,
    "sbx.files.watch()": blocking.Watch,
    "sbx.packages": blocking.Packages,
    "sbx.skills": blocking.Skills,
}
"""What a sandbox consists of; these classes have no public name."""

_ASYNC = {
    "AsyncSandbox": "`Sandbox`",
    "AsyncProcess": "`Process`",
}
_MAX_WIDTH = 100
_ELSEWHERE = re.compile(r"See `(Async\w+)\.(\w+)`")


def api_reference() -> str:
    """Functions, then classes with their parts, then results."""
    public = {name: getattr(cellwall, name) for name in cellwall.__all__}
    functions = [name for name, value in public.items() if inspect.isfunction(value)]
    errors = [
        name
        for name, value in public.items()
        if inspect.isclass(value) and issubclass(value, CellwallError)
    ]
    classes = [name for name in public if name not in {*functions, *errors, "Sandbox", *_ASYNC}]
    sections = ["## Functions", *(_function(name, public[name]) for name in functions)]
    sections += ["## Sandboxes", _class("Sandbox", public["Sandbox"], "### ")]
    sections += [
        _class(name, kind, "#### ").replace("AsyncProcess", "Process")
        for name, kind in PARTS.items()
    ]
    sections += [_async(name, public[name]) for name in _ASYNC]
    sections += ["## Other classes", *(_class(name, public[name], "### ") for name in classes)]
    listed = ", ".join(f"`{name}`" for name in errors)
    sections += [f"## Errors\n\n{listed}: see the [list of errors](errors.md)."]
    return "\n\n".join(sections)


def _function(name: str, function: Any) -> str:
    return f"### `{name}`\n\n{_described(name, function)}{_options(function)}"


def _class(name: str, kind: type, heading: str) -> str:
    parts = [f"{heading}`{name}`", _doc(kind)]
    if issubclass(kind, enum.Enum):
        parts += [", ".join(f"`{name}.{each.name}`" for each in kind)]
    elif dataclasses.is_dataclass(kind):
        parts += ["\n".join(_fields(kind))]
    elif kind.__module__ != blocking.__name__ and not _has_class_methods(kind):
        parts += [_code(_signature(name, kind.__init__))]
    parts += [_member(member, value) for member, value in _members(kind)]
    return "\n\n".join(part for part in parts if part)


def _has_class_methods(kind: type) -> bool:
    """Objects of such a class are made by these, not by the constructor."""
    return any(isinstance(value, classmethod) for value in vars(kind).values())


def _async(name: str, kind: type) -> str:
    return f"### `{name}`\n\n{_doc(kind)} Has the names of {_ASYNC[name]}; calls are awaited."


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of the class itself."""
    for name, value in vars(kind).items():
        is_method = inspect.isfunction(value) or isinstance(
            value, classmethod | staticmethod | property
        )
        if not name.startswith("_") and is_method:
            yield name, value


def _member(name: str, value: Any) -> str:
    if isinstance(value, property):
        returns = _annotation(inspect.signature(value.fget).return_annotation)
        return f"{_code(f'{name}: {returns}')}\n\n{_doc(value)}".rstrip()
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    return _described(name, function)


def _described(name: str, function: Any) -> str:
    return f"{_code(_signature(name, function))}\n\n{_doc(function)}".rstrip()


def _signature(name: str, function: Any) -> str:
    found = inspect.signature(function)
    words: list[str] = []
    for each in found.parameters.values():
        if each.name in {"self", "cls"}:
            continue
        is_first_keyword = each.kind is each.KEYWORD_ONLY and not any(
            word[0] == "*" for word in words
        )
        words += ["*"] if is_first_keyword else []
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        default = "" if each.default is each.empty else f" = {_value(each.default)}"
        words.append(f"{stars}{each.name}: {_annotation(each.annotation)}{default}")
    returns = _annotation(found.return_annotation).replace("_Creation", "Self")
    keyword = "async def" if inspect.iscoroutinefunction(function) else "def"
    if function.__name__ == "__init__":
        keyword, returns = "class", name
    line = f"{keyword} {name}({', '.join(words)}) -> {returns}"
    if len(line) > _MAX_WIDTH:
        line = (
            f"{keyword} {name}(\n" + "".join(f"    {word},\n" for word in words) + f") -> {returns}"
        )
    return line.removesuffix(f" -> {name}") if keyword == "class" else line


def _annotation(found: Any) -> str:
    if found is inspect.Signature.empty:
        return "Any"
    return found if isinstance(found, str) else inspect.formatannotation(found)


def _value(default: Any) -> str:
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    return default.__name__ if inspect.isfunction(default) else repr(default)


def _options(function: Any) -> str:
    """The keys of a TypedDict that a function takes as keyword arguments."""
    found = re.search(r"Unpack\[(\w+)\]", str(inspect.signature(function)))
    if found is None:
        return ""
    options = getattr(inspect.getmodule(inspect.unwrap(function)), found[1])
    keys = [
        f"`{key}: {_typed(kind)}`"
        for base in reversed(options.__mro__ if hasattr(options, "__mro__") else [options])
        for key, kind in getattr(base, "__annotations__", {}).items()
    ]
    return f"\n\nOptions: {', '.join(keys)}."


def _typed(kind: Any) -> str:
    return kind.__forward_arg__ if hasattr(kind, "__forward_arg__") else _annotation(kind)


def _fields(kind: type) -> Iterator[str]:
    described = _field_docs(kind)
    for each in dataclasses.fields(kind):
        if not each.name.startswith("_"):
            text = f": {described[each.name]}" if each.name in described else ""
            yield f"- `{each.name}: {_annotation(each.type)}`{text}"


def _field_docs(kind: type) -> dict[str, str]:
    """The strings that stand below fields."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    return {
        first.target.id: _flow(second.value.value)
        for first, second in pairwise(body)
        if isinstance(first, ast.AnnAssign)
        and isinstance(first.target, ast.Name)
        and isinstance(second, ast.Expr)
        and isinstance(second.value, ast.Constant)
        and isinstance(second.value.value, str)
    }


def _doc(of: Any) -> str:
    text = inspect.cleandoc(of.__doc__ or "")
    if elsewhere := _ELSEWHERE.search(text):
        text = inspect.cleandoc(getattr(getattr(asynchronous, elsewhere[1]), elsewhere[2]).__doc__)
    return "\n\n".join(
        _code(textwrap.dedent(part)) if part.startswith("    ") else _flow(part)
        for part in text.split("\n\n")
    )


def _flow(text: str) -> str:
    return " ".join(text.split())


def _code(text: str) -> str:
    return f"```python\n{text}\n```"
