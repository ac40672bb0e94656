"""Searches for files whose results may include a denied file. Pure.

`find ~ -name id_rsa -exec cat {} +` reads a file whose path stands nowhere in the text. A search
that starts above a denied path reaches the file, unless its tests ask for an ordinary extension. A
listing (`ls ~`) is a search as well; it shows names that begin with a dot only where it is told to,
and then it was meant to find them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from cellwall.parsing.shell.command import Command
from cellwall.parsing.shell.words import UNKNOWN
from cellwall.policy.paths import normalise

_SEARCHES = frozenset(("find", "gfind", "bfs", "fd", "fdfind"))
_LISTINGS = frozenset(("ls", "dir", "vdir", "gls", "eza", "exa", "lsd"))
_SHOWING_HIDDEN = {
    **dict.fromkeys(_LISTINGS, ("aAf", ("--all", "--almost-all"))),
    **dict.fromkeys(("fd", "fdfind"), ("Hu", ("--hidden", "--unrestricted"))),
    "rg": ("u.", ("--hidden", "--unrestricted")),
}
"""Letters of short options, and long ones."""
_UNTRACKED = frozenset(("-o", "--others", "-i", "--ignored", "-co", "-oc"))
_NAME_TESTS = frozenset(("-name", "-iname"))
_OTHERWISE = frozenset(("-o", "-or", ",", "!", "-not"))
_EXTENSIONS = frozenset(("-e", "--extension"))
_FEW_LETTERS = 3
_has_extension = re.compile(r".*\.[A-Za-z0-9]{1,8}\Z").match
_ACTIONS = frozenset(("-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch"))


def searches_in(commands: Iterable[Command]) -> list[Command]:
    """The commands that look for files."""
    names = _SEARCHES | _LISTINGS
    return [each for each in commands if each.words and _name(each) in names]


def shows_hidden(command: Command) -> bool:
    """Whether a listing tells names that begin with a dot, or that git was told to leave alone."""
    name = _name(command) if command.words else ""
    if name != "git" and name not in _SHOWING_HIDDEN:
        return False
    texts = [word.text for word in command.words[1:]]
    if name == "git":
        is_asked = "ls-files" in texts and not _UNTRACKED.isdisjoint(texts)
        return is_asked and "--exclude-standard" not in texts
    letters, options = _SHOWING_HIDDEN[name]
    clusters = {text for text in texts if text.startswith("-") and not text.startswith("--")}
    is_short = any(not set(letters).isdisjoint(text) for text in clusters)
    # A part of a long option is enough for most programs.
    is_long = any(len(text) > 3 and option.startswith(text) for text in texts for option in options)
    return is_short or is_long


def start_paths(command: Command) -> Iterator[str]:
    """Where a search starts, as absolute paths; the working directory if it names none."""
    texts = [word.text for word in command.words[1:]]
    is_listing = _name(command) in _LISTINGS
    found = [
        text
        for text in _before_action(texts)
        if "/" in text or text in {".", ".."} or (is_listing and not text.startswith("-"))
    ]
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
    for text in texts if _name(command) not in _LISTINGS else ():
        last = text.rpartition("/")[2].lower()
        if len(re.sub(r"\[[^]]*\]|\W", "", last.partition(".")[0] or last)) >= _FEW_LETTERS:
            yield last
    for before, text in pairwise(texts):
        if before in _EXTENSIONS:
            yield f"*.{text.lower()}"


def regexes(command: Command) -> Iterator[re.Pattern[str] | None]:
    """What the paths that it finds fit, as far as Python reads it like find; None: nobody knows."""
    texts = _before_action([word.text for word in command.words[1:]])
    for before, text in pairwise(texts):
        if before in {"-regex", "-iregex"}:
            try:  # in the usual dialect of find these signs mean something behind a backslash
                yield re.compile(re.sub(r"\\([()|{}])", r"\1", text.lower()))
            except re.error:
                yield None


def included(command: Command) -> Iterator[str]:
    """The names that `grep -r --include=GLOB` and `rg -g GLOB` look into."""
    texts = [word.text for word in command.words[1:]]
    for text, after in pairwise([*texts, ""]):
        option, equals, value = text.partition("=")
        if "grep" in _name(command) and option == "--include":
            yield value if equals else after
        elif _name(command) == "rg" and option in {"-g", "--glob", "--iglob"}:
            glob = value if equals else after
            yield "*" if glob.startswith("!") else glob.rpartition("/")[2]
        elif _name(command) == "rg" and text.startswith("-g"):
            yield "*" if text[2:].startswith("!") else text[2:].rpartition("/")[2]


def reaches(place: str, denied: Iterable[str], *, hidden: bool = True) -> bool:
    """Whether a denied path lies in a folder; `hidden`: also below a name with a dot in front."""
    above = place.rstrip("/") + "/"
    below = [f"{each}/"[len(above) :] for each in denied if f"{each}/".startswith(above)]
    return any(hidden or not each.startswith(".") for each in below)


def is_plain_listing(command: Command) -> bool:
    """`ls` without an option that shows more than a shell's `*` does."""
    return _name(command) in _LISTINGS and not shows_hidden(command)


def _before_action(texts: Sequence[str]) -> list[str]:
    end = next((at for at, text in enumerate(texts) if text in _ACTIONS), len(texts))
    return list(texts[:end])


def _name(command: Command) -> str:
    return command.words[0].text.rpartition("/")[2]
