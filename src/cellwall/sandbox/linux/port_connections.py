"""Connections from outside to servers in a live cell.

Init connects in the cell's network namespace and sends the socket out; no program inside takes
part, and code gets no egress by it. Init has made the socket, so no option of it was chosen by code
(SO_LINGER would block the process that closes the socket, ISO-13).
"""

from __future__ import annotations

import socket
from functools import partial
from typing import Literal

import anyio

from cellwall.core.errors import BadInput, Busy
from cellwall.core.outcomes import RunResult
from cellwall.core.port_connections import ConnectPort
from cellwall.sandbox.linux.live_cell import LiveCell
from cellwall.sandbox.linux.live_session import LiveSession

MAX_CONNECTIONS = 256
_CONNECT_WITHIN_S = 10.0
_FAMILIES: tuple[Literal[4, 6], ...] = (4, 6)


async def hold_connection(session: LiveSession, operation: ConnectPort) -> RunResult:
    """Connect, and return once `hold` has ended; the connection ends with the cell."""
    cell = session.cell
    if cell is None or not cell.is_alive():
        raise _no_server(operation.port)
    if session.connections >= MAX_CONNECTIONS:
        raise Busy(
            f"{MAX_CONNECTIONS} connections to this sandbox are open", hint="Close some of them."
        )
    session.connections += 1
    try:
        with await _connect(cell, operation.port) as connected:
            traffic = await operation.hold(connected)
    finally:
        session.connections -= 1
    return RunResult(exit_code=None, path=cell.parts.path, payload=traffic)


async def _connect(cell: LiveCell, port: int) -> socket.socket:
    for family in _FAMILIES:
        dial = partial(cell.dial, port, family=family)
        connected = socket.socket(fileno=await anyio.to_thread.run_sync(dial))
        try:
            with anyio.move_on_after(_CONNECT_WITHIN_S):
                await anyio.wait_writable(connected)
                if connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    return connected
        except BaseException:
            connected.close()
            raise
        connected.close()
    raise _no_server(port)


def _no_server(port: int) -> BadInput:
    return BadInput(
        f"nothing listens on port {port} of the sandbox",
        hint="Start the server in the background first, on 127.0.0.1 or 0.0.0.0.",
        code="CW-NO-SERVER",
    )
