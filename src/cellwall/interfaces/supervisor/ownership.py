"""Who owns the cells of a state folder: the process that holds the supervisor's lock.

A service takes the lock for as long as it runs, so that the command line, hooks and the SDK become
its clients. An idle supervisor gives way; one with live sandboxes does not, since they would end.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

import cellwall
from cellwall.core.errors import Busy, CellwallError
from cellwall.interfaces.supervisor.client import connect, raise_for_error
from cellwall.interfaces.supervisor.server import lock_home, open_socket

_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.05


def ask_supervisor(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """The supervisor's answer; None if no supervisor runs, or it ends meanwhile."""
    link = connect(os.environ)
    if link is None:
        return None
    try:
        link.send({**message, "version": cellwall.__version__})
        answer = link.read()
    except (OSError, ValueError):
        return None
    finally:
        link.close()
    if answer is None:
        return None
    raise_for_error(answer[0])
    return answer[0]


def own_cells(home: str) -> tuple[socket.socket, int]:
    """The listening socket of the supervisor and its lock, for a service that starts here."""
    deadline = time.monotonic() + _WITHIN_S
    while True:
        lock = lock_home(home)
        if lock is not None:
            return open_socket(home), lock
        _ask_to_leave()
        if time.monotonic() > deadline:
            raise CellwallError(
                "another process holds the supervisor's lock of this state folder",
                hint="End it: `cellwall supervisor stop`, or the process that `fuser` shows for "
                "supervisor.lock in the state folder.",
                code="CW-SERVE-LOCKED",
            )
        time.sleep(_LOOK_EVERY_S)


def _ask_to_leave() -> None:
    status = ask_supervisor({"do": "status"})
    if status is None:
        return  # it starts or ends at this moment
    if status.get("service"):
        raise Busy(
            f"a service runs for this state folder already: process {status['pid']}",
            hint="Stop it first, or set CELLWALL_HOME to another folder.",
            code="CW-SERVE-RUNNING",
        )
    answer = {} if status["sandboxes"] else ask_supervisor({"do": "stop", "only_idle": True})
    if answer is not None and not answer.get("stopped"):
        count = len(status["sandboxes"])
        raise Busy(
            f"the supervisor in process {status['pid']} has work under way: {count} live sandboxes",
            hint="They would end. Wait, or end them: `cellwall ps`, `cellwall supervisor stop`.",
            code="CW-SERVE-SUPERVISOR",
        )
