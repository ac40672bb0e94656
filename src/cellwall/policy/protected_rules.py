"""Rules from the list of protected names, which the sandbox uses as well (FS-8, SKL-1). Pure.

`deny` entries become built-in denials of writing; `starter` entries become rules of `cellwall
policy init`, which a person can lift by name. Such a rule holds in any folder and ignores case.
Wildcards of the shell match only existing files, which the caller looks up.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache

from cellwall.core.git_names import fold
from cellwall.core.protected_names import GIT, Protected, build_files, load
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
        _denial(specifier, kind, reason) for specifier, kind, reason in dict.fromkeys(_denials())
    )


@cache
def build_file_rules() -> tuple[Rule, ...]:
    """The denials of writing build, task and test files, where the configuration protects them."""
    return tuple(
        _denial(f"//**/{entry.pattern}", "file", entry.reason) for entry in build_files().entries
    )


def _denial(specifier: str, kind: NameKind, reason: str) -> Rule:
    return Rule(
        Verdict.DENY,
        "Write",
        specifier,
        Source("built-in"),
        Layer.BUILT_IN,
        reason,
        match=(f"Write({_example(specifier)})", f"Write(sub/{_example(specifier)})"),
        name_kind=kind,
    )


def starter_rules() -> tuple[str, ...]:
    """Denials for the policy of `policy init`, as rule texts."""
    found = (entry.pattern for entry in load().entries if entry.policy == "starter")
    return tuple(f"Edit(**/{pattern})" for pattern in found)


@cache
def folders_around() -> dict[str, str]:
    """Folders with a protected name inside, and one such name: a copy of the folder copies both."""
    return {
        entry.pattern.partition("/")[0]: entry.pattern.partition("/")[2].replace("*", "")
        for entry in reversed(load().entries)
        if entry.policy == "deny" and "/" in entry.pattern and not entry.pattern.startswith(GIT)
    }


def fold_path(path: str) -> str:
    """A path as the least strict file system would compare it."""
    return "/".join(map(fold, path.split("/")))


def names_path(rule: Rule, path: str, *, is_removed: bool) -> bool:
    """Whether a rule of this list matches a path; `is_removed`: the removal of the path."""
    if rule.name_kind == "plant" and is_removed:
        return False
    pattern, place = _pattern(rule.specifier or ""), fold_path(path)
    if not pattern.matches(place, "/") or path.endswith("/head"):  # ordinary, not HEAD
        return False
    # The rule means a file, not the contents of a folder of that name.
    return rule.name_kind == "tree" or not pattern.matches(place.rpartition("/")[0] or "/", "/")


def could_name(rule: Rule, glob: str, *, is_folder_seen: bool = False) -> bool:
    """Whether a partly known path could become a match of a rule of this list. `is_folder_seen`:
    the caller already looked up which folders are bare repositories (`x.git`)."""
    specifier = rule.specifier or ""
    pattern = _pattern(specifier.replace("/*.git/", "/.git/") if is_folder_seen else specifier)
    if not pattern.could_match(glob.lower(), "/", wary=False):
        return False
    above = glob.lower().rpartition("/")[0] or "/"
    return rule.name_kind == "tree" or not pattern.could_match(above, "/", wary=False)


def is_findable(path: str) -> bool:
    """Whether the files that wildcards match can be looked up without a walk over the disk."""
    return sum(not _WILD.isdisjoint(part) for part in path.split("/")) <= _MAX_WILD_NAMES


@lru_cache(maxsize=4096)
def is_of_protected_name(specifier: str) -> bool:
    """Whether the list contains the path of a rule: then the caller looked up which such files the
    wildcards of a command match, and no guess is needed."""
    parts = [part for part in specifier.split("/") if part not in {"", ".", "~", "**"}]
    return bool(load().groups_of("/".join(parts)))


def _pattern(specifier: str) -> PathPattern:
    return path_pattern(fold_path(specifier), "", "/", True)


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
