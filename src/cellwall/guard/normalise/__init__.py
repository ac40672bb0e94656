"""What a text says when its tricks are undone: views of it, each with its way back (GRD-1)."""

from __future__ import annotations

from cellwall.guard.normalise.views import Unfolded, UnfoldLimits, View, unfold

__all__ = ["UnfoldLimits", "Unfolded", "View", "unfold"]
