"""Which names in a given directory are hidden or read-only (FS-4), and which of them are there.

What is protected and why is data: `protected.toml`. `Protection` is pure; `scan` looks.
"""

from __future__ import annotations

import fnmatch
import re
import stat
import tomllib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, lru_cache
from importlib import resources
from typing import Literal

from cellwall.core.errors import ConfigError
from cellwall.sandbox.beneath import Beneath, Visit
from cellwall.sandbox.refusals import refused

_WILD = re.compile(r"[*?\[]")
_KINDS = ("file", "dir", "any")


class Treatment(StrEnum):
    """What happens to a protected name; hiding is the stricter one and wins."""

    READ_ONLY = "read_only"
    HIDE = "hide"


@dataclass(frozen=True, slots=True)
class Protected:
    """One line of the data: a path relative to any directory, and why it is there."""

    pattern: str
    treatment: Treatment
    kind: Literal["file", "dir", "any"]
    reason: str
    placeholder: bool = False
    exceptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A name to protect at the top of a directory even while nothing is there."""

    path: str
    kind: Literal["file", "dir"]
    treatment: Treatment


@dataclass(frozen=True, slots=True)
class Found:
    """A protected name that exists.

    `directory_id` (device, inode) tells whether it is still in the directory it was found in:
    code cannot move a mounted-over name, but it can move the directory above and plant anew.
    """

    path: str
    treatment: Treatment
    is_dir: bool
    is_symlink: bool
    directory_id: tuple[int, int]


@lru_cache(maxsize=16_384)
def fold(name: str) -> str:
    """A name as the most forgiving file system would compare it.

    `.GIT`, `.g\\u200cit`, `.git.` and `git~1` all were ways to plant hooks on disks that ignore
    case, invisible characters, trailing dots or long names (CVE-2014-9390 and after).
    """
    if name.isascii():
        folded = name.lower()
    else:
        visible = "".join(c for c in name if unicodedata.category(c) != "Cf")
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", visible).casefold())
    return {"git~1": ".git"}.get(folded, folded.rstrip(". ") or folded)


@dataclass(frozen=True, slots=True)
class _Rule:
    source: Protected
    parts: tuple[re.Pattern[str], ...]
    exceptions: frozenset[str]

    def matches(self, names: tuple[str, ...], end: int) -> bool:
        start = end - len(self.parts)
        return (
            start >= 0
            and names[end - 1] not in self.exceptions
            and all(p.fullmatch(n) for p, n in zip(self.parts, names[start:end], strict=True))
        )


def _rule(entry: Protected) -> _Rule:
    parts = tuple(re.compile(fnmatch.translate(fold(p))) for p in entry.pattern.split("/"))
    return _Rule(entry, parts, frozenset(map(fold, entry.exceptions)))


class Protection:
    """The protected names, ready to be asked. Immutable."""

    __slots__ = ("_any_wild", "_literal", "_wild", "entries")

    def __init__(self, entries: Iterable[Protected]) -> None:
        self.entries = tuple(entries)
        self._literal: dict[str, list[_Rule]] = {}  # by last name: most names match none
        self._wild: list[_Rule] = []
        for entry in self.entries:
            last = entry.pattern.rpartition("/")[2]
            if _WILD.search(last):
                self._wild.append(_rule(entry))
            else:
                self._literal.setdefault(fold(last), []).append(_rule(entry))
        # One match instead of one per pattern: a scan asks this of every file there is.
        self._any_wild = re.compile("|".join(rule.parts[-1].pattern for rule in self._wild) or "$.")

    def treatment_of(self, path: str, *, is_dir: bool | None = None) -> Treatment | None:
        """How a path is treated: its own name at any depth, or that of a directory above.

        Without `is_dir` it is taken for whatever is protected.
        """
        names = tuple(fold(name) for name in path.split("/") if name not in {"", "."})
        found = [
            self.own_treatment(names, end=end, is_dir=True if end < len(names) else is_dir)
            for end in range(1, len(names) + 1)
        ]
        return max(filter(None, found), key=_strictness, default=None)

    def own_treatment(
        self, names: tuple[str, ...], *, end: int, is_dir: bool | None
    ) -> Treatment | None:
        """How the folded name at `end` is treated for itself, whatever is above it."""
        wild = self._wild if self._any_wild.fullmatch(names[end - 1]) else ()
        matching = (
            rule.source.treatment
            for rule in (*self._literal.get(names[end - 1], ()), *wild)
            if (is_dir is None or rule.source.kind in {"any", "dir" if is_dir else "file"})
            and rule.matches(names, end)
        )
        return max(matching, key=_strictness, default=None)

    def placeholders(self) -> tuple[Placeholder, ...]:
        """What must be protected at the top even if it is not there yet."""
        return tuple(
            Placeholder(entry.pattern, entry.kind, entry.treatment)
            for entry in self.entries
            if entry.placeholder and entry.kind != "any"
        )

    def with_extra(
        self, names: Iterable[str], *, treatment: Treatment = Treatment.HIDE
    ) -> Protection:
        """The same and some names of the user's own; nothing can be taken away."""
        extra = (Protected(name, treatment, "any", "named in the configuration") for name in names)
        return Protection((*self.entries, *map(_checked, extra)))

    def judge(self, path: str, *, writing: bool) -> None:
        """Refuse what may not be seen, or not be changed: the file API's `Judge`."""
        match self.treatment_of(path):
            case Treatment.HIDE:
                raise refused(path, "CW-PATH-PROTECTED", "is hidden: such names hold secrets")
            case Treatment.READ_ONLY if writing:
                raise refused(path, "CW-PATH-PROTECTED", "is read-only: the host runs or obeys it")
            case _:
                return


def _strictness(treatment: Treatment) -> int:
    return list(Treatment).index(treatment)


def _checked(entry: Protected) -> Protected:
    parts = entry.pattern.split("/")
    wrong = ""
    if not entry.pattern or "\0" in entry.pattern or {"", ".", ".."} & set(parts):
        wrong = "is not a relative path of plain names"
    elif entry.kind not in _KINDS or not entry.reason:
        wrong = "needs a kind and a reason"
    elif entry.placeholder and (_WILD.search(entry.pattern) or entry.kind == "any"):
        wrong = "can be a placeholder only with a literal name that is a file or a directory"
    if wrong:
        raise ConfigError(
            f"protected name {entry.pattern!r:.100} {wrong}",
            mend="Write names such as secrets.txt or private/keys.",
            code="CW-BAD-PROTECTED-NAME",
        )
    return entry


@cache
def load() -> Protection:
    """The names that come with Cellwall."""
    text = resources.files("cellwall.sandbox").joinpath("protected.toml").read_text("utf-8")
    blank = Protected("", Treatment.HIDE, "any", "")
    entries = []
    for row in tomllib.loads(text)["entry"]:
        values = {("exceptions" if key == "except" else key): row[key] for key in row}
        values["treatment"] = Treatment(values["treatment"])
        values["exceptions"] = tuple(values.get("exceptions", ()))
        entries.append(_checked(replace(blank, **values)))
    return Protection(entries)


def effective(extra_names: Iterable[str], *, dangerously_expose: bool) -> Protection:
    """What a configuration protects: the names we know and the user's own, or nothing at all."""
    return Protection(()) if dangerously_expose else load().with_extra(extra_names)


def scan(beneath: Beneath, protection: Protection, *, max_entries: int) -> tuple[Found, ...]:
    """The protected names that exist in a directory now, parents before what is in them.

    A hidden directory is not entered. In a read-only one, secrets are looked for. A directory
    that cannot be read is reported as hidden: nobody can say what is in it (it could be opened
    by code that runs as its owner). Sockets and FIFOs are hidden, whatever their name.
    """
    found: dict[str, Found] = {}
    visited: dict[str, Found] = {}

    def enter(step: Visit) -> bool:
        visited[step.path] = _as_found(step, Treatment.HIDE)
        known = found.get(step.path)
        return known is None or known.treatment is not Treatment.HIDE

    def hide(path: str) -> None:
        if path not in visited:
            raise refused(path or ".", "CW-NO-PERMISSION", "may not be read by this user")
        found[path] = visited[path]

    steps = beneath.visit(max_entries=max_entries, descend=enter, on_locked=hide)
    for step in steps:
        treatment = own_treatment(protection, step)
        if stat.S_ISSOCK(step.status.st_mode) or stat.S_ISFIFO(step.status.st_mode):
            # Somebody of the host's listens there: a way out that no namespace closes (NET-1).
            treatment = Treatment.HIDE
        below = step.path.rpartition("/")[0]
        if treatment is None or (treatment is Treatment.READ_ONLY and _is_under(below, found)):
            continue
        found[step.path] = _as_found(step, treatment)
    return tuple(found[path] for path in sorted(found))


def own_treatment(protection: Protection, step: Visit) -> Treatment | None:
    """How a walk's find is treated for its own name; a link counts as whatever it could be."""
    mode = step.status.st_mode
    names = tuple(fold(name) for name in step.path.split("/"))
    is_dir = None if stat.S_ISLNK(mode) else stat.S_ISDIR(mode)
    return protection.own_treatment(names, end=len(names), is_dir=is_dir)


def _as_found(step: Visit, treatment: Treatment) -> Found:
    mode = step.status.st_mode
    return Found(step.path, treatment, stat.S_ISDIR(mode), stat.S_ISLNK(mode), step.directory_id)


def _is_under(path: str, found: dict[str, Found]) -> bool:
    while path:
        if path in found:
            return True
        path = path.rpartition("/")[0]
    return False
