"""The files that a patch on standard input, or among the arguments, would write. Pure.

A patch names its files itself: `patch -p1 <<EOF`, `git apply`, and `apply_patch`, which some agents
carry out without a shell. Each name is judged as a file that the command writes.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from cellwall.parsing.shell.command import Command, File
from cellwall.parsing.shell.words import UNKNOWN, Word
from cellwall.policy.written_files import WrittenFiles

_PATCHERS: Final = frozenset(("patch", "gpatch", "apply_patch", "applypatch"))
_GIT: Final = frozenset(("apply", "am"))
_HEADER: Final = re.compile(
    r"^[ \t]*(?:\*\*\* (?:Add File|Update File|Delete File|Move to):|\+\+\+ |--- |\*\*\* (?=\S+\t)"
    r"|Index: )[ \t]*(?P<path>[^\t\n\r]+)|^diff --git (?P<two>[^\n\r]+)"
    r"|^(?:rename|copy) (?:to|from) +(?P<bare>[^\t\n\r]+)",
    re.MULTILINE,
)
_STRIP: Final = re.compile(r"(?:-[A-Za-z]*p|--strip=)(\d{1,2})\Z")
_FOLDER: Final = re.compile(r"(?:-d|--directory=)(.+)\Z")
_FOLDER_OPTIONS: Final = ("-d", "--directory")
_MAX_FILES: Final = 200
_ALL_LEVELS: Final = tuple(range(8))


def patched_files(command: Command, written: WrittenFiles) -> Iterator[File]:
    """Each file that a patch which stands in the text, or in a file that the text itself writes,
    would write."""
    texts = [word.text for word in command.words]
    name = texts[0].rpartition("/")[2]
    is_git = name == "git" and not _GIT.isdisjoint(texts[1:])
    if name not in _PATCHERS and not is_git:
        return
    given = [each.text for each in (command.stdin_text, command.piped) if each is not None]
    given += texts[1:] if name in ("apply_patch", "applypatch") else []
    reads = [file.path for file in command.files if file.access == "read"]
    contents = [written.find(word, command) for word in (*reads, *command.words[1:])]
    given += [each for each in contents if isinstance(each, str)]
    levels = _levels(name, texts, is_git=is_git)
    folder = _folder(texts)
    for path, is_bare in [each for text in given for each in _paths(text)][:_MAX_FILES]:
        # git writes the names of renames without `a/` and `b/`, and takes one folder less off.
        for level in {max(0, each - 1) for each in levels} if is_bare else levels:
            parts = path.split("/", level)
            if len(parts) == level + 1 and parts[level]:
                yield File(
                    "write", Word(posixpath.join(folder, parts[level])), "the patch names it"
                )


def _levels(name: str, texts: list[str], *, is_git: bool) -> tuple[int, ...]:
    """How many folders at the begin of a name are taken away; `patch` guesses if nobody says."""
    for at, text in enumerate(texts[1:], start=1):
        found = _STRIP.match(text) or (text in ("-p", "--strip") and at + 1 < len(texts))
        if found:
            number = found[1] if isinstance(found, re.Match) else texts[at + 1]
            return (int(number),) if number.isdigit() else _ALL_LEVELS
    return (1,) if is_git else (0,) if name in ("apply_patch", "applypatch") else _ALL_LEVELS


def _folder(texts: list[str]) -> str:
    for at, text in enumerate(texts[1:-1], start=1):
        if text in _FOLDER_OPTIONS:
            return texts[at + 1]
    return next((found[1] for text in texts[1:] if (found := _FOLDER.match(text))), "")


def _paths(text: str) -> Iterator[tuple[str, bool]]:
    """Each path, and whether it stands there without a folder to be taken off."""
    for found in _HEADER.finditer(text):
        named = found["two"].split() if found["two"] else [found["path"] or found["bare"]]
        for each in named:
            path = each.strip().strip('"')
            if path != "/dev/null" and UNKNOWN not in path:
                yield path, found["bare"] is not None
