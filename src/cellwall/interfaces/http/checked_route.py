"""Routes that look at a large body before it is parsed.

FastAPI parses a body before it asks who calls, and JSON is parsed on the event loop: a few million
values in one request would stop the service for everybody while they are parsed. So a large body is
read only for a caller who is known, and is parsed only with a bounded number of values; one long
text is cheap.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from cellwall.core.errors import BadInput
from cellwall.interfaces.http.callers import CallerByToken, current_caller
from cellwall.interfaces.http.gate import MAX_UNKNOWN_BYTES
from cellwall.interfaces.http.service import service_of

MAX_VALUES = 100_000
# Texts, also one without an end, and what precedes a value. Possessive: linear for every input.
_TOKENS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{,]', re.DOTALL)


class CheckedRoute(APIRoute):
    """A route whose body, where it is a large one, is checked before it is parsed."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler
        has_caller = any(
            isinstance(each.call, CallerByToken) for each in self.dependant.dependencies
        )

        async def handle(request: Request) -> Response:
            length = request.headers.get("content-length")
            if length is None or int(length) > MAX_UNKNOWN_BYTES:
                if has_caller and length != "0":
                    caller = await current_caller(request)
                    # Attack: bodies that come slowly take all connections.
                    with service_of(request).waiting.counted(caller.id):
                        await request.body()
                check_json(await request.body())
            return await handler(request)

        return handle


def check_json(body: bytes) -> None:
    """Raise `BadInput` for a text with too many values, or one that is not UTF-8 (RFC 8259)."""
    if b"\0" in body:  # as in UTF-16, which the standard library would parse
        raise BadInput("a JSON text contains no NUL", hint="Send UTF-8.")
    if next(itertools.islice(_TOKENS.finditer(body), MAX_VALUES, None), None) is not None:
        raise BadInput(
            f"a JSON text has at most {MAX_VALUES} values", hint="Send less at once.",
            code="CW-TOO-LARGE",
        )  # fmt: skip
