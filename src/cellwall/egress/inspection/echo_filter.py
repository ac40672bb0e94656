"""Removes the values of leased secrets from responses (SEC-5).

A server that echoes a request would disclose the value to the code. Each value, in every encoding
of `encodings`, becomes its placeholder again. A server that cooperates with the code can encrypt or
split the value; a secret is bound to trusted hosts only.

Only a complete value changes the output or its timing. A filter that held back a possible prefix of
a value, or removed a prefix at the end of a response, would be an oracle: code that chooses the
response could guess the value byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cellwall.parsing.credentials.known.encodings import MIN_BYTES
from cellwall.parsing.credentials.known.matcher import AnchorIndex, Matches


@dataclass(frozen=True, slots=True, kw_only=True)
class SentValue:
    """A value that was sent to a server, or may have been."""

    name: str
    placeholder: str
    value: bytes = field(repr=False)


class EchoIndex:
    """The values that responses are searched for. It only grows, also during a response.

    A server can return a value after a rotation, a revocation, the end of the grant or the lock of
    the vault (SEC-3).
    """

    def __init__(self, told: Iterable[SentValue] = ()) -> None:
        self._told: dict[SentValue, None] = {}
        self._set(told)

    def add(self, told: Iterable[SentValue]) -> None:
        new = [each for each in told if each not in self._told]
        if new:
            self._set(new)

    def _set(self, new: Iterable[SentValue]) -> None:
        self._told.update(dict.fromkeys(each for each in new if len(each.value) >= MIN_BYTES))
        self.anchors = AnchorIndex((each.placeholder, each.value) for each in self._told)
        self.hold_bytes = max(0, self.anchors.max_bytes - 1)
        self.names = {each.placeholder: each.name for each in self._told}
        # A one-line value never contains an empty line: bytes before one need not wait.
        self.is_of_lines = not any(b"\n" in each.value for each in self._told)

    def clean(self, data: bytes) -> bytes:
        """A complete text, such as a header value, without the values."""
        echoes = EchoFilter(self)
        return echoes.feed(data) + echoes.end()

    def is_clean_name(self, name: bytes) -> bool:
        """Whether a header name contains no value; intermediaries may have changed its case."""
        small = name.lower()
        return self.clean(name) == name and not any(
            each.value.lower() in small for each in self._told
        )


class EchoFilter:
    """One response body: `feed` pieces of any size, pass on the results, then `end`.

    The output does not depend on the split of the body: overlapping matches are one. The last
    `hold_bytes` wait for more bytes, whatever they are, or for an empty line, which ends a
    server-sent event.
    """

    def __init__(self, index: EchoIndex) -> None:
        self._index = index
        self._kept = b""
        self._covered = 0
        """Bytes of `_kept` that are replaced already, kept for matches that begin in them."""
        self._found: dict[str, None] = {}

    @property
    def found(self) -> tuple[str, ...]:
        """Names of the removed secrets, for the audit log."""
        return tuple(self._found)

    def feed(self, data: bytes) -> bytes:
        """The bytes to pass on."""
        window = self._kept + data
        until = len(window) - self._index.hold_bytes
        if self._index.is_of_lines:
            until = max(until, _after(window, b"\n\n"), _after(window, b"\n\r\n"))
        return self._clean(window, max(0, until))

    def end(self) -> bytes:
        """The remaining bytes."""
        return self._clean(self._kept, len(self._kept))

    def _clean(self, window: bytes, until: int) -> bytes:
        """Clean the window up to `until`; a match that begins before is complete in the window."""
        matches = Matches(self._index.anchors, window)
        out: list[bytes] = []
        looked, place = 0, self._covered
        while (match := matches.first(looked)) is not None and match[0] < until:
            start, looked, placeholder = match
            self._found[self._index.names[placeholder]] = None
            if start >= place:
                out += (window[place:start], placeholder.encode())
            place = max(place, looked)
        out.append(window[place:until])
        self._kept, self._covered = window[until:], max(0, place - until)
        return b"".join(out)


def _after(window: bytes, mark: bytes) -> int:
    return window.rfind(mark) + len(mark) if mark in window else 0


class Echoes:
    """All values that were sent to the servers of a session."""

    def __init__(self) -> None:
        self._told: dict[SentValue, None] = {}
        self._indexes: dict[frozenset[str], EchoIndex] = {}

    def add(self, told: Iterable[SentValue]) -> None:
        """Add values before they are sent."""
        new = dict.fromkeys(each for each in told if each not in self._told)
        self._told.update(new)
        for placeholders, index in self._indexes.items():
            index.add(each for each in new if each.placeholder in placeholders)

    def of(self, placeholders: frozenset[str]) -> EchoIndex:
        """The index for a server that may have these secrets.

        Not the values of other servers: code that chooses the response would learn whether a
        guess is right.
        """
        index = self._indexes.get(placeholders)
        if index is None:
            told = (each for each in self._told if each.placeholder in placeholders)
            index = self._indexes[placeholders] = EchoIndex(told)
        return index
