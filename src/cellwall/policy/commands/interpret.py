"""Applies the model of a program to the arguments of a command. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from cellwall.parsing.shell.command import Access, Assignment, File
from cellwall.parsing.shell.words import UNKNOWN, Word
from cellwall.policy.code.sieve import look_at
from cellwall.policy.commands.arguments import GivenOption, Scan, scan
from cellwall.policy.commands.catalog import NOTHING, RISKY, Effect, Model, canonical
from cellwall.policy.commands.opened import (
    FROM_LIST,
    Code,
    CommandEffects,
    Danger,
    Inner,
    ShellScript,
)
from cellwall.policy.commands.unmodelled import why_unlisted

COULD_BE_OPTION = "a word that is not known could be an option that runs code or writes files"
VALUE_UNKNOWN = "a value that is not known stands where it could run code; write the value itself"
SUB_UNKNOWN = "the sub-command is known only when it runs; write it out"
CODE_UNKNOWN = "the file of code that it runs is known only when it runs; write its name"
NOT_LISTED = "this option is not known here, so nobody can tell what it does"

_STANDARD_INPUT = frozenset(("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"))
_BEFORE = {
    "python": (Word("python"),),
    "module": (Word("python"), Word("-m")),
    "yarn": (Word("yarn"),),
}
_SUFFIX = re.compile(r"[\w.~-]*\Z")
_FROM_ELSEWHERE = re.compile(r"[./~]|\w+[+:]|[\w-]+/|.*(://|@(git|https?|ssh|file)\b)")
# `make` knows `:=` and its like, with blanks before it.
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*[:?+]*=")
_DEVICES = re.compile(r"/*(?:\.\./)*(?:dev|proc)/")


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
        """Whether the word is `NAME=VALUE`, or could be one."""
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
        """A rule has to spell it out; the file or the command that it names is judged as well."""
        self.danger("" if kind == "forbidden" else option, why)
        if kind == "danger-script":
            self.scripts.append(ShellScript(word, why))
        elif kind == "danger-folder":
            self.folders.append(word)
        elif kind in ("danger-read", "danger-write"):
            self.file("read" if kind == "danger-read" else "write", word, why)

    def apply(self, effect: Effect, word: Word, option: str, *, inplace: bool = False) -> None:
        """What a value or an operand does."""
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
        """Files whose names stand in another file, or come on standard input."""
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
        """A package from elsewhere is named by the rule for its runner; a shell or an interpreter
        is what it always is, whoever starts it."""
        if not words[0].is_literal:
            self.danger("", "the package that it starts is known only when it runs; write its name")
        elif canonical(words[0].text) is not None:
            self.inner.append(Inner(words, why))
        elif _FROM_ELSEWHERE.match(words[0].text):
            self.danger(words[0].text, "the package that it starts comes from this address")

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
    """Whether it leads to `/dev` or `/proc`, by any spelling: `//dev/stdin`, `../../proc/`."""
    if not path.startswith(("/", "..")) and "/../" not in path:
        return False
    return _DEVICES.match(posixpath.normpath(path)) is not None


def resolve(effect: Effect, word: Word) -> tuple[Effect, Word]:
    """Which case fits, and the word behind what its pattern took."""
    if not effect.cases:
        return effect, word
    if word.is_digits:  # no option, no `NAME=`, no path: as any number
        return resolve(effect, Word("0"))[0], word
    is_known = UNKNOWN not in word.text and not word.is_split
    for pattern, case in effect.cases:
        found = pattern.match(word.text)
        if found is None:
            continue
        # `host:` is harmless; an unknown host could as well be a path.
        if not is_known and case.kind == "value" and UNKNOWN in (found[0] or UNKNOWN):
            continue
        # What is left for all others is not for what could still be one of those before it.
        if not is_known and not found[0] and not RISKY.isdisjoint(effect.kinds):
            return _worst(effect), word
        return resolve(case, word.after(found[0]))
    if is_known:
        return NOTHING, word
    return _worst(effect), word


def fits(effect: Effect, word: Word) -> bool:
    """Whether a pattern fits, as far as the word is known."""
    return any(pattern.match(word.text) for pattern, _ in effect.cases)


def _worst(effect: Effect) -> Effect:
    kinds = effect.kinds
    if not RISKY.isdisjoint(kinds):
        return Effect("danger", why=VALUE_UNKNOWN)
    for kind in ("write", "read", "assign"):
        if kind in kinds:
            return Effect(kind)
    return NOTHING


def interpret(model: Model, words: Sequence[Word]) -> CommandEffects:
    """`words` begin with the program, or with the sub-command."""
    finds = EffectsBuilder()
    is_wrapper = _walk(finds, model, words[:1], words[1:])
    return finds.build(is_wrapper=is_wrapper)


def _walk(finds: EffectsBuilder, model: Model, head: Sequence[Word], words: Sequence[Word]) -> bool:
    """Opens the options of a model and then its sub-command, if it has those."""
    count = len(finds.dangers)
    is_wrapper = _walk_words(finds, model, head, words)
    if model.keeps and len(finds.dangers) > count:
        # A setting that stays is one in a file that rules protect.
        finds.file("write", Word(model.keeps), "it changes its settings there")
    return is_wrapper


def _walk_words(
    finds: EffectsBuilder, model: Model, head: Sequence[Word], words: Sequence[Word]
) -> bool:
    found = scan(model, words)
    name = head[-1].text.rpartition("/")[2]
    if model.always.kind == "danger":
        finds.danger(name, model.always.why)
    finds.is_typed = finds.is_typed or model.is_typed
    note_options(finds, model, found)
    if not model.has_subs:
        note_operands(finds, model, found, name if len(head) > 1 else "")
        return model.is_wrapper
    if not found.operands:
        note_missing(finds, model, found)
        return False
    sub, rest = found.operands[0], found.rest or ()
    while fits(model.looks, sub) and rest:
        # `cargo +nightly build`: a word that stands before the sub-command.
        finds.apply(model.looks, sub, sub.text)
        sub, rest = rest[0], rest[1:]
    if len(words) > len(rest) + 1 or finds.plain:
        finds.plain = (*head, sub, *rest)
    return _open_sub(finds, model, (*head, sub), rest)


def _open_sub(
    finds: EffectsBuilder, model: Model, head: Sequence[Word], rest: Sequence[Word]
) -> bool:
    name = head[-1]
    if not name.is_literal:
        finds.danger("", SUB_UNKNOWN)
        return False
    sub = model.subs.get(name.text)
    if sub is None and model.is_abbreviated:
        fitting = (found for key, found in model.subs.items() if key.startswith(name.text))
        sub = max(fitting, key=lambda found: found.is_risky, default=None)
    if sub is not None:
        return _walk(finds, sub, head, rest)
    if model.is_anywhere:
        behind = model.behind()
        note_options(finds, behind, found := scan(behind, rest))
        note_operands(finds, behind, found)
    if name.text in model.harmless:
        return False
    if model.other.kind == "package":
        finds.package((name, *rest), model.other.why)
    else:
        finds.apply(model.other, name, name.text)
    return False


def note_options(finds: EffectsBuilder, model: Model, found: Scan) -> None:
    """What the options do, the strange ones and the unknown ones included."""
    if found.is_unsure and model.is_risky:
        finds.danger("", COULD_BE_OPTION)
    for given in found.given:
        note_option(finds, given)
    for word in found.strange:
        if fits(model.looks, word):
            finds.apply(model.looks, word, word.text)
        elif model.is_strict:
            finds.danger(word.text.partition("=")[0] if word.is_literal else "", NOT_LISTED)
        elif why := why_unlisted(word, found.behind.get(word)):
            finds.danger(word.text.partition("=")[0] if word.is_literal else "", why)


def note_option(finds: EffectsBuilder, given: GivenOption) -> None:
    """What one option does."""
    effect = given.option.effect
    if effect.kind == "stdin":
        finds.reads_stdin_as = effect.detail
    elif effect.kind == "danger" and not effect.cases:
        finds.danger(given.spelled, effect.why)
    elif effect.kind == "inplace":
        # `-i'/etc/*'` keeps a copy of the file there, under its own name.
        if given.value is not None and not _SUFFIX.match(given.value.text):
            finds.danger(given.spelled, "it keeps a copy of the file somewhere else")
    elif effect.kind == "names" and given.value is None:
        finds.names(None)
    elif given.value is not None:
        finds.apply(effect, given.value, given.spelled)


def note_operands(finds: EffectsBuilder, model: Model, found: Scan, sub: str = "") -> None:
    """What the words do that belong to no option. `sub` is the sub-command they belong to."""
    if any(given.option.effect.kind == "query" for given in found.given):
        return
    if found.rest is not None:
        note_rest(finds, model, found)
    supplied = any(not model.supplies.isdisjoint(given.option.names) for given in found.given)
    effects = model.operands[1:] if supplied and len(model.operands) > 1 else model.operands
    has_target = found.has("-t", "--target-directory")
    inplace = any(given.option.effect.kind == "inplace" for given in found.given)
    count = len(found.operands)
    for place, word in enumerate(found.operands):
        if fits(model.looks, word):
            finds.apply(model.looks, word, word.text if word.is_literal else "")
        elif model.last and place == count - 1 and count > 1 and not has_target:
            finds.apply(model.last, word, "")
        elif effects:
            effect = effects[min(place, len(effects) - 1)]
            # `deno eval TEXT`: who writes a rule for it names the sub-command, not the text.
            meant = sub if effect.kind == "code" else word.text
            finds.apply(effect, word, meant if word.is_literal else "", inplace=inplace)
    if count < model.stdin_until and found.rest is None:
        note_missing(finds, model, found)


def note_missing(finds: EffectsBuilder, model: Model, found: Scan) -> None:
    """A command without an operand may read what it runs from standard input."""
    brings = ("code", "script", "query", "program", "none")
    if model.stdin and not any(
        given.option.effect.kind in brings or not model.supplies.isdisjoint(given.option.names)
        for given in found.given
    ):
        finds.reads_stdin_as = model.stdin


def note_rest(finds: EffectsBuilder, model: Model, found: Scan) -> None:
    """The words from the inner command on."""
    words, effect = found.rest or (), found.rest_by
    while model.assigns and words and finds.assign(words[0]):
        words = words[1:]
    if not words:
        return
    if effect.kind == "inner":
        before = _BEFORE.get(effect.detail, ())
        if effect.detail == "python" and not words[0].text.endswith(".py"):
            before = ()
        if "://" in words[0].text:
            finds.danger(words[0].text, "the code that it starts is fetched from this address")
        words = (*before, *words)
        finds.inner.append(Inner(words, effect.why, is_open_ended=effect.detail == "open"))
    elif effect.kind == "words":
        finds.scripts.append(ShellScript(joined(words), effect.why))
    elif effect.kind == "package":
        finds.package(words, effect.why)


def joined(words: Sequence[Word]) -> Word:
    """The words with blanks between, as `eval` and `ssh` join them."""
    return Word(
        " ".join(word.text for word in words),
        is_split=any(word.is_split for word in words),
        has_glob=any(word.has_glob for word in words),
    )
