"""Detectors for what no single pattern can say: order, number, and what stands beside what.

Each has `WORDS`, one of which stands in everything it finds, and `find`, which looks at a text in
which at least one of them was seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from cellwall.guard.detect.spots import Spot, without_flood
from cellwall.guard.detect.structure import beacons, chat_turns, orders, script_shift, urgency
from cellwall.guard.detect.sweep import Sweep
from cellwall.guard.report import Kind

_ALL = (chat_turns, beacons, orders, script_shift, urgency)
# What a person writes may hurry, and mix languages, as people do.
_OF_OUTPUT = (script_shift, urgency)

WORDS = tuple(chain.from_iterable(detector.WORDS for detector in _ALL))


def find(sweep: Sweep, kind: Kind) -> Iterator[Spot]:
    """What all of them see."""
    for detector in _ALL:
        if (kind == "output" or detector not in _OF_OUTPUT) and sweep.has(detector.WORDS):
            yield from without_flood(detector.find(sweep), len(sweep.data))
