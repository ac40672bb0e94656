"""Classifies passages: instructions to a model in a text that is data (GRD-10)."""

from cellwall.guard.detect.passages.finder import PassageFinding, find
from cellwall.guard.detect.passages.voting import vote

__all__ = ["PassageFinding", "find", "vote"]
