"""Cooperative cancellation of work in a thread.

The predicate travels in a context variable, since all functions that the work calls share it; a
thread started with a copy of the context sees it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cellwall.core.errors import CellwallError


def _never() -> bool:
    return False


_IS_CANCELLED: ContextVar[Callable[[], bool]] = ContextVar("cancelled", default=_never)


@contextmanager
def cancelled_by(is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Work in the block ends soon after `is_cancelled` returns true."""
    token = _IS_CANCELLED.set(is_cancelled)
    try:
        yield
    finally:
        _IS_CANCELLED.reset(token)


def check_cancelled() -> None:
    """Raise if the work was cancelled."""
    if _IS_CANCELLED.get()():
        raise CellwallError(
            "the operation was cancelled", hint="Start it again.", code="CW-CANCELLED"
        )
