"""The model of a program's options, and the arguments of a command sorted by it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final

from cellwall.parsing.shell.words import UNKNOWN, Word

RISKY: Final = frozenset(
    [
        *("script", "inner", "words", "package", "program", "code"),
        *("danger", "danger-read", "danger-write", "danger-script", "danger-folder"),
        "forbidden",
    ]
)
KINDS: Final = RISKY | {
    *("value", "read", "write", "assign", "query", "inplace", "stdin", "none", "names", "folder"),
}
TAKES_REST: Final = frozenset(("inner", "words", "package"))


class Takes(Enum):
    """The place of the value of an option."""

    NOTHING = "flag"
    VALUE = ""
    GLUED = "optional"
    """Only in the same word: `-iSUFFIX`, `--color=WHEN`."""
    DIGITS = "digits"
    """Digits in the same word, then the cluster continues: `perl -0777ne`."""
    NEXT = "next"
    """Always the next word, and the cluster continues: `bash -oc pipefail TEXT`."""
    PAIR = "pair"
    """Two words, of which the second counts: `jq --slurpfile NAME FILE`."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a word. With cases, the first pattern that matches its start decides."""

    kind: str = "value"
    detail: str = ""
    why: str = ""
    cases: tuple[tuple[re.Pattern[str], Effect], ...] = ()

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of all cases."""
        if not self.cases:
            return frozenset((self.kind,))
        return frozenset(kind for _, effect in self.cases for kind in effect.kinds)

    @property
    def is_risky(self) -> bool:
        return not RISKY.isdisjoint(self.kinds)


NOTHING: Final = Effect()
DIGITS: Final = "0123456789"


@dataclass(frozen=True, slots=True)
class Option:
    """One option, under all its names."""

    names: tuple[str, ...]
    takes: Takes = Takes.NOTHING
    effect: Effect = NOTHING
    letters: str = DIGITS
    """The characters of its value, where the cluster continues after the value."""


@dataclass(frozen=True, slots=True)
class ArgumentModel:
    """The meaning of the arguments of one program, or of one sub-command."""

    name: str
    options: Mapping[str, Option] = field(default_factory=dict)
    operands: tuple[Effect, ...] = ()
    last: Effect | None = None
    looks: Effect = NOTHING
    subs: Mapping[str, ArgumentModel] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()
    other: Effect = NOTHING
    always: Effect = NOTHING
    cases: Mapping[str, Effect] = field(default_factory=dict)
    ends: frozenset[str] = frozenset()
    """Options whose value ends the options."""
    supplies: frozenset[str] = frozenset()
    """Options that replace the first operand: `grep -e PATTERN FILE`."""
    stops: bool = False
    """The first operand ends the options."""
    is_strict: bool = False
    """The lists are complete; an unlisted option is a danger."""
    is_single: bool = False
    """Long options have one dash, and there are no clusters: `openssl -in FILE`."""
    is_exact: bool = False
    """Long options cannot be shortened."""
    is_bundled: bool = False
    """The first word is a cluster, dash or not: `tar xzf`."""
    is_wrapper: bool = False
    assigns: bool = False
    """`NAME=VALUE` words may precede the inner command."""
    is_anywhere: bool = False
    """Global options may follow the sub-command as well."""
    is_abbreviated: bool = False
    """Sub-commands may be abbreviated: `ip net e`."""
    is_typed: bool = False
    """Standard input may hold commands, as a person would type them."""
    stdin: str = ""
    """The language of code on standard input, without an operand."""
    stdin_until: int = 1
    """With this many operands the program does not read code from standard input."""
    keeps: str = ""
    """The settings file that a dangerous option changes."""
    why: str = ""

    @property
    def has_subs(self) -> bool:
        return bool(self.subs or self.harmless)

    def behind(self) -> ArgumentModel:
        """The global options alone, for the words after a sub-command without a model."""
        options = with_effects(self.options)
        return ArgumentModel(self.name, options, looks=self.looks, is_risky=self.is_risky)

    is_risky: bool = False
    """Some option can run code, or write files other than the operands."""


def with_effects(options: Mapping[str, Option]) -> dict[str, Option]:
    """The options that do more than to take a value."""
    return {name: option for name, option in options.items() if option.effect != NOTHING}


# Separates options from operands as the program itself would.

MAX_LETTERS = 64
"""The shown part of a cluster of short options."""


@dataclass(frozen=True, slots=True)
class GivenOption:
    """An option as the command gives it."""

    option: Option
    spelled: str
    """The spelling in the command, without the value: `-lane`, `--checkpoint-act`."""
    value: Word | None = None

    def is_any(self, *names: str) -> bool:
        return not set(names).isdisjoint(self.option.names)


@dataclass(slots=True)
class Scan:
    """The arguments of a command, sorted into options and operands."""

    options: list[GivenOption] = field(default_factory=list)
    operands: list[Word] = field(default_factory=list)
    rest: tuple[Word, ...] | None = None
    """All words after a sub-command, or from the operand on that takes all further words."""
    rest_by: Effect = NOTHING
    """The effect of the rest, such as an inner command."""
    strange: list[Word] = field(default_factory=list)
    """Options that the model does not list."""
    behind: dict[Word, Word] = field(default_factory=dict)
    """The word after each of those."""
    is_unsure: bool = False
    """An unknown word could be an option."""

    def has(self, *names: str) -> bool:
        return any(each.is_any(*names) for each in self.options)

    @property
    def is_query(self) -> bool:
        """An option asks for help or a version: the program does nothing else."""
        return any(each.option.effect.kind == "query" for each in self.options)

    def values(self, *names: str) -> tuple[Word, ...]:
        return tuple(each.value for each in self.options if each.value and each.is_any(*names))


def scan(model: ArgumentModel, words: Sequence[Word]) -> Scan:
    """`words` are those after the program or the sub-command."""
    return _Scanner(model, words).run()


class _Scanner:
    """Walks over the words once."""

    def __init__(self, model: ArgumentModel, words: Sequence[Word]) -> None:
        self._model = model
        self._words = words
        self._at = 0
        self._scan = Scan()
        self._is_open = True
        """Options are still possible."""
        self._may_want_value = False
        """The previous word is an unlisted option: `--` may be its value."""

    def run(self) -> Scan:
        while self._at < len(self._words) and self._scan.rest is None:
            word = self._words[self._at]
            self._at += 1
            may_want, self._may_want_value = self._may_want_value, False
            if not self._is_open:
                self._operand(word, ends_options=False)
            elif word.text == "--" and word.is_literal:
                self._is_open = may_want
            elif self._at == 1 and self._model.is_bundled and _is_bundle(word):
                self._cluster(word, is_old=True)
            elif _is_option(word, self._model):
                self._option(word)
            else:
                # After an unlisted option the word may be a value: `node --title x -e TEXT`.
                self._operand(word, ends_options=self._model.stops and not may_want)
        return self._scan

    def _operand(self, word: Word, *, ends_options: bool) -> None:
        place = len(self._scan.operands)
        if self._is_open and not word.is_literal and self._may_be_option(word):
            self._scan.is_unsure = True
        effects = self._model.operands
        if effects and not self._model.has_subs:
            shift = 1 if self._supplied() else 0
            effect = effects[min(place + shift, len(effects) - 1)]
            if effect.kind in TAKES_REST:
                self._scan.rest = tuple(self._words[self._at - 1 :])
                self._scan.rest_by = effect
                return
            if effects[-1].kind in TAKES_REST and (word.is_split or word.has_glob):
                # The word can become two, and then the command begins with the second.
                self._scan.is_unsure = True
        self._scan.operands.append(word)
        if self._model.has_subs:
            self._scan.rest = tuple(self._words[self._at :])
        elif ends_options:
            self._is_open = False

    def _may_be_option(self, word: Word) -> bool:
        """A wildcard expands to matching names; where options are whole words, it is an option only
        if an option matches. `find -name *.c` is harmless, `find *` is not."""
        if word.is_digits and not self._model.stops and not self._starts_another:
            return False  # numbers or no word: options are read alike before and after
        is_glob = word.has_glob and not word.is_split and UNKNOWN not in word.text
        if is_glob and self._model.is_single:
            return not word.is_operand and any(
                fnmatchcase(name, word.text) for name in self._model.options
            )
        return word.may_be_option

    @property
    def _starts_another(self) -> bool:
        effects = self._model.operands
        return self._model.has_subs or (bool(effects) and effects[-1].kind in TAKES_REST)

    def _supplied(self) -> bool:
        return any(not self._model.supplies.isdisjoint(g.option.names) for g in self._scan.options)

    def _option(self, word: Word) -> None:
        if self._model.is_single or word.text.startswith("--"):
            self._long(word)
        elif (option := self._model.options.get(word.text)) and len(word.text) > 2:
            # A long option with one dash in a program with clusters: `java -jar`, `ssh -oX`.
            self._take(option, word.text, None)
        else:
            self._cluster(word)

    def _long(self, word: Word) -> None:
        name, equals, _ = word.text.partition("=")
        if UNKNOWN in name or (word.is_split and not equals):
            self._scan.is_unsure = True
        key = name[1:] if self._model.is_single and name.startswith("--") else name
        option = self._model.options.get(name) or self._model.options.get(key)
        if option is None and not self._model.is_exact:
            option = self._abbreviated(key, has_value=bool(equals))
        if option is None:
            self._scan.strange.append(word)
            if not equals and self._at < len(self._words):
                self._scan.behind[word] = self._words[self._at]
            self._may_want_value = not equals
            return
        if word.is_split:
            self._scan.is_unsure = True
        self._take(option, name, word.after(name + "=") if equals else None)

    def _abbreviated(self, name: str, *, has_value: bool) -> Option | None:
        """GNU programs accept an abbreviated long option; options with effects go first."""
        found = [option for key, option in self._model.options.items() if key.startswith(name)]
        does = [option for option in found if option.effect != NOTHING]
        if does:
            return max(does, key=lambda option: option.effect.is_risky)
        # An incomplete list may lack an option of that name, which takes no value.
        sure = self._model.is_strict or has_value or all(o.takes is not Takes.VALUE for o in found)
        return found[0] if sure and len(set(map(id, found))) == 1 else None

    def _cluster(self, word: Word, *, is_old: bool = False) -> None:
        text = f"-{word.text}" if is_old else word.text
        waiting: list[tuple[Option, str]] = []
        at = 1
        while at < len(text):
            option = self._model.options.get(text[0] + text[at])
            at += 1
            spelled = text[is_old : min(at, MAX_LETTERS)]
            if option is None:
                self._unlisted(word, text[at - 1])
            elif option.takes is Takes.NEXT or (is_old and option.takes is Takes.VALUE):
                waiting.append((option, spelled))
            elif option.takes is Takes.DIGITS:
                while at < len(text) and text[at] in option.letters:
                    at += 1
            elif option.takes is Takes.NOTHING or at == len(text):
                self._take(option, spelled, None)
            else:
                self._take(option, spelled, word.after(text[:at]))
                break
        if word.is_split:
            self._scan.is_unsure = True
        for option, spelled in waiting:
            self._take(option, spelled, None)

    def _unlisted(self, word: Word, letter: str) -> None:
        if letter == UNKNOWN:
            self._scan.is_unsure = True
        elif not letter.isdigit() and word not in self._scan.strange:
            self._scan.strange.append(word)
            self._may_want_value = True

    def _take(self, option: Option, spelled: str, value: Word | None) -> None:
        wants = option.takes in (Takes.VALUE, Takes.NEXT, Takes.PAIR)
        if option.takes is Takes.PAIR:
            self._at += value is None
            value = None
        if option.effect.kind in TAKES_REST:
            glued = () if value is None else (value,)
            self._scan.rest = (*glued, *self._words[self._at :])
            self._scan.rest_by = option.effect
        elif wants and value is None and self._at < len(self._words):
            value = self._words[self._at]
            self._at += 1
            # A value that becomes two words has a second one, where the command may begin.
            is_many = value.has_glob and (self._may_be_option(value) or self._starts_another)
            if value.is_split or is_many:
                self._scan.is_unsure = True
        self._scan.options.append(GivenOption(option, spelled, value))
        if not self._model.ends.isdisjoint(option.names):
            self._scan.rest = tuple(self._words[self._at :])


def _is_bundle(word: Word) -> bool:
    return bool(word.text) and word.text[0] not in ("-", UNKNOWN)


def _is_option(word: Word, model: ArgumentModel) -> bool:
    if word.text.startswith("+") and len(word.text) > 1:
        return f"+{word.text[1]}" in model.options or word.text in model.options
    return word.text.startswith("-") and len(word.text) > 1
