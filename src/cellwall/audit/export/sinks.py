"""Sinks of an export: a batch arrives completely, or `NotDelivered` says why not.

This module holds the interface, the sinks for files and standard output, and what the network sinks
share.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import ssl
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from cellwall.audit.export.encodings import encoder_for
from cellwall.audit.export.target import ExportTarget, TlsSettings, Transport, target_error
from cellwall.audit.files import DIRECTORY, closing_fd
from cellwall.audit.search import FoundRecord

_NETWORK_HINT = "Check that the receiver runs and can be reached from here."

_BROKEN_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""Not TLS errors: the connection below TLS has ended."""


class NotDelivered(Exception):
    """The receiver may have got part of the batch, but not certainly all of it."""

    def __init__(self, message: str, *, hint: str, code: str, detail: str = "") -> None:
        super().__init__(message)
        self.message, self.hint, self.code, self.detail = message, hint, code, detail


@dataclass(frozen=True, slots=True)
class Receipt:
    """What to report about a delivered batch."""

    rejected: int = 0
    cut: int = 0
    notice: str = ""


class ExportSink(Protocol):
    """Takes batches in log order, bounded in records and approximately in bytes."""

    max_records: int
    max_bytes: int

    def send(self, batch: Sequence[FoundRecord]) -> Receipt: ...

    def close(self) -> None: ...


def network_failure(error: OSError) -> NotDelivered:
    """Map a network error to a message for the operator; the address is left out (ERR-1)."""
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
            "TLS negotiation with the receiver failed",
            hint="Check that the receiver supports TLS 1.2 or newer, and whether it needs a client "
            "certificate.",
            code="CW-EXPORT-TLS",
            detail=error.reason or name,
        )
    if isinstance(error, socket.gaierror):
        message = "the receiver's name does not resolve"
    elif isinstance(error, TimeoutError):
        message = "the receiver did not accept the records in time"
    elif isinstance(error, ConnectionRefusedError | FileNotFoundError):
        message = "there is no receiver at the destination"
    elif isinstance(error, ConnectionError | ssl.SSLError):
        message = "the receiver closed the connection"
    else:
        message = "the receiver cannot be reached"
    return NotDelivered(message, hint=_NETWORK_HINT, code="CW-EXPORT-AWAY", detail=name)


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """TLS 1.2 or newer; name, validity and authority are verified (RFC 5425, 5.2)."""
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except OSError:  # includes ssl.SSLError
        raise target_error("the CA file cannot be used", "Give a readable file of PEM.") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.client_cert_file is not None:
        try:
            # An empty password: otherwise OpenSSL would prompt on the terminal, and cron has none.
            context.load_cert_chain(
                settings.client_cert_file, settings.client_key_file, password=b""
            )
        except (OSError, ValueError):
            raise target_error(
                "the client certificate cannot be used",
                "Give readable files of PEM that belong together, the key not encrypted.",
            ) from None
    if settings.dangerously_accept_any_certificate:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


_MAX_BYTES = 4 * 1024 * 1024
_STDOUT = 1


class StdoutSink:
    """For pipes. A closed reader raises `BrokenPipeError`, as usual."""

    max_bytes = _MAX_BYTES

    def __init__(self, target: ExportTarget) -> None:
        self._encoder = encoder_for(target)
        self.max_records = self._encoder.max_records
        self._write(self._encoder.head)

    def send(self, batch: Sequence[FoundRecord]) -> Receipt:
        self._write(self._encoder.encode(batch))
        return Receipt()

    def close(self) -> None:
        """Standard output stays open."""

    def _write(self, data: bytes) -> None:
        try:
            _write_all(_STDOUT, data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _write_failure(error) from None


class FileSink:
    """A new file of mode 0600, or the end of an existing one; locked, so that two exports do not
    mix."""

    max_bytes = _MAX_BYTES

    def __init__(self, target: ExportTarget) -> None:
        self._encoder = encoder_for(target)
        self.max_records = self._encoder.max_records
        try:
            self._file = _open(target.address.path, append=target.append)
        except FileExistsError:
            raise target_error(
                "the destination file exists already",
                "Give another name, or append to it (--append).",
            ) from None
        except OSError as error:
            raise _write_failure(error) from None
        try:
            self._end = self._check()
            if self._end == 0:
                self.append(self._encoder.head)
        except BaseException:
            self.close()
            raise

    def send(self, batch: Sequence[FoundRecord]) -> Receipt:
        self.append(self._encoder.encode(batch))
        return Receipt()

    def close(self) -> None:
        os.close(self._file)

    def _check(self) -> int:
        """Check and lock the file; returns its size."""
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode):
            raise target_error("the destination is not a plain file", "Give a file, or `-`.")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise target_error(
                "another export writes to this file", "Wait until it has ended."
            ) from None
        if status.st_size and os.pread(self._file, 1, status.st_size - 1) != b"\n":
            raise target_error(
                "the file at the destination ends in the middle of a line",
                "Give another file; that one was not written by an export, or was cut.",
            )
        return status.st_size

    def append(self, data: bytes) -> None:
        """Write whole lines durably, or none of them."""
        try:
            _write_all(self._file, data)
            os.fdatasync(self._file)
        except OSError as error:
            # Half a record would be an invalid line, and appended data would join it.
            with suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise _write_failure(error) from None
        self._end += len(data)


def open_file_sink(target: ExportTarget) -> StdoutSink | FileSink:
    """The sink for file destinations."""
    return StdoutSink(target) if target.address.transport is Transport.STDOUT else FileSink(target)


def _open(path: str, *, append: bool) -> int:
    # No link is followed, no existing file is overwritten, and a FIFO does not block.
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(path, flags if append else flags | os.O_EXCL, 0o600)
    try:
        with closing_fd(os.open(os.path.dirname(path) or ".", DIRECTORY)) as folder:
            os.fsync(folder)  # otherwise a crash could lose the file but keep the bookmark
    except OSError:
        os.close(file)
        raise
    return file


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(file, view) :]
        except BlockingIOError:  # standard output may be non-blocking
            select.select([], [file], [])


def _write_failure(error: OSError) -> NotDelivered:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return NotDelivered(
        "the export cannot be written",
        hint="Free some disk space."
        if is_full
        else "Check that the folder is there, that it is writable, and that the name is no link.",
        code="CW-EXPORT-FILE",
        detail=errno.errorcode.get(error.errno or 0, "unknown"),
    )
