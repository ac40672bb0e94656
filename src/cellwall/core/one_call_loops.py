"""Event loops that run one blocking call, and nothing beside it."""

from __future__ import annotations

import asyncio

HELD_UP_S = 0.004
"""Ctrl-C, and the end of a sandbox by another thread, wait for so long at most."""


class OneCallLoop(asyncio.SelectorEventLoop):
    """The caller waits for the one call, so a wait of `HELD_UP_S` may block the whole loop.

    A wait by the loop takes a future, a timer, two changes of its epoll set and a resumption of
    every coroutine on the way: more processor time than most of the steps of a short run.
    """


def may_hold_up() -> bool:
    """Whether the running loop is one of them; False for other kinds of loops, and for none."""
    try:
        return isinstance(asyncio.get_running_loop(), OneCallLoop)
    except RuntimeError:
        return False
