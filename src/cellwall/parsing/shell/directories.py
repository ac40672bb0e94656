"""The working directories that the `cd` commands of a text may lead to. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
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
        """What `$PWD` is, if it is one."""
        is_one = len(self.now) == 1 and UNKNOWN not in self.now[0]
        return self.now[0] if is_one else None

    @property
    def everywhere(self) -> tuple[str, ...]:
        """All that commands of the text run in."""
        return _bounded({**dict.fromkeys(self.now), **self._everywhere})

    def use(self) -> tuple[str, ...]:
        """Those that a command runs in which stands here."""
        self._everywhere |= dict.fromkeys(self.now)
        return self.now

    @contextmanager
    def of_a_subshell(self) -> Iterator[None]:
        """Wherever it goes, the text around it stays."""
        before = self.now
        yield
        self.now = before

    def change(self, words: Sequence[Word]) -> None:
        """As `cd`, `pushd` and `popd` do."""
        operands, is_physical = _operands(words)
        target = operands[0] if operands else Word(self.home)
        text = target.text if not target.is_split and target.text else UNKNOWN
        if words[0].text == "popd" or _is_of_stack(text):
            if self._has_moved:
                return  # one of those where it was before
            text = UNKNOWN  # where the shell was before this text
        if len(operands) > 1:  # zsh puts the second in the place of the first, in the path at hand
            text = UNKNOWN
        self._has_moved = True
        found = dict.fromkeys(self.now)
        for each in self.now:
            whole = text if text.startswith(("/", UNKNOWN)) else f"{each}/{text}"
            found[_plain(whole)] = None
            if is_physical and ".." in text.split("/"):
                found[whole] = None  # `..` behind a link is taken from where the link leads
        self.now = _bounded(found)

    def may_be_in(self, places: Sequence[str]) -> None:
        """The text may be in one of these as well."""
        self.now = _bounded({**dict.fromkeys(self.now), **dict.fromkeys(places)})


def _operands(words: Sequence[Word]) -> tuple[list[Word], bool]:
    """Where to go, and whether links are followed before each `..`."""
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
    """Without `.` and `..`; what an unknown name and a `..` behind it lead to is not known."""
    names = path.split("/")
    last = max((at for at, name in enumerate(names) if name == ".."), default=0)
    if any(UNKNOWN in name for name in names[:last]):
        return "/".join([UNKNOWN, *(each for each in names[last + 1 :] if each not in {"", "."})])
    return posixpath.normpath(path)


def _bounded(found: dict[str, None]) -> tuple[str, ...]:
    if len(found) > _MAX_DIRECTORIES:  # one that is left out could be where a secret lies
        raise NotUnderstood("it goes to more folders than can be judged in time")
    return tuple(found)
