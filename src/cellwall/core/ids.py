"""Random ids, and the check of those that come from outside."""

from __future__ import annotations

import os
import re

from cellwall.core.errors import BadInput

_ID = re.compile(r"[a-z]{1,4}_[0-9a-hjkmnp-tv-z]{20,32}")
_ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford: no i, l, o, u to misread
_ID_OF_BYTE = bytes(ord(_ID_ALPHABET[byte & 31]) for byte in range(256))


_LISTS = {
    "act": "`cellwall audit tail` shows runs, `cellwall changes` those with changes",
    "ask": "`cellwall approvals list` shows questions",
    "evt": "`cellwall audit search` shows records",
    "prop": "`cellwall skills list` shows proposals",
    "sbx": "`cellwall ps` shows live sandboxes",
    "snp": "`cellwall snapshot list` shows snapshots",
    "tok": "`cellwall token list` shows tokens",
}


def _lists_of(text: str) -> str:
    """The command that shows ids of the kind that this text was meant for."""
    return _LISTS.get(
        text.partition("_")[0],
        "`cellwall ps`, `cellwall changes` and `cellwall audit tail` show ids",
    )


def new_id(prefix: str) -> str:
    """A random id of 130 bits; never used as a path before `check_id` (FS-6)."""
    return f"{prefix}_{os.urandom(26).translate(_ID_OF_BYTE).decode('ascii')}"


def check_id(text: object, *, what: str = "id") -> str:
    """The id if it is well formed; ids come from users and become file names."""
    if not isinstance(text, str) or _ID.fullmatch(text) is None:
        raise BadInput(
            f"{what} {str(text)[:40]!r} does not look like a Cellwall id",
            hint=f"Use the whole id as Cellwall printed it; {_lists_of(str(text))}.",
            code="CW-BAD-ID",
        )
    return text
