"""Handlers of signals without the conversions of `signal`.

Python's wrappers look for a member of an enumeration for every handler. For a handler that is a
function there is none, and before Python 3.12 the error that says so contains the whole text of the
function's arguments: 0.1 ms for each call of the blocking SDK.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found, unused-ignore]  # the C part of `signal`, without stubs
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

Handler = Callable[[int, FrameType | None], Any] | int | None

get_handler = cast("Callable[[int], Handler]", _signal.getsignal)
set_handler = cast("Callable[[int, Handler], Handler]", _signal.signal)
IGNORED = int(signal.SIG_IGN)
BROKEN_PIPE = int(signal.SIGPIPE)
