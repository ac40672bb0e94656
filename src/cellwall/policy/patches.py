"""The files that a patch changes, where the text holds the patch itself. Pure.

`patch` and `git apply` write whatever the patch names: `git apply <<EOF` with `+++ b/.git/config`
in it is a write like any other.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from cellwall.policy.shell.command import Command
from cellwall.policy.shell.opened import File
from cellwall.policy.shell.words import UNKNOWN, Word
from cellwall.policy.written_files import WrittenFiles

_MAX_NAMES: Final = 1_024
_MAX_STRIPPED: Final = 4
_GIT: Final = frozenset(("apply", "am"))
_STRIP: Final = ("-p", "--strip")
_strip_value = re.compile(r"(?:-p|--strip=)(?P<count>[0-9]{1,3})").fullmatch
_find_names = re.compile(
    r"^(?:\+\+\+|---|\*\*\*|rename to|copy to|rename from|Index:) +(?P<name>\"[^\"\n]*\"|[^\t\n]+)",
    re.MULTILINE,
).finditer


def patched_files(command: Command, written: WrittenFiles) -> Iterator[File]:
    """What a command that applies a patch writes, as far as the text tells."""
    texts = [word.text for word in command.words]
    name = posixpath.basename(texts[0]) if texts else ""
    if not (name == "patch" or (name == "git" and not _GIT.isdisjoint(texts[1:]))):
        return
    patches = [command.stdin_text.text] if command.stdin_text is not None else []
    reads = [file.path for file in command.files if file.access == "read"]
    for word in (*reads, *command.words[1:]):
        content = written.find(word, command)
        if isinstance(content, str):
            patches.append(content)
    stripped, folder = _stripped(name, texts), _folder(texts)
    for patch in patches:
        for found in [*_find_names(patch)][:_MAX_NAMES]:
            # git writes these two without `a/` and `b/`, and takes one folder less off.
            is_bare = found[0].startswith(("rename", "copy"))
            counts = {max(0, count - 1) for count in stripped} if is_bare else stripped
            for path in _paths(found["name"].strip().strip('"'), counts):
                yield File("write", Word(posixpath.join(folder, path)), "the patch changes it")


def _stripped(program: str, texts: Sequence[str]) -> Sequence[int]:
    """How many folders `-p` takes off in front; each number counts where it does not say so."""
    for at, text in enumerate(texts):
        value = texts[at + 1] if text in _STRIP and at + 1 < len(texts) else ""
        if found := _strip_value(text) or _strip_value(f"-p{value}"):
            return (int(found["count"]),)
        if text.startswith(_STRIP):
            return range(_MAX_STRIPPED)
    return (1,) if program == "git" else range(_MAX_STRIPPED)


def _folder(texts: Sequence[str]) -> str:
    for at, text in enumerate(texts[1:-1], start=1):
        if text in ("-d", "--directory"):
            return texts[at + 1]
    glued = (text.partition("=")[2] for text in texts if text.startswith("--directory="))
    return next(glued, "")


def _paths(name: str, stripped: Iterable[int]) -> Iterator[str]:
    names = name.split("/")
    for count in stripped:
        path = "/".join(names[count:])
        if path and UNKNOWN not in path and name != "/dev/null":
            yield path
