"""How much of a text is looked at, and how much may come out of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What keeps a small text from becoming a large one, and a large one from taking long."""

    max_chars: int = 4 << 20
    """Of a longer text its beginning and its end are looked at, half of this each."""
    max_depth: int = 4
    """How many encodings inside each other are opened."""
    max_views: int = 32
    max_decoded_chars: int = 2 << 20
    """Of all layers together."""


class Effort:
    """How often something may still be tried on one text. What costs little once costs much when
    a text is made of nothing else."""

    __slots__ = ("left",)

    def __init__(self, tries: int) -> None:
        self.left = tries

    def spend(self) -> bool:
        """Whether there was one left."""
        self.left -= 1
        return self.left >= 0

    def end(self) -> None:
        """Something was left out."""
        self.left = -1

    @property
    def is_spent(self) -> bool:
        return self.left < 0
