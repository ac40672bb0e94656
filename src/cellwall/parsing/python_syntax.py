"""Python source to its syntax tree, for every part that reads Python. Pure."""

from __future__ import annotations

import ast
import threading

_ATTEMPTS = 5
# Before Python 3.11.5, two threads inside `ast.parse` at once share a counter, and one of them gets
# SystemError (gh-106905). One parse at a time keeps our own threads apart; a parse by another
# library in the same process is met by trying again.
_one_at_a_time = threading.Lock()


def parse_python(source: str) -> ast.Module:
    """Raises what `ast.parse` raises for source that is no Python, and nothing else."""
    for _ in range(_ATTEMPTS):
        with _one_at_a_time:
            try:
                return ast.parse(source)
            except SystemError:
                continue
    raise ValueError("the parser is in use by other threads")
