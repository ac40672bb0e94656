"""Requests that wait for a run, follow its events, show a terminal or carry a file.

Each holds a connection for as long as it likes, and connections are bounded for all users together
(`max_connections`): without a bound for each user, one of them could take every connection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from starlette.responses import StreamingResponse

from cellwall.core.errors import Busy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.types import Receive, Scope, Send

MAX_WAITING = 100
"""Of one user, at once."""


class WaitingRequests:
    """Those of one service, by user."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @contextmanager
    def counted(self, user_id: str) -> Iterator[None]:
        """Raises `Busy` beyond the bound. No await between check and count."""
        if self._counts[user_id] >= MAX_WAITING:
            raise Busy(
                f"{MAX_WAITING} requests of this user wait already",
                hint="Close some streams or terminals, or wait for transfers to end.",
                code="CW-TOO-MANY-WAITING",
            )
        self._counts[user_id] += 1
        try:
            yield
        finally:
            self._counts[user_id] -= 1
            if not self._counts[user_id]:
                del self._counts[user_id]


class CountedStream(StreamingResponse):
    """A stream that is counted until it ends, also where the client leaves before its begin."""

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        counted: ExitStack,
        *,
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(chunks, media_type=media_type, headers=headers)
        self._counted = counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counted:
            await super().__call__(scope, receive, send)
