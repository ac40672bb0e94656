"""Chat messages as JSON: a walk over every string, and tables of the fields that people see.

Nothing here raises. Input that is not JSON is treated as text. Strings in fields that no table
lists are extracted as well, as hidden text, since no client shows them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from cellwall.guard.channels.markdown import note_address
from cellwall.guard.channels.pieces import Extracted, Gathering

Role = Literal["shown", "label", "unseen", "link", "image"]
"""`shown`: text with the channel's markup. `label`: text as it is. `unseen`: for programs.
`link`: an address that is opened by hand. `image`: one that is loaded without a question."""

_MAX_JSON = 4 << 20
"""Characters that are parsed; no service accepts a message of nearly that length."""
_MAX_NAME = 60
_MAX_PATH = 10 * _MAX_NAME
_MAX_INTEGER = 18
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def words(text: str) -> frozenset[str]:
    """A set of words, written as one string."""
    return frozenset(text.split())


class Text(NamedTuple):
    """A string of a message and its position, without the quotes."""

    value: str
    start: int
    end: int


class Pairs(list[tuple[str, Any]]):
    """A JSON object with all its keys, duplicates included."""


Fields = Mapping[str, Any]
"""A JSON object whose strings are `Text`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The structure of a channel's messages."""

    containers: frozenset[str]
    """Keys of nested messages or message-like parts; not part of the paths."""
    fields: Mapping[str, Role]
    """Paths within a message, without numbers. All others are `unseen`."""
    keys: frozenset[str]
    """Keys of ids, types and structure; their values form one piece."""
    markup: Callable[[Gathering, str, str, int, int], None]
    """Parses one text: gathering, text, where, start, end."""
    look: Callable[[Gathering, Fields, str], None] | None = None
    """Called for each object, for tricks that involve two of its fields."""


def read_message(text: str, spec: Spec) -> Extracted:
    """All strings of a message; if the input is no message, its text as the channel shows it."""
    gathering = Gathering()
    tree = _tree(text)
    if tree is None:
        spec.markup(gathering, text, "text", 0, len(text))
        if text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
            _escaped_strings(gathering, text)
        return gathering.result()
    _Walk(gathering, spec).over(tree)
    return gathering.result()


def _tree(text: str) -> Any:  # noqa: ANN401  # JSON
    if len(text) > _MAX_JSON or not text.lstrip("\ufeff \t\r\n").startswith(("{", "[")):
        return None
    try:
        tree = json.loads(
            text.removeprefix("\ufeff"),
            object_pairs_hook=Pairs,
            parse_int=lambda digits: int(digits) if len(digits) <= _MAX_INTEGER else 0,
            parse_float=lambda _: 0.0,
            strict=False,
        )
    except (ValueError, RecursionError):
        return None
    _place_strings(tree, text)
    return tree


def _place_strings(tree: Any, text: str) -> None:  # noqa: ANN401  # JSON
    """Put in place of each string the string and its place.

    The walk meets keys and strings in the order in which they are written, doubles included.
    """
    places = _STRING.finditer(text)
    open_nodes: list[tuple[Any, int]] = [(tree, 0)]
    while open_nodes:
        node, at = open_nodes.pop()
        while at < len(node):
            item = node[at]
            if isinstance(node, Pairs):
                next(places)
                key, value = item
            else:
                key, value = None, item
            if isinstance(value, str):
                found = next(places)
                placed = Text(value, found.start() + 1, found.end() - 1)
                node[at] = placed if key is None else (key, placed)
            at += 1
            if isinstance(value, list):
                open_nodes.append((node, at))
                open_nodes.append((value, 0))
                break


def _escaped_strings(gathering: Gathering, text: str) -> None:
    """Malformed or too deeply nested JSON: escapes are decoded anyway."""
    for found in _STRING.finditer(text):
        if "\\" in found[0] and not gathering.is_full:
            try:
                plain = json.loads(found[0], strict=False)
            except ValueError:
                continue
            gathering.add(plain, "string", *found.span(), is_hidden=True)


class _Walk:
    def __init__(self, gathering: Gathering, spec: Spec) -> None:
        self._gathering = gathering
        self._spec = spec
        self._known = {part for path in spec.fields for part in path.split(".")}
        self._known |= spec.keys | spec.containers

    def over(self, tree: Any) -> None:  # noqa: ANN401  # JSON
        todo: list[tuple[Any, str, str]] = [(tree, "", "")]
        while todo and not self._gathering.is_full:
            node, names, path = todo.pop()
            if isinstance(node, Text):
                self._string(node, names, path or "text")
            elif isinstance(node, Pairs):
                self._object(node, path)
                todo += (
                    (value, self._below(names, key), _step(path, key)) for key, value in node[::-1]
                )
            elif isinstance(node, list):
                is_long = len(path) > _MAX_PATH
                todo += (
                    (node[at], names, path if is_long else f"{path}[{at}]")
                    for at in range(len(node) - 1, -1, -1)
                )
        if todo:
            self._gathering.is_complete = False

    def _below(self, names: str, key: str) -> str:
        if not names and key in self._spec.containers:
            return ""
        return _step(names, key)

    def _object(self, node: Pairs, path: str) -> None:
        fields = dict(node)
        if len(fields) < len(node):
            places = [value for _, value in node if isinstance(value, Text)]
            start = places[0].start if places else 0
            self._gathering.note("json-twice", start, places[-1].end if places else 0)
        for key in fields:
            if key not in self._known:
                self._known.add(key)
                self._gathering.add(key, "names of keys", 0, 0, is_hidden=True)
        if self._spec.look is not None:
            self._spec.look(self._gathering, fields, path)

    def _string(self, node: Text, names: str, path: str) -> None:
        role = self._spec.fields.get(names, "unseen")
        value, start, end = node
        if names not in self._spec.fields and names.rpartition(".")[2] in self._spec.keys:
            path = "ids and types"
        match role:
            case "shown":
                self._spec.markup(self._gathering, value, path, start, end)
            case "label":
                self._gathering.add(value, path, start, end, is_hidden=False)
            case "unseen":
                self._gathering.add(value, path, start, end, is_hidden=True)
            case "link" | "image":
                self._gathering.add(value, path, start, end, is_hidden=True)
                is_automatic = role == "image"
                note_address(self._gathering, value, start, end, is_automatic=is_automatic)


def _step(path: str, key: str) -> str:
    key = key[:_MAX_NAME]
    # A deep tree has long paths, and each string has one.
    if len(path) > _MAX_PATH:
        return path
    return f"{path}.{key}" if path else key
