"""Python source to its syntax tree, for every part that reads Python. Pure.

`ast.parse` is one call into C that holds the interpreter lock: no other sandbox of the process goes
on meanwhile. It takes some microseconds for each token, so the number of tokens is bounded.
"""

from __future__ import annotations

import ast
import re
import threading
import warnings

from cellwall.parsing.budget import checked

MAX_TOKENS = 50_000
"""More than ordinary code of 128 KB has; a quarter of a second on a slow machine."""
_ATTEMPTS = 5
_TOKEN = re.compile(r"[0-9]+\.[0-9]+|\w+|[^\w\s]|\n")
# Before Python 3.11.5, two threads inside `ast.parse` at once share a counter, and one of them gets
# SystemError (gh-106905). One parse at a time keeps our own threads apart; a parse by another
# library in the same process is met by trying again.
_one_at_a_time = threading.Lock()


def parse_python(source: str) -> ast.Module:
    """Raises what `ast.parse` raises for source that is no Python, and `ValueError` for source of
    more than `MAX_TOKENS`; nothing else."""
    if _has_too_many_tokens(source):
        raise ValueError("the source has more tokens than are parsed at once")
    for _ in range(_ATTEMPTS):
        with _one_at_a_time:
            try:
                # Within the lock: the filters of warnings belong to the whole process, and two
                # threads that restore them in turn would leave those of one of them.
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    return ast.parse(source)
            except SystemError:
                continue
    raise ValueError("the parser is in use by other threads")


def _has_too_many_tokens(source: str) -> bool:
    # At least as many as the parser's: words of comments and texts are counted one by one.
    if len(source) <= MAX_TOKENS:
        return False
    return any(count > MAX_TOKENS for count, _ in enumerate(checked(_TOKEN.finditer(source)), 1))
