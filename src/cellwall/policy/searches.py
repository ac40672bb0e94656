"""Searches for files, as far as what they find could be a file that is denied. Pure.

`find ~ -name id_rsa -exec cat {} +` reads a file whose path stands nowhere in the text. A search
that starts above a denied path reaches the file, unless its tests ask for an ordinary extension.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from cellwall.policy.paths import normalise
from cellwall.policy.shell.command import Command
from cellwall.policy.shell.words import UNKNOWN

_SEARCHES = frozenset(("find", "gfind", "bfs", "fd", "fdfind"))
_NAME_TESTS = frozenset(("-name", "-iname"))
_OTHERWISE = frozenset(("-o", "-or", ",", "!", "-not"))
_EXTENSIONS = frozenset(("-e", "--extension"))
_FEW_LETTERS = 3
_has_extension = re.compile(r".*\.[A-Za-z0-9]{1,8}\Z").match
_ACTIONS = frozenset(("-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch"))


def searches_in(commands: Iterable[Command]) -> list[Command]:
    """The commands that look for files."""
    return [each for each in commands if each.words and _name(each) in _SEARCHES]


def start_paths(command: Command) -> Iterator[str]:
    """Where a search starts, as absolute paths; the working directory if it names none."""
    texts = [word.text for word in command.words[1:]]
    found = [text for text in _before_action(texts) if "/" in text or text in {".", ".."}]
    for place in found or ["."]:
        for directory in command.directories:
            if UNKNOWN not in place:
                yield normalise(posixpath.join(directory, place))


def is_narrowed(command: Command) -> bool:
    """Whether it finds only names with an extension that it spells out."""
    texts = _before_action([word.text for word in command.words[1:]])
    if _name(command) in {"fd", "fdfind"}:
        return not _EXTENSIONS.isdisjoint(texts)
    tests = [text for before, text in pairwise(texts) if before in _NAME_TESTS]
    return bool(tests) and _OTHERWISE.isdisjoint(texts) and all(map(_has_extension, tests))


def names_asked_for(command: Command) -> Iterator[str]:
    """The last names of its tests that tell more than an extension."""
    texts = _before_action([word.text for word in command.words[1:]])
    for text in texts:
        last = text.rpartition("/")[2].lower()
        if len(re.sub(r"\[[^]]*\]|\W", "", last.partition(".")[0] or last)) >= _FEW_LETTERS:
            yield last


def reaches(place: str, denied: Iterable[str]) -> bool:
    """Whether a denied path lies in a folder."""
    above = place.rstrip("/") + "/"
    return any(f"{each}/".startswith(above) for each in denied)


def _before_action(texts: Sequence[str]) -> list[str]:
    end = next((at for at, text in enumerate(texts) if text in _ACTIONS), len(texts))
    return list(texts[:end])


def _name(command: Command) -> str:
    return command.words[0].text.rpartition("/")[2]
