"""A connection to a mail server that is bounded in bytes and in time.

Until TLS has begun, anybody on the network can answer in the server's place. `smtplib` collects
the lines of a reply without a limit, and its timeout is for each read: such a peer could fill the
memory of the service, or hold a thread for days.
"""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from cellwall.audit.export.http_post import deadline

_MAX_REPLIES_BYTES = 64 * 1024
"""Of all replies of one connection."""


class _BoundedReplies:
    """The reading side of a connection, as `smtplib` uses it."""

    def __init__(self, lines: BinaryIO, link: BoundedSmtp) -> None:
        self._lines, self._link = lines, link

    def readline(self, size: int) -> bytes:
        line = self._lines.readline(size)
        self._link.left_bytes -= len(line)
        if self._link.left_bytes < 0:
            raise OSError("the replies are too long")  # which ends the connection
        return line

    def close(self) -> None:
        self._lines.close()


class BoundedSmtp(smtplib.SMTP):
    """Raises `SMTPServerDisconnected` where the replies exceed the bound."""

    left_bytes = _MAX_REPLIES_BYTES
    _host: str
    """In the certificate. Given to the constructor, it would connect before the deadline."""

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = _BoundedReplies(
                self.sock.makefile("rb"), self
            )  # the two methods that are used
        return super().getreply()


@contextmanager
def open_smtp(
    host: str, port: int, *, is_smtps: bool, context: ssl.SSLContext, timeout_s: float
) -> Iterator[BoundedSmtp]:
    """A connection with TLS; it ends at the latest after three times `timeout_s`."""
    link = _Smtps(context, timeout_s) if is_smtps else BoundedSmtp(timeout=timeout_s)
    link._host = host  # noqa: SLF001  # smtplib compares the certificate with it, and has no setter
    try:
        with deadline(lambda: link.sock, 3 * timeout_s):
            link.connect(host, port)
            if not is_smtps:
                link.starttls(context=context)  # raises where there is none: nothing in clear
            link.ehlo()
            yield link
            with suppress(smtplib.SMTPException):  # the message is accepted by now
                link.quit()
    finally:
        link.close()


class _Smtps(BoundedSmtp, smtplib.SMTP_SSL):
    def __init__(self, context: ssl.SSLContext, timeout_s: float) -> None:
        smtplib.SMTP_SSL.__init__(self, timeout=timeout_s, context=context)
