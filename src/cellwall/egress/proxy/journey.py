"""One connection out, as the record has it: `opened` before its first packet, `closed` after."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

from cellwall.core.errors import CellwallError
from cellwall.core.types import Json
from cellwall.egress.proxy.audit_events import Ledger


class Journey:
    """From the decision to its end."""

    def __init__(self, ledger: Ledger, facts: dict[str, Json]) -> None:
        """`facts` stand in both events."""
        self._ledger = ledger
        self._traveller = ledger.traveller
        self._facts = facts
        self._address = ""
        self._began_s = time.monotonic()
        self._has_ended = False
        self.request_count = 0

    @property
    def action_id(self) -> str:
        """The action that has it on record."""
        return self._traveller.action_id

    async def begin(
        self, addresses: Sequence[IPv4Address | IPv6Address], *, is_opened: bool
    ) -> None:
        """Durable when it returns; a failure refuses the connection (AUD-1)."""
        await self._ledger.write(
            {
                "event": "opened",
                **self._facts,
                "addresses": [str(address) for address in addresses],
                "tls_opened": is_opened,
            },
            self._traveller,
        )

    def reached(self, sock: socket.socket) -> None:
        """Which of the addresses it became."""
        with contextlib.suppress(OSError):
            self._address = sock.getpeername()[0]

    def ended(
        self, *, up_bytes: int = 0, down_bytes: int = 0, error: CellwallError | None = None
    ) -> None:
        """The first call counts."""
        if self._has_ended:
            return
        self._has_ended = True
        body: dict[str, Json] = {
            "event": "closed",
            **self._facts,
            "address": self._address,
            "bytes_up": up_bytes,
            "bytes_down": down_bytes,
            "duration_s": round(time.monotonic() - self._began_s, 6),
        }
        if self.request_count:
            body["requests"] = self.request_count
        if error is not None:
            body["code"] = error.code
            body["reason"] = error.message
        self._ledger.note(body, self._traveller)
