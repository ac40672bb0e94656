"""The effects of a command: what its arguments make it run, read and write. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cellwall.parsing.shell.command import Assignment, File
from cellwall.parsing.shell.words import Word

FROM_LIST = "the names of the files stand in a list that nobody has judged"
"""As `File.why`: no rule covers it, for it may name what is forbidden."""

STDIN = "<<"
"""As `Danger.option`: it comes on standard input, so that only a rule for everything covers it."""


@dataclass(frozen=True, slots=True)
class ShellScript:
    """Text that a shell will run: `sh -c TEXT`, `git -c alias.x='!TEXT'`, `watch TEXT`."""

    text: Word
    why: str


@dataclass(frozen=True, slots=True)
class Inner:
    """Another command that this one starts: `env CMD…`, `find -exec CMD…`, `xargs CMD…`."""

    words: tuple[Word, ...]
    why: str
    is_open_ended: bool = False
    """It gets further arguments that nobody knows yet (`xargs`, `find -exec … +`)."""
    is_null_separated: bool = False
    """Each of these arguments is one whole name (`xargs -0`): no blank in a name makes two."""


@dataclass(frozen=True, slots=True)
class Code:
    """Code of another language: `python -c TEXT`, an awk program that starts commands."""

    language: str
    text: Word | None
    """None: it comes from somewhere that is not known, such as a pipe."""
    option: str
    """What in the command brings it (`-c`); a rule that spells it out means it."""
    why: str


@dataclass(frozen=True, slots=True)
class Danger:
    """An argument that lets the command do more than its name suggests."""

    option: str
    """As `Code.option`; empty: no rule can mean it."""
    why: str


@dataclass(frozen=True, slots=True)
class CommandEffects:
    """All effects of one command; a program without a model has none."""

    scripts: tuple[ShellScript, ...] = ()
    inner: tuple[Inner, ...] = ()
    codes: tuple[Code, ...] = ()
    files: tuple[File, ...] = ()
    dangers: tuple[Danger, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    plain: tuple[Word, ...] | None = None
    """The command without its global options (`git -C x push` -> `git push`), for denials."""
    is_wrapper: bool = False
    """It does nothing of its own but start `inner`; then a rule for those is enough."""
    reads_stdin_as: str | None = None
    """The language of what it would run from standard input (`bash`, `python` without a file)."""
    runs: tuple[tuple[str, Word], ...] = ()
    """Files of code that it runs, each with its language."""
    folders: tuple[Word, ...] = ()
    """Directories that it changes to before it opens files or starts `inner`."""
    is_typed: bool = False
    """What is on its standard input may be commands for it, as a person would type them."""
    is_unmodelled: bool = False
    """Nobody has a model for the program; any of its words could be a file."""
