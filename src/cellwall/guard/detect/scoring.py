"""From single sightings to one answer.

Score: within a category sightings are taken as independent hints (noisy or), up to the cap of the
category; categories are put together in the same way. So a second kind of evidence counts for more
than the same evidence twice, no flood of weak hints adds up to certainty, and the result is always
between 0 and 1.

Severity: the strongest sighting decides, after three combinations. Instruction and way out, or
instruction and secret: critical (`context`). Instruction inside a disguise: at least high, since
nobody hides what is harmless. Everything else keeps what its rule says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cellwall.guard.detect.categories import CAPS, rank
from cellwall.guard.report import Hit

MAX_HITS = 200
_CAP_OF_OTHERS = 0.8
_NEAR_CHARACTERS = 200
# Ways in which programs write ordinary text; the others serve to hide something.
_ORDINARY = frozenset({"url", "html", "quoted-printable", "json", "escapes"})
# Ordinary for files and mail as a whole, though not for an instruction to a model.
_PACKED = frozenset({"base64", "base32", "hex"})


def combined(hits: Iterable[Hit]) -> float:
    """How sure all of them together make it."""
    doubts: dict[str, float] = {}
    for hit in hits:
        doubts[hit.category] = doubts.get(hit.category, 1.0) * (1.0 - hit.score)
    doubt = 1.0
    for category, left in doubts.items():
        doubt *= max(left, 1.0 - CAPS.get(category, _CAP_OF_OTHERS))
    return 1.0 - doubt


def unmasked(hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """With instructions in a disguise raised to high."""
    disguises = [hit for hit in hits if hit.category == "hidden"]
    return tuple(
        replace(hit, severity="high", score=max(hit.score, 0.85))
        if _is_masked(hit, disguises)
        else hit
        for hit in hits
    )


def _is_masked(hit: Hit, disguises: Sequence[Hit]) -> bool:
    if hit.severity != "medium" or hit.category == "hidden":
        return False
    unusual = set(hit.via) - _ORDINARY
    if unusual - _PACKED or (unusual and hit.category != "task"):
        return True
    return not hit.via and any(
        hidden.start < hit.end + _NEAR_CHARACTERS and hit.start < hidden.end + _NEAR_CHARACTERS
        for hidden in disguises
        if rank(hidden.severity) >= rank("medium")
    )


def merged(hits: Iterable[Hit]) -> list[Hit]:
    """Those of one category that overlap, as one: the strongest of them over the whole stretch."""
    found: list[Hit] = []
    last: dict[str, int] = {}
    for hit in sorted(hits, key=lambda hit: (hit.start, hit.end, len(hit.via), hit.rule)):
        place = last.get(hit.category)
        if place is not None and hit.start < found[place].end:
            found[place] = _one(found[place], hit)
        else:
            last[hit.category] = len(found)
            found.append(hit)
    return found


def bounded(hits: Sequence[Hit], most: int = MAX_HITS) -> tuple[Hit, ...]:
    """At most so many, in order. Of a flood neighbours are made one: all of it stays covered."""
    if len(hits) <= most:
        return tuple(hits)
    ordered = sorted(hits, key=lambda hit: (hit.start, hit.end))
    size = -(-len(ordered) // most)
    groups = (ordered[at : at + size] for at in range(0, len(ordered), size))
    return tuple(_all_of(group) for group in groups)


def _all_of(hits: Sequence[Hit]) -> Hit:
    found = hits[0]
    for hit in hits[1:]:
        found = _one(found, hit)
    return found


def _one(left: Hit, right: Hit) -> Hit:
    strongest = max(left, right, key=lambda hit: (rank(hit.severity), hit.score, -len(hit.via)))
    return replace(strongest, start=min(left.start, right.start), end=max(left.end, right.end))
