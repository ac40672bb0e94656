"""Where a text is: the directories that its `cd`s may have led to. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cellwall.policy.shell.parser import NotUnderstood
from cellwall.policy.shell.words import UNKNOWN, Word

_MAX_DIRECTORIES = 32


@dataclass(slots=True)
class Directories:
    """Each `cd` may fail, so where the text was before stays possible."""

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
        targets = [word for word in words[1:] if word.text == "-" or not word.text.startswith("-")]
        target = targets[0] if targets else Word(self.home)
        text = target.text if not target.is_split and target.text else UNKNOWN
        if words[0].text == "popd" or text == "-":
            if self._has_moved:
                return  # one of those where it was before
            text = UNKNOWN  # where the shell was before this text
        self._has_moved = True
        found = dict.fromkeys(self.now)
        for each in self.now:
            is_whole = text.startswith(UNKNOWN)  # it may begin with a slash
            found[posixpath.normpath(text if is_whole else posixpath.join(each, text))] = None
        self.now = _bounded(found)


def _bounded(found: dict[str, None]) -> tuple[str, ...]:
    if len(found) > _MAX_DIRECTORIES:  # one that is left out could be where a secret lies
        raise NotUnderstood("it goes to more folders than can be judged in time")
    return tuple(found)
