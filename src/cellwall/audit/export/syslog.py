"""Syslog (RFC 5424) over UDP (RFC 5426), TCP (RFC 6587), TLS (RFC 5425) and unix sockets.

    <108>1 2026-01-31T12:00:00.000000Z host cellwall - denial [cellwall@32473 seq="7" ...] {...}

PRI is the facility (13, log audit) and a severity; MSGID is the kind of the event; MSG is the line
of the record as stored, so that it can still be verified. The line is ASCII and has no byte order
mark: only a MSG with other UTF-8 must have one (6.4), and JSON parsers reject it. Cellwall has no
enterprise number: 32473 is reserved for such cases (RFC 5612).

Only the standard library: the exporter of evidence should need no dependency besides the
interpreter.

Syslog has no acknowledgements. On streams, each batch therefore uses its own connection and an
orderly shutdown: the receiver's own close shows that it has read to the end. If the receiver closes
earlier, data was lost and the batch counts as not delivered. Lost datagrams go unnoticed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import re
import socket
import ssl
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from cellwall.audit.export.encodings import RecordFields, escape_unprintable
from cellwall.audit.export.sinks import Receipt, client_context, network_failure
from cellwall.audit.export.target import (
    MIN_MESSAGE_BYTES,
    ExportTarget,
    Framing,
    Transport,
)
from cellwall.audit.search import FoundRecord

SD_ID = "cellwall@32473"
_APP_NAME = "cellwall"
_BOM = b"\xef\xbb\xbf"
_MAX_VALUE_CHARACTERS = 256
_TO_ESCAPE = re.compile(r'(["\\\]])')
_NAMES = {
    "id": "id",
    "action_id": "actionId",
    "session_id": "sessionId",
    "principal": "principal",
    "interface": "interface",
    "verdict": "verdict",
    "status": "status",
}


def encode_message(
    found: FoundRecord, *, facility: int, hostname: str, max_bytes: int | None = None
) -> tuple[bytes, bool]:
    """The message, and whether it was truncated.

    A truncated message says so in its structured data, with length and SHA-256 of the whole line:
    one long record must not block all later ones, and its start must not be taken for the whole.
    """
    facts = RecordFields.of(found)
    line = found.line if found.line.isascii() else _BOM + found.line
    head = (
        f"<{facility * 8 + facts.severity.syslog}>1 {facts.time} {hostname} {_APP_NAME} - "
        f"{facts.kind} [{SD_ID} {_data(facts)}"
    )
    whole = f"{head}] ".encode() + line
    if max_bytes is None or len(whole) <= max_bytes:
        return whole, False
    digest = hashlib.sha256(found.line).hexdigest()
    start = f'{head} cut="{len(found.line)}" sha256="{digest}"] '.encode()
    if len(start) > max_bytes:  # all names at maximum length; number and id suffice
        head = head[: head.index("[")] + f'[{SD_ID} seq="{facts.seq}" id="{facts.id}"'
        start = f'{head} cut="{len(found.line)}" sha256="{digest}"] '.encode()
    return start + line[: max_bytes - len(start)], True


def _data(facts: RecordFields) -> str:
    values = {"seq": str(facts.seq)}
    values |= {name: getattr(facts, field) for field, name in _NAMES.items()}
    return " ".join(f'{name}="{_value(text)}"' for name, text in values.items() if text)


def _value(text: str) -> str:
    """Without control characters (6.3.3 lets receivers alter them), and with the three escapes."""
    return _TO_ESCAPE.sub(r"\\\1", escape_unprintable(text)[:_MAX_VALUE_CHARACTERS])


_MAX_RECORDS = 10_000
_MAX_BYTES = 8 * 1024 * 1024
_UDP_BYTES = 65_507
_SMALLER = (_UDP_BYTES, 8192, 2048, MIN_MESSAGE_BYTES)
"""Tried in turn where the system refuses a datagram of this size."""
_CLOSE_TIMEOUT_S = 2.0
_POLL_INTERVAL_S = 0.005
MessageSource = Callable[[int | None], tuple[bytes, bool]]
"""The message in at most so many bytes, and whether it was truncated."""
UNCONFIRMED = "the receiver accepted the records but did not confirm that it has read them"


class SyslogSink:
    """The sink of one target."""

    max_records = _MAX_RECORDS
    max_bytes = _MAX_BYTES

    def __init__(self, target: ExportTarget) -> None:
        self._target = target
        self._context = (
            client_context(target.tls) if target.address.transport is Transport.TLS else None
        )

    def send(self, batch: Sequence[FoundRecord]) -> Receipt:
        return self._send([partial(self._message, found) for found in batch])

    def send_message(self, message: bytes) -> Receipt:
        """Send a message that is no record; a datagram may cut its end."""
        return self._send([partial(_cut, message)])

    def _send(self, messages: Sequence[MessageSource]) -> Receipt:
        try:
            with self._connect() as link:
                is_stream = link.type == socket.SOCK_STREAM
                cut = sum(
                    self._send_on_stream(link, message)
                    if is_stream
                    else self._send_datagram(link, message)
                    for message in messages
                )
                notice = self._finish_stream(link) if is_stream else _raise_socket_error(link)
        except OSError as error:
            raise network_failure(error) from None
        return Receipt(cut=cut, notice=notice)

    def close(self) -> None:
        """No connection stays open between batches."""

    def _connect(self) -> socket.socket:
        address, timeout_s = self._target.address, self._target.timeout_s
        if address.transport is Transport.UNIX:
            return _connect_unix(address.path, timeout_s)
        if address.transport is Transport.UDP:
            return _connect_udp(address.host, address.port, timeout_s)
        link = socket.create_connection((address.host, address.port), timeout_s)
        if self._context is None:
            return link
        try:
            return self._context.wrap_socket(link, server_hostname=address.host)
        except BaseException:
            link.close()
            raise

    def _message(self, found: FoundRecord, max_bytes: int | None) -> tuple[bytes, bool]:
        target = self._target
        limits = [each for each in (max_bytes, target.max_message_bytes) if each is not None]
        return encode_message(
            found,
            facility=target.facility,
            hostname=target.hostname,
            max_bytes=min(limits, default=None),
        )

    def _send_on_stream(self, link: socket.socket, message: MessageSource) -> bool:
        data, is_cut = message(None)
        if self._target.framing is Framing.OCTET_COUNTING:
            link.sendall(b"%d %b" % (len(data), data))
        else:  # neither header nor line can contain a newline
            link.sendall(data + b"\n")
        return is_cut

    def _send_datagram(self, link: socket.socket, message: MessageSource) -> bool:
        data, is_cut = message(_UDP_BYTES if link.family != socket.AF_UNIX else None)
        for max_bytes in (*_SMALLER, None):
            try:
                link.send(data)
                break
            except OSError as error:
                if error.errno != errno.EMSGSIZE or max_bytes is None:
                    raise
            data, is_cut = message(max_bytes)
        return is_cut

    def _finish_stream(self, link: socket.socket) -> str:
        """Wait until the receiver has read to the end; returns a notice if it never confirms."""
        link.settimeout(0)
        with suppress(BlockingIOError, ssl.SSLWantReadError):
            if link.recv(4096) == b"":
                raise ConnectionResetError(errno.ECONNRESET, "closed before the end was sent")
        deadline = time.monotonic() + min(_CLOSE_TIMEOUT_S, self._target.timeout_s)
        try:
            if isinstance(link, ssl.SSLSocket):
                link.settimeout(_left_s(deadline))
                _close_tls(link)
            # Under TLS as well: a close_notify that crossed ours looks the same at the TLS layer.
            link.shutdown(socket.SHUT_WR)
            while True:
                link.settimeout(_left_s(deadline))
                if link.recv(4096) == b"":
                    return _wait_for_acknowledgement(link, deadline)
        except TimeoutError:
            return UNCONFIRMED


def _cut(message: bytes, max_bytes: int | None) -> tuple[bytes, bool]:
    is_cut = max_bytes is not None and len(message) > max_bytes
    return (message[:max_bytes], True) if is_cut else (message, False)


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _close_tls(link: ssl.SSLSocket) -> None:
    try:
        link.unwrap()
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return  # closed without close_notify
    except ssl.SSLError as error:
        if (
            error.reason != "APPLICATION_DATA_AFTER_CLOSE_NOTIFY"
        ):  # data after close_notify is harmless
            raise
    except OSError as error:
        if error.errno or isinstance(error, TimeoutError):  # errno 0 is an EOF
            raise


def _wait_for_acknowledgement(link: socket.socket, deadline: float) -> str:
    """The receiver has closed. If it closed too early, its kernel rejects later data with RST:
    wait until all data is acknowledged or rejected."""
    while link.family != socket.AF_UNIX and _unacknowledged(link):
        _raise_socket_error(link)
        _left_s(deadline)
        time.sleep(_POLL_INTERVAL_S)
    return _raise_socket_error(link)


def _unacknowledged(link: socket.socket) -> bool:
    return fcntl.ioctl(link.fileno(), termios.TIOCOUTQ, b"\0" * 4) != b"\0" * 4


def _raise_socket_error(link: socket.socket) -> str:
    """Raise the error that the network has reported since."""
    problem = link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if problem:
        raise OSError(problem, "reported later")
    return ""


def _connect_unix(path: str, timeout_s: float) -> socket.socket:
    """A datagram socket such as /dev/log, otherwise a stream."""
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        link = socket.socket(socket.AF_UNIX, kind)
        try:
            link.settimeout(timeout_s)
            link.connect(path)
            return link
        except OSError as error:
            link.close()
            if error.errno != errno.EPROTOTYPE:
                raise
        except BaseException:
            link.close()
            raise
    raise OSError(errno.EPROTOTYPE, "neither datagrams nor a stream")


def _connect_udp(host: str, port: int, timeout_s: float) -> socket.socket:
    problem = OSError(errno.EHOSTUNREACH, "no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
        link = socket.socket(family, kind, protocol)
        try:
            link.settimeout(timeout_s)
            link.connect(place)
            return link
        except OSError as error:
            link.close()
            problem = error
    raise problem
