"""Personal data: where it stands in a text, and tokens that stand for it in a session (GRD-6).

Secrets (keys, tokens, passwords) are not looked for here; taking those out is `redact`'s work.
"""

from __future__ import annotations

from cellwall.guard.pii.finder import find
from cellwall.guard.pii.hit import REGIONS, UNREAD, PiiHit
from cellwall.guard.pii.pseudonyms import Pseudonyms

__all__ = ["REGIONS", "UNREAD", "PiiHit", "Pseudonyms", "find"]
