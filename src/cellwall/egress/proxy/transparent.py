"""For programs that know no proxy (NET-7): the cell's DNS, and connections to what it answered."""

from __future__ import annotations

import contextlib
import socket
from functools import partial
from ipaddress import IPv4Address

from cellwall.core.errors import EgressRefused
from cellwall.egress.destinations.allowlist import Allowlist
from cellwall.egress.destinations.cell_dns import answer
from cellwall.egress.proxy.client_connection import Visit, tell_http
from cellwall.egress.proxy.session import Session
from cellwall.egress.proxy.tunnel import tunnel

_QUERIES_PER_TURN = 64
_QUERIES_PER_S = 200
_MAX_QUERY_BYTES = 4096
_HTTP_PORT = 80


async def serve_transparent(session: Session, visit: Visit) -> None:
    """The address that was connected to stands for one name of this session."""
    address, port = visit.wire.local_address
    visit.port = port
    if port == _HTTP_PORT:
        visit.tell = tell_http
    visit.check_welcome()
    name = session.names.name_of(IPv4Address(address))
    if name is None:
        raise EgressRefused(
            "nothing was looked up that has this address",
            hint="Connect to a host by its name.",
            code="CW-NO-ADDRESS",
        )
    visit.wants(name, port)
    target = await session.judge(name, port, via=visit.via)
    await tunnel(session, visit, target, accept=b"")


class NameServer:
    """DNS on one UDP socket of a cell. It asks nobody: a query leaves nothing but a record."""

    def __init__(self, session: Session, sock: socket.socket) -> None:
        self._session = session
        self._socket = sock
        self._loop = session.outside.loop
        self._second = 0
        self._asked = 0
        sock.setblocking(False)

    def open(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._on_query)

    async def close(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _on_query(self) -> None:
        for _ in range(_QUERIES_PER_TURN):
            try:
                query, sender = self._socket.recvfrom(_MAX_QUERY_BYTES)
            except OSError:
                return
            if self._is_too_often():
                continue  # a resolver asks again; a flood gets nothing
            self._answer(query, sender)

    def _is_too_often(self) -> bool:
        second = int(self._loop.time())
        if second != self._second:
            self._second, self._asked = second, 0
        self._asked += 1
        return self._asked > _QUERIES_PER_S

    def _answer(self, query: bytes, sender: tuple[str, int]) -> None:
        allowlist = self._session.allowlist
        found = answer(
            query,
            is_allowed=allowlist.knows,
            table=self._session.names,
            is_exact=partial(_is_exact, allowlist),
        )
        if found.refused is not None:
            refusal = EgressRefused(f"a name was not resolved: {found.refused}", code="CW-NO-NAME")
            self._session.refused(refusal, host=found.name, port=0, via="dns")
        if found.reply is not None:
            with contextlib.suppress(OSError):
                self._socket.sendto(found.reply, sender)


def _is_exact(allowlist: Allowlist, host: str) -> bool:
    return any(
        not rule.is_wildcard for port in allowlist.ports for rule in allowlist.reach(host, port)
    )
