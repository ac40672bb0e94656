"""Separates options from operands as the program itself would. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from cellwall.parsing.shell.words import UNKNOWN, Word
from cellwall.policy.commands.catalog import NOTHING, TAKES_REST, Effect, Model, Option, Takes

MAX_LETTERS = 64
"""How much of a cluster of short options is told; a longer one is nobody's."""


@dataclass(frozen=True, slots=True)
class GivenOption:
    """An option as the command gives it."""

    option: Option
    spelled: str
    """As it stands in the command, without its value: `-lane`, `--checkpoint-act`."""
    value: Word | None = None

    def is_any(self, *names: str) -> bool:
        return not set(names).isdisjoint(self.option.names)


@dataclass(slots=True)
class Scan:
    """The arguments of a command, sorted into options and operands."""

    given: list[GivenOption] = field(default_factory=list)
    operands: list[Word] = field(default_factory=list)
    rest: tuple[Word, ...] | None = None
    """All that stands behind a sub-command, or from the operand on that takes all the others."""
    rest_by: Effect = NOTHING
    """What takes the rest, if it is an inner command or the like."""
    strange: list[Word] = field(default_factory=list)
    """Options that the model does not list."""
    behind: dict[Word, Word] = field(default_factory=dict)
    """What stands behind those."""
    is_unsure: bool = False
    """A word that is not known stands where an option could."""

    def has(self, *names: str) -> bool:
        return any(given.is_any(*names) for given in self.given)

    def values(self, *names: str) -> tuple[Word, ...]:
        return tuple(given.value for given in self.given if given.value and given.is_any(*names))


def scan(model: Model, words: Sequence[Word]) -> Scan:
    """`words` are those behind the program, or behind the sub-command."""
    return _Scanner(model, words).run()


class _Scanner:
    """Walks over the words once."""

    def __init__(self, model: Model, words: Sequence[Word]) -> None:
        self._model = model
        self._words = words
        self._at = 0
        self._scan = Scan()
        self._is_open = True
        """Options are still possible."""
        self._may_want_value = False
        """The word before is an option that is not listed: `--` may be its value."""

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
                # Behind an option that is not listed it may be a value: `node --title x -e TEXT`.
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
                # It can become two words, and then the command begins with the second.
                self._scan.is_unsure = True
        self._scan.operands.append(word)
        if self._model.has_subs:
            self._scan.rest = tuple(self._words[self._at :])
        elif ends_options:
            self._is_open = False

    def _may_be_option(self, word: Word) -> bool:
        """A wildcard becomes names that match; in a program whose options are whole words, it is an
        option only if one of those matches. `find -name *.c` is harmless, `find *` is not."""
        if word.is_digits and not self._model.stops and not self._starts_another:
            return False  # numbers, or nothing: options are read alike before and behind them
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
        return any(not self._model.supplies.isdisjoint(g.option.names) for g in self._scan.given)

    def _option(self, word: Word) -> None:
        if self._model.is_single or word.text.startswith("--"):
            self._long(word)
        elif (option := self._model.options.get(word.text)) and len(word.text) > 2:
            # Written with one dash, in a program that has clusters too: `java -jar`, `ssh -oX`.
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
        """GNU programs take the beginning of a long option; what does more is looked for first."""
        found = [option for key, option in self._model.options.items() if key.startswith(name)]
        does = [option for option in found if option.effect != NOTHING]
        if does:
            return max(does, key=lambda option: option.effect.is_risky)
        # In a list with gaps it may as well be an option of its own, which takes no value.
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
            # What becomes two words has a second one that stands where the command may begin.
            is_many = value.has_glob and (self._may_be_option(value) or self._starts_another)
            if value.is_split or is_many:
                self._scan.is_unsure = True
        self._scan.given.append(GivenOption(option, spelled, value))
        if not self._model.ends.isdisjoint(option.names):
            self._scan.rest = tuple(self._words[self._at :])


def _is_bundle(word: Word) -> bool:
    return bool(word.text) and word.text[0] not in ("-", UNKNOWN)


def _is_option(word: Word, model: Model) -> bool:
    if word.text.startswith("+") and len(word.text) > 1:
        return f"+{word.text[1]}" in model.options or word.text in model.options
    return word.text.startswith("-") and len(word.text) > 1
