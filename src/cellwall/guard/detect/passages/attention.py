"""The strongest passages of a text, read once more with what stands around them (GRD-2, GRD-8).

The linear model and the network see a passage as a set of words. A small transformer encoder sees
the order of the words as well. It costs more than both, so it reads only the few passages that they
score highest, and none of a text where they find nothing. A fixed share of the score of a passage
is then the encoder's, and the lowest one for a passage that was not read.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from cellwall.guard.ctext.attention import AttentionNetwork, AttentionShape, Registers
from cellwall.guard.ctext.passages import Passages
from cellwall.guard.ctext.vectors import PieceVectors
from cellwall.guard.detect.shipped_data import damaged

_SIZES = ("dims", "width", "layers", "inner", "hidden", "before", "own", "after", "most")
_FLOAT_BYTES = 4
_MARKS = re.compile(rb"[!-/:-@\[-`{-~]|[0-9]+|[\xe2\xe3\xef][\x80-\xbf]{2}")
"""Each is at least one piece without a letter: of ASCII, and of the blocks of Unicode that have the
other marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSettings:
    """What is read once more, and how much it counts."""

    share: float
    """How much of a score is that of the attention network."""
    low: float
    high: float
    """Between these its score counts; that of a passage that is not read is the lower one."""
    passages: int
    """So many of a text are read at most."""
    floor: float
    """A passage that scores less by the other models is not read."""


@dataclass(frozen=True, slots=True)
class ParsedNetwork:
    """The network of a file, and its sizes."""

    network: AttentionNetwork
    shape: AttentionShape


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionModel:
    """The network, the vectors of word pieces that it reads, and its settings."""

    network: AttentionNetwork
    vectors: PieceVectors
    settings: AttentionSettings
    own: int
    """So many pieces of a passage are read."""

    def moved(
        self, parts: Sequence[Passages], scores: Sequence[Sequence[float]]
    ) -> list[list[float]]:
        """The scores of the candidates of all parts of a text, moved. Attack: decoys in one part,
        so that another is not read. The strongest of all parts are."""
        settings = self.settings
        moved = [[self._mixed(score, settings.low) for score in part] for part in scores]
        chosen: dict[int, list[int]] = {}
        for part, at in self._strongest(scores):
            chosen.setdefault(part, []).append(at)
        for part, places in chosen.items():
            passages = parts[part]
            numbers = array("Q", (passages.chosen[at] for at in places))
            found = self.network.scores(self.vectors, passages, numbers, none=settings.low)
            for at, read in zip(places, found, strict=True):
                score, clipped = scores[part][at], max(settings.low, min(settings.high, read))
                mixed = self._mixed(score, clipped)
                # Attack: fifty marks before an instruction, so that only the marks are read.
                is_read = self._is_read(passages, passages.chosen[at])
                moved[part][at] = mixed if is_read else max(score, mixed)
        return moved

    def _is_read(self, passages: Passages, number: int) -> bool:
        """Whether a passage is read to its end, or has words where it is read."""
        record = passages[number]
        data = passages.data[record.byte_start : record.byte_end]
        if len(self.vectors.numbers(data, self.own + 1)) <= self.own:
            return True
        return len(_MARKS.findall(data)) < self.own * 3 // 4

    def _strongest(self, scores: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
        """Part and place of those that are read: among equal ones the first."""
        ranked = sorted(
            (-score, part, at)
            for part, own in enumerate(scores)
            for at, score in enumerate(own)
            if score >= self.settings.floor
        )
        return [(part, at) for _, part, at in ranked[: self.settings.passages]]

    def _mixed(self, score: float, read: float) -> float:
        return (1 - self.settings.share) * score + self.settings.share * read


def parse_network(
    data: bytes, scale: float, registers: Registers = Registers.BITS_256
) -> ParsedNetwork:
    """A line of JSON, floats of 32 bits, and weights as signed numbers of 16 bits (first matrix)
    and of 8 bits, little-endian; `scale`: of the vectors of pieces."""
    line, _, rest = data.partition(b"\n")
    try:
        told = json.loads(line)
        end = _FLOAT_BYTES * told["floats"]
        shape = AttentionShape(**{name: told[name] for name in _SIZES})
        return ParsedNetwork(
            AttentionNetwork(shape, rest[:end], rest[end:], scale=scale, registers=registers),
            shape,
        )
    except (KeyError, TypeError, ValueError):
        raise damaged() from None
