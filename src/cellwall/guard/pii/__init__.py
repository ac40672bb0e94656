"""Finds personal data and replaces it by reversible tokens of a session (GRD-6).

Secrets (keys, tokens, passwords) are not searched for here; `guard.redact` removes them.
"""

from __future__ import annotations

from cellwall.guard.pii.finder import find
from cellwall.guard.pii.hit import REGIONS, UNREAD, PiiHit
from cellwall.guard.pii.pseudonyms import Pseudonyms

__all__ = ["REGIONS", "UNREAD", "PiiHit", "Pseudonyms", "find"]
