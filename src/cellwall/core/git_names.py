"""Names as the most lenient file system compares them, and the names of git directories."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache

GIT_LAYOUT = ("HEAD", "commondir", "objects", "refs")
"""The entries by which git recognises a git directory."""
FOLDED_GIT_LAYOUT = frozenset(name.lower() for name in GIT_LAYOUT)
_INSIDE_GIT = frozenset({"modules", "worktrees"})
_VERSION_CONTROL = frozenset({".git", ".hg", ".jj", ".sl", ".svn", ".bzr", "_darcs"})

IsGit = Callable[[tuple[str, ...]], bool]
"""Whether a path of folded names is a git directory."""


@lru_cache(maxsize=16_384)
def fold(name: str) -> str:
    """A name as the most lenient file system would compare it.

    `.GIT`, `.g\\u200cit`, `.git.` and `git~1` all were ways to plant hooks on disks that ignore
    case, invisible characters, trailing dots or long names (CVE-2014-9390 and after).
    """
    if name.isascii():
        folded = name.lower()
    else:
        visible = "".join(c for c in name if unicodedata.category(c) != "Cf")
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", visible).casefold())
    return {"git~1": ".git"}.get(folded, folded.rstrip(". ") or folded)


def is_git_layout(names: Iterable[str]) -> bool:
    """Whether git takes a directory with these names for a repository.

    setup.c, is_git_directory(): a HEAD, and objects and refs in it or in the directory that
    `commondir` names. The contents are not checked: code could write them later.
    """
    names = [name for name in names if len(name) < 64]
    # Most directories have no such name, and a walk asks for each: fold only what can become HEAD.
    heads = (name for name in names if name[:1] in {"h", "H"} or not name.isascii())
    if not any(fold(name) == "head" for name in heads):
        return False
    folded = {fold(name) for name in names}
    return "commondir" in folded or {"objects", "refs"} <= folded


def is_git_by_name(names: tuple[str, ...]) -> bool:
    """Whether a path of folded names is a git directory by its names alone."""
    if not names:
        return False
    if names[-1].endswith(".git"):
        return True
    if ".git" not in names:
        return False
    inside = names[names.index(".git") + 1 :]
    return len(inside) > 1 and inside[0] in _INSIDE_GIT


def is_named_git_dir(names: tuple[str, ...]) -> bool:
    """Whether a directory is git's by its path, whatever its content: `.git`, and the entries of
    its `modules` and `worktrees`. Deeper down, `config` can be the name of a branch."""
    return names[-1:] == (".git",) or (names[-3:-2] == (".git",) and names[-2] in _INSIDE_GIT)


def is_in_version_control(names: tuple[str, ...]) -> bool:
    """Whether a path of folded names lies below a version control directory, by its names.

    Version control tools write there through symlinks: COMMIT_EDITMSG that leads to `config` makes
    the next `git commit` write the configuration, and one that leads out writes anywhere.
    """
    return not _VERSION_CONTROL.isdisjoint(names[:-1])


def completes_git_layout(path: str) -> bool:
    """Whether a new file of that path could make its directory a git directory.

    A git directory needs a file called HEAD. A plain `head` is ignored here: on a case-insensitive
    file system the walk of the disk finds it.
    """
    *above, last = [name for name in path.split("/") if name not in {"", "."}] or [""]
    is_head = fold(last) == "head" and last != "head"
    return (is_head or fold(last) == "commondir") and ".git" not in map(fold, above)
