"""Takes the values of leased secrets out of what servers answer (SEC-5).

A server that shows a request back would hand the value to the code it was kept from. Each value,
in every form `encodings` names, becomes its placeholder again. Values shorter than SHORTEST_BYTES
stay: their bytes are in any answer by chance. A server that means to tell the value to the code
can do so in a cipher; a secret is bound to hosts that are trusted with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush

from holdfast.core.network import SecretUse
from holdfast.egress.anchors import AnchorIndex
from holdfast.egress.encodings import SHORTEST_BYTES


class EchoIndex:
    """The values of a session's secrets, made ready once for all of its answers.

    Raises `VaultError` if a lease has ended.
    """

    def __init__(self, uses: Sequence[SecretUse]) -> None:
        values = [(use.placeholder, use.reveal()) for use in uses]
        self.anchors = AnchorIndex(row for row in values if len(row[1]) >= SHORTEST_BYTES)
        self.names = {use.placeholder: use.name for use in uses}

    def cleaned(self, data: bytes) -> bytes:
        """A whole text, such as a header's value, without any of the values."""
        echoes = EchoFilter(self)
        return echoes.feed(data) + echoes.end()


class EchoFilter:
    """One answer's body: `feed` it in pieces of any size, pass on what comes back, `end` it.

    What comes out is the same however the body was cut: of forms that overlap, the one that
    begins first counts, and of those its shortest. Only bytes that may be the beginning of a
    form wait for more, so a stream of events is not held up.
    """

    def __init__(self, uses: Sequence[SecretUse] | EchoIndex) -> None:
        self._index = uses if isinstance(uses, EchoIndex) else EchoIndex(uses)
        self._kept = b""
        self._found: dict[str, None] = {}

    @property
    def found(self) -> tuple[str, ...]:
        """Names of the secrets whose value was taken out, for the record."""
        return tuple(self._found)

    def feed(self, data: bytes) -> bytes:
        """What can be passed on."""
        window = self._kept + data
        unfinished = sorted(
            {
                start
                for piece in self._index.anchors.pieces
                for form in piece.forms
                for start in form.unfinished(window)
            }
        )
        cleaned, self._kept = self._cleaned(window, unfinished)
        return cleaned

    def end(self) -> bytes:
        """The rest: what has waited begins no form after all."""
        cleaned, self._kept = self._cleaned(self._kept, [])
        return cleaned

    def _cleaned(self, window: bytes, unfinished: Sequence[int]) -> tuple[bytes, bytes]:
        matches = _Matches(self._index.anchors, window)
        out: list[bytes] = []
        place = 0
        while True:
            match = matches.first(place)
            start = len(window) if match is None else match[0]
            waiting = bisect_left(unfinished, place)
            if waiting < len(unfinished) and unfinished[waiting] < start:
                # Something that begins earlier may still become a form: nothing after it counts.
                out.append(window[place : unfinished[waiting]])
                return b"".join(out), window[unfinished[waiting] :]
            out.append(window[place:start])
            if match is None:
                return b"".join(out), b""
            _, place, placeholder = match
            out.append(placeholder.encode())
            self._found[self._index.names[placeholder]] = None


class _Matches:
    """Start, end and placeholder of what stands in a window, each form searched through once."""

    def __init__(self, anchors: AnchorIndex, window: bytes) -> None:
        self._window = window
        self._candidates = list(anchors.candidates(window))
        self._next: list[tuple[int, int, int]] = []
        for number in range(len(self._candidates)):
            self._search(number, 0)

    def first(self, place: int) -> tuple[int, int, str] | None:
        while self._next and self._next[0][0] < place:
            self._search(heappop(self._next)[2], place)
        if not self._next:
            return None
        start, end, number = self._next[0]
        return start, end, self._candidates[number][0].name

    def _search(self, number: int, place: int) -> None:
        match = self._candidates[number][1].first(self._window, place)
        if match is not None:
            heappush(self._next, (*match, number))
