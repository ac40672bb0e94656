"""A rule, where it comes from, and the error for a rule that cannot be parsed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase
from typing import Literal

from cellwall.core.errors import ConfigError
from cellwall.core.verdict import Verdict


class BadRule(ConfigError):
    """`offset` counts characters from the start of the text that was parsed."""

    default_code = "CW-RULE"

    def __init__(
        self, message: str, *, hint: str, offset: int = 0, code: str | None = None
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.offset = offset

    def moved(self, by: int) -> BadRule:
        """The same mistake, as seen from a longer text that holds this one at `by`."""
        return BadRule(self.message, hint=self.hint, offset=self.offset + by, code=self.code)


# What a rule is: one line that somebody wrote, with the place where it stands.

EVERYTHING = frozenset(("Bash", "Bash(*)"))
"""Rules that allow every command."""


class Layer(IntEnum):
    """The author of a rule. A later layer can only tighten an earlier one (POL-7)."""

    BUILT_IN = 0
    ADMINISTRATOR = 1
    USER = 2
    PROJECT = 3
    SESSION = 4

    @property
    def word(self) -> str:
        return self.name.lower().replace("_", "-")


NameKind = Literal["", "tree", "file", "plant"]
"""Of a rule that is made of a protected name: it means a folder with all in it, a file alone, or a
file alone that may be taken away."""


@dataclass(frozen=True, slots=True)
class Source:
    """The file and position of a rule."""

    file: str
    line: int = 0
    column: int = 0
    folder: str = ""
    """What a path with one slash in front is relative to: the file's folder, or the project's."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


OTHERWISE = "otherwise"
"""The tool of the rule that `otherwise = "ask"` is: for what no other rule of a file matches."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`Tool` or `Tool(specifier)`, and the verdict for a call that it matches."""

    verdict: Verdict
    tool: str
    specifier: str | None
    source: Source
    layer: Layer
    reason: str = ""
    match: tuple[str, ...] = ()
    """Calls that it must match, as people write them; looked at when it is loaded (POL-6)."""
    not_match: tuple[str, ...] = ()
    answers: str = ""
    """The rule that asks and that this one answers, once and for all; it allows nothing else."""
    name_kind: NameKind = ""
    stops: bool = False
    """A denial by it also stops the agent that asked."""
    unless: tuple[str, ...] = ()
    """Names of files, with wildcards, that a rule for paths does not mean after all."""
    is_untrusted: bool = False
    """Nobody has trusted the project that it comes from: none of its own words are handed on."""

    def excepts(self, path: str) -> bool:
        """Whether this file is one of those that the rule does not mean."""
        name = path.rpartition("/")[2]
        return any(fnmatchcase(name, each) for each in self.unless)

    @property
    def text(self) -> str:
        return self.tool if self.specifier is None else f"{self.tool}({self.specifier})"
