"""Requests to create a sandbox that a client repeats with one `Idempotency-Key`.

A client whose connection broke does not know whether the sandbox was made. The same request with
the same key gets the sandbox of the first one, while that sandbox lives.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from weakref import WeakValueDictionary

import anyio

from cellwall.core.errors import BadInput

HEADER = "Idempotency-Key"
MAX_KEYS = 4000
"""Of a service; the oldest are forgotten first."""
_KEY = re.compile(r"[a-z0-9-]{1,255}", re.ASCII)


class Creations:
    """The sandboxes that keys of users have made."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[str, str], tuple[bytes, str]] = OrderedDict()
        """The digest of the request, and the id of the sandbox."""
        self._locks: WeakValueDictionary[tuple[str, str], anyio.Lock] = WeakValueDictionary()

    def lock(self, user_id: str, key: str) -> anyio.Lock:
        """Held while a sandbox is made: a concurrent request with the key waits for it."""
        if _KEY.fullmatch(key) is None:
            raise BadInput(
                f"{HEADER} is not of the form that E2B defines",
                hint="Use 1 to 255 lowercase letters, digits and hyphens.",
            )
        return self._locks.setdefault((user_id, key), anyio.Lock())

    def find(self, user_id: str, key: str, body: bytes) -> str | None:
        """The id of the sandbox that this request has made before."""
        digest, sandbox_id = self._made.get((user_id, key), (b"", None))
        if sandbox_id is not None and digest != hashlib.sha256(body).digest():
            raise BadInput(
                f"this {HEADER} was used for another request",
                hint="Use a new key for each sandbox.",
                code="CW-KEY-REUSED",
            )
        return sandbox_id

    def add(self, user_id: str, key: str, body: bytes, sandbox_id: str) -> None:
        self._made[user_id, key] = hashlib.sha256(body).digest(), sandbox_id
        while len(self._made) > MAX_KEYS:
            self._made.popitem(last=False)
