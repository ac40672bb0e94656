"""The definition of a server and its tools, bounded and canonical; equal digests mean equal text.

Everything that a server says about itself and its tools is pinned: names, descriptions, schemas,
annotations, and its own name, version and instructions. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cellwall.core.tool_servers import is_tool_name
from cellwall.core.types import Json

MAX_TOOLS = 256
MAX_DEFINITION_BYTES = 64 * 1024
MAX_SET_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_VALUES = 2000
"""In one definition: each takes a line of the review, and a person has to read them all."""
_MAX_SHOWN_NAME = 80


class BadDefinition(ValueError):
    """A definition that is out of bounds; the message is ours."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One definition and the digest of its canonical JSON."""

    fields: Mapping[str, Json]
    sha256: str

    @classmethod
    def of(cls, fields: Mapping[str, Json]) -> Definition:
        """Raises `BadDefinition` for one that is too large, too deep or no JSON."""
        _check_shape(fields)
        data = canonical(fields)
        if len(data) > MAX_DEFINITION_BYTES:
            raise BadDefinition(f"it has more than {MAX_DEFINITION_BYTES} bytes")
        return cls(fields, hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True)
class ToolSet:
    """All that a server says about itself."""

    identity: Definition
    tools: Mapping[str, Definition] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    """Names of tools that cannot be offered, shortened, and why."""

    @property
    def sha256(self) -> str:
        """The digest of the whole set."""
        tools: Json = {name: tool.sha256 for name, tool in self.tools.items()}
        whole: Json = {"identity": self.identity.sha256, "tools": tools}
        return hashlib.sha256(canonical(whole)).hexdigest()


def tool_set(identity: Mapping[str, Json], tools: Iterable[Mapping[str, Json]]) -> ToolSet:
    """Check what a server has listed; raises `BadDefinition` where the set as a whole is wrong."""
    kept: dict[str, Definition] = {}
    refused: dict[str, str] = {}
    room = MAX_SET_BYTES
    for number, fields in enumerate(tools):
        if number >= MAX_TOOLS:
            raise BadDefinition(f"the server has more than {MAX_TOOLS} tools")
        name = str(fields.get("name", ""))
        shown = ascii(name)[1:-1][:_MAX_SHOWN_NAME]
        if not is_tool_name(name):
            refused[shown] = "rules and models cannot spell this name"
        elif name in kept or name in refused:
            # Attack: two definitions under one name, of which a person reads only one.
            kept.pop(name, None)
            refused[name] = "two tools have this name"
        else:
            try:
                kept[name] = Definition.of(_with_schema(fields))
            except BadDefinition as problem:
                refused[name] = str(problem)
                continue
            room -= len(canonical(fields))
            if room < 0:
                raise BadDefinition(f"the tools have more than {MAX_SET_BYTES} bytes together")
    return ToolSet(Definition.of(identity), kept, refused)


def _with_schema(fields: Mapping[str, Json]) -> Mapping[str, Json]:
    """Some models refuse all tools of a request if the schema of one is not that of an object."""
    schema = fields.get("inputSchema")
    if (
        not isinstance(schema, Mapping)
        or schema.get("type") != "object"
        or not isinstance(schema.get("properties", {}), Mapping)
        or not isinstance(schema.get("required", []), list)
    ):
        raise BadDefinition("its input schema does not describe an object")
    return fields


def canonical(value: Json) -> bytes:
    """One text for each value (as RFC 8785, with ASCII escapes)."""
    try:
        text = json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
        )
    except (ValueError, TypeError, RecursionError):
        raise BadDefinition("it is not plain JSON") from None
    return text.encode("ascii")


def _check_shape(value: Json) -> None:
    level, count = [value], 0
    for _ in range(MAX_DEPTH):
        inner: list[Json] = []
        for item in level:
            if isinstance(item, Mapping):
                inner += item.values()
            elif isinstance(item, Sequence) and not isinstance(item, str):
                inner += item
        count += len(inner)
        if count > MAX_VALUES:
            raise BadDefinition(f"it has more than {MAX_VALUES} values")
        if not inner:
            return
        level = inner
    raise BadDefinition(f"it is nested more than {MAX_DEPTH} deep")


def texts_of(value: Json, where: str = "") -> Iterable[tuple[str, str]]:
    """Every text of a definition, keys included, with its place. The depth is bounded."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            place = f"{where}.{key}" if where else str(key)
            yield f"{place} (its name)", str(key)
            yield from texts_of(each, place)
    elif isinstance(value, Sequence):
        for number, each in enumerate(value):
            yield from texts_of(each, f"{where}[{number}]")
