"""Finds attacks on the model that reads a text: rules as data, structure, and tasks in carriers."""

from __future__ import annotations

from cellwall.guard.detect.detector import Detection, Detector
from cellwall.guard.detect.rule_packs import Pack, load_pack

__all__ = ["Detection", "Detector", "Pack", "load_pack"]
