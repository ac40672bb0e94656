"""Destinations that no rule names, each put to a person while its connection waits (NET-9).

  (1) never asked about: blocked addresses, names outside of the public DNS, names that look like
      data; nor names with a secret, which the session checks before
  (2) the question; no DNS query leaves this process before its answer
  (3) an approval holds for this host and port, and for the action under way. The approval broker
      knows which answers hold for the session: the next action gets those without a question
  (4) with the action end the connections that were opened by the approval, and the approval

After (3) the destination is one that a rule allows: it is resolved and checked as any other, so a
name that leads to a private address is refused after a yes as well (NET-3).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from weakref import WeakSet

from cellwall.core.errors import EgressRefused
from cellwall.core.network import DestinationConsent
from cellwall.egress.destinations.allowlist import AllowRule
from cellwall.egress.destinations.chosen_names import check_no_data
from cellwall.egress.destinations.hostnames import address_of
from cellwall.egress.proxy.audit_events import EgressAudit

ASKED_PORTS = frozenset({80, 443})
"""The ports on which programs without proxy support reach such a destination."""
_RULE_TEXT = "allowed by a person"
_MAX_ALLOWED = 1024
_LOCAL_SUFFIXES = (
    *(".localhost", ".localdomain", ".local", ".internal", ".lan", ".intranet", ".corp"),
    *(".home", ".private", ".home.arpa", ".svc"),
)
"""Names outside of the public DNS (RFC 6761, RFC 6762, RFC 8375, ICANN's `.internal`)."""


class UnknownDestination(EgressRefused):
    """No rule allows the destination."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"{host}:{port} is not on the allowlist",
            hint=f"To allow it, use `--allow-domain {host}:{port}`.",
            code="CW-NOT-ALLOWED",
        )
        self.host = host


class AskedDestinations:
    """The destinations that people have allowed in one session; used on the loop of egress."""

    def __init__(
        self,
        consent: DestinationConsent,
        audit: EgressAudit,
        *,
        check_address: Callable[[str], Awaitable[object]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`check_address` raises `EgressRefused` for an address that may not be dialled."""
        self._consent = consent
        self._audit = audit
        self._check_address = check_address
        self._allowed: dict[tuple[str, int], str] = {}
        """The action under which each was allowed."""
        self._held: dict[str, WeakSet[socket.socket]] = {}
        """The connections of these destinations, by action."""
        self._loop = loop

    def rules_for(self, host: str, port: int) -> tuple[AllowRule, ...]:
        """The rule that a person's answer has made; empty: there is none."""
        if self._allowed.get((host, port)) != self._audit.context.action_id:
            return ()
        return (AllowRule(host, False, frozenset({port}), frozenset(), "/", _RULE_TEXT),)

    async def ask(self, host: str, port: int, *, method: str) -> None:
        """Return once a person has allowed the destination; raises `EgressRefused` otherwise."""
        context = self._audit.context
        # (1)
        if address_of(host) is not None:
            await self._check_address(host)
        elif not may_be_asked(host):
            raise UnknownDestination(host, port)
        else:
            check_no_data(host)
        # (2)
        await self._consent.ask(
            context, host=host, port=port, method=method, withdraw=self.withdraw
        )
        # (3) No await since the answer: a later `withdraw` finds this entry.
        if len(self._allowed) >= _MAX_ALLOWED:
            self._allowed.clear()
        self._allowed[host, port] = context.action_id

    def require(self, host: str, port: int) -> None:
        """Raise unless the approval still holds: a client's connection can outlive the action."""
        if not self.rules_for(host, port):
            raise UnknownDestination(host, port)

    def hold(self, sock: socket.socket, host: str, port: int) -> None:
        """Note a connection that was dialled by the approval; closes it if the action has ended."""
        try:
            self.require(host, port)
        except UnknownDestination:
            sock.close()
            raise
        self._held.setdefault(self._audit.context.action_id, WeakSet()).add(sock)

    def withdraw(self, action_id: str) -> Future[None]:
        """The action has ended. Thread-safe."""
        return asyncio.run_coroutine_threadsafe(self._withdraw(action_id), self._loop)

    async def _withdraw(self, action_id: str) -> None:
        # (4)
        self._allowed = {place: by for place, by in self._allowed.items() if by != action_id}
        for sock in self._held.pop(action_id, ()):
            with suppress(OSError):  # closed already; the relay sees the end and closes the rest
                sock.shutdown(socket.SHUT_RDWR)


def may_be_asked(host: str) -> bool:
    """Whether a name can be one of the public DNS."""
    return "." in host and not host.endswith(_LOCAL_SUFFIXES)
