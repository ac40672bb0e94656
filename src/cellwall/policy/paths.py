"""Path patterns as in gitignore, and the paths they match. Pure: the disk is not looked at.

    //path       from the root of the file system
    ~/path       from the home folder
    /path        from the folder of the file the rule stands in
    ./path a/b   from the working directory of the call
    name         at any depth beneath the working directory

A pattern that matches a folder matches all that lies beneath it, so `src/**` is `src`. A denial is
read strictly: what is relative to the working directory holds in every folder above it too, else
`cd` would lead past it; and `/path` is also taken from the root, as most people mean it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from urllib.parse import unquote

from cellwall.parsing.shell.words import UNKNOWN
from cellwall.policy.globs import (
    DEEP,
    Deep,
    Step,
    literal_name,
    literal_steps,
    names_match,
    parse_name,
    steps_overlap,
    ways_of,
)
from cellwall.policy.rules import BadRule

NAMES_MOST = 128
_FILE_URL = re.compile(r"(?i)file:(?://[^/]*(?=/|\Z)|//(?=\.))?")
_HOME = re.compile(r"\A\$(?:HOME\b|\{HOME\})")
_USER = re.compile(r"~([a-z_][a-z0-9_-]*)(?=/|\Z)")
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
MAX_GUESSED_CHARACTERS = 1024
"""A half-known path that is longer than this could be any path."""


def normalise(path: str, cwd: str = "/") -> str:
    """Absolute, without `.`, `..`, doubled or trailing slashes; links are not looked at."""
    # Each rule asks anew for the same few paths; long ones would fill the memory of them.
    return _remembered(path, cwd) if len(path) + len(cwd) < 1024 else _normalised(path, cwd)


def _normalised(path: str, cwd: str) -> str:
    names: list[str] = []
    for name in (path if path.startswith("/") else f"{cwd}/{path}").split("/"):
        if name == "..":
            del names[-1:]
        elif name not in {"", "."}:
            names.append(name)
    return "/" + "/".join(names)


_remembered = lru_cache(maxsize=8192)(_normalised)


def readings(path: str, *, cwd: str, home: str) -> tuple[str, ...]:
    """What a path in a tool's input can mean: some tools expand `~`, some take it as a name.

    Absolute, the likely one first; not normalised, so that links before a `..` can be followed.
    """
    literal = path if path.startswith("/") else f"{cwd}/{path}"
    if path == "~" or path.startswith("~/"):
        return (home + path[1:], literal)
    others = (each if each.startswith("/") else f"{cwd}/{each}" for each in _others(path, home))
    return tuple(dict.fromkeys((literal, *others)))


def _others(path: str, home: str) -> Iterator[str]:
    """Readings of a tool that does more to a path than to open it; most tools do none of this."""
    plain = path.strip()
    yield plain
    url = _FILE_URL.match(plain)
    if url is not None:
        plain = plain[url.end() :]
        yield plain
    yield unquote(plain)
    yield _HOME.sub(lambda _: home, plain)
    if (user := _USER.match(plain)) is not None:
        yield ("/root" if user[1] == "root" else f"/home/{user[1]}") + plain[user.end() :]
    if not plain.isascii():  # as file systems that normalise names compare them (CVE-2014-9390)
        yield _UNSEEN.sub("", unicodedata.normalize("NFKC", plain))


def fits_glob(path: str, glob: str) -> bool:
    """Whether it is one of the names that the wildcards of a shell stand for, name by name."""
    names, globs = path.split("/"), normalise(glob).split("/")
    return len(names) == len(globs) and all(map(fnmatchcase, names, globs))


def samples(path: str) -> tuple[str, ...]:
    """Names that a word with wildcards could become: an allow must hold for each."""
    return tuple(normalise(path.replace("*", each)) for each in ("*", "x", "a-rather-long-name.x"))


def _from(root: str, path: str) -> str:
    return normalise(f"{root}/{path}")


def _with_parents(folder: str) -> Iterator[str]:
    yield folder
    while folder != "/":
        folder = folder.rpartition("/")[0] or "/"
        yield folder


@dataclass(frozen=True, slots=True)
class PathPattern:
    """The path part of one rule, for one home folder."""

    roots: tuple[str, ...]
    """Folders it starts from; empty: the working directory of the call."""
    head: str
    """Its first names as far as nothing in them is wild, relative to a root."""
    tail: tuple[Step, ...]
    """What follows; its last step is never `**`."""
    is_denial: bool
    folder: str

    @classmethod
    def parse(
        cls, specifier: str, *, folder: str, home: str, is_denial: bool = False
    ) -> PathPattern:
        """Raises `BadRule` for what cannot be a path pattern, or could only be meant otherwise."""
        _refuse_odd(specifier)
        folder = normalise(folder) if folder else ""
        roots, start = _roots(specifier, folder=folder, home=home, is_denial=is_denial)
        steps = _parse_steps(specifier, start)
        bare = specifier.rstrip("/")
        is_floating = "/" not in bare and bare not in {".", ".."}
        if is_floating and steps and not roots:
            steps = [DEEP, *steps]
        while steps and steps[-1] is DEEP:
            steps.pop()
        head: list[str] = []
        for step in steps:
            if isinstance(step, Deep) or step.literal is None:
                break
            head.append(step.literal)
        return cls(roots, "/".join(head), tuple(steps[len(head) :]), is_denial, folder)

    def matches(self, path: str, cwd: str) -> bool:
        """Whether a known path, or a folder that it lies in, fits."""
        path = normalise(path, cwd)
        for root in self._roots(cwd):
            head = _from(root, self.head)
            rest = _beneath(path, head)
            if rest is not None and (not self.tail or names_match(self.tail, rest)):
                return True
        return False

    def lies_in(self, path: str, cwd: str) -> bool:
        """Whether the fixed part of it is inside of this folder: who deletes that, deletes it."""
        path = normalise(path, cwd)
        return any(_beneath(_from(root, self.head), path) is not None for root in self._roots(cwd))

    def could_match(self, path: str, cwd: str, *, wary: bool = True) -> bool:
        """Whether anything that a half-known path can become fits; if in doubt, yes.

        `path` may hold `UNKNOWN` (any text, slashes too) and the wildcards of the shell. For
        denials only: an allow must be sure. With `wary=False` wildcards find what they usually do:
        no name that begins with a dot, as in a shell without `dotglob`; and no folder that is
        called as a pattern for files says, such as `x.pem`.
        """
        if len(path) > MAX_GUESSED_CHARACTERS:
            return True
        ways = ways_of(path, normalise(cwd))
        for root in self._roots(cwd):
            pattern = (*literal_steps(_from(root, self.head)), *self.tail)
            if any(steps_overlap(pattern, way, wary=wary) for way in ways):
                return True
        return False

    def _roots(self, cwd: str) -> Sequence[str]:
        if self.roots:
            return self.roots
        cwd = normalise(cwd)
        if not self.is_denial:
            return (cwd,)
        if self.tail[:1] == (DEEP,) and not self.head:
            return ("/",)
        parents = tuple(_with_parents(cwd))
        return (*parents, self.folder) if self.folder else parents


@lru_cache(maxsize=4096)
def path_pattern(specifier: str, folder: str, home: str, is_denial: bool) -> PathPattern:  # noqa: FBT001 # lru_cache compares positions faster
    """`PathPattern.parse`, remembered."""
    return PathPattern.parse(specifier, folder=folder, home=home, is_denial=is_denial)


# Reading a pattern


def _refuse_odd(specifier: str) -> None:
    if specifier.startswith("!"):
        raise BadRule(
            "a path pattern cannot take back another one",
            hint="Leave the ! out and write a rule of the other kind, or \\! for a name.",
        )
    if specifier != specifier.strip():
        raise BadRule(
            "the path begins or ends with a blank",
            hint="Take the blanks out.",
            offset=0 if specifier[:1].isspace() else len(specifier) - 1,
        )
    if not specifier.isprintable() or UNKNOWN in specifier:
        at = next(
            at for at, char in enumerate(specifier) if not char.isprintable() or char == UNKNOWN
        )
        raise BadRule(
            "the path holds a character that cannot be seen", hint="Take it out.", offset=at
        )


def _roots(
    specifier: str, *, folder: str, home: str, is_denial: bool
) -> tuple[tuple[str, ...], int]:
    """The folders that the pattern starts from, and where in the text its first name stands."""
    if specifier.startswith("//"):
        return ("/",), 2
    if specifier == "~" or specifier.startswith("~/"):
        return (normalise(home),), 1
    if specifier.startswith("~"):
        raise BadRule(
            "the home folder of another user is not known here",
            hint="Write its path from the root, with // in front, or \\~ for a name.",
        )
    if not specifier.startswith("/"):
        return (), 0
    if not folder and not is_denial:
        raise BadRule(
            "a path with one slash is relative to the rule's file, and this rule is in none",
            hint=f"Write /{specifier} for a path from the root, or .{specifier} for one from here.",
        )
    roots = {folder: None, "/": None} if is_denial else {folder: None}
    return tuple(root for root in roots if root), 1


def _parse_steps(specifier: str, start: int) -> list[Step]:
    steps: list[Step] = []
    at = start
    for text in specifier[start:].split("/"):
        if text == "..":
            _climb(steps, at)
        elif text == "**":
            if steps[-1:] != [DEEP]:
                steps.append(DEEP)
        elif text not in {"", "."}:
            try:
                steps.append(parse_name(text))
            except BadRule as error:
                raise error.moved(at) from None
        at += len(text) + 1
    if len(steps) > NAMES_MOST:
        raise BadRule(f"the path has more than {NAMES_MOST} names", hint="Write a shorter pattern.")
    return steps


def _climb(steps: list[Step], at: int) -> None:
    last = steps[-1] if steps else None
    if last is None or (not isinstance(last, Deep) and last.literal == ".."):
        steps.append(literal_name(".."))  # the way up from a root, taken when the root is known
    elif isinstance(last, Deep) or last.literal is None:
        raise BadRule(".. stands behind a wildcard", hint="Write the path without it.", offset=at)
    else:
        steps.pop()


# Comparing


def _beneath(path: str, folder: str) -> list[str] | None:
    """The names of `path` from `folder` on; None if it lies elsewhere."""
    if path == folder:
        return []
    prefix = folder if folder == "/" else folder + "/"
    return path[len(prefix) :].split("/") if path.startswith(prefix) else None
