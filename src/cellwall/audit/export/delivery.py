"""What every way of sending keeps: a batch arrives whole, or `NotDelivered` says why not."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cellwall.audit.search import Found

_AWAY_MEND = "Check that the receiver runs and can be reached from here."

_BROKEN_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""Not about TLS: the connection below it has ended."""


class NotDelivered(Exception):
    """The receiver may have got some of the batch, but not surely all of it."""

    def __init__(self, message: str, *, hint: str, code: str, detail: str = "") -> None:
        super().__init__(message)
        self.message, self.hint, self.code, self.detail = message, hint, code, detail


@dataclass(frozen=True, slots=True)
class Receipt:
    """What is to be told about a batch that was delivered."""

    rejected: int = 0
    cut: int = 0
    notice: str = ""


class Sink(Protocol):
    """Takes batches, up to so many records and about so many bytes, in the order of the log."""

    max_records: int
    max_bytes: int

    def send(self, batch: Sequence[Found]) -> Receipt: ...

    def close(self) -> None: ...


def away(error: OSError) -> NotDelivered:
    """What an error of the network means to an operator; the address stays out (ERR-1)."""
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotDelivered(
            "the receiver's certificate could not be verified",
            hint="Check its name and validity, and give its authority as the CA file.",
            code="CW-EXPORT-TLS",
            detail=str(error.verify_message),
        )
    if isinstance(error, ssl.SSLError) and not isinstance(error, _BROKEN_OFF):
        return NotDelivered(
            "the receiver and we could not agree on TLS",
            hint="Check that it speaks TLS 1.2 or newer there, and whether it asks for a client "
            "certificate.",
            code="CW-EXPORT-TLS",
            detail=error.reason or name,
        )
    if isinstance(error, socket.gaierror):
        message = "the receiver's name is not known"
    elif isinstance(error, TimeoutError):
        message = "the receiver did not take the records in time"
    elif isinstance(error, ConnectionRefusedError | FileNotFoundError):
        message = "there is no receiver at the destination"
    elif isinstance(error, ConnectionError | ssl.SSLError):
        message = "the receiver broke the connection off"
    else:
        message = "the receiver cannot be reached"
    return NotDelivered(message, hint=_AWAY_MEND, code="CW-EXPORT-AWAY", detail=name)
