"""A host answers each call once (SRV-6)."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from cellwall.fleet.ray_host import RayHost

pytestmark = pytest.mark.requirement("SRV-6")
SCOPE = {"type": "http", "path": "/", "headers": []}


class CountingHost:
    """A service that counts its requests."""

    def __init__(self) -> None:
        self.count = 0

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        self.count += 1
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def test_a_call_that_comes_twice_is_executed_once():
    async def go() -> None:
        host = RayHost("module:function", {})
        host._host = service = CountingHost()  # type: ignore[assignment]  # the part that is used
        for call in ("call_1", "call_2"):
            assert [part["is_last"] async for part in host.answer(call, SCOPE, b"")][-1]
        assert service.count == 2
        with pytest.raises(RuntimeError, match="twice"):
            _ = [part async for part in host.answer("call_1", SCOPE, b"")]
        assert service.count == 2

    anyio.run(go)
