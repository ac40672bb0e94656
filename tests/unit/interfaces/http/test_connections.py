"""Connections over a real socket: how long a body may take."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from cellwall.interfaces.http import connections
from cellwall.interfaces.http.connections import MIN_PROGRESS_BYTES, bounded_protocol

PIECES = 64


async def read_all(scope: Scope, receive: Receive, send: Send) -> None:
    while scope["type"] == "http" and (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@contextmanager
def serving(*, timeout_s: float) -> Iterator[int]:
    protocol = bounded_protocol(timeout_s=timeout_s)
    config = uvicorn.Config(read_all, http=protocol, lifespan="off", log_level="critical")  # type: ignore[arg-type]  # as in `ServiceProcess`
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(60)
    assert not thread.is_alive()


def upload(port: int, *, without_end: bool) -> bytes:
    """The answer; raises `OSError` for a connection that was closed."""
    size = 1 << 40 if without_end else PIECES * MIN_PROGRESS_BYTES
    with socket.create_connection(("127.0.0.1", port), timeout=60) as line:
        line.sendall(f"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
        while size > 0:
            line.sendall(b"x" * MIN_PROGRESS_BYTES)
            size -= MIN_PROGRESS_BYTES
        return line.recv(1000)


@pytest.mark.slow
@pytest.mark.requirement("SRV-1")
def test_a_body_that_always_makes_progress_still_has_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(timeout_s=60) as port:  # the control
        assert upload(port, without_end=False).startswith(b"HTTP/1.1 204 ")
    # As if twenty times the time of a request had passed, at a rate below the bound.
    monkeypatch.setattr(connections, "_GRACE", 0)
    monkeypatch.setattr(connections, "MIN_BYTES_PER_S", 1 << 40)
    with serving(timeout_s=0.3) as port, pytest.raises(OSError):  # reset or broken pipe
        upload(port, without_end=True)
