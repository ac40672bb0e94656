"""Judges shell text: each command in it by itself, with all that it opens, reads and writes. Pure
but for the links on the way to a file.

   (1) read the text; what cannot be read is denied
   (2) variables that would change what the command is
   (3) redirections, as reading or writing of that path
   (4) the program; one that is not literal is denied
   (5) its arguments opened: scripts, commands, code, files, dangers
   (6) the rules, for the command itself
   (7) the files it names, for rules that deny
   (8) what is inside, by the same steps
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from cellwall.core.verdict import Decision, Verdict
from cellwall.policy import variables
from cellwall.policy.outside import asked_outside
from cellwall.policy.reached import address_trouble
from cellwall.policy.rulebook import RuleBook, denied
from cellwall.policy.rules import OTHERWISE
from cellwall.policy.shell.command import Command
from cellwall.policy.shell.grammar import grammar
from cellwall.policy.shell.inline import screen
from cellwall.policy.shell.models import open_command
from cellwall.policy.shell.opened import Code, Inner, Opened, Script
from cellwall.policy.shell.parser import NotUnderstood
from cellwall.policy.shell.reader import MAX_COMMANDS, read_shell
from cellwall.policy.shell.words import UNKNOWN, Word, shown
from cellwall.policy.subjects import Targets
from cellwall.policy.touched import Files
from cellwall.policy.unguarded import guard_trouble

_MAX_DEPTH = 8
_EVERYTHING = frozenset(("Bash", "Bash(*)"))
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))


_opened = lru_cache(maxsize=4096)(open_command)


@dataclass(slots=True)
class Judgement:
    """Of one text; `parts` are in the order in which they stand."""

    book: RuleBook
    home: str
    targets: Targets
    parts: list[Decision] = field(default_factory=list)
    neutral: list[Sequence[Word]] = field(default_factory=list)
    count: int = 0
    covering: Decision | None = None
    """An allow whose rule spells out the command that is judged now, together with its wrapper."""
    place: tuple[str, ...] = ()
    is_outside: bool = False
    """It will run outside of a sandbox."""
    files: Files = field(init=False)

    def text(self, text: str, cwd: str) -> Decision:
        """(1)"""
        self.files = Files(self.book, cwd, self.home, self.targets)
        what = " ".join(text.split())[:500]
        try:
            commands = read_shell(text, directories=(cwd,), home=self.home)
            self.files.look_around(commands)
            for command in commands:
                self._command(command, 0)
        except NotUnderstood as problem:
            self._note(denied(str(problem), what))
        except RecursionError:
            self._note(denied("it is nested too deeply", what))
        return self._whole(what)

    def words(self, words: Sequence[Word], cwd: str) -> Decision:
        """An argument vector that no shell has touched."""
        self.files = Files(self.book, cwd, self.home, self.targets)
        what = shown(words)[:500]
        command = Command(tuple(words), directories=(cwd,))
        try:
            self.files.look_around((command,))
            self._command(command, 0)
        except (NotUnderstood, RecursionError) as problem:
            self._note(denied(str(problem), what))
        return self._whole(what)

    def _whole(self, what: str) -> Decision:
        if not self.parts:  # nothing in it that needs a rule; so one for what there is counts
            for words in self.neutral:
                self.parts.append(
                    self.book.judge_command(
                        words, plain=None, needs=frozenset(), home=self.home, what=shown(words)
                    )
                )
        if not self.parts:
            return Decision(Verdict.DENY, "default", "no rule allows this", "built-in", what)
        worst = max(self.parts, key=lambda part: part.verdict)
        return replace(worst, subject=what, place=(), parts=tuple(self.parts))

    def _note(self, decision: Decision) -> None:
        self.parts.append(replace(decision, place=self.place) if self.place else decision)

    # --- one command

    def _command(self, command: Command, depth: int) -> None:
        self.count += 1
        self.place = command.place
        if depth > _MAX_DEPTH or self.count > MAX_COMMANDS:
            raise NotUnderstood("commands stand in commands too deeply, or there are too many")
        self._variables(command)  # (2)
        for file in command.files:  # (3)
            for decision in self.files.redirected(file, command):
                self._note(decision)
        if not command.words:
            return
        what = shown(command.words)[:500]
        if not command.words[0].is_literal or not command.words[0].text:  # (4)
            self._note(denied("which program this is, is known only when it runs", what))
            return
        if command.is_function:
            return
        if command.words[0].text in grammar().refused:
            self._note(denied(grammar().refused[command.words[0].text], what))
            return
        opened = _opened(command.words)  # (5)
        self._judge_opened(command, opened, what)
        for part in _inside(opened, command):  # (8)
            match part:
                case Script():
                    self._script(part, command, depth)
                case Inner():
                    self._inner(part, command, depth)

    def _variables(self, command: Command) -> None:
        is_reading = bool(command.words) and command.words[0].text in {"read", "mapfile"}
        for assignment in command.assignments:
            if is_reading and assignment.name == "IFS":
                continue  # how this one line is cut
            trouble = variables.trouble(assignment)
            if trouble is not None:
                self._note(denied(trouble, f"{assignment.name}=…", "variables"))
            elif _runs_as_a_number(assignment.value.text):
                why = "arithmetic that meets this value would run a command"
                self._note(denied(why, f"{assignment.name}=…", "variables"))

    def _inner(self, inner: Inner, command: Command, depth: int) -> None:
        """Judged by itself; a rule that spells out both, as `npx tsc *`, allows both."""
        name = inner.words[0].text if inner.words else ""
        needs = frozenset((name,))
        found = self.book.judge_command(
            command.words, plain=None, needs=needs, home=self.home, what=""
        )
        before = self.covering
        is_any = found.rule in _EVERYTHING
        self.covering = found if found.verdict is Verdict.ALLOW and name and not is_any else None
        self._command(_started(inner, command), depth + 1)
        self.covering = before

    def _judge_opened(self, command: Command, opened: Opened, what: str) -> None:
        if self.is_outside:
            for decision in asked_outside(self.book, command, opened, home=self.home, what=what):
                self._note(decision)
        for rule, trouble in (
            ("addresses", address_trouble(command, opened)),
            ("unguarded", guard_trouble(command.words)),
        ):
            if trouble is not None:
                self._note(denied(trouble, what, rule))
        for assignment in opened.assignments:
            trouble = variables.trouble(assignment)
            if trouble is not None:
                self._note(denied(trouble, what, "variables"))
        needs: dict[str, str] = {}
        for option, why in self._demands(command, opened):
            if not option:
                self._note(denied(why, what, "arguments"))
                self._note_forbidden(command, opened, what)
                return
            needs.setdefault(option, why)
        rule = self._by_rules(command, opened, needs, what)  # (6)
        if command.words[0].text not in grammar().neutral:
            is_free = rule in _EVERYTHING
            for decision in self.files.named(command, opened, what, is_free=is_free):  # (7)
                self._note(decision)

    def _demands(self, command: Command, opened: Opened) -> Iterator[tuple[str, str]]:
        """What a rule must spell out to mean it; '' is what no rule can mean."""
        for danger in opened.dangers:
            yield danger.option, danger.why
        for code in opened.codes:
            trouble = _screened(code)
            if trouble is not None:
                yield code.option, trouble
            yield from self.files.named_in(code)
        language = opened.reads_stdin_as
        if language is None or command.stdin == "file":
            return
        if command.stdin_text is None:
            yield "", "what it would run comes from somewhere that is not known"
        elif language not in _SHELLS:
            code = Code(language, command.stdin_text, "", "code on its standard input")
            trouble = _screened(code)
            if trouble is not None:
                yield "", trouble
            yield from self.files.named_in(code)

    def _by_rules(self, command: Command, opened: Opened, needs: dict[str, str], what: str) -> str:
        """The rule that decides."""
        words, plain = command.words, opened.plain
        is_neutral = words[0].text in grammar().neutral or (
            opened.is_wrapper and bool(opened.inner or opened.scripts)
        )
        if is_neutral and not needs:
            self._note_forbidden(command, opened, what)
            self.neutral.append(words)
            return ""
        demanded = frozenset(needs)
        decision = self.book.judge_command(
            words, plain=plain, needs=demanded, home=self.home, what=what
        )
        is_unruled = decision.rule in {"default", OTHERWISE}
        if is_unruled and self.covering is not None and not needs:
            decision = replace(self.covering, subject=what)
        if needs and is_unruled:
            option, why = next(iter(needs.items()))
            reason = f"{why}; only a rule that spells out {option!r} allows it"
            if decision.verdict is Verdict.ASK:
                decision = replace(decision, reason=reason)
            else:
                decision = denied(reason, what, "arguments")
        self._note(decision)
        return decision.rule

    def _note_forbidden(self, command: Command, opened: Opened, what: str) -> None:
        found = self.book.forbids_command(
            command.words, plain=opened.plain, home=self.home, what=what
        )
        if found is not None:
            self._note(found)

    def _script(self, script: Script, command: Command, depth: int) -> None:
        if UNKNOWN in script.text.text or script.text.is_split:
            what = shown(command.words)[:500]
            why = f"{script.why}: the text it would run is known only when it runs"
            self._note(denied(why, what))
            return
        found = read_shell(script.text.text, directories=command.directories, home=self.home)
        self.files.look_around(found)
        before, self.covering = self.covering, None  # it spells out the shell, not what that runs
        for each in found:
            self._command(replace(each, place=(*command.place, script.why, *each.place)), depth + 1)
        self.covering = before


def _runs_as_a_number(text: str) -> bool:
    """`a[$(id)]`: wherever it is evaluated, now or in a program that gets it."""
    return "[" in text and ("$(" in text or "`" in text)


def _screened(code: Code) -> str | None:
    if code.text is None or UNKNOWN in code.text.text:
        return f"{code.why}: the code is known only when it runs"
    found = screen(code.language, code.text.text)
    return None if found is None else f"{code.why}: {found}"


def _inside(opened: Opened, command: Command) -> Iterable[Script | Inner]:
    yield from opened.scripts
    yield from opened.inner
    if opened.reads_stdin_as in _SHELLS and command.stdin_text is not None:
        yield Script(command.stdin_text, "its standard input")


def _started(inner: Inner, command: Command) -> Command:
    words = (*inner.words, Word(UNKNOWN, is_split=True)) if inner.is_open_ended else inner.words
    return Command(
        words,
        stdin=command.stdin,
        stdin_text=command.stdin_text,
        directories=command.directories,
        place=(*command.place, inner.why),
    )
