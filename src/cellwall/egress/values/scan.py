"""Looks for secrets in what leaves: those the vault knows, and what is shaped like one (NET-5).

Values of at least SHORTEST_BYTES are found anywhere, in every form `encodings` names, however the
data is cut. Shorter ones are not: they stand in any request by chance, and a refusal would confirm
a guess among few. A hit names the secret and the encoding, never the value.
"""

from __future__ import annotations

import base64
import binascii
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Literal
from urllib.parse import unquote_to_bytes

from cellwall.parsing.credentials.known.anchors import AnchorIndex
from cellwall.parsing.credentials.known.encodings import SHORTEST_BYTES

_SOLID = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
_SOLID_BYTES = 20
_SOLID_RUN = b"a" * _SOLID_BYTES
_SOLID_MAP = bytes(_SOLID_RUN[0] if byte in _SOLID else 0 for byte in range(256))

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Hit:
    """A secret that was about to leave; safe to show and to record."""

    name: str
    """Of the vault's secret, or of the pattern."""
    kind: Literal["known", "pattern"]
    encoding: str


class KnownIndex:
    """Values that must not leave, made ready to be searched for. Made once, used by every scan."""

    def __init__(self, values: Mapping[str, bytes]) -> None:
        self._values = {
            name: value for name, value in values.items() if len(value) >= SHORTEST_BYTES
        }
        self._anchors = AnchorIndex(self._values.items())

    @classmethod
    def of(cls, values: Mapping[str, bytes]) -> KnownIndex:
        """An index of these values by name."""
        return cls(values)

    @property
    def longest_bytes(self) -> int:
        """Of anything that can be found; 0 if there is nothing to find."""
        return self._anchors.longest_bytes

    def __bool__(self) -> bool:
        return bool(self._values)

    def find(self, data: bytes) -> Hit | None:
        """The first known value that stands in `data`, in whatever form."""
        for piece, form in self._anchors.candidates(data):
            if form.first(data) is not None:
                return Hit(piece.name, "known", form.encoding)
        return None

    def find_in_host(self, host: str) -> Hit | None:
        """The same for a host's name, which has no capitals, and dots anywhere."""
        name = host.lower().replace(".", "").encode()
        return self.find(name) or self._folded.find(name)

    @cached_property
    def _folded(self) -> KnownIndex:
        return KnownIndex(
            {name: value.lower().replace(b".", b"") for name, value in self._values.items()}
        )


@dataclass(frozen=True, slots=True)
class Pattern:
    """The shape of one provider's secrets, as `patterns.toml` describes it."""

    name: str
    literals: tuple[bytes, ...]
    """One of these stands in everything that matches; they are what is searched for first."""
    regex: re.Pattern[bytes]
    longest_bytes: int
    is_solid: bool
    """A match holds _SOLID_BYTES in a row of what tokens are made of; most data has none such."""


@dataclass(frozen=True)
class Patterns:
    """Shapes of secrets. `Patterns.shipped()` are those of `patterns.toml`."""

    rows: tuple[Pattern, ...]

    @classmethod
    def shipped(cls) -> Patterns:
        """What Cellwall knows of the providers' tokens."""
        return _shipped()

    @cached_property
    def longest_bytes(self) -> int:
        """Of anything that can be found; 0 if there is nothing to find."""
        return max((row.longest_bytes for row in self.rows), default=0)

    @cached_property
    def _not_solid(self) -> tuple[Pattern, ...]:
        return tuple(row for row in self.rows if not row.is_solid)

    def find(self, data: bytes, start: int = 0) -> Hit | None:
        """The first shape that is found from `start` on, with a look at what stands before."""
        rows = self.rows
        if _SOLID_RUN not in data.translate(_SOLID_MAP):
            rows = self._not_solid
        for row in rows:
            if any(literal in data for literal in row.literals) and row.regex.search(data, start):
                return Hit(row.name, "pattern", "raw")
        return None


class LeakScan:
    """One body, URL or header: `feed` it in pieces of any size, `end` it; the first hit counts.

    What was fed before a hit may have left already; it was no secret yet.
    """

    def __init__(self, known: KnownIndex, patterns: Patterns) -> None:
        self._known = known
        self._patterns = patterns
        # One byte more than a pattern is long, so that it sees what stands before it.
        self._keep_bytes = max(known.longest_bytes - 1, patterns.longest_bytes + 1)
        self._kept = b""
        self._hit: Hit | None = None

    def feed(self, data: bytes) -> Hit | None:
        """The hit that these bytes complete, or that came before."""
        if self._hit is None and data:
            window = self._kept + data
            # A window cut out of the middle has no true beginning: what would begin there has
            # been looked at as part of the window before.
            start = int(len(self._kept) == self._keep_bytes)
            self._hit = self._known.find(window) or self._patterns.find(window, start)
            self._kept = window[-self._keep_bytes :] if self._keep_bytes else b""
        return self._hit

    def end(self) -> Hit | None:
        """The hit, if there was one. Nothing waited for this: a form is found once it is whole."""
        return self._hit


def scan_head(
    target: bytes, headers: Sequence[Header], *, known: KnownIndex, patterns: Patterns
) -> Hit | None:
    """A secret in a request's target or headers, as the code inside has sent them."""
    for text in (target, *(name + b": " + value for name, value in headers)):
        if hit := known.find(text) or patterns.find(text):
            return hit
    for value in _fields(target, headers):
        if hit := patterns.find(value):
            return hit
    return None


def _fields(target: bytes, headers: Sequence[Header]) -> Iterator[bytes]:
    """The values that a server would read from a head, decoded."""
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


@cache
def _shipped() -> Patterns:
    text = resources.files("cellwall.egress.values").joinpath("patterns.toml").read_text("utf-8")
    return Patterns(
        tuple(
            Pattern(
                name=row["name"],
                literals=tuple(literal.encode() for literal in row["literals"]),
                regex=re.compile(row["regex"].encode()),
                longest_bytes=row["longest_bytes"],
                is_solid=row["solid"],
            )
            for row in tomllib.loads(text)["pattern"]
        )
    )
