"""Takes the values of leased secrets out of what servers answer (SEC-5).

A server that shows a request back would hand the value to the code it was kept from. Each value,
in every form `encodings` names, becomes its placeholder again. A server that means to tell the
value to the code can do so in a cipher, or in parts; a secret is bound to hosts that are trusted
with it.

Nothing but a whole value makes a difference to what comes out, and when. A filter that held back
what may be the beginning of a value, or took out a beginning at the end of an answer, would tell
whoever can choose the answer's bytes whether a guess is right, one byte after the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cellwall.parsing.credentials.known.encodings import MIN_BYTES
from cellwall.parsing.credentials.known.matcher import AnchorIndex, Matches


@dataclass(frozen=True, slots=True, kw_only=True)
class SentValue:
    """A value that a server was told, or may have been."""

    name: str
    placeholder: str
    value: bytes = field(repr=False)


class EchoIndex:
    """The values that answers are searched for. It only ever grows, answers on their way included.

    A value that has been told can come back whatever becomes of its lease: after a rotation, a
    revocation, the end of a grant or the vault's lock (SEC-3).
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
        # No form of a value of one line has an empty line in it: behind one nothing has to wait.
        self.is_of_lines = not any(b"\n" in each.value for each in self._told)

    def cleaned(self, data: bytes) -> bytes:
        """A whole text, such as a header's value, without any of the values."""
        echoes = EchoFilter(self)
        return echoes.feed(data) + echoes.end()

    def is_clean_name(self, name: bytes) -> bool:
        """Of a header, as it was written; others may have changed its capitals before."""
        small = name.lower()
        return self.cleaned(name) == name and not any(
            each.value.lower() in small for each in self._told
        )


class EchoFilter:
    """One answer's body: `feed` it in pieces of any size, pass on what comes back, `end` it.

    What comes out is the same however the body was cut: forms that overlap are one. The last
    `hold_bytes` wait for more, whatever they are, or for an empty line, which ends an event of a
    stream.
    """

    def __init__(self, index: EchoIndex) -> None:
        self._index = index
        self._kept = b""
        self._covered = 0
        """So much of what is kept has a placeholder already, and is there for what begins in it."""
        self._found: dict[str, None] = {}

    @property
    def found(self) -> tuple[str, ...]:
        """Names of the secrets whose value was taken out, for the record."""
        return tuple(self._found)

    def feed(self, data: bytes) -> bytes:
        """What can be passed on."""
        window = self._kept + data
        until = len(window) - self._index.hold_bytes
        if self._index.is_of_lines:
            until = max(until, _after(window, b"\n\n"), _after(window, b"\n\r\n"))
        return self._cleaned(window, max(0, until))

    def end(self) -> bytes:
        """The rest."""
        return self._cleaned(self._kept, len(self._kept))

    def _cleaned(self, window: bytes, until: int) -> bytes:
        """What begins before `until`; a form that does is whole in the window by now."""
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
    """What the servers of a session were told, from its first request to its end."""

    def __init__(self) -> None:
        self._told: dict[SentValue, None] = {}
        self._indexes: dict[frozenset[str], EchoIndex] = {}

    def add(self, told: Iterable[SentValue]) -> None:
        """Before it is sent."""
        new = dict.fromkeys(each for each in told if each not in self._told)
        self._told.update(new)
        for placeholders, index in self._indexes.items():
            index.add(each for each in new if each.placeholder in placeholders)

    def of(self, placeholders: frozenset[str]) -> EchoIndex:
        """What a server that may have these secrets can show, now and from now on.

        Not what only others may have: whoever chooses an answer's bytes would learn whether a
        guess at it is right.
        """
        index = self._indexes.get(placeholders)
        if index is None:
            told = (each for each in self._told if each.placeholder in placeholders)
            index = self._indexes[placeholders] = EchoIndex(told)
        return index
