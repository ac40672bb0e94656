"""Work in a thread that somebody may stop waiting for: it asks from time to time if it goes on.

The question travels with the context (`contextvars`), since it is the same for all that the work
calls; a thread that is started with a copy of the context asks it, too.
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
    """What is done in the block ends soon after this is true."""
    token = _IS_CANCELLED.set(is_cancelled)
    try:
        yield
    finally:
        _IS_CANCELLED.reset(token)


def check_cancelled() -> None:
    """Raises once nobody waits for this work any more."""
    if _IS_CANCELLED.get()():
        raise CellwallError("it was cancelled", hint="Start it again.", code="CW-CANCELLED")
