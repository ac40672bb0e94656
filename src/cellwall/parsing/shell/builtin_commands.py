"""Builtins that change how the rest of a text is read, and the working directories. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cellwall.parsing.shell.parser import NotUnderstood
from cellwall.parsing.shell.words import UNKNOWN, Word

_MAX_DIRECTORIES = 32


@dataclass(slots=True)
class Directories:
    """Each `cd` may fail, so the previous directories stay possible."""

    now: tuple[str, ...]
    home: str
    _everywhere: dict[str, None] = field(default_factory=dict)
    _has_moved: bool = False

    @property
    def only(self) -> str | None:
        """The value of `$PWD`, where only one directory is possible."""
        is_one = len(self.now) == 1 and UNKNOWN not in self.now[0]
        return self.now[0] if is_one else None

    @property
    def everywhere(self) -> tuple[str, ...]:
        """All directories that commands of the text run in."""
        return _bounded({**dict.fromkeys(self.now), **self._everywhere})

    def use(self) -> tuple[str, ...]:
        """The directories of a command at this place."""
        self._everywhere |= dict.fromkeys(self.now)
        return self.now

    @contextmanager
    def of_a_subshell(self) -> Iterator[None]:
        """A subshell changes no directory of the text around it."""
        before = self.now
        yield
        self.now = before

    def change(self, words: Sequence[Word]) -> None:
        """Applies `cd`, `pushd` or `popd`."""
        operands, is_physical = _operands(words)
        target = operands[0] if operands else Word(self.home)
        text = target.text if not target.is_split and target.text else UNKNOWN
        if words[0].text == "popd" or _is_of_stack(text):
            if self._has_moved:
                return  # to a directory that was possible before
            text = UNKNOWN  # a directory of the shell before this text
        if len(operands) > 1:  # zsh replaces the first by the second in the current path
            text = UNKNOWN
        self._has_moved = True
        found = dict.fromkeys(self.now)
        for each in self.now:
            whole = text if text.startswith(("/", UNKNOWN)) else f"{each}/{text}"
            found[_plain(whole)] = None
            if is_physical and ".." in text.split("/"):
                found[whole] = None  # `..` after a link starts at the target of the link
        self.now = _bounded(found)

    def may_be_in(self, places: Sequence[str]) -> None:
        """Adds possible working directories."""
        self.now = _bounded({**dict.fromkeys(self.now), **dict.fromkeys(places)})


def _operands(words: Sequence[Word]) -> tuple[list[Word], bool]:
    """The operands, and whether links are followed before each `..`."""
    is_physical = False
    for at, word in enumerate(words[1:], 1):
        if word.text == "--":
            return list(words[at + 1 :]), is_physical
        if not _is_option(word.text):
            return list(words[at:]), is_physical
        is_physical = is_physical or "P" in word.text
    return [], is_physical


_is_option = re.compile(r"-[A-Za-z@]+").fullmatch
_is_of_stack = re.compile(r"-|[-+][0-9]+").fullmatch


def _plain(path: str) -> str:
    """Without `.` and `..`; an unknown name before a `..` makes the path unknown."""
    names = path.split("/")
    last = max((at for at, name in enumerate(names) if name == ".."), default=0)
    if any(UNKNOWN in name for name in names[:last]):
        return "/".join([UNKNOWN, *(each for each in names[last + 1 :] if each not in {"", "."})])
    return posixpath.normpath(path)


def _bounded(found: dict[str, None]) -> tuple[str, ...]:
    if len(found) > _MAX_DIRECTORIES:  # a directory that is left out could hold a secret
        raise NotUnderstood("the text changes to more directories than can be judged in time")
    return tuple(found)


# All builtins that change how the rest of a text is read.

_RUN_NOTHING = frozenset(("-p", "-l", "-", ""))
_lists_jobs = re.compile(r"-[lnprs]*|%.*|[0-9]+").fullmatch
_is_plain_option = re.compile(
    r"[-+][euxvmb]{0,6}o?|pipefail|errexit|nounset|xtrace|verbose|monitor|notify"
).fullmatch


def run_builtin(
    words: Sequence[Word], directories: Directories, follow: Callable[[str], None]
) -> None:
    """The change that a builtin makes; any other command makes none. `follow` reads a text that
    the builtin runs."""
    while words and words[0].text in {"command", "builtin", "--"}:
        words = words[1:]
        while words and words[0].text.startswith("-") and words[0].text != "--":
            words = words[1:]
    name = words[0].text if words else ""
    if name in {"cd", "pushd", "popd", "chdir"}:
        directories.change(words)
    elif name in {"eval", "trap", "alias"}:
        for text in _texts_run(words):
            if UNKNOWN in text:
                directories.change((Word("cd"), Word(UNKNOWN)))
            else:
                follow(text)
    elif name in {"source", "."} and any(_is_own_file(word.text) for word in words[1:2]):
        directories.may_be_in((directories.home,))
    elif name == "set" and not all(_is_plain_option(word.text) for word in words[1:]):
        raise NotUnderstood(
            "set assigns arguments, or options that change how the shell reads text; use only -e, "
            "-u, -x, -v, -m, -b and -o pipefail, and `export NAME=value` to export"
        )
    elif name == "jobs" and not all(_lists_jobs(word.text) for word in words[1:]):
        raise NotUnderstood("jobs -x runs a command; write the command alone")


def _texts_run(words: Sequence[Word]) -> list[str]:
    """The texts that `eval`, `trap` or `alias` hands to the shell."""
    if words[0].text == "alias":
        pairs = [word.text.partition("=") for word in words[1:]]
        return [value for _, equals, value in pairs if equals]
    if words[0].text == "trap":
        operands = words[2:] if words[1:2] == (Word("--"),) else words[1:]
        return [word.text for word in operands[:1] if word.text not in _RUN_NOTHING]
    at = 1
    while at < len(words) and words[at].text.startswith("-") and len(words[at].text) > 1:
        at += 1
        if words[at - 1] == Word("--"):
            break
    return [" ".join(word.text for word in words[at:])] if words[at:] else []


def _is_own_file(path: str) -> bool:
    """A file that the agent may have written; an `activate` script changes no directory."""
    return not path.startswith(("/", "~")) and not path.endswith("/activate")
