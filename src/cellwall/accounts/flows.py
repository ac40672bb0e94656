"""Sign-ins that continue in another request: each has a secret, works once, and expires.

What must not be readable in the database meanwhile (the code verifier of PKCE, challenges) is
sealed, and bound to the secret.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from cellwall.accounts.authentication import hash_secret, new_secret
from cellwall.accounts.rates import Rates
from cellwall.accounts.signing_keys import Clock
from cellwall.core.account_ports import FlowsPort, KeySealer
from cellwall.core.accounts import PendingFlow
from cellwall.core.errors import KeyFailed

FLOW_PREFIX = "cwf_"
_LIVES_S = 600.0
_MAX_LIVE = 20_000
"""An unauthenticated client can begin a sign-in, so the table is bounded. The oldest go first: a
refusal would let a flood lock everybody out for as long as its sign-ins live."""


class PendingFlows:
    """The pending sign-ins of one service."""

    def __init__(self, store: FlowsPort, sealer: KeySealer, rates: Rates, clock: Clock) -> None:
        self._store, self._sealer, self._rates, self._clock = store, sealer, rates, clock

    async def begin(self, kind: str, data: Mapping[str, str], *, address: str) -> str:
        """Keep the data; returns the secret that takes it. Raises `LimitExceeded`."""
        await self._rates.count_sign_in(address)
        secret, now_s = new_secret(FLOW_PREFIX), self._clock()
        flow_hash = hash_secret(secret)
        flow = PendingFlow(
            flow_hash=flow_hash,
            kind=kind,
            sealed=self._sealer.seal(json.dumps(dict(data)).encode(), name=_name(kind, flow_hash)),
            expires_s=now_s + _LIVES_S,
        )
        await self._store.add_flow(flow, max_live=_MAX_LIVE, now_s=now_s)
        return secret

    async def take(self, kind: str, secret: str) -> dict[str, str] | None:
        """The data, once; None for a secret that is unknown, used, expired or of another kind."""
        flow_hash = hash_secret(secret[:256])
        sealed = await self._store.take_flow(flow_hash, kind=kind, now_s=self._clock())
        if sealed is None:
            return None
        try:
            opened = self._sealer.unseal(bytes(sealed), name=_name(kind, flow_hash))
        except KeyFailed:
            return None  # written by somebody without the key
        data: dict[str, str] = json.loads(opened)
        return data


def _name(kind: str, flow_hash: bytes) -> str:
    return f"{kind}:{flow_hash.hex()}"
