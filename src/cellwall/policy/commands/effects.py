"""The effects of a command: what its arguments make it run, read and write. Pure."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field

from cellwall.parsing.shell.words import UNKNOWN, Access, Assignment, File, Word
from cellwall.policy.code.sieve import look_at
from cellwall.policy.commands.arguments import NOTHING, RISKY, Effect
from cellwall.policy.commands.catalog import canonical

FROM_LIST = "the file names come from a list that was not judged"
"""A `File.why`: no rule covers the list, which may name forbidden files."""

STDIN = "<<"
"""A `Danger.option`: only a rule for everything covers standard input."""


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
    """The command gets further, unknown arguments (`xargs`, `find -exec … +`)."""
    is_null_separated: bool = False
    """Each of these arguments is one whole name (`xargs -0`): a blank does not split a name."""


@dataclass(frozen=True, slots=True)
class Code:
    """Code of another language: `python -c TEXT`, an awk program that starts commands."""

    language: str
    text: Word | None
    """None: the source is not known, such as a pipe."""
    option: str
    """The option with the code (`-c`); a rule that spells the option allows the code."""
    why: str


@dataclass(frozen=True, slots=True)
class Danger:
    """An argument that lets the command do more than its name suggests."""

    option: str
    """Like `Code.option`; empty: no rule can allow it."""
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
    """The command only starts `inner`, so a rule for the inner commands is enough."""
    reads_stdin_as: str | None = None
    """The language of code on standard input (`bash`, `python` without a file)."""
    runs: tuple[tuple[str, Word], ...] = ()
    """Files of code that the command runs, each with its language."""
    folders: tuple[Word, ...] = ()
    """Directories that the command changes to before it opens files or starts `inner`."""
    is_typed: bool = False
    """Standard input may hold commands for the program, as a person would type them."""
    is_unmodelled: bool = False
    """The program has no model; any of its words could be a file."""


# The collection of effects while the arguments are read.

_STANDARD_INPUT = frozenset(("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"))
_FROM_ELSEWHERE = re.compile(r"[./~]|\w+[+:]|[\w-]+/|.*(://|@(git|https?|ssh|file)\b)")
# `make` knows `:=` and its like, with blanks before it.
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*[:?+]*=")
_DEVICES = re.compile(r"/*(?:\.\./)*(?:dev|proc)/")
VALUE_UNKNOWN = "an unknown value could run code; write the value itself"
CODE_UNKNOWN = "the file of code is known only at run time; write its name"


@dataclass(slots=True)
class EffectsBuilder:
    """Collects the effects of one command."""

    scripts: list[ShellScript] = field(default_factory=list)
    inner: list[Inner] = field(default_factory=list)
    codes: list[Code] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    dangers: list[Danger] = field(default_factory=list)
    assignments: list[Assignment] = field(default_factory=list)
    runs: list[tuple[str, Word]] = field(default_factory=list)
    folders: list[Word] = field(default_factory=list)
    plain: tuple[Word, ...] | None = None
    reads_stdin_as: str | None = None
    is_typed: bool = False

    def build(self, *, is_wrapper: bool = False) -> CommandEffects:
        return CommandEffects(
            scripts=tuple(self.scripts),
            inner=tuple(self.inner),
            codes=tuple(self.codes),
            files=tuple(self.files),
            dangers=tuple(dict.fromkeys(self.dangers)),
            assignments=tuple(self.assignments),
            runs=tuple(self.runs),
            folders=tuple(self.folders),
            plain=self.plain,
            is_wrapper=is_wrapper and bool(self.inner or self.scripts),
            reads_stdin_as=self.reads_stdin_as,
            is_typed=self.is_typed,
        )

    def file(self, access: Access, path: Word, why: str) -> None:
        if path.text not in ("-", ""):
            self.files.append(File(access, path, why))

    def danger(self, option: str, why: str) -> None:
        self.dangers.append(Danger(option, why))

    def assign(self, word: Word) -> bool:
        """Notes an assignment `NAME=VALUE`; False for any other word."""
        if found := _ASSIGNED.match(word.text):
            self.assignments.append(Assignment(found[1], word.after(found[0])))
        return found is not None

    def merge(self, other: CommandEffects) -> None:
        self.scripts += other.scripts
        self.inner += other.inner
        self.codes += other.codes
        self.files += other.files
        self.dangers += other.dangers
        self.assignments += other.assignments
        self.runs += other.runs
        self.folders += other.folders
        self.is_typed = self.is_typed or other.is_typed
        self.reads_stdin_as = self.reads_stdin_as or other.reads_stdin_as

    def _danger_of(self, kind: str, word: Word, option: str, why: str) -> None:
        """A rule has to spell the option; the file or command of its value is judged as well."""
        self.danger("" if kind == "forbidden" else option, why)
        if kind == "danger-script":
            self.scripts.append(ShellScript(word, why))
        elif kind == "danger-folder":
            self.folders.append(word)
        elif kind in ("danger-read", "danger-write"):
            self.file("read" if kind == "danger-read" else "write", word, why)

    def apply(self, effect: Effect, word: Word, option: str, *, inplace: bool = False) -> None:
        """Notes the effect of a value or an operand."""
        found, word = resolve(effect, word)
        kind, why = found.kind, found.why
        if kind in ("read", "write", "inplace"):
            is_changed = inplace or kind == "inplace"
            if is_changed or kind == "read":
                self.file("read", word, why or "it is read")
            if is_changed or kind == "write":
                self.file("write", word, why or "it is written")
        elif kind == "names":
            self.names(word)
            if why:
                self.danger(option, why)
        elif kind == "script":
            self.scripts.append(ShellScript(word, why))
        elif kind == "program":
            self.program(word, why, found.detail)
        elif kind == "code":
            self.code(found.detail, word, option, why)
        elif kind == "forbidden" or kind.startswith("danger"):
            self._danger_of(kind, word, option, why)
        else:
            self._apply_plain(kind, word, why)

    def _apply_plain(self, kind: str, word: Word, why: str) -> None:
        if kind == "folder":
            self.folders.append(word)
        elif kind == "assign":
            self.assign(word)
        elif kind == "inner":
            self.inner.append(Inner((word,), why, is_open_ended=True))

    def names(self, word: Word | None) -> None:
        """Files whose names come from another file or from standard input."""
        if word is None or word.text in _STANDARD_INPUT:
            self.file("read", Word(UNKNOWN), "its name comes on standard input")
        else:
            self.file("read", word, "it holds names of files")
            self.file("read", Word(UNKNOWN), FROM_LIST)

    def code(self, language: str, word: Word, option: str, why: str) -> None:
        """Inline code, and the files that it reads."""
        self.codes.append(Code(language, word, option, why))
        for path in look_at(language, word.text).reads:
            self.file("read", Word(path), f"the {language} code reads it")

    def package(self, words: tuple[Word, ...], why: str) -> None:
        """The rule for a runner names its packages; a shell or an interpreter is judged as such,
        whichever program starts it."""
        if not words[0].is_literal:
            self.danger("", "the package is known only at run time; write its name")
        elif canonical(words[0].text) is not None:
            self.inner.append(Inner(words, why))
        elif _FROM_ELSEWHERE.match(words[0].text):
            self.danger(words[0].text, "the package comes from this address")

    def program(self, word: Word, why: str, language: str) -> None:
        """A file of code that an interpreter runs, or without a language a program to start."""
        if not language:
            self.inner.append(Inner((word,), why, is_open_ended=True))
        elif word.text in _STANDARD_INPUT:
            self.reads_stdin_as = language
        elif UNKNOWN in word.text or word.is_split or is_device(word.text):
            self.danger("", CODE_UNKNOWN)
        else:
            self.file("read", word, "the code in it is run")
            self.runs.append((language, word))


def is_device(path: str) -> bool:
    """Whether a path leads to `/dev` or `/proc`, in any spelling: `//dev/stdin`, `../../proc/`."""
    if not path.startswith(("/", "..")) and "/../" not in path:
        return False
    return _DEVICES.match(posixpath.normpath(path)) is not None


def resolve(effect: Effect, word: Word) -> tuple[Effect, Word]:
    """The matching case, and the rest of the word after the match."""
    if not effect.cases:
        return effect, word
    if word.is_digits:  # neither option, `NAME=` nor path: any number
        return resolve(effect, Word("0"))[0], word
    is_known = UNKNOWN not in word.text and not word.is_split
    for pattern, case in effect.cases:
        found = pattern.match(word.text)
        if found is None:
            continue
        # `host:` is harmless; an unknown host could as well be a path.
        if not is_known and case.kind == "value" and UNKNOWN in (found[0] or UNKNOWN):
            continue
        # The last case is not for a word that could still match an earlier case.
        if not is_known and not found[0] and not RISKY.isdisjoint(effect.kinds):
            return _worst(effect), word
        return resolve(case, word.after(found[0]))
    if is_known:
        return NOTHING, word
    return _worst(effect), word


def fits(effect: Effect, word: Word) -> bool:
    """Whether a pattern matches the known part of the word."""
    return any(pattern.match(word.text) for pattern, _ in effect.cases)


def _worst(effect: Effect) -> Effect:
    kinds = effect.kinds
    if not RISKY.isdisjoint(kinds):
        return Effect("danger", why=VALUE_UNKNOWN)
    for kind in ("write", "read", "assign"):
        if kind in kinds:
            return Effect(kind)
    return NOTHING
