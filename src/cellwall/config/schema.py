"""JSON schema and reference of the settings, from the models that validate them (CFG-2)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_origin

from pydantic.fields import FieldInfo

from cellwall.config.fields import Section
from cellwall.config.load import profile_data
from cellwall.config.models import (
    DEFAULT_PROFILE,
    PROFILE_NAMES,
    SECTIONS,
    Settings,
    bounds,
    is_size,
)
from cellwall.core.limits import size_text

BEGIN = "<!-- reference: begin (made by cellwall.config.schema, do not edit) -->\n"
END = "<!-- reference: end -->\n"


def schema_text() -> str:
    """The JSON schema of the configuration file, for editors that know TOML."""
    schema = Settings.model_json_schema()
    _drop_titles(schema)
    for name in SECTIONS:
        del schema["properties"][name]["default"]  # each key tells its own
    named = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Cellwall configuration",
        **schema,
    }
    return json.dumps(named, indent=2, ensure_ascii=False) + "\n"


def _drop_titles(node: object) -> None:
    """Remove titles, which only repeat the name of the key."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        for child in node.values():
            _drop_titles(child)


def reference_markdown() -> str:
    """Every key with type, default, range and reason, and the differences of the profiles."""
    parts = [_section_markdown(name, model) for name, model in SECTIONS.items()]
    return "\n".join([_profile_key_markdown(), *parts, _profiles_markdown()])


def with_reference(document: str) -> str:
    """`document` with the text between the two marks regenerated."""
    head, begin, rest = document.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError("the document has no place for the reference")
    return f"{head}{BEGIN}\n{reference_markdown()}\n{END}{tail}"


def _profile_key_markdown() -> str:
    names = ", ".join(f"`{name}`" for name in PROFILE_NAMES)
    reason = Settings.model_fields["profile"].description
    return f"### `profile`\n\nOne of {names}; `{DEFAULT_PROFILE}` by default: {reason}.\n"


def _section_markdown(name: str, model: type[Section]) -> str:
    rows = [
        f"| `{key}` | {_kind(spec)} | {_shown(spec.default, spec)} | {_range(spec)} "
        f"| {spec.description} |\n"
        for key, spec in model.model_fields.items()
    ]
    head = "| key | type | default | range | why |\n|---|---|---|---|---|\n"
    return f"### `[{name}]`\n\n{model.__doc__}\n\n{head}{''.join(rows)}"


def _profiles_markdown() -> str:
    defaults = Settings()
    rows = [
        f"| `{section}.{key}` | "
        + " | ".join(_shown(getattr(getattr(each, section), key), spec) for each in _profiles())
        + " |\n"
        for section, model in SECTIONS.items()
        for key, spec in model.model_fields.items()
        if any(_differs(each, defaults, section, key) for each in _profiles())
    ]
    head = f"| key | {' | '.join(PROFILE_NAMES)} |\n|---|{'---|' * len(PROFILE_NAMES)}\n"
    intro = "What the profiles set differently; all other keys have the default above.\n"
    return f"### Profiles\n\n{intro}\n{head}{''.join(rows)}"


def _profiles() -> Iterator[Settings]:
    for name in PROFILE_NAMES:
        yield Settings.model_validate({"profile": name, **profile_data(name)})


def _differs(one: Settings, other: Settings, section: str, key: str) -> bool:
    return bool(getattr(getattr(one, section), key) != getattr(getattr(other, section), key))


def _kind(spec: FieldInfo) -> str:
    if is_size(spec):
        return "size"
    kinds: dict[Any, str] = {int: "whole number", float: "number", bool: "true or false"}
    kinds |= {str: "text", dict: "table of names"}
    return kinds.get(get_origin(spec.annotation) or spec.annotation, "list of texts")


def _shown(value: object, spec: FieldInfo) -> str:
    match value:
        case None:
            return "left out"
        case tuple():
            return f"`{json.dumps(list(value))}`"
        case int() if is_size(spec):
            return f'`"{size_text(value)}"`'
        case float():
            return f"`{value:.12g}`"
        case _:
            return f"`{json.dumps(value)}`"


def _range(spec: FieldInfo) -> str:
    limits = bounds(spec)
    if limits is not None:
        least, most = (size_text(int(end)) if is_size(spec) else f"{end:.12g}" for end in limits)
        return f"{least} to {most}"
    max_entries = [mark.max_length for mark in spec.metadata if hasattr(mark, "max_length")]
    return f"at most {max_entries[0]}" if max_entries else ""
