"""The caller's signal handlers during a blocking call: what they raise ends the run first.

A Python handler runs between any two instructions of the main thread. If it raised there, a step of
the run would stay half done: a record of the audit log rolled back, a cell without an owner, a
`TimeoutError` taken for an error of the host. So the error is kept, the run is cancelled, and the
error reaches the caller after the cleanup.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType

from cellwall.core.fast_signals import Handler, get_handler, set_handler

_NUMBERS = tuple(sorted(int(each) for each in signal.valid_signals()))
_CALLBACKS = ("cellwall.interfaces.sdk.execution", "deliver")
"""The module and function that call the caller's `on_stdout` and `on_stderr`."""


class CallerSignals:
    """Keeps the first error of a handler between `hold` and `release`, and cancels the run for it.

    Only for the main thread, where Python runs all handlers.
    """

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._cancel: Callable[[], None] | None = None
        self._held_by = 0
        """The process id, which a child that a callback forks does not have; 0: none."""
        self._replaced: list[tuple[int, Handler, Handler]] = []

    def hold(self) -> None:
        """From now on no handler raises into the run.

        A handler may raise out of this method while it is not replaced yet; `release` follows.
        """
        # First: a handler that is replaced must find it, since a keeper that passes errors on could
        # raise between any two of the next steps.
        self._held_by = os.getpid()
        try:
            for number in _NUMBERS:
                handler = get_handler(number)
                if callable(handler):
                    keeper = self._keeper(handler)
                    self._replaced.append((number, handler, keeper))
                    set_handler(number, keeper)
        except ValueError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise  # of a handler
            self._replaced.clear()  # an embedded interpreter without signals

    def cancel_with(self, cancel: Callable[[], None]) -> None:
        """What ends the run; a handler may have raised already."""
        self._cancel = cancel
        if self._error is not None:
            cancel()

    def release(self) -> BaseException | None:
        """Set the caller's handlers again, except those that changed meanwhile; returns the first
        error of a handler."""
        try:
            self._cancel = None  # the last reference to the task: its end runs code of Python
            while self._replaced:
                try:
                    self._restore()
                except BaseException as raised:  # noqa: BLE001  # of a handler that is set again
                    self._error = raised if self._error is None else self._error
        finally:
            # A keeper that stays, because even this was interrupted, passes everything on.
            self._held_by = 0
        error, self._error = self._error, None
        return error

    def _restore(self) -> None:
        while self._replaced:
            number, handler, keeper = self._replaced[-1]
            if get_handler(number) is keeper:
                set_handler(number, handler)
            self._replaced.pop()

    def _keeper(self, handler: Callable[[int, FrameType | None], object]) -> Handler:
        def keep(number: int, frame: FrameType | None) -> None:
            try:
                handler(number, frame)
            except BaseException as error:
                if self._held_by != os.getpid() or self._may_raise(error, frame):
                    raise
                if self._error is None:
                    self._error = error
                    if self._cancel is not None:
                        self._cancel()

        return keep

    def _may_raise(self, error: BaseException, frame: FrameType | None) -> bool:
        if isinstance(error, Exception):
            # The callback may hang, and its errors end the run in order.
            return _is_in_callback(frame)
        # The second Ctrl-C does not wait for the cleanup.
        return self._error is not None


def _is_in_callback(frame: FrameType | None) -> bool:
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == _CALLBACKS:
            return True
        frame = frame.f_back
    return False
