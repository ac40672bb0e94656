"""Events as they will be written down, before they have a place in the log."""

from __future__ import annotations

import os
from functools import lru_cache

from cellwall.audit.encoding import MAX_FIELD_BYTES, cut_text, encode_closely, encode_plainly, quote
from cellwall.audit.records import MAX_NAME_BYTES, Encoded
from cellwall.audit.redaction import without_secrets
from cellwall.core.events import Event
from cellwall.core.types import new_id

_IDS_AT_ONCE = 64
_ids: list[str] = []
# A child that went on with its parent's would give the same names to other events.
os.register_at_fork(after_in_child=_ids.clear)


class Draft:
    """A record that has no place in the log yet."""

    __slots__ = ("body", "encoded", "id", "kind")

    def __init__(self, event: Event, max_field_bytes: int = MAX_FIELD_BYTES) -> None:
        # On the path of every action, after a flush that has left nothing of this in the caches of
        # the processor: one look at everything, and not one at each part.
        action_id, interface = quote(event.action_id), quote(event.interface)
        principal, session_id = quote(event.principal), quote(event.session_id)
        names = action_id + interface + principal + session_id
        body = None
        if len(names) <= MAX_NAME_BYTES and "\\" not in names:
            body = encode_plainly(event.body, max_field_bytes, beside=names)
        if body is None:
            action_id, interface = _short(event.action_id), _short(event.interface)
            principal, session_id = _short(event.principal), _short(event.session_id)
            body = encode_closely(event.body, max_field_bytes)
        self.id, self.kind = name, kind = _new_id(), str.__str__(event.kind)
        self.body = body
        self.encoded: Encoded = (
            action_id,
            body,
            f'"{name}"',
            interface,
            f'"{kind}"',
            principal,
            session_id,
        )


def _new_id() -> str:
    """Many are made at once: one by one each would take as long as four of them."""
    try:
        return _ids.pop()
    except IndexError:
        _ids.extend([new_id("evt") for _ in range(_IDS_AT_ONCE)])
        return new_id("evt")


def _short(text: str) -> str:
    """A name, quoted."""
    if len(text) <= MAX_NAME_BYTES:
        return quote(_clean(text))
    return quote(cut_text(text, max_bytes=MAX_NAME_BYTES))


@lru_cache(maxsize=1024)
def _clean(text: str) -> str:
    """The same few names come again and again."""
    return without_secrets(text) if text.isascii() else cut_text(text, max_bytes=MAX_NAME_BYTES)
