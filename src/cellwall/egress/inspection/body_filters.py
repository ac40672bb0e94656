"""Scanning of request bodies, and removal of secrets from responses.

Values of the vault and credential patterns do not leave (NET-5). Leased secrets are injected after
that scan, and responses contain their placeholders instead (SEC-5).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING

from cellwall.core.errors import EgressRefused
from cellwall.core.network import KnownValues, SecretUse
from cellwall.egress.inspection.decompression import Decompressor, can_decompress
from cellwall.egress.inspection.echo_filter import EchoFilter, EchoIndex, SentValue
from cellwall.egress.inspection.leak_scan import KnownIndex, LeakScan, Patterns, scan_head

if TYPE_CHECKING:
    from cellwall.egress.proxy.audit_events import LeakReporter
    from cellwall.egress.proxy.resources import FairShare

_KNOWN_S = 1.0
_MAX_CLEAN = 4096
_CLEAN_BYTES = 1024
_BODY_HEADERS = frozenset({b"content-length", b"content-encoding", b"content-md5", b"digest"})

Headers = Sequence[tuple[bytes, bytes]]
Fields = list[tuple[bytes, bytes]]


class KnownValueCache:
    """The index of the vault's values, refreshed each second: the vault changes."""

    def __init__(self, known: KnownValues) -> None:
        self._known = known
        self._values: dict[str, bytes] = {}
        self._index = KnownIndex.of({})
        self._until_s = 0.0
        self._clean: set[tuple[bytes, bytes]] = set()

    def index(self) -> KnownIndex:
        if time.monotonic() >= self._until_s:
            values = dict(self._known.values())
            if values != self._values:
                self._values, self._index = values, KnownIndex.of(values)
                self._clean.clear()
            self._until_s = time.monotonic() + _KNOWN_S
        return self._index

    def check_head(
        self, method: str, path: str, headers: Headers, leak_reporter: LeakReporter
    ) -> None:
        """Refuse a request whose method, URL or headers contain a secret.

        Each part is scanned by itself, so clean parts are cached; requests repeat most of them.
        """
        index = self.index()
        target = path.encode("ascii")
        said = (b":method", method.encode("ascii"))
        new = [header for header in (said, *headers) if header not in self._clean]
        if not new and (b"", target) in self._clean:
            return
        if hit := scan_head(target, new, known=index, patterns=Patterns.shipped()):
            raise leak_reporter.report(hit)
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
        self.hold_bytes = max(known.max_bytes, patterns.max_bytes)
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
            self.check(piece)

    def check(self, data: bytes) -> None:
        """Scan plain bytes."""
        # No await between check and count, so concurrent guesses cannot exceed the limit.
        self._leak_reporter.check_open()
        if hit := self._scan.feed(data):
            raise self._leak_reporter.report(hit)

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
    def found(self) -> tuple[str, ...]:
        """Names of the secrets that were removed."""
        return self._filter.found

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
        self._kept = b""

    def check(self, data: bytes) -> None:
        """Refuse bytes that complete a value."""
        window = self._kept + data
        if self._echoes.clean(window) != window:
            raise EgressRefused(
                "the server returned a secret in a stream that cannot be rewritten",
                hint="Use the secret only for requests with a finite response.",
                code="CW-ECHO",
            )
        self._kept = window[-self._echoes.hold_bytes :] if self._echoes.hold_bytes else b""


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
