"""Words of a text that may be part of a file name that is not known. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cellwall.parsing.shell.command import Command
from cellwall.parsing.shell.words import UNKNOWN, Word

_LEAVING_OUT = frozenset(("-not", "!", "-v", "--exclude", "--exclude-dir", "--glob=!", "--ignore"))
_STARTING = frozenset(("-exec", "-execdir", "-ok", "-okdir"))
"""The word behind one of these is a program, and no file that is read or written."""
_GIT_PATHS = ("--git-", "--absolute-git-dir")
"""`git rev-parse --git-dir` prints the folder in which git's own files lie."""
_PARTS = re.compile(r"[\s=:,;'\"()]+")
_MAX_TOKENS = 2000
_find_texts = re.compile(r"""'([^'\n]{1,300})'|"([^"\n]{1,300})"|`([^`\n]{1,300})`""").findall


def tokens_of(commands: Sequence[Command]) -> Iterator[Word]:
    """Each as a word whose wildcards mean something; not those that say what to leave out."""
    count = 0
    for text in _texts(commands):
        for token in _PARTS.split(text):
            if token and UNKNOWN not in token:
                count += 1
                if count > _MAX_TOKENS:
                    return
                yield Word(token, has_glob=any(sign in token for sign in "*?["))


def _texts(commands: Sequence[Command]) -> Iterator[str]:
    for command in commands:
        before = ["", ""]
        for word in command.words[1:]:
            if not _LEAVING_OUT & set(before) and before[1] not in _STARTING:
                yield word.text
            before = [before[1], word.text]
        if (
            command.words
            and command.words[0].text == "git"
            and any(word.text.startswith(_GIT_PATHS) for word in command.words)
        ):
            yield ".git/config"
        for assignment in command.assignments:
            yield assignment.value.text
        for word in command.mentioned:
            yield word.text
        if command.stdin_text is not None:
            yield command.stdin_text.text


def texts_in(code: str) -> set[str]:
    """The quoted texts of code, which may be names of files."""
    found = {text for texts in _find_texts(code) for text in texts if text}
    return {text for text in found if UNKNOWN not in text}
