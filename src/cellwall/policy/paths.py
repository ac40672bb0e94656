"""Path patterns as in gitignore, and the paths they match. Pure: the disk is not looked at.

    //path       from the root of the file system
    ~/path       from the home folder
    /path        from the folder of the file the rule stands in
    ./path a/b   from the working directory of the call
    name         at any depth beneath the working directory

A pattern that matches a folder matches all files below it, so `src/**` is `src`. A denial is read
strictly: a path relative to the working directory holds in every folder above as well, else `cd`
would bypass it; and `/path` also starts at the root, as most people mean it.
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

MAX_NAMES = 128
_FILE_URL = re.compile(r"(?i)file:(?://[^/]*(?=/|\Z)|//(?=\.))?")
_HOME = re.compile(r"\A\$(?:HOME\b|\{HOME\})")
_USER = re.compile(r"~([a-z_][a-z0-9_-]*)(?=/|\Z)")
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_MAX_ALTERNATIVES = 64
MAX_GUESSED_CHARACTERS = 1024
"""A longer partly known path counts as any path."""


def normalise(path: str, cwd: str = "/") -> str:
    """Absolute, without `.`, `..`, doubled or trailing slashes; links are not looked at."""
    # Each rule normalises the same few paths; long paths would fill the cache.
    return _cached_normalise(path, cwd) if len(path) + len(cwd) < 1024 else _normalised(path, cwd)


def _normalised(path: str, cwd: str) -> str:
    names: list[str] = []
    for name in (path if path.startswith("/") else f"{cwd}/{path}").split("/"):
        if name == "..":
            del names[-1:]
        elif name not in {"", "."}:
            names.append(name)
    return "/" + "/".join(names)


_cached_normalise = lru_cache(maxsize=8192)(_normalised)


def readings(path: str, *, cwd: str, home: str) -> tuple[str, ...]:
    """The readings of a path in a tool's input: some tools expand `~`, some read it literally.

    Absolute, the likely one first; not normalised, so that links before a `..` can be followed.
    """
    literal = path if path.startswith("/") else f"{cwd}/{path}"
    if path == "~" or path.startswith("~/"):
        return (home + path[1:], literal)
    others = (each if each.startswith("/") else f"{cwd}/{each}" for each in _others(path, home))
    return tuple(dict.fromkeys((literal, *others)))


def _others(path: str, home: str) -> Iterator[str]:
    """Readings of tools that rewrite a path before they open it; most tools do not."""
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
    """Whether a path matches the wildcards of a shell, name by name."""
    names, globs = path.split("/"), normalise(glob).split("/")
    return len(names) == len(globs) and all(map(fnmatchcase, names, globs))


def samples(path: str) -> tuple[str, ...]:
    """Sample expansions of a word with wildcards: an allow must hold for each."""
    return tuple(normalise(path.replace("*", each)) for each in ("*", "x", "a-rather-long-name.x"))


def brace_alternatives(text: str) -> list[str] | None:
    """`*.{ts,js}` is `*.ts` and `*.js`; None: there are too many."""
    found = [text]
    while len(found) <= _MAX_ALTERNATIVES:
        braced = [(each, _BRACES.search(each)) for each in found]
        if not any(match for _, match in braced):
            return found
        found = [
            each[: match.start()] + part + each[match.end() :] if match else each
            for each, match in braced
            for part in (match[1].split(",") if match else [""])
        ]
    return None


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
    """The start folders; empty: the working directory of the call."""
    head: str
    """The leading names without wildcards, relative to a root."""
    tail: tuple[Step, ...]
    """The rest of the pattern; its last step is never `**`."""
    is_denial: bool
    folder: str

    @classmethod
    def parse(
        cls, specifier: str, *, folder: str, home: str, is_denial: bool = False
    ) -> PathPattern:
        """Raises `BadRule` for an invalid path pattern, or one that means something else."""
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
        """Whether a known path, or a folder around it, matches."""
        path = normalise(path, cwd)
        for root in self._roots(cwd):
            head = _from(root, self.head)
            rest = _beneath(path, head)
            if rest is not None and names_match(self.tail, rest):
                return True
        return False

    def lies_in(self, path: str, cwd: str) -> bool:
        """Whether the fixed part of the pattern lies in this folder, and so is deleted with it."""
        path = normalise(path, cwd)
        return any(_beneath(_from(root, self.head), path) is not None for root in self._roots(cwd))

    def could_match(self, path: str, cwd: str, *, wary: bool = True) -> bool:
        """Whether a partly known path could become a match; in doubt, yes.

        `path` may hold `UNKNOWN` (any text, slashes too) and the wildcards of the shell. For
        denials only: an allow must be certain. With `wary=False` wildcards match as usual: no name
        with a leading dot, as in a shell without `dotglob`; and no folder with the name of a file
        pattern, such as `x.pem`.
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
    """`PathPattern.parse`, cached."""
    return PathPattern.parse(specifier, folder=folder, home=home, is_denial=is_denial)


# Reading a pattern


def _refuse_odd(specifier: str) -> None:
    if specifier.startswith("!"):
        raise BadRule(
            "a path pattern cannot negate another one",
            hint="Remove the ! and write a rule of the other kind, or \\! for a name.",
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
        raise BadRule("the path holds an invisible character", hint="Take it out.", offset=at)


def _roots(
    specifier: str, *, folder: str, home: str, is_denial: bool
) -> tuple[tuple[str, ...], int]:
    """The start folders of the pattern, and the offset of its first name."""
    if specifier.startswith("//"):
        return ("/",), 2
    if specifier == "~" or specifier.startswith("~/"):
        return (normalise(home),), 1
    if specifier.startswith("~"):
        raise BadRule(
            "the home folder of another user is not known",
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
    if len(steps) > MAX_NAMES:
        raise BadRule(f"the path has more than {MAX_NAMES} names", hint="Write a shorter pattern.")
    return steps


def _climb(steps: list[Step], at: int) -> None:
    last = steps[-1] if steps else None
    if last is None or (not isinstance(last, Deep) and last.literal == ".."):
        steps.append(literal_name(".."))  # upwards from a root, resolved when the root is known
    elif isinstance(last, Deep) or last.literal is None:
        raise BadRule(".. follows a wildcard", hint="Write the path without it.", offset=at)
    else:
        steps.pop()


# Comparing


def _beneath(path: str, folder: str) -> list[str] | None:
    """The names of `path` below `folder`; None for a path elsewhere."""
    if path == folder:
        return []
    prefix = folder if folder == "/" else folder + "/"
    return path[len(prefix) :].split("/") if path.startswith(prefix) else None
