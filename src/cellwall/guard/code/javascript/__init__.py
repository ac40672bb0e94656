"""JavaScript and TypeScript, by a reader of our own.

Not by tree-sitter: its parsers for TypeScript and shell take memory without bound for input as
short as 100 KB (`f<a,f<a,…`, `a|a|a…`), which ends the process, and cannot be stopped in time.
Here every token is looked at a bounded number of times.
"""

from __future__ import annotations

from cellwall.guard.code.javascript.reading import look

__all__ = ["look"]
