"""Detects tasks for an assistant that were injected into a text about something else (GRD-10)."""

from __future__ import annotations

from cellwall.guard.detect.tasks.finder import MIN_CARRIER_CHARACTERS, find

__all__ = ["MIN_CARRIER_CHARACTERS", "find"]
