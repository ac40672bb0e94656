"""Names that are hidden, read-only or shown first, in any directory (FS-4, FS-8, SKL-1). Pure.

The data is `protected_names.toml`. The sandbox protects these names, the policy derives its
built-in denials and starter rules from them, and `skills sign --instructions` takes its files from
them.

A pattern that begins with `@git/` applies to every git directory. By name alone that is `.git`,
`x.git` and the directories in `.git/modules` and `.git/worktrees`. A walk of the disk finds more: a
directory is a git directory if it has the entries that git looks for (`is_git_layout`).
"""

from __future__ import annotations

import fnmatch
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Literal

from cellwall.core.errors import ConfigError
from cellwall.core.git_names import FOLDED_GIT_LAYOUT, IsGit, fold, is_git_by_name

GIT = "@git"
_WILD = re.compile(r"[*?\[]")
_KINDS = ("file", "dir", "any")
_MAX_PLAIN_NAMES = 131_072

HasCertificates = Callable[[], bool]
"""Whether the file holds certificates and no private key."""


def _holds_keys() -> bool:
    return False


class NameTreatment(StrEnum):
    """The treatment of a protected name; hiding is stricter and wins."""

    READ_ONLY = "read_only"
    HIDE = "hide"


PolicyUse = Literal["deny", "starter", "none"]


@dataclass(frozen=True, slots=True)
class Protected:
    """One entry of the data: a path relative to any directory, with its reason."""

    pattern: str
    treatment: NameTreatment
    kind: Literal["file", "dir", "any"]
    reason: str
    placeholder: bool = False
    exceptions: tuple[str, ...] = ()
    group: str = ""
    policy: PolicyUse = "none"
    layout: bool = False
    removable: bool = False
    certificates: bool = False


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A name to protect in the root directory even while it does not exist."""

    path: str
    kind: Literal["file", "dir"]
    treatment: NameTreatment


@dataclass(frozen=True, slots=True)
class _NamePattern:
    """One entry, compiled."""

    source: Protected
    parts: tuple[re.Pattern[str], ...]
    is_git: bool
    exceptions: frozenset[str]

    @classmethod
    def of(cls, entry: Protected) -> _NamePattern:
        names = entry.pattern.split("/")
        is_git = names[0] == GIT
        parts = (re.compile(fnmatch.translate(fold(part))) for part in names[is_git:])
        return cls(entry, tuple(parts), is_git, frozenset(map(fold, entry.exceptions)))

    def matches(self, names: tuple[str, ...], end: int, is_git: IsGit) -> bool:
        start = end - len(self.parts)
        if start < 0 or names[end - 1] in self.exceptions:
            return False
        if not all(p.fullmatch(n) for p, n in zip(self.parts, names[start:end], strict=True)):
            return False
        if not self.is_git:
            return True
        above = names[:start]
        # In `.git` and its submodule directories each checkout writes HEAD.
        return is_git(above) and not (self.source.layout and ".git" in above)


class Protection:
    """The compiled protected names. Immutable."""

    __slots__ = (
        *("_any_wild", "_last_names", "_leading", "_literal", "_paths", "_plain", "_ways"),
        *("_wild", "entries"),
    )

    def __init__(self, entries: Iterable[Protected], *, paths: Iterable[str] = ()) -> None:
        self.entries = tuple(entries)
        # Exact paths below the root: programs that a git configuration names.
        self._paths = frozenset(tuple(fold(n) for n in path.split("/")) for path in paths)
        self._last_names = frozenset(path[-1] for path in self._paths)
        self._plain: set[bytes] = set()  # found to match nothing
        self._ways = frozenset(path[:end] for path in self._paths for end in range(1, len(path)))
        self._literal: dict[str, list[_NamePattern]] = {}  # by last name: most names match none
        self._wild: list[_NamePattern] = []
        for entry in self.entries:
            last = entry.pattern.rpartition("/")[2]
            if _WILD.search(last):
                self._wild.append(_NamePattern.of(entry))
            else:
                self._literal.setdefault(fold(last), []).append(_NamePattern.of(entry))
        self._leading = _leading_parts(self.entries)
        # One match instead of one per pattern: a scan runs it for every file.
        self._any_wild = re.compile("|".join(each.parts[-1].pattern for each in self._wild) or "$.")

    def treatment_of(
        self,
        path: str,
        *,
        is_dir: bool | None = None,
        is_git: IsGit = is_git_by_name,
        has_certificates: HasCertificates = _holds_keys,
    ) -> NameTreatment | None:
        """The treatment of a path, by its own name or that of a directory above.

        Without `is_dir` the path counts as the type that is protected.
        """
        names = tuple(fold(name) for name in path.split("/") if name not in {"", "."})
        found = [
            self.own_treatment(
                names,
                end=end,
                is_dir=True if end < len(names) else is_dir,
                is_git=is_git,
                has_certificates=has_certificates,
            )
            for end in range(1, len(names) + 1)
        ]
        return max(filter(None, found), key=_strictness, default=None)

    def own_treatment(
        self,
        names: tuple[str, ...],
        *,
        end: int,
        is_dir: bool | None,
        is_git: IsGit = is_git_by_name,
        has_certificates: HasCertificates = _holds_keys,
    ) -> NameTreatment | None:
        """The treatment of the folded name at `end`, without the directories above."""
        entries = self._matching(names, end=end, is_dir=is_dir, is_git=is_git)
        found = [
            entry.treatment
            for entry in entries
            if not (entry.certificates and end == len(names) and has_certificates())
        ]
        if self._paths and names[:end] in self._paths:
            found.append(NameTreatment.READ_ONLY)
        return max(found, key=_strictness, default=None)

    def names_to_look_at(self, names: Sequence[bytes]) -> list[str]:
        """Of the names of files in one directory: those that may be protected by their own name,
        and those by which git recognises its directories. Most files have another."""
        found = []
        for raw in set(names).difference(self._plain):
            name = os.fsdecode(raw)
            folded = fold(name)
            if (
                folded in FOLDED_GIT_LAYOUT
                or folded in self._literal
                or folded in self._last_names
                or self._any_wild.fullmatch(folded)
            ):
                found.append(name)
            elif len(self._plain) < _MAX_PLAIN_NAMES:
                self._plain.add(raw)
        return found

    def leads_to_protected(self, names: tuple[str, ...]) -> bool:
        """Whether a symlink of these folded names replaces a directory with protected names.

        `.cargo` as a link to `cargo2` makes `cargo2/config.toml` the configuration of cargo.
        """
        return names in self._ways or any(
            len(parts) <= len(names)
            and all(
                part.fullmatch(name) for part, name in zip(parts, names[-len(parts) :], strict=True)
            )
            for parts in self._leading
        )

    def groups_of(self, path: str, *, is_git: IsGit = is_git_by_name) -> frozenset[str]:
        """The groups of the data that match a path or a directory above it."""
        names = tuple(fold(name) for name in path.split("/") if name not in {"", "."})
        return frozenset(
            entry.group
            for end in range(1, len(names) + 1)
            for entry in self._matching(
                names, end=end, is_dir=True if end < len(names) else None, is_git=is_git
            )
        )

    def _matching(
        self, names: tuple[str, ...], *, end: int, is_dir: bool | None, is_git: IsGit
    ) -> list[Protected]:
        wild = self._wild if self._any_wild.fullmatch(names[end - 1]) else ()
        return [
            each.source
            for each in (*self._literal.get(names[end - 1], ()), *wild)
            if (is_dir is None or each.source.kind in {"any", "dir" if is_dir else "file"})
            and each.matches(names, end, is_git)
        ]

    def placeholders(self) -> tuple[Placeholder, ...]:
        """The names to protect in the root even before they exist."""
        return tuple(
            Placeholder(entry.pattern.replace(GIT, ".git"), entry.kind, entry.treatment)
            for entry in self.entries
            if entry.placeholder and entry.kind != "any"
        )

    def with_extra(
        self, names: Iterable[str], *, treatment: NameTreatment = NameTreatment.HIDE
    ) -> Protection:
        """This protection with the user's own names; none can be removed."""
        extra = [Protected(name, treatment, "any", "named in the configuration") for name in names]
        return Protection((*self.entries, *map(_check_entry, extra))) if extra else self

    def with_paths(self, paths: Collection[str]) -> Protection:
        """This protection with these exact paths, which become read-only."""
        return Protection(self.entries, paths=paths) if paths else self


def _leading_parts(entries: Iterable[Protected]) -> tuple[tuple[re.Pattern[str], ...], ...]:
    """The leading directories of patterns with several names.

    Only for files that are executed or obeyed: a new link in place of a directory of secrets
    exposes no secret. In a git directory no new link may stay at all.
    """
    heads = {
        tuple(fold(part) for part in parts[:depth])
        for entry in entries
        if entry.treatment is NameTreatment.READ_ONLY or entry.policy == "deny"
        for parts in [entry.pattern.split("/")]
        if parts[0] != GIT
        for depth in range(1, len(parts))
    }
    return tuple(
        tuple(re.compile(fnmatch.translate(part)) for part in head) for head in sorted(heads)
    )


def _strictness(treatment: NameTreatment) -> int:
    return list(NameTreatment).index(treatment)


def _check_entry(entry: Protected) -> Protected:
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
            hint="Write names such as secrets.txt or private/keys.",
            code="CW-BAD-PROTECTED-NAME",
        )
    return entry


@cache
def _tables() -> tuple[tuple[Protected, ...], tuple[Protected, ...]]:
    """The protecting entries, and those that are only shown first."""
    text = resources.files("cellwall.core").joinpath("protected_names.toml").read_text("utf-8")
    blank = Protected("", NameTreatment.HIDE, "any", "")
    protecting: list[Protected] = []
    shown: list[Protected] = []
    for group, table in tomllib.loads(text).items():
        is_shown = table["treatment"] == "review"
        for row in table["entries"]:
            values = {("exceptions" if key == "except" else key): row[key] for key in row}
            steers = values.pop("steers", False)
            values.setdefault("policy", "deny" if steers else table["policy"])
            values["exceptions"] = tuple(values.get("exceptions", ()))
            values["treatment"] = NameTreatment(
                NameTreatment.READ_ONLY if is_shown else table["treatment"]
            )
            entry = _check_entry(replace(blank, group=group, **values))
            (shown if is_shown else protecting).append(entry)
    return tuple(protecting), tuple(shown)


@cache
def load() -> Protection:
    """The names shipped with Cellwall."""
    return Protection(_tables()[0])


@cache
def build_files() -> Protection:
    """Build, task and test files: not protected, but shown before other changes."""
    return Protection(_tables()[1])


@cache
def instructions() -> Protection:
    """The text files that agents obey, alone."""
    return Protection(entry for entry in load().entries if entry.group == "instruction")
