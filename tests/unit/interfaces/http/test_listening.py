"""The sockets of the service."""

from __future__ import annotations

import asyncio
import socket

import pytest

from cellwall.config.models import Settings
from cellwall.interfaces.http.listening import open_listening


def is_sent_at_once(listener: socket.socket) -> bool:
    """Whether a connection that asyncio accepts sends small pieces without waiting (TCP_NODELAY)."""

    async def accept() -> bool:
        seen: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            line = writer.get_extra_info("socket")
            seen.set_result(bool(line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
            writer.close()

        async with await asyncio.start_server(note, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            found = await seen
            writer.close()
            return found

    return asyncio.run(accept())


@pytest.mark.parametrize("is_inherited", [False, True])
def test_no_answer_waits_for_an_acknowledgement_of_its_headers(is_inherited: bool) -> None:
    inherited = [socket.create_server(("127.0.0.1", 0))] if is_inherited else []
    port = None if is_inherited else 0
    found = open_listening(Settings(), host=None, port=port, inherited=inherited)
    assert is_sent_at_once(found.sockets[0])
    assert not is_sent_at_once(socket.create_server(("127.0.0.1", 0)))  # the control
