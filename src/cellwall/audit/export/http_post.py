"""One POST, with the standard library only.

`http.client` and `ssl` suffice, and do only what is asked: no redirect is followed (it could send
the token and the content to another host), no proxy is taken from the environment, no response is
decompressed. The exporter of evidence should need no dependency besides the interpreter.
"""

from __future__ import annotations

import email.utils
import errno
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from cellwall.audit.export.target import ExportAddress

_MAX_ANSWER_BYTES = 64 * 1024


class NotHttp(Exception):
    """The answer is not HTTP."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The status and the start of the body; `wait_s` is the time of Retry-After."""

    status: int
    body: bytes
    wait_s: float | None


def post(
    address: ExportAddress,
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    context: ssl.SSLContext | None,
) -> HttpAnswer:
    """Raises `OSError` for failures of the network, `NotHttp` for a server of another kind."""
    if context is not None:
        link: http.client.HTTPConnection = http.client.HTTPSConnection(
            address.host, address.port, timeout=timeout_s, context=context
        )
    else:
        link = http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)
    try:
        link.connect()
        with deadline(lambda: link.sock, timeout_s):
            link.request("POST", address.path, body, dict(headers))
            answer = link.getresponse()
            text = answer.read(_MAX_ANSWER_BYTES + 1)
            if answer.length and len(text) <= _MAX_ANSWER_BYTES:
                raise ConnectionResetError(errno.ECONNRESET, "the answer was cut off")
            return HttpAnswer(answer.status, text, _retry_after(answer.getheader("Retry-After")))
    except OSError:
        # Certificate errors are also ValueErrors, lost connections also HTTPExceptions.
        raise
    except (http.client.HTTPException, ValueError):
        raise NotHttp from None
    finally:
        link.close()


@contextmanager
def deadline(link: Callable[[], socket.socket | None], timeout_s: float) -> Iterator[None]:
    """Ends the exchange at the deadline; a receiver that sends a byte now and then would never
    hit the socket's own timeout. `link` is the socket at that moment."""
    is_over = threading.Event()

    def end() -> None:
        is_over.set()
        found = link()
        if found is None:
            return
        with suppress(OSError):
            # Shut down the plain socket: SSLSocket.shutdown would drop the TLS state under the
            # other thread.
            socket.socket.shutdown(found, socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError):
        if is_over.is_set():
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
        timer.join()
    if is_over.is_set():  # a truncated response may look complete
        raise TimeoutError


def _retry_after(text: str | None) -> float | None:
    """Seconds, or a date (RFC 9110, 10.2.3)."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())
