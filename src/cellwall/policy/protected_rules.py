"""Rules made of the list of protected names, which the sandbox uses as well (FS-8, SKL-1). Pure.

`deny` entries become built-in denials for what is written; `starter` entries become rules of
`cellwall policy init`, which a person can lift by name. Such a rule holds in any folder and in any
case. Wildcards of the shell find only files that exist, so those are looked for by the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache

from cellwall.core.protected_names import GIT, Protected, fold, load
from cellwall.core.verdict import Verdict
from cellwall.policy.paths import PathPattern, path_pattern
from cellwall.policy.rules import Layer, NameKind, Rule, Source

_INSIDE_GIT = ("modules", "worktrees")
_WILD = frozenset("*?[")
_MAX_WILD_NAMES = 2


@cache
def protected_rules() -> tuple[Rule, ...]:
    """The built-in denials of writing."""
    return tuple(
        Rule(
            Verdict.DENY,
            "Write",
            specifier,
            Source("built-in"),
            Layer.BUILT_IN,
            reason,
            match=(f"Write({_example(specifier)})", f"Write(sub/{_example(specifier)})"),
            name_kind=kind,
        )
        for specifier, kind, reason in dict.fromkeys(_denials())
    )


def starter_rules() -> tuple[str, ...]:
    """Denials for the policy of `policy init`, as they are written there."""
    found = (entry.pattern for entry in load().entries if entry.policy == "starter")
    return tuple(f"Edit(**/{pattern})" for pattern in found)


@cache
def folders_around() -> dict[str, str]:
    """Folders that hold a protected name, with one such name: who puts the one, puts the other."""
    return {
        entry.pattern.partition("/")[0]: entry.pattern.partition("/")[2].replace("*", "")
        for entry in reversed(load().entries)
        if entry.policy == "deny" and "/" in entry.pattern and not entry.pattern.startswith(GIT)
    }


def folded(path: str) -> str:
    """A path as the most forgiving file system would compare it."""
    return "/".join(map(fold, path.split("/")))


def names_path(rule: Rule, path: str, *, is_removed: bool) -> bool:
    """Whether a rule of this list speaks of a path; `is_removed`: of taking it away."""
    if rule.name_kind == "plant" and is_removed:
        return False
    pattern, place = _pattern(rule.specifier or ""), folded(path)
    if not pattern.matches(place, "/") or path.endswith("/head"):  # an ordinary name; not git's
        return False
    # A file is meant, not what lies in a folder of that name.
    return rule.name_kind == "tree" or not pattern.matches(place.rpartition("/")[0] or "/", "/")


def could_name(rule: Rule, glob: str, *, is_folder_seen: bool = False) -> bool:
    """Whether a half-known path could become one that a rule of this list speaks of.
    `is_folder_seen`: which folders are bare repositories (`x.git`) is known otherwise."""
    specifier = rule.specifier or ""
    pattern = _pattern(specifier.replace("/*.git/", "/.git/") if is_folder_seen else specifier)
    if not pattern.could_match(glob.lower(), "/", wary=False):
        return False
    above = glob.lower().rpartition("/")[0] or "/"
    return rule.name_kind == "tree" or not pattern.could_match(above, "/", wary=False)


def is_findable(path: str) -> bool:
    """Whether the files that wildcards find can be looked up without walking through the disk."""
    return sum(not _WILD.isdisjoint(part) for part in path.split("/")) <= _MAX_WILD_NAMES


@lru_cache(maxsize=4096)
def is_of_protected_name(specifier: str) -> bool:
    """Whether the path of a rule is one that the list knows: then the caller has looked which such
    files the wildcards of a command find, and nothing has to be guessed."""
    parts = [part for part in specifier.split("/") if part not in {"", ".", "~", "**"}]
    return bool(load().groups_of("/".join(parts)))


def _pattern(specifier: str) -> PathPattern:
    return path_pattern(folded(specifier), "", "/", True)


def _denials() -> Iterator[tuple[str, NameKind, str]]:
    for entry in load().entries:
        if entry.policy != "deny":
            continue
        kind: NameKind = "file" if entry.kind == "file" else "tree"
        if entry.removable:
            kind = "plant"
        if entry.layout:  # without a HEAD no folder is a repository
            yield f"//**/{entry.pattern.removeprefix(GIT + '/')}", "plant", entry.reason
            continue
        for pattern in _spelled(entry):
            yield f"//**/{pattern}", kind, entry.reason


def _spelled(entry: Protected) -> Iterator[str]:
    if not entry.pattern.startswith(GIT):
        yield entry.pattern
        return
    rest = entry.pattern.removeprefix(GIT + "/")
    yield f"*.git/{rest}"  # `.git`, and a bare repository by its usual name
    for inside in _INSIDE_GIT:
        yield f".git/{inside}/**/{rest}"


def _example(specifier: str) -> str:
    return (
        specifier.removeprefix("//**/")
        .replace("*.git", "x.git")
        .replace("**", "x")
        .replace("*", "x")
    )
