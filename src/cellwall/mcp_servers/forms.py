"""The forms of a server's questions, which a client shows to a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cellwall.core.text import INVISIBLE
from cellwall.mcp_servers.definitions import BadDefinition, canonical, texts_of

_MAX_FORM_BYTES, _MAX_FORM_FIELDS, _MAX_FORM_TEXT = 16 * 1024, 16, 500
_FIELD_TYPES = frozenset({"string", "number", "integer", "boolean", "array"})


def is_plain_form(schema: Mapping[str, Any]) -> bool:
    """Flat and small, as the protocol demands of forms, and the person sees each character of it:
    a client shows titles as they are, unlike the question itself."""
    fields = schema.get("properties")
    try:
        size = len(canonical(schema))
    except BadDefinition:
        return False
    return (
        size <= _MAX_FORM_BYTES
        and isinstance(fields, Mapping)
        and len(fields) <= _MAX_FORM_FIELDS
        and all(
            isinstance(each, Mapping) and each.get("type") in _FIELD_TYPES
            for each in fields.values()
        )
        and all(_is_label(text) for _, text in texts_of(schema))
    )


def _is_label(text: str) -> bool:
    """One short line without invisible characters, escapes and changes of direction."""
    is_seen = text.isprintable() and INVISIBLE.search(text) is None
    return is_seen and len(text) <= _MAX_FORM_TEXT
