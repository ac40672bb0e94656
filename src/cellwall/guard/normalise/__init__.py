"""Normalises and decodes a text into views, each with a map back to the original (GRD-1)."""

from __future__ import annotations

from cellwall.guard.normalise.views import Unfolded, UnfoldLimits, View, unfold

__all__ = ["UnfoldLimits", "Unfolded", "View", "unfold"]
