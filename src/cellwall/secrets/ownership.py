"""Names of secrets by their owner (RBAC-3).

The vault has one list of names. The secrets of a user of the service stand in it under a name that
begins with a digest of the user's name, so that no user can name, see or use those of another, or
those of the machine's own user.
"""

from __future__ import annotations

import hashlib
import re

from cellwall.core.types import REMOTE_INTERFACES, Principal

_DIGEST_CHARACTERS = 20
_PREFIX = re.compile(rf"\Au[0-9a-f]{{{_DIGEST_CHARACTERS}}}__")


def prefix_of(who: Principal) -> str:
    """The beginning of the names of this user's secrets; empty for the machine's own user."""
    if who.interface not in REMOTE_INTERFACES:
        return ""
    # By the id: a new account with the name of a removed one is somebody else.
    owner = who.name if who.account is None else who.account.user_id
    digest = hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()
    return f"u{digest[:_DIGEST_CHARACTERS]}__"


def stored_name(name: str, who: Principal) -> str:
    """The name in the vault of what this user calls so."""
    return prefix_of(who) + name


def shown_name(stored: str) -> str:
    """What its owner calls it."""
    return _PREFIX.sub("", stored, count=1)
