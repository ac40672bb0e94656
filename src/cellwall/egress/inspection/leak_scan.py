"""Scans outgoing bytes for secrets: values of the vault, and credential patterns (NET-5).

Values of at least MIN_BYTES are found anywhere, in every encoding of `encodings`, however the
data is split. Shorter values are not searched for: they occur by chance, and a refusal would
confirm a guess among few. A hit names the secret and the encoding, never the value.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from typing import Literal
from urllib.parse import unquote_to_bytes

from cellwall.core.network import ContentCheck
from cellwall.egress.protocols.http1_framing import Headers
from cellwall.parsing.credentials.known_forms import MIN_BYTES
from cellwall.parsing.credentials.known_values import AnchorIndex
from cellwall.parsing.credentials.rule_set import SecretRules, on_wire, scan_with_rules
from cellwall.parsing.credentials.spans import ScanContext, Span

_PATTERN_BYTES = 256
"""A test compares this number with every rule."""
_CHECK_HOLD_BYTES = 512
_KEYWORDS_PER_STEP = 64
"""Other sessions have their turns between two steps."""
_BYTES_PER_SEARCH = 16 * 1024
_BEFORE_BYTES = 24
"""The look-behind of the rules."""


@dataclass(frozen=True, slots=True)
class LeakHit:
    """A secret in outgoing bytes; safe to show and to record."""

    name: str
    """Of the secret, the pattern, the kind of personal data or the registered text."""
    kind: Literal["known", "pattern", "personal", "canary"]
    encoding: str


class KnownIndex:
    """A search index of values that must not leave; built once, used by every scan."""

    def __init__(self, values: Mapping[str, bytes], checks: Sequence[ContentCheck] = ()) -> None:
        self.checks = tuple(checks)
        self._values = {name: value for name, value in values.items() if len(value) >= MIN_BYTES}
        self._anchors = AnchorIndex(self._values.items())

    @property
    def max_bytes(self) -> int:
        """The longest match; 0 for an empty index."""
        return self._anchors.max_bytes

    def __bool__(self) -> bool:
        return bool(self._values or self.checks)

    @property
    def hold_bytes(self) -> int:
        """How many bytes of a body are held back until more have come."""
        return max(self.max_bytes, _CHECK_HOLD_BYTES if self.checks else 0)

    def streams(self) -> ContentStreams:
        """A search for other content than secrets."""
        return ContentStreams(self.checks)

    def find(self, data: bytes) -> LeakHit | None:
        """The first known value in `data`, in any encoding."""
        for piece, form in self._anchors.candidates(data):
            if form.first(data) is not None:
                return LeakHit(piece.name, "known", form.encoding)
        return None

    def find_in_host(self, host: str) -> LeakHit | None:
        """The same for a host name, which is lower case and has dots anywhere."""
        name = host.lower().replace(".", "").encode()
        return self.find(name) or self._folded.find(name)

    @cached_property
    def _folded(self) -> KnownIndex:
        return KnownIndex(
            {name: value.lower().replace(b".", b"") for name, value in self._values.items()}
        )


@dataclass(frozen=True)
class Patterns:
    """Credential patterns. Guard and audit log use the rules of `Patterns.shipped()` as well."""

    rules: SecretRules = field(default_factory=SecretRules)

    @classmethod
    @cache
    def shipped(cls) -> Patterns:
        """The shipped rules for tokens of providers."""
        return cls(on_wire())

    @property
    def max_bytes(self) -> int:
        """The number of bytes after which every match is found."""
        return _PATTERN_BYTES if self.rules.shapes else 0

    def find(self, data: bytes, start: int = 0) -> LeakHit | None:
        """The first match from `start` on; rules see the bytes before.

        More data may follow, but the match is decided now: these bytes are about to be sent.
        """
        return next(filter(None, self.steps(data, start)), None)

    def steps(self, data: bytes, start: int = 0) -> Iterator[LeakHit | None]:
        """The same in steps of some milliseconds: None between them, the match at the end.

        A keyword takes some tens of microseconds, and data can consist of nothing but keywords.
        """
        looked_at = 0
        for some in self._groups(data):
            if looked_at >= _KEYWORDS_PER_STEP:
                looked_at = 0
                yield None
            looked_at += len(some)
            for span in scan_with_rules(
                self.rules, data, ScanContext(), first=start, places=some, is_final=True
            ):
                if isinstance(span, Span):
                    yield LeakHit(span.rule, "pattern", "raw")
                    return

    def _groups(self, data: bytes) -> Iterator[list[tuple[int, int]]]:
        """The keywords in groups, found as they are asked for: to find them takes time, too."""
        for at in range(0, len(data), _BYTES_PER_SEARCH):
            places = self.rules.places(data, at, at + _BYTES_PER_SEARCH)
            for first in range(0, len(places), _KEYWORDS_PER_STEP):
                yield places[first : first + _KEYWORDS_PER_STEP]


class ContentStreams:
    """One stream for each content check."""

    def __init__(self, checks: Sequence[ContentCheck]) -> None:
        self._streams = [(check.kind, check.stream()) for check in checks]

    def feed(self, data: bytes) -> LeakHit | None:
        """The first hit of these bytes."""
        for kind, stream in self._streams:
            if (name := stream.feed(data)) is not None:
                return LeakHit(name, kind, "raw")
        return None


class LeakScan:
    """One body, URL or header: `feed` pieces of any size; the first hit counts.

    A match is found when it is complete, so nothing waits for the end. Bytes before a hit may have
    been sent already; they did not complete a secret.
    """

    def __init__(self, known: KnownIndex, patterns: Patterns) -> None:
        self._known = known
        self._patterns = patterns
        # Longer than a pattern, for its look-behind.
        before = _BEFORE_BYTES if patterns.max_bytes else 0
        self._keep_bytes = max(known.max_bytes - 1, patterns.max_bytes + before)
        self._tail = b""
        self._content = known.streams()
        self._hit: LeakHit | None = None

    def feed(self, data: bytes) -> LeakHit | None:
        """The hit that these bytes complete, or an earlier one."""
        return next(filter(None, self.steps(data)), None)

    def steps(self, data: bytes) -> Iterator[LeakHit | None]:
        """The same in steps of some milliseconds: None between them, the hit at the end.

        All steps must be taken before the next bytes come. Known values are searched for in the
        first one.
        """
        if self._hit is None and data:
            window = self._tail + data
            # A window from the middle has no true beginning: matches that begin there were
            # found in the window before.
            start = _BEFORE_BYTES if len(self._tail) == self._keep_bytes else 0
            self._tail = window[-self._keep_bytes :] if self._keep_bytes else b""
            self._hit = self._known.find(window)
            if self._hit is None:
                for hit in self._patterns.steps(window, start):
                    if hit is None:
                        yield None
                    self._hit = hit
            self._hit = self._hit or self._content.feed(data)
        if self._hit is not None:
            yield self._hit


def scan_head(
    target: bytes, headers: Headers, *, known: KnownIndex, patterns: Patterns
) -> LeakHit | None:
    """A secret in a request's target or headers, as the cell has sent them."""
    return next(
        filter(None, scan_head_steps(target, headers, known=known, patterns=patterns)), None
    )


def scan_head_steps(
    target: bytes, headers: Headers, *, known: KnownIndex, patterns: Patterns
) -> Iterator[LeakHit | None]:
    """The same in steps of some milliseconds: None between them, a hit ends them.

    Known values are searched for in the first one.
    """
    texts = (target, *(name + b": " + value for name, value in headers))
    for text in texts:
        if hit := known.find(text):
            yield hit
    for text in chain(texts, _fields(target, headers)):
        yield from patterns.steps(text)
    if known.checks:
        for text in (unquote_to_bytes(target), *(value for _, value in headers)):
            if hit := known.streams().feed(text):
                yield hit


def _fields(target: bytes, headers: Headers) -> Iterator[bytes]:
    """The decoded values that a server would read from a head."""
    for text in target.partition(b"?")[2].split(b"&"):
        yield unquote_to_bytes(text.partition(b"=")[2].replace(b"+", b" "))
    for name, value in headers:
        scheme, _, rest = value.strip().partition(b" ")
        yield rest.strip()
        if scheme.lower() == b"basic":
            yield from _basic(rest.strip())
        if name.lower() == b"cookie":
            yield from (text.partition(b"=")[2].strip() for text in value.split(b";"))


def _basic(encoded: bytes) -> Iterator[bytes]:
    try:
        user, _, password = base64.b64decode(encoded).partition(b":")
    except (binascii.Error, ValueError):
        return
    yield user
    yield password
