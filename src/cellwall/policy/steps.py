"""Paths as steps from name to name: which fit a pattern, and which could. Pure.

Each pair of places is looked at once; what would take too long counts as fitting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum

from cellwall.parsing.shell.words import UNKNOWN
from cellwall.policy.globs import (
    OVERLAP_MOST_STEPS,
    Name,
    Wild,
    literal_name,
    make_name,
    shell_name,
    tokens_overlap,
)

VARIANTS_MOST = 27


class Deep(Enum):
    """Any number of folders, also none: in a pattern, or where nothing is known; or as found."""

    DEEP = "**"
    FOUND = "globstar"


DEEP, FOUND = Deep.DEEP, Deep.FOUND
Step = Name | Deep


def names_match(steps: Sequence[Step], names: Sequence[str]) -> bool:
    """All places in the pattern are followed at once, so no name is looked at twice."""
    places = _settle(steps, {0})
    for name in names:
        following = set()
        for place in places:
            step = steps[place]
            if isinstance(step, Deep):
                following.add(place)
            elif step.accepts(name):
                following.add(place + 1)
        if len(steps) in following:
            return True
        if not following:
            return False
        places = _settle(steps, following)
    return False


def _settle(steps: Sequence[Step], places: set[int]) -> set[int]:
    # `**` may stand for nothing; two of them never stand side by side.
    return places | {place + 1 for place in places if steps[place] is DEEP}


def literal_steps(path: str) -> tuple[Step, ...]:
    """A known path, name by name."""
    return tuple(literal_name(name) for name in path.split("/") if name)


def ways_of(path: str, cwd: str) -> list[tuple[Step, ...]]:
    """What a half-known path can become, each as steps from the root; `cwd` is normalised."""
    _, mark, known = path.rpartition(UNKNOWN)
    if mark:
        # The unknown text can hold `..` and so lead anywhere: only what follows it is known.
        ways: list[tuple[Step, ...]] = [(DEEP,)]
        glued, _, rest = known.partition("/")
        if glued:
            end = make_name((Wild.MANY, *shell_name(glued).tokens))
            ways = [(DEEP, end), *([(DEEP,)] if _may_be_dots(end) else [])]
        names = rest.split("/")
    else:
        ways = [() if path.startswith("/") else literal_steps(cwd)]
        names = path.split("/")
    for name in names:
        ways = [after for way in ways for after in _step_into(way, name)]
        if len(ways) > VARIANTS_MOST:
            return [(DEEP,)]
    return ways


def _step_into(way: tuple[Step, ...], name: str) -> Iterator[tuple[Step, ...]]:
    if name in {"", "."}:
        yield way
    elif name == "..":
        # A name that a wildcard finds may be a link, and `..` is then anywhere.
        is_found = any(not isinstance(step, Deep) and step.literal is None for step in way)
        yield (DEEP,) if is_found else _up(way)
    elif name == "**":
        yield (*way, FOUND)
    else:
        step = shell_name(name)
        yield (*way, step)
        # `.*` is also `.` and `..` in most shells; a dot in front is never meant by a wildcard.
        if step.literal is None and name.startswith(".") and _may_be_dots(step):
            yield way
            yield _up(way)


def _up(way: tuple[Step, ...]) -> tuple[Step, ...]:
    return way if way and isinstance(way[-1], Deep) else way[:-1]


def _may_be_dots(step: Name) -> bool:
    return tokens_overlap(step.tokens, (".",)) or tokens_overlap(step.tokens, (".", "."))


def steps_overlap(pattern: Sequence[Step], path: Sequence[Step], *, wary: bool) -> bool:
    """Whether some path fits both, or lies in a folder that does; `wary` as in `could_match`."""
    if len(pattern) * len(path) > OVERLAP_MOST_STEPS:
        return True
    width = len(path) + 1
    row = [True] + [False] * len(path)
    for index, step in enumerate(pattern):
        below = [False] * width
        for place in range(width):
            if not row[place]:
                continue
            other = path[place] if place < len(path) else None
            if step is DEEP:
                below[place] = True
            if other is not None and (isinstance(step, Deep) or isinstance(other, Deep)):
                row[place + 1] = True  # the one takes the other in, or stands for nothing
            if other is None or isinstance(step, Deep):
                continue
            is_folder = index + 1 == len(pattern) and place + 1 < len(path)
            if _shares(step, other, wary=wary, is_folder=is_folder):
                below[place if isinstance(other, Deep) else place + 1] = True
        row = below
    return any(row)


def _shares(step: Name, other: Step, *, wary: bool, is_folder: bool) -> bool:
    """`is_folder`: the pattern ends here and the path goes on."""
    if isinstance(other, Deep):
        is_usual = not (step.is_hidden or (is_folder and step.literal is None))
        return other is DEEP or wary or is_usual
    if not wary and other.literal is None:
        if step.is_hidden and not other.is_hidden:
            return False
        if is_folder and step.literal is None:
            return False
    return step.overlaps(other)
