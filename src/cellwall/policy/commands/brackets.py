"""Where programs differ on which bracket of a regular expression is open. Pure."""

from __future__ import annotations

from itertools import product


def is_closed(pattern: str) -> bool:
    """Whether no bracket is open at the end, by the reading of any sed or awk.

    A delimiter inside of a bracket ends the pattern for some of them and not for others; what
    follows is then code for one and text for the other.
    """
    if "[" not in pattern:
        return True
    return all(_closes(pattern, *reading) for reading in product((False, True), repeat=3))


def is_open(pattern: str) -> bool:
    """Whether a bracket is open at the end, by the reading of every sed: none compiles it."""
    if "[" not in pattern:
        return False
    return not any(_closes(pattern, *reading) for reading in product((False, True), repeat=3))


def _closes(pattern: str, escapes: bool, classes: bool, first_counts: bool) -> bool:  # noqa: FBT001
    """`escapes`: a backslash counts inside; `classes`: `[:` does; `first_counts`: `[]` closes."""
    at, depth = 0, 0
    while at < len(pattern):
        sign = pattern[at]
        at += 1
        if sign == "\\" and (not depth or escapes):
            at += 1
        elif sign == "[" and not depth:
            depth = 1
            at += pattern.startswith("^", at)
            at += not first_counts and pattern.startswith("]", at)
        elif sign == "[" and classes and pattern.startswith((":", ".", "="), at):
            depth += 1
        elif sign == "]" and depth:
            depth -= 1
    return not depth
