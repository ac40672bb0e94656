"""Python, by its own parser."""

from __future__ import annotations

from cellwall.guard.code.python.reading import look

__all__ = ["look"]
