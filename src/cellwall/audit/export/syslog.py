"""Syslog over UDP (RFC 5426), TCP (RFC 6587), TLS (RFC 5425) and unix sockets.

Only the standard library: what carries the evidence away should bring nothing that has to be
trusted, updated and audited besides the interpreter itself.

Syslog has no acknowledgements. On streams each batch therefore has a connection of its own, that is
closed in an orderly way: the receiver's own closing shows that it has read to the end. A receiver
that broke off before that has lost some, and the batch counts as not delivered. Datagrams can be
lost without anybody noticing.
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
from collections.abc import Sequence
from contextlib import suppress

from cellwall.audit.export.encodings import RecordFields, escape_unprintable
from cellwall.audit.export.sinks import Receipt, network_failure
from cellwall.audit.export.target import (
    MIN_MESSAGE_BYTES,
    ExportTarget,
    Framing,
    Transport,
    client_context,
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
    """The message, and whether it had to be cut.

    A cut one says so in its structured data, with length and SHA-256 of the whole line: one long
    record must not keep all later ones from being sent, and nobody must take its start for all.
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
    if len(start) > max_bytes:  # names as long as they may be; the number still finds the record
        head = head[: head.index("[")] + f'[{SD_ID} seq="{facts.seq}" id="{facts.id}"'
        start = f'{head} cut="{len(found.line)}" sha256="{digest}"] '.encode()
    return start + line[: max_bytes - len(start)], True


def _data(facts: RecordFields) -> str:
    values = {"seq": str(facts.seq)}
    values |= {name: getattr(facts, field) for field, name in _NAMES.items()}
    return " ".join(f'{name}="{_value(text)}"' for name, text in values.items() if text)


def _value(text: str) -> str:
    """Without control characters (6.3.3 lets receivers alter those), and with its three escapes."""
    return _TO_ESCAPE.sub(r"\\\1", escape_unprintable(text)[:_MAX_VALUE_CHARACTERS])


_MAX_RECORDS = 10_000
_MAX_BYTES = 8 * 1024 * 1024
_UDP_BYTES = 65_507
_SMALLER = (_UDP_BYTES, 8192, 2048, MIN_MESSAGE_BYTES)
"""Tried in turn where the system has no room for a datagram."""
_CLOSE_TIMEOUT_S = 2.0
_POLL_INTERVAL_S = 0.005
_UNCONFIRMED = "the receiver took the records and did not show that it has read them"


class SyslogSink:
    """Of one target."""

    max_records = _MAX_RECORDS
    max_bytes = _MAX_BYTES

    def __init__(self, target: ExportTarget) -> None:
        self._target = target
        self._context = (
            client_context(target.tls) if target.address.transport is Transport.TLS else None
        )

    def send(self, batch: Sequence[FoundRecord]) -> Receipt:
        try:
            with self._connect() as link:
                is_stream = link.type == socket.SOCK_STREAM
                cut = sum(
                    self._send_on_stream(link, found)
                    if is_stream
                    else self._send_datagram(link, found)
                    for found in batch
                )
                notice = self._finish_stream(link) if is_stream else _raise_socket_error(link)
        except OSError as error:
            raise network_failure(error) from None
        return Receipt(cut=cut, notice=notice)

    def close(self) -> None:
        """Nothing stays open between batches."""

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

    def _send_on_stream(self, link: socket.socket, found: FoundRecord) -> bool:
        data, is_cut = self._message(found, None)
        if self._target.framing is Framing.OCTET_COUNTING:
            link.sendall(b"%d %b" % (len(data), data))
        else:  # neither head nor line can hold a newline, so that it can only be the end
            link.sendall(data + b"\n")
        return is_cut

    def _send_datagram(self, link: socket.socket, found: FoundRecord) -> bool:
        data, is_cut = self._message(found, _UDP_BYTES if link.family != socket.AF_UNIX else None)
        for max_bytes in (*_SMALLER, None):
            try:
                link.send(data)
                break
            except OSError as error:
                if error.errno != errno.EMSGSIZE or max_bytes is None:
                    raise
            data, is_cut = self._message(found, max_bytes)
        return is_cut

    def _finish_stream(self, link: socket.socket) -> str:
        """Wait until the receiver has seen the end; a notice if it never says so."""
        link.settimeout(0)
        with suppress(BlockingIOError, ssl.SSLWantReadError):
            if link.recv(4096) == b"":
                raise ConnectionResetError(errno.ECONNRESET, "closed before the end was sent")
        deadline = time.monotonic() + min(_CLOSE_TIMEOUT_S, self._target.timeout_s)
        try:
            if isinstance(link, ssl.SSLSocket):
                link.settimeout(_left_s(deadline))
                _close_tls(link)
            # Under TLS as well: a receiver's farewell that crossed ours looks the same up there.
            link.shutdown(socket.SHUT_WR)
            while True:
                link.settimeout(_left_s(deadline))
                if link.recv(4096) == b"":
                    return _wait_for_acknowledgement(link, deadline)
        except TimeoutError:
            return _UNCONFIRMED


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _close_tls(link: ssl.SSLSocket) -> None:
    try:
        link.unwrap()
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return  # it closes without a word
    except ssl.SSLError as error:
        if error.reason != "APPLICATION_DATA_AFTER_CLOSE_NOTIFY":  # it talks, which it need not
            raise
    except OSError as error:
        if error.errno or isinstance(error, TimeoutError):  # 0: the same as the first one
            raise


def _wait_for_acknowledgement(link: socket.socket, deadline: float) -> str:
    """It has closed. Had it done so too early, its system refuses what came after: wait until all
    is acknowledged or refused."""
    while link.family != socket.AF_UNIX and _unacknowledged(link):
        _raise_socket_error(link)
        _left_s(deadline)
        time.sleep(_POLL_INTERVAL_S)
    return _raise_socket_error(link)


def _unacknowledged(link: socket.socket) -> bool:
    return fcntl.ioctl(link.fileno(), termios.TIOCOUTQ, b"\0" * 4) != b"\0" * 4


def _raise_socket_error(link: socket.socket) -> str:
    """Raises what the network has reported since; nobody else would look."""
    problem = link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if problem:
        raise OSError(problem, "reported later")
    return ""


def _connect_unix(path: str, timeout_s: float) -> socket.socket:
    """A datagram socket, as /dev/log is, or else a stream."""
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
