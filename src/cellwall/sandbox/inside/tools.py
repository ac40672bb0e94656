"""Tools of the host that code can call; the host checks each call.

Loaded only for code that was given tools. This module has the rights of the code it runs beside.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` takes longer to import than most code takes to run
if TYPE_CHECKING:
    from typing import Any


class ToolError(RuntimeError):
    """A call of a host tool was refused or failed."""


class Tools:
    """Functions that the host offers: `tools.name(...)`. The host checks each call.

    A call that is refused or fails raises `tools.ToolError`.
    """

    ToolError = ToolError

    def __init__(self, channel: Any, names: list[str]) -> None:
        import threading

        self._channel, self._names, self._count = channel, tuple(names), 0
        self._lock = threading.Lock()
        self._mark = os.urandom(8).hex()  # an answer to a hand-written call has another mark

    def __dir__(self) -> list[str]:
        return list(self._names)

    def __repr__(self) -> str:
        return f"tools: {', '.join(self._names)}"

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise AttributeError(f"the host offers no tool {name!r}; it offers: {self._names}")

        def call(*args: object, **kwargs: object) -> object:
            return self._call(name, args, kwargs)

        call.__name__ = name
        return call

    def _call(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        with self._lock:  # not while waiting: an unanswered call must not block others
            self._count += 1
            number = f"{self._mark}-{self._count}"
            message = {"call": number, "name": name, "args": list(args), "kwargs": kwargs}
            self._channel.write(message)
        frame = self._channel.wait("answer", number)
        if frame is None:
            raise ToolError("the host has closed the connection")
        answer = frame[0]
        if "error" in answer:
            raise ToolError(answer["error"])
        return answer.get("value")
