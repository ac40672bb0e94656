"""Detectors of structure: the order, number and combination of sentences, not single patterns.

Each detector has a tuple of keywords, at least one of which is in everything it finds, and a
function that searches a view in which one of the keywords was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

from cellwall.guard.detect.structure import beacons, chat_turns, orders, script_shift
from cellwall.guard.detect.sweep import Spot, Sweep, without_flood
from cellwall.guard.report import Kind


class _StructureDetector(NamedTuple):
    words: tuple[bytes, ...]
    find: Callable[[Sweep], Iterator[Spot]]
    is_for_output_only: bool = False


_DETECTORS = (
    _StructureDetector(chat_turns.WORDS, chat_turns.find),
    _StructureDetector(beacons.WORDS, beacons.find),
    _StructureDetector(orders.WORDS, orders.find),
    # People who write to a model mix languages and are in a hurry; tool output has no reason to.
    _StructureDetector(script_shift.WORDS, script_shift.find, is_for_output_only=True),
    _StructureDetector(orders.PRESSURE_WORDS, orders.find_pressure, is_for_output_only=True),
)

WORDS = tuple(chain.from_iterable(detector.words for detector in _DETECTORS))


def find(sweep: Sweep, kind: Kind) -> Iterator[Spot]:
    """Run every detector whose keywords are in the view."""
    for detector in _DETECTORS:
        is_asked = kind == "output" or not detector.is_for_output_only
        if is_asked and sweep.has(detector.words):
            yield from without_flood(detector.find(sweep), len(sweep.data))
