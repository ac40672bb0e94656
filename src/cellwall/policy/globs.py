"""Wildcards within one name of a path: the names that match, and overlaps of two patterns. Pure.

Patterns use the wildcards of gitignore. Wildcards in a word of the shell are read generously: a
denial must hold for every name that the shell could expand the word to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from cellwall.parsing.shell.words import UNKNOWN
from cellwall.policy.rules import BadRule

MAX_OVERLAP_STEPS = 1 << 16
"""A longer comparison is not made; the answer is then the strict one."""


class Wild(Enum):
    """Wildcards for unknown characters."""

    ONE = "?"
    MANY = "*"


@dataclass(frozen=True, slots=True)
class CharClass:
    """`[a-z_]`, or its complement."""

    ranges: tuple[tuple[str, str], ...]
    is_negated: bool

    def accepts(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) != self.is_negated

    @property
    def regex(self) -> str:
        inner = "".join(f"{re.escape(low)}-{re.escape(high)}" for low, high in self.ranges)
        return f"[{'^' if self.is_negated else ''}{inner}]"


Token = str | Wild | CharClass


@dataclass(frozen=True, slots=True)
class NamePattern:
    """One name between two slashes. A string token is one character."""

    tokens: tuple[Token, ...]
    literal: str | None
    """The name itself, if it holds no wildcard."""
    _regex: re.Pattern[str] | None = field(default=None, repr=False, compare=False)

    def accepts(self, name: str) -> bool:
        if self._regex is not None:
            return self._regex.fullmatch(name) is not None
        return name == self.literal

    @property
    def is_hidden(self) -> bool:
        """The name begins with a literal dot."""
        return self.tokens[:1] == (".",)

    def overlaps(self, other: NamePattern) -> bool:
        """Whether some name matches both."""
        if self.literal is not None and other.literal is not None:
            return self.literal == other.literal
        return tokens_overlap(self.tokens, other.tokens)


def tokens_overlap(first: tuple[Token, ...], second: tuple[Token, ...]) -> bool:
    """Whether one text matches both. Each pair of positions is visited once."""
    for mine, its in zip(first[:1] + first[-1:], second[:1] + second[-1:], strict=False):
        if not _share(mine, its):
            return False
    if len(first) * len(second) > MAX_OVERLAP_STEPS:
        return True
    width = len(second) + 1
    row = [True] + [False] * len(second)
    for at in range(len(first) + 1):
        token = first[at] if at < len(first) else None
        below = [False] * width
        for place in range(width):
            if not row[place]:
                continue
            other = second[place] if place < len(second) else None
            if token is Wild.MANY:
                below[place] = True
            if other is Wild.MANY or (token is Wild.MANY and other is not None):
                row[place + 1] = True
            if other is Wild.MANY and token is not None:
                below[place] = True
            elif token is not None and other is not None and _share(token, other):
                below[place + 1] = True
        if at == len(first):
            return row[-1]
        row = below
    return False


def _share(one: Token, other: Token) -> bool:
    match one, other:
        case str(), str():
            return one == other
        case (CharClass(), str()):
            return one.accepts(other)
        case (str(), CharClass()):
            return other.accepts(one)
        case _:
            return True  # two classes are not compared: strictly, they overlap


def make_name(tokens: Sequence[Token]) -> NamePattern:
    """A name of these tokens."""
    merged: list[Token] = []
    for token in tokens:
        if not (token is Wild.MANY and merged[-1:] == [Wild.MANY]):
            merged.append(token)
    is_literal = all(isinstance(token, str) for token in merged)
    text = "".join(str(token) for token in merged) if is_literal else None
    return NamePattern(tuple(merged), text)


def _regex(tokens: Sequence[Token]) -> str:
    """The pieces between two stars have a fixed length, so the first match of each is enough.

    The atomic group keeps that choice: without it a name of many letters against many stars takes
    exponential time.
    """
    pieces = [""]
    for token in tokens:
        match token:
            case Wild.MANY:
                pieces.append("")
            case Wild.ONE:
                pieces[-1] += "."
            case CharClass():
                pieces[-1] += token.regex
            case _:
                pieces[-1] += re.escape(token)
    if len(pieces) == 1:
        return pieces[0]
    middle = "".join(f"(?>.*?{piece})" for piece in pieces[1:-1])
    return f"{pieces[0]}{middle}.*{pieces[-1]}"


# A name as a rule writes it


def parse_name(text: str) -> NamePattern:
    """A name with the wildcards of gitignore; `\\` escapes the next character."""
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "[":
            found, at = _parse_class(text, at)
            tokens.append(found)
            continue
        if char == "\\":
            at += 1
            if at == len(text):
                raise BadRule(
                    "a backslash ends the name",
                    hint="Write \\\\ for a backslash; only / separates folders.",
                    offset=at - 1,
                )
            tokens.append(text[at])
        elif char in "{}":
            raise BadRule(
                f"{char} does not separate alternatives in a path",
                hint=f"Write one rule for each, or \\{char} for the character itself.",
                offset=at,
            )
        else:
            tokens.append({"*": Wild.MANY, "?": Wild.ONE}.get(char, char))
        at += 1
    name = make_name(tokens)
    if name.literal is not None:
        return name
    return NamePattern(name.tokens, None, re.compile(_regex(name.tokens), re.DOTALL))


def _parse_class(text: str, start: int) -> tuple[CharClass, int]:
    at = start + 1
    is_negated = text[at : at + 1] in {"!", "^"}
    at += is_negated
    first = at
    ranges: list[tuple[str, str]] = []
    while at < len(text) and (text[at] != "]" or at == first):
        if text.startswith("[:", at):
            raise BadRule(
                "named classes such as [:alpha:] are not supported",
                hint="Write the range, for example [a-z].",
                offset=at,
            )
        at += text[at] == "\\"
        low = high = text[at : at + 1]
        at += 1
        if text[at : at + 1] == "-" and text[at + 1 : at + 2] not in {"", "]"}:
            at += 1 + (text[at + 1] == "\\")
            high = text[at : at + 1]
            at += 1
        if not low or not high or low > high:
            raise BadRule(
                "a range in [ ] runs backwards or is not finished",
                hint="Write the lower end first, for example [a-z].",
                offset=start,
            )
        ranges.append((low, high))
    if at >= len(text):
        raise BadRule(
            "[ is not closed within one name of the path",
            hint="Close it with ], or write \\[ for the character itself.",
            offset=start,
        )
    return CharClass(tuple(ranges), is_negated), at + 1


# A name as the shell writes it


def literal_name(text: str) -> NamePattern:
    """Exactly this name."""
    return make_name(tuple(text))


def shell_name(text: str) -> NamePattern:
    """Every name that the shell could expand this word to.

    Brackets count as any text: they match one character, or stay literal where no file matches.
    """
    opened = text.find("[")
    closed = text.rfind("]")
    if 0 <= opened < closed:
        head, tail = _plain_tokens(text[:opened]), _plain_tokens(text[closed + 1 :])
        return make_name((*head, Wild.MANY, *tail))
    return make_name(_plain_tokens(text))


def _plain_tokens(text: str) -> tuple[Token, ...]:
    return tuple({"*": Wild.MANY, "?": Wild.ONE}.get(char, char) for char in text)


# Paths as steps from name to name, compared with patterns.
#
# Each pair of positions is visited once; a comparison that is too long counts as a match.

MAX_VARIANTS = 27


class Deep(Enum):
    """Any number of folders, also none: in a pattern, in an unknown path, or by globstar."""

    DEEP = "**"
    FOUND = "globstar"


DEEP, FOUND = Deep.DEEP, Deep.FOUND
Step = NamePattern | Deep


def names_match(steps: Sequence[Step], names: Sequence[str]) -> bool:
    """Whether the path, or a folder around it, matches; no steps are the root, around all paths.

    All positions in the pattern advance together, so no name is visited twice.
    """
    if not steps:
        return True
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
    """The paths that a partly known path can become, as steps from the root."""
    _, mark, known = path.rpartition(UNKNOWN)
    if mark:
        # Unknown text can hold `..` and so lead anywhere: only the rest after it is known.
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
        if len(ways) > MAX_VARIANTS:
            return [(DEEP,)]
    return ways


def _step_into(way: tuple[Step, ...], name: str) -> Iterator[tuple[Step, ...]]:
    if name in {"", "."}:
        yield way
    elif name == "..":
        # A name that a wildcard matches may be a link, and `..` then leads anywhere.
        is_found = any(not isinstance(step, Deep) and step.literal is None for step in way)
        yield (DEEP,) if is_found else _up(way)
    elif name == "**":
        yield (*way, FOUND)
    else:
        step = shell_name(name)
        yield (*way, step)
        # `.*` is also `.` and `..` in most shells; a wildcard never matches a leading dot.
        if step.literal is None and name.startswith(".") and _may_be_dots(step):
            yield way
            yield _up(way)


def _up(way: tuple[Step, ...]) -> tuple[Step, ...]:
    return way if way and isinstance(way[-1], Deep) else way[:-1]


def _may_be_dots(step: NamePattern) -> bool:
    return tokens_overlap(step.tokens, (".",)) or tokens_overlap(step.tokens, (".", "."))


def steps_overlap(pattern: Sequence[Step], path: Sequence[Step], *, wary: bool) -> bool:
    """Whether some path, or a folder around it, matches both; `wary` as in `could_match`."""
    if len(pattern) * len(path) > MAX_OVERLAP_STEPS:
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
                row[place + 1] = True  # one absorbs the other, or matches nothing
            if other is None or isinstance(step, Deep):
                continue
            is_folder = index + 1 == len(pattern) and place + 1 < len(path)
            if _shares(step, other, wary=wary, is_folder=is_folder):
                below[place if isinstance(other, Deep) else place + 1] = True
        row = below
    return any(row)


def _shares(step: NamePattern, other: Step, *, wary: bool, is_folder: bool) -> bool:
    """`is_folder`: the pattern ends here and the path continues."""
    if isinstance(other, Deep):
        is_usual = not (step.is_hidden or (is_folder and step.literal is None))
        return other is DEEP or wary or is_usual
    if not wary and other.literal is None:
        if step.is_hidden and not other.is_hidden:
            return False
        if is_folder and step.literal is None:
            return False
    return step.overlaps(other)
