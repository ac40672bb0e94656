"""Shell, by a reader of our own; why not by tree-sitter is said in `javascript`."""

from __future__ import annotations

from cellwall.guard.code.shell.screening import look

__all__ = ["look"]
