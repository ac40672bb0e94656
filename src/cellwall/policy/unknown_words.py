"""The verdict for a command with unknown words depends on the origin of the words. Pure.

Where a rule allows everything (`Bash(*)`), a variable that the text does not set belongs to the
user and counts as an operand; a name that a listing command printed, or that a wildcard matches, is
a question where the program could read the name as an option. Under any other rule an unknown word
is refused where it could be an option that runs code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cellwall.core.verdict import Decision, Verdict
from cellwall.parsing.shell.words import UNKNOWN, Command, Origin, Word
from cellwall.policy.command_files import CommandFiles
from cellwall.policy.commands.catalog import find_model
from cellwall.policy.rulebook import RuleBook
from cellwall.policy.rules import EVERYTHING

_ORDINARY_NAME = Word("./file")
_ORDINARY_VALUE = "value"
_INTERPRETERS = frozenset(("awk", "python", "sh", "source"))
_NULL_SEPARATED = "write `find … -print0 | xargs -0 …`, or `find … -exec … {} +`"


@dataclass(frozen=True, slots=True)
class UnknownWords:
    """The unknown words of one text, judged by one set of rules."""

    book: RuleBook
    home: str
    files: CommandFiles

    def settle(self, command: Command) -> Command:
        """The command with each variable of the user as an operand, if a rule allows everything;
        else the command unchanged."""
        words = tuple(
            word.as_operand() if word.origin is Origin.ENVIRONMENT else word
            for word in command.words
        )
        is_changed = words[1:] != command.words[1:]
        settled = (command.words[0], *words[1:]) if words else words
        return replace(command, words=settled) if is_changed and self.is_free(settled) else command

    def ask_about_options(
        self, refusal: Decision, command: Command, is_refused: Callable[[tuple[Word, ...]], bool]
    ) -> Decision:
        """A refusal becomes a question if the command is harmless with an ordinary name for each
        found name, and with all other unknown words as operands: a person knows the words."""
        words = tuple(self._usual(word, command.words[0].text) for word in command.words)
        if words == command.words:
            return refusal
        is_hinted = "; write" in refusal.reason
        reason = refusal.reason if is_hinted else f"{refusal.reason}; {self._hint(command.words)}"
        may_ask = not is_refused(words) and self._may_ask(words)
        verdict = Verdict.ASK if may_ask else refusal.verdict
        return replace(refusal, verdict=verdict, reason=reason)

    def ask_about_names(
        self, decision: Decision, command: Command, plain: Sequence[Word] | None
    ) -> Decision:
        """A denial that only an unusual file name could cause is a question: `find | xargs rm`
        deletes `/` if a name holds a blank before a slash."""
        if decision.verdict is not Verdict.DENY:
            return decision
        usual = self.files.input_word(is_null_separated=True)
        printed = [self._is_listed(word) and word.is_split for word in command.words]
        if any(printed) and usual.is_split:
            return self._explain_denial(decision, command)
        words = tuple(
            usual if one else word.as_operand() if self._is_file_name(word) else word
            for word, one in zip(command.words, printed, strict=True)
        )
        found = self.book.forbids_command(words, plain=plain, home=self.home)
        is_denied = found is not None and found.verdict is Verdict.DENY
        if words == command.words or is_denied:
            return self._explain_denial(decision, command)
        why = "a file name holds blanks" if any(printed) else "a file is named like an option"
        reason = f"{decision.reason}, if {why}; {self._hint(command.words)}"
        return replace(decision, verdict=Verdict.ASK, reason=reason)

    def is_free(self, words: Sequence[Word]) -> bool:
        """Whether a rule allows every command, and no denial matches this one."""
        found = self.book.judge_command(words, home=self.home)
        return found.verdict is Verdict.ALLOW and found.rule in EVERYTHING

    def is_asked_freely(self, decision: Decision | None) -> bool:
        """Whether the decision is a question although a rule allows everything."""
        is_asked = decision is not None and decision.verdict is Verdict.ASK
        return is_asked and self.book.otherwise is Verdict.ALLOW

    def _may_ask(self, words: Sequence[Word]) -> bool:
        """Whether a rule allows every command, or a person is asked about unmatched commands."""
        if self.is_free(words):
            return True
        found = self.book.forbids_command(words, home=self.home)
        is_denied = found is not None and found.verdict is Verdict.DENY
        return self.book.asks_otherwise and not is_denied

    def _explain_denial(self, decision: Decision, command: Command) -> Decision:
        """Explains a denial that only an unknown word could cause."""
        if not self.book.could_only_become(decision, command.words, home=self.home):
            return decision
        return replace(decision, reason=_could_be(decision))

    def _usual(self, word: Word, program: str) -> Word:
        """The usual meaning of a word: a file name, or the value of a user's variable. The argument
        of an interpreter is code, and the argument of `kill` may be every process."""
        if word.is_literal:
            return word
        if self._is_listed(word):
            return word if program == "kill" else _ORDINARY_NAME
        model = find_model(program)
        is_code = model is not None and (bool(model.stdin) or model.name in _INTERPRETERS)
        if word.origin is Origin.ENVIRONMENT and not word.has_glob and not is_code:
            return Word(word.text.replace(UNKNOWN, _ORDINARY_VALUE))
        return word.as_operand()

    def _is_listed(self, word: Word) -> bool:
        return word.origin is Origin.OUTPUT and self.files.is_trusting

    def _is_file_name(self, word: Word) -> bool:
        is_glob = word.has_glob and not word.is_split and UNKNOWN not in word.text
        return is_glob or self._is_listed(word)

    def _hint(self, words: Sequence[Word]) -> str:
        """The alternative to propose."""
        if words[0].text != "git" and any(self._is_listed(w) and w.is_split for w in words):
            return _NULL_SEPARATED
        if any(word.has_glob and not word.is_split for word in words):
            return "write `./*` in place of `*`"
        return "write the word itself, or `--` or `./` before it"


def _could_be(decision: Decision) -> str:
    why = "a word that is known only at run time could make this a denied command"
    return f"{why} ({decision.reason}); write the word itself"
