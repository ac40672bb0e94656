"""Scanning of requests, and removal of secrets from responses.

Values of the vault and credential patterns do not leave (NET-5). Leased secrets are injected after
that scan, and responses contain their placeholders instead (SEC-5): a server that echoes a request
would disclose the value to the code. A server that cooperates with the code can encrypt or split
the value; a secret is bound to trusted hosts only.

Only a complete value changes the output or its timing. A filter that held back a possible prefix of
a value, or removed a prefix at the end of a response, would be an oracle: code that chooses the
response could guess the value byte by byte.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cellwall.core.errors import EgressRefused
from cellwall.core.network import ContentCheck, KnownValues, SecretUse
from cellwall.egress.inspection.decompression import Decompressor, can_decompress
from cellwall.egress.inspection.leak_scan import KnownIndex, LeakScan, Patterns, scan_head_steps
from cellwall.egress.protocols.http1_framing import Fields, Headers
from cellwall.parsing.credentials.known_forms import MIN_BYTES
from cellwall.parsing.credentials.known_values import AnchorIndex, KnownValueMatches

if TYPE_CHECKING:
    from cellwall.egress.limits import FairShare
    from cellwall.egress.proxy.audit_events import LeakReporter


@dataclass(frozen=True, slots=True, kw_only=True)
class SentValue:
    """A value that was sent to a server, or may have been."""

    name: str
    placeholder: str
    value: bytes = field(repr=False)


class EchoIndex:
    """The values that responses are searched for. The index only grows, also during a response.

    A server can return a value after a rotation, a revocation, the end of the grant or the lock of
    the vault (SEC-3).
    """

    def __init__(self, values: Iterable[SentValue] = ()) -> None:
        self._sent: dict[SentValue, None] = {}
        self._set(values)

    def add(self, values: Iterable[SentValue]) -> None:
        new = [each for each in values if each not in self._sent]
        if new:
            self._set(new)

    def _set(self, new: Iterable[SentValue]) -> None:
        self._sent.update(dict.fromkeys(each for each in new if len(each.value) >= MIN_BYTES))
        self.anchors = AnchorIndex((each.placeholder, each.value) for each in self._sent)
        self.hold_bytes = max(0, self.anchors.max_bytes - 1)
        self.names = {each.placeholder: each.name for each in self._sent}
        # A one-line value never contains an empty line: bytes before one need not wait.
        self.is_single_line = not any(b"\n" in each.value for each in self._sent)

    def clean(self, data: bytes) -> bytes:
        """A complete text, such as a header value, without the values."""
        echoes = EchoFilter(self)
        return echoes.feed(data) + echoes.end()

    def is_clean_name(self, name: bytes) -> bool:
        """Whether a header name contains no value; intermediaries may have changed its case."""
        small = name.lower()
        return self.clean(name) == name and not any(
            each.value.lower() in small for each in self._sent
        )


class EchoFilter:
    """One response body: `feed` pieces of any size, pass on the results, then `end`.

    The output does not depend on the split of the body: overlapping matches are one. The last
    `hold_bytes` wait for more bytes, whatever they are, or for an empty line, which ends a
    server-sent event.
    """

    def __init__(self, index: EchoIndex) -> None:
        self._index = index
        self._pending = b""
        self._covered = 0
        """Bytes of `_pending` that are replaced already, kept for matches that begin in them."""
        self._removed: dict[str, None] = {}

    @property
    def removed_names(self) -> tuple[str, ...]:
        """Names of the removed secrets, for the audit log."""
        return tuple(self._removed)

    def feed(self, data: bytes) -> bytes:
        """The bytes to pass on."""
        window = self._pending + data
        until = len(window) - self._index.hold_bytes
        if self._index.is_single_line:
            until = max(until, _after(window, b"\n\n"), _after(window, b"\n\r\n"))
        return self._clean(window, max(0, until))

    def end(self) -> bytes:
        """The remaining bytes."""
        return self._clean(self._pending, len(self._pending))

    def _clean(self, window: bytes, until: int) -> bytes:
        """Clean the window up to `until`; a match that begins before is complete in the window."""
        matches = KnownValueMatches(self._index.anchors, window)
        out: list[bytes] = []
        searched, place = 0, self._covered
        while (match := matches.first(searched)) is not None and match[0] < until:
            start, searched, placeholder = match
            self._removed[self._index.names[placeholder]] = None
            if start >= place:
                out += (window[place:start], placeholder.encode())
            place = max(place, searched)
        out.append(window[place:until])
        self._pending, self._covered = window[until:], max(0, place - until)
        return b"".join(out)


def _after(window: bytes, mark: bytes) -> int:
    return window.rfind(mark) + len(mark) if mark in window else 0


class Echoes:
    """All values that were sent to the servers of a session."""

    def __init__(self) -> None:
        self._sent: dict[SentValue, None] = {}
        self._indexes: dict[frozenset[str], EchoIndex] = {}

    def add(self, values: Iterable[SentValue]) -> None:
        """Add values before they are sent."""
        new = dict.fromkeys(each for each in values if each not in self._sent)
        self._sent.update(new)
        for placeholders, index in self._indexes.items():
            index.add(each for each in new if each.placeholder in placeholders)

    def of(self, placeholders: frozenset[str]) -> EchoIndex:
        """The index for a server that may have these secrets.

        Not the values of other servers: code that chooses the response would learn whether a
        guess is right.
        """
        index = self._indexes.get(placeholders)
        if index is None:
            values = (each for each in self._sent if each.placeholder in placeholders)
            index = self._indexes[placeholders] = EchoIndex(values)
        return index


_KNOWN_S = 1.0
_MAX_CLEAN = 4096
_CLEAN_BYTES = 1024
_BODY_HEADERS = frozenset({b"content-length", b"content-encoding", b"content-md5", b"digest"})


class KnownValueCache:
    """The index of the vault's values, refreshed each second: the vault changes."""

    def __init__(self, known: KnownValues, checks: Sequence[ContentCheck] = ()) -> None:
        self._known = known
        self._checks = tuple(checks)
        self._values: dict[str, bytes] = {}
        self._index = KnownIndex({})
        self._until_s = 0.0
        self._clean: set[tuple[bytes, bytes]] = set()

    def index(self) -> KnownIndex:
        if time.monotonic() >= self._until_s:
            values = dict(self._known.values())
            checks = tuple(check for check in self._checks if check.is_active)
            if values != self._values or checks != self._index.checks:
                self._values, self._index = values, KnownIndex(values, checks)
                self._clean.clear()
            self._until_s = time.monotonic() + _KNOWN_S
        return self._index

    async def check_head(
        self,
        method: str,
        path: str,
        headers: Headers,
        *,
        leak_reporter: LeakReporter,
        share: FairShare,
    ) -> None:
        """Refuse a request whose method, URL or headers contain a secret.

        Each part is scanned by itself, so clean parts are cached; requests repeat most of them.
        """
        index = self.index()
        target = path.encode("ascii")
        method_header = (b":method", method.encode("ascii"))
        new = [header for header in (method_header, *headers) if header not in self._clean]
        if not new and (b"", target) in self._clean:
            return
        # No await before a known value is counted: it is found in the first step.
        for hit in scan_head_steps(target, new, known=index, patterns=Patterns.shipped()):
            if hit is not None:
                raise leak_reporter.report(hit)
            await share.wait_turn()
        if index is not self._index:
            return  # what was clean may be a value of the vault by now
        if len(self._clean) + len(new) >= _MAX_CLEAN:
            self._clean.clear()
        new.append((b"", target))
        self._clean.update(
            header for header in new if len(header[0]) + len(header[1]) <= _CLEAN_BYTES
        )

    def check_host(self, host: str, leak_reporter: LeakReporter) -> None:
        """Refuse a host name that contains a secret: a DNS query would disclose it."""
        index = self.index()
        header = (b":authority", host.encode())
        if header not in self._clean:
            if hit := index.find_in_host(host):
                raise leak_reporter.report(hit, is_host=True)
            if len(self._clean) >= _MAX_CLEAN:
                self._clean.clear()
            self._clean.add(header)

    def previously_sent(self, use: SecretUse) -> Iterator[SentValue]:
        """Values that servers may have from earlier sessions: the current one and rotated ones."""
        self.index()
        for name, value in self._values.items():
            if name == use.name or name.startswith(f"{use.name}@"):
                yield SentValue(name=use.name, placeholder=use.placeholder, value=value)


class BodyScan:
    """A request body, decompressed and scanned as it arrives.

    The last `hold_bytes` are held back, so that no complete secret has been sent when it is found.
    """

    def __init__(
        self, headers: Headers, known: KnownIndex, *, leak_reporter: LeakReporter, share: FairShare
    ) -> None:
        patterns = Patterns.shipped()
        self.hold_bytes = max(known.hold_bytes, patterns.max_bytes)
        self._scan = LeakScan(known, patterns)
        coding = _coding(headers)
        if not can_decompress(coding) and not known:
            coding = ""  # no known values: the encoded bytes are scanned
        self._decompressor = Decompressor(coding, share.up)
        self._leak_reporter = leak_reporter
        self._share = share

    async def look(self, data: bytes) -> None:
        """Scan encoded bytes; refuse those that complete a secret."""
        pieces = self._decompressor.feed(data)
        while True:
            await self._share.wait_turn()  # a compression bomb must not block the loop
            if (piece := next(pieces, None)) is None:
                return
            for _ in self._check_steps(piece):
                await self._share.wait_turn()  # neither must bytes that are slow to scan

    def _check_steps(self, data: bytes) -> Iterator[None]:
        # No await between check and count, so concurrent guesses cannot exceed the limit: the first
        # step finds the values that count.
        self._leak_reporter.check_open()
        for hit in self._scan.steps(data):
            if hit is not None:
                raise self._leak_reporter.report(hit)
            yield

    def end(self) -> None:
        """Refuse a body that cannot be decompressed completely."""
        self._decompressor.end()

    def close(self) -> None:
        """Release memory; call in any case."""
        self._decompressor.close()


class ResponseCleaner:
    """A response body, decompressed and without the session's secrets."""

    def __init__(self, headers: Headers, echoes: EchoIndex, share: FairShare) -> None:
        self._decompressor = Decompressor(_coding(headers), share.down)
        self._filter = EchoFilter(echoes)
        self._share = share

    @property
    def removed_names(self) -> tuple[str, ...]:
        """Names of the secrets that were removed."""
        return self._filter.removed_names

    async def feed(self, data: bytes) -> AsyncIterator[bytes]:
        """The cleaned pieces, produced on request."""
        pieces = self._decompressor.feed(data)
        while True:
            await self._share.wait_turn()  # as above: servers compress, too
            if (piece := next(pieces, None)) is None:
                return
            if cleaned := self._filter.feed(piece):
                yield cleaned

    def end(self) -> bytes:
        self._decompressor.end()
        return self._filter.end()

    def close(self) -> None:
        """Release memory; call in any case."""
        self._decompressor.close()


class EchoDetector:
    """A stream that cannot be rewritten, since its frames have lengths; an echo ends it.

    No byte is held back, or interactive protocols would deadlock.
    """

    def __init__(self, echoes: EchoIndex) -> None:
        self._echoes = echoes
        self._tail = b""

    async def look(self, data: bytes) -> None:
        """Refuse bytes that complete a value."""
        window = self._tail + data
        if self._echoes.clean(window) != window:
            raise EgressRefused(
                "the server returned a secret in a stream that cannot be rewritten",
                hint="Use the secret only for requests with a finite response.",
                code="CW-ECHO",
            )
        self._tail = window[-self._echoes.hold_bytes :] if self._echoes.hold_bytes else b""


def clean_headers(headers: Headers, echoes: EchoIndex, *, has_body: bool) -> Fields:
    """Response headers without secrets; with a body, also without length and encoding.

    `headers` with their original case: a value in a header name would lose its capitals.
    """
    dropped = _BODY_HEADERS if has_body else frozenset[bytes]()
    return [
        (name.lower(), echoes.clean(value))
        for name, value in headers
        if name.lower() not in dropped and echoes.is_clean_name(name)
    ]


def _coding(headers: Headers) -> str:
    values = (value for name, value in headers if name == b"content-encoding")
    return b",".join(values).decode("latin-1")


async def pieces_of(cleaner: ResponseCleaner | None, data: bytes) -> AsyncIterator[bytes]:
    """The pieces of a response body that may be sent to the cell."""
    if cleaner is None:
        yield data
        return
    async for piece in cleaner.feed(data):
        yield piece
