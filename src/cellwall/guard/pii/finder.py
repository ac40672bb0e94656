"""Finds personal data of all kinds in one text.

1. Engines without backtracking find candidates; Python and the libraries check only those.
2. Where hits overlap, the hit of the earlier finder stays and the other is shortened.
3. Beyond the limits, the rest of the text is one hit: hiding too much is safe, too little is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice

from cellwall.guard.pii import national_ids, network, numbers, people
from cellwall.guard.pii.hit import REGIONS, UNREAD, CheckBudget, PiiHit
from cellwall.parsing.budget import ScanBudget, ScanUnfinished, checkpoint, grant

_CHECKS = 20_000
_MAX_HITS = 100_000
_HITS_A_STEP = 256

Names = Callable[[str], Sequence[PiiHit]]
"""Finds names of people: `people.NameFinder`, which needs an optional dependency."""


def find(
    text: str,
    *,
    regions: Sequence[str] = REGIONS,
    names: Names | None = None,
    max_hits: int = _MAX_HITS,
) -> tuple[PiiHit, ...]:
    """Hits in characters, from left to right and without overlaps.

    Telephone numbers without a country code are found if they belong to one of the `regions`.
    """
    time = ScanBudget()
    grant(time, len(text))
    try:
        with time.running():
            return _found(text, regions=regions, names=names, max_hits=max_hits)
    except ScanUnfinished:
        return (PiiHit(UNREAD, 0, len(text)),)


def _found(
    text: str, *, regions: Sequence[str], names: Names | None, max_hits: int
) -> tuple[PiiHit, ...]:
    data = text.encode("utf-8", "surrogatepass")
    budget = CheckBudget(_CHECKS)
    finders: list[Callable[[bytes, CheckBudget], Iterator[PiiHit]]] = [network.find_mails]
    if any(digit in data for digit in _DIGITS):
        finders += [
            national_ids.find_ibans,
            national_ids.find_unambiguous,
            national_ids.find_named,
            people.find_birth_dates,
            network.find_ip_addresses,
            network.find_mac_addresses,
            partial(numbers.find_numbers, regions=regions),
            people.find_postal_addresses,
        ]
    ranked = [
        (rank, hit)
        for rank, finder in enumerate(finders)
        for hit in islice(_timed(finder(data, budget)), max_hits + 1)
    ]
    found = list(_in_characters(text, data, _apart(ranked)))
    if names is not None:
        given = [(len(finders), hit) for hit in names(text)]
        found = _apart(chain(((0, hit) for hit in found), given))
    if len(found) > max_hits:
        found[max_hits:] = [PiiHit(UNREAD, found[max_hits].start, len(text))]
    return tuple(found)


def _timed(hits: Iterator[PiiHit]) -> Iterator[PiiHit]:
    checkpoint()
    for number, hit in enumerate(hits):
        if number % _HITS_A_STEP == 0:
            checkpoint()
        yield hit


_DIGITS = tuple(bytes([digit]) for digit in b"0123456789")


def _apart(ranked: Iterator[tuple[int, PiiHit]] | Sequence[tuple[int, PiiHit]]) -> list[PiiHit]:
    """Step 2. Of two hits with one start the longer comes first, then the earlier finder."""
    found: list[PiiHit] = []
    reached = 0
    for _, hit in sorted(ranked, key=lambda each: (each[1].start, -each[1].end, each[0])):
        if hit.end <= reached:
            continue
        found.append(hit if hit.start >= reached else PiiHit(hit.kind, reached, hit.end))
        reached = hit.end
    return found


def _in_characters(text: str, data: bytes, hits: Sequence[PiiHit]) -> Iterator[PiiHit]:
    if len(text) == len(data):
        yield from hits
        return
    at_byte = at_character = 0
    for hit in hits:
        start = at_character + _length(data, at_byte, hit.start)
        end = start + _length(data, hit.start, hit.end)
        yield PiiHit(hit.kind, start, end)
        at_byte, at_character = hit.end, end


def _length(data: bytes, start: int, end: int) -> int:
    return len(data[start:end].decode("utf-8", "surrogatepass"))
