"""What systemd gives a service and wants to know: sockets, readiness, a sign of life.

Protocols: sd_listen_fds(3) and sd_notify(3). Both are a few lines, so no library is needed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from cellwall.core.errors import BadInput

_FIRST_DESCRIPTOR = 3
_MAX_SOCKETS = 16


def inherited_sockets(environ: MutableMapping[str, str]) -> list[socket.socket]:
    """The listening sockets that the service manager opened for this very process.

    The variables are removed: no child may take the descriptors for its own.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()):  # left over from a parent, or there is no activation
        return []
    if not (count.isascii() and count.isdigit() and 0 < int(count[:4]) <= _MAX_SOCKETS):
        raise _bad_socket("LISTEN_FDS is not a number of sockets")
    return [
        _listening(number) for number in range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(count))
    ]


def _listening(descriptor: int) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)
        found = socket.socket(fileno=descriptor)
    except OSError:
        raise _bad_socket(f"descriptor {descriptor} is no socket") from None
    is_stream = found.type == socket.SOCK_STREAM
    is_known = found.family in {socket.AF_INET, socket.AF_INET6, socket.AF_UNIX}
    if not (is_stream and is_known and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)):
        found.detach()
        raise _bad_socket(f"descriptor {descriptor} is no listening stream socket")
    return found


def _bad_socket(problem: str) -> BadInput:
    return BadInput(
        f"the service manager gave no usable socket: {problem}",
        hint="Use ListenStream= and Accept=no in the socket unit.",
        code="CW-SERVE-SOCKET",
    )


class ServiceManager:
    """Messages to systemd; without one they go nowhere."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        self._path = environ.pop("NOTIFY_SOCKET", "")
        usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        is_ours = usec.isascii() and usec.isdigit() and pid in {"", str(os.getpid())}
        self.ping_every_s: float | None = int(usec[:18]) / 2e6 if is_ours and int(usec) else None
        """Half of the time after which systemd kills a silent service."""

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")

    def stopping(self, *, within_s: float) -> None:
        """`within_s`: systemd waits so long before it kills the service."""
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}", "STATUS=draining")

    def ping(self) -> None:
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._path.startswith(("/", "@")):
            return
        # An abstract name begins with NUL, which the variable writes as @ (unix(7)).
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
                line.setblocking(False)  # a manager that does not read must not stop the service
                line.sendto("\n".join(lines).encode(), address)
        except OSError:
            return  # the manager ends the service if it misses the message
