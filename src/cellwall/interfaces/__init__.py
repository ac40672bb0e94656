"""Untrusted bytes in, Action; Outcome out, bytes. Nothing is decided here."""

from __future__ import annotations

REFUSED = 125  # CONTRACT: Cellwall refused, or failed itself
_ABOUT_HOOKS = frozenset({"install", "uninstall", "status", "--help", "-h"})


def is_hook(words: list[str]) -> bool:
    """Whether an agent calls the hook. A usage error then blocks the tool, as hosts expect it."""
    return words[:1] == ["hook"] and not _ABOUT_HOOKS.intersection(words[1:2])
