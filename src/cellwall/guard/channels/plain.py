"""Plain text: it is what it is. Tricks with characters are the normaliser's work."""

from __future__ import annotations

from cellwall.guard.channels.pieces import Extracted, Gathering
from cellwall.guard.channels.visible import visible


def read(text: str) -> Extracted:
    """One piece."""
    gathering = Gathering()
    gathering.add(text, "text", 0, len(text), is_hidden=False)
    return gathering.result()


def clean(text: str) -> str:
    """Without what nobody sees, and without what a terminal would take for an order."""
    return visible(text)
