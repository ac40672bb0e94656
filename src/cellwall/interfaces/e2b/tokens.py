"""Tokens that open one sandbox each."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from cellwall.admin.accounts import Identity

MAX_GRANTS = 10_000


@dataclass(frozen=True, slots=True)
class IssuedTokens:
    """The tokens of one sandbox. With the second, the SDK manages code contexts; it
    opens nothing else."""

    envd: str
    traffic: str


@dataclass(slots=True)
class SandboxGrant:
    """What a token of a sandbox allows, and to whom."""

    sandbox_id: str
    """As clients know the sandbox: the token counts again once a paused sandbox is resumed."""
    identity: Identity
    is_traffic: bool
    revision: int
    """Of the accounts, when the identity was looked up."""


class SandboxTokens:
    """The tokens of sandboxes; they end with the process, as the sandboxes do.

    A token outlives its sandbox for a while: its holder learns that the sandbox has ended, and a
    wrong token gets the same answer for every sandbox.
    """

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], IssuedTokens] = {}
        self._grants: dict[bytes, SandboxGrant] = {}

    def issue(self, identity: Identity, sandbox_id: str, *, revision: int) -> IssuedTokens:
        """The same pair for the same API key and sandbox. The `revision` of the accounts was read
        before the API key was judged, so that no later change is missed."""
        place = (sandbox_id, identity.credential)
        pair = self._pairs.get(place)
        if pair is None:
            pair = IssuedTokens(f"cws_{secrets.token_hex(32)}", f"cwt_{secrets.token_hex(32)}")
            self._pairs[place] = pair
            for token, is_traffic in ((pair.envd, False), (pair.traffic, True)):
                self._grants[_digest(token)] = SandboxGrant(
                    sandbox_id, identity, is_traffic, revision
                )
        return pair

    def find(self, token: str) -> SandboxGrant | None:
        """By digest: the time of a comparison tells nothing about a token."""
        return self._grants.get(_digest(token))

    @property
    def has_many(self) -> bool:
        """Whether it is time to forget the tokens of ended sandboxes."""
        return len(self._grants) > MAX_GRANTS

    def forget_ended(self, live: frozenset[str]) -> None:
        """Forget tokens of ended sandboxes, once there are many."""
        if not self.has_many:
            return
        self._pairs = {place: pair for place, pair in self._pairs.items() if place[0] in live}
        self._grants = {
            digest: grant for digest, grant in self._grants.items() if grant.sandbox_id in live
        }


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
