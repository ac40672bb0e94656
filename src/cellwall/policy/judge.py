"""Judges shell text: each command by itself, with all that it starts, reads and writes. Pure but
for the resolution of links in paths.

   (1) parse the text; a text that cannot be parsed is denied
   (2) variables that would change the meaning of the command
   (3) redirections, as reading or writing of that path
   (4) the program; one that is not literal is denied
   (5) the effects of its arguments: scripts, commands, code, files, dangers
   (6) the rules, for the command itself
   (7) the files it names, for rules that deny
   (8) inner commands and code, by the same steps
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from cellwall.core.packages import RegistryName
from cellwall.core.verdict import Decision, Verdict
from cellwall.parsing.shell.parser import NotUnderstood
from cellwall.parsing.shell.reader import MAX_COMMANDS, read_shell
from cellwall.parsing.shell.words import UNKNOWN, Command, Word, render_words
from cellwall.policy import variables
from cellwall.policy.code.starts import starts_in
from cellwall.policy.code_rules import (
    NOT_WRITTEN_OUT,
    OPENED,
    UNKNOWN_TEXT,
    code_on_stdin,
    code_troubles,
    codes_of,
    demands_of_files,
    find_started_commands,
    has_typed_commands,
    is_code_unknown,
    runs_unknown,
    screen_code,
    spell_out,
    with_piped_code,
)
from cellwall.policy.command_addresses import address_trouble
from cellwall.policy.command_facts import remembered
from cellwall.policy.command_files import CommandFiles
from cellwall.policy.commands.catalog import grammar, is_called_plainly
from cellwall.policy.commands.effects import STDIN, Code, CommandEffects, Inner, ShellScript
from cellwall.policy.commands.models import effects_of
from cellwall.policy.embedded import (
    ESCAPE,
    find_inside,
    in_folders,
    in_own_folders,
    is_by_rule,
    start_inner,
)
from cellwall.policy.outside import ask_outside
from cellwall.policy.package_commands import registry_of
from cellwall.policy.rulebook import RuleBook, refuse
from cellwall.policy.rules import EVERYTHING, OTHERWISE
from cellwall.policy.subjects import Targets
from cellwall.policy.unguarded import guard_trouble
from cellwall.policy.unknown_words import UnknownWords
from cellwall.policy.variables import outer_names

_MAX_DEPTH = 8
_NO_PROGRAM = "the program is known only at run time; write its name or path"
_BASH = frozenset(("bash", "rbash", "zsh"))
_SAME_SHELL = frozenset(("eval", "trap", "alias", "source", "."))
"""Builtins whose text the same shell reads as the text around it."""


@dataclass(slots=True)
class Judgement:
    """The judgement of one text; `parts` are in the order of the text."""

    book: RuleBook
    home: str
    targets: Targets
    parts: list[Decision] = field(default_factory=list)
    neutral: list[Sequence[Word]] = field(default_factory=list)
    count: int = 0
    covering: Decision | None = None
    """An allow whose rule spells the current command together with its wrapper."""
    is_meant: bool = False
    """A rule spells the code that starts the current command: only denials count."""
    place: tuple[str, ...] = ()
    is_outside: bool = False
    """The text runs outside a sandbox."""
    is_bash: bool = True
    """No other sh reads the current text."""
    registries: set[RegistryName] = field(default_factory=set)
    """The package registries from which the commands install."""
    files: CommandFiles = field(init=False)
    unknown: UnknownWords = field(init=False)

    def text(self, text: str, cwd: str) -> Decision:
        """(1)"""
        self.files = CommandFiles(self.book, cwd, self.home, self.targets)
        self.unknown = UnknownWords(self.book, self.home, self.files)
        what = " ".join(text.split())[:500]
        try:
            commands = read_shell(text, directories=(cwd,), home=self.home, has_arguments=False)
            self.files.look_around(commands)
            for command in commands:
                self._command(command, 0)
        except NotUnderstood as problem:
            self._note(refuse(str(problem), what))
        except RecursionError:
            self._note(refuse("the text is nested too deeply", what))
        return self._whole(what)

    def words(self, words: Sequence[Word], cwd: str) -> Decision:
        """An argument vector that no shell expands."""
        self.files = CommandFiles(self.book, cwd, self.home, self.targets)
        self.unknown = UnknownWords(self.book, self.home, self.files)
        what = render_words(words)[:500]
        command = Command(tuple(words), directories=(cwd,))
        try:
            self.files.look_around((command,))
            self._command(command, 0)
        except (NotUnderstood, RecursionError) as problem:
            self._note(refuse(str(problem), what))
        return self._whole(what)

    def _whole(self, what: str) -> Decision:
        if not self.parts:  # no part needs a rule: judge the neutral commands by themselves
            for words in self.neutral:
                found = self.book.judge_command(words, home=self.home, what=render_words(words))
                self.parts.append(found)
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
            raise NotUnderstood("commands are nested too deeply, or there are too many")
        self._variables(command)  # (2)
        for file in command.files:  # (3)
            for decision in self.files.judge_redirection(file, command):
                if not (self.is_meant and decision.rule == "default"):
                    self._note(decision)
        if not command.words:
            return
        what = render_words(command.words)[:500]
        if not command.words[0].is_literal or not command.words[0].text:  # (4)
            self._note(refuse(_NO_PROGRAM, what))
            return
        if command.is_function:
            return
        if command.words[0].text in grammar().refused:
            refusal = refuse(grammar().refused[command.words[0].text], what)
            self._note(self._ask_if_alone(refusal, command))
            return
        command = self.unknown.settle(command)
        effects = effects_of(command.words)  # (5)
        command = in_own_folders(with_piped_code(command, effects), effects)
        self._judge_effects(command, effects, what, depth)
        for part in find_started_commands(self.files, command, effects):  # (8)
            match part:
                case ShellScript():
                    self._script(part, command, depth)
                case Inner():
                    self._inner(part, command, depth)

    def _variables(self, command: Command) -> None:
        is_reading = bool(command.words) and command.words[0].text in {"read", "mapfile"}
        exported = frozenset(variables.exported_names(command))
        for assignment in command.assignments:
            if is_reading and assignment.name == "IFS":
                continue  # IFS splits only this line
            is_exported = bool(command.words) or assignment.name in self.files.exported
            trouble = variables.trouble(assignment, is_exported=is_exported)
            if assignment.name in exported and not assignment.value.text:  # `export NAME`
                trouble = trouble or variables.export_trouble(assignment.name)
            if trouble is not None:
                self._note(refuse(trouble, f"{assignment.name}=…", "variables"))
            elif variables.runs_as_a_number(assignment.value.text):
                why = "arithmetic that evaluates this value would run a command"
                self._note(refuse(why, f"{assignment.name}=…", "variables"))

    def _inner(self, inner: Inner, command: Command, depth: int) -> None:
        """Judged by itself; a rule that spells both commands, as `npx tsc *`, allows both."""
        name = inner.words[0].text if inner.words else ""
        needs = frozenset((name,))
        found = self.book.judge_command(command.words, needs=needs, home=self.home)
        before = self.covering
        is_any = found.rule in EVERYTHING
        self.covering = found if found.verdict is Verdict.ALLOW and name and not is_any else None
        self._command(start_inner(inner, command, self.files), depth + 1)
        self.covering = before

    def _judge_effects(
        self, command: Command, effects: CommandEffects, what: str, depth: int
    ) -> None:
        self._note_reach(command, effects, what)
        needs: dict[str, str] = {}
        for option, why in self._demands(command, effects):
            if not option:
                refusal = self.unknown.ask_about_options(
                    refuse(why, what, "arguments"),
                    command,
                    lambda words: self._is_refused(words, command),
                )
                if command.words[0].text == "alias":
                    refusal = self._ask_if_alone(refusal, command)
                self._note(refusal)
                self._note_forbidden(command, effects, what)
                return
            needs.setdefault(option, why)
        decision = self._by_rules(command, effects, needs, what)  # (6)
        is_free = decision is not None and decision.rule in EVERYTHING
        is_free = is_free or self.unknown.is_asked_freely(decision)
        if is_free and (why := runs_unknown(self.files, command, effects)):
            self._note(refuse(why, what, "arguments", is_asked=True))
        if command.words[0].text not in grammar().neutral:
            is_free = is_free or self.is_meant
            for each in self.files.judge_named(command, effects, what, is_free=is_free):  # (7)
                self._note(each)
        self._inside(command, effects, what, depth)
        for code, is_whole in codes_of(self.files, command, effects):  # (8)
            self._code(code, command, decision, depth, is_whole=is_whole)

    def _note_reach(self, command: Command, effects: CommandEffects, what: str) -> None:
        """Checks that no rule for the program decides: the place of the run, addresses, bypasses of
        the guard, variables."""
        registry, troubles = _reach_of(command, effects)
        if registry is not None:
            self.registries.add(registry)
        if self.is_outside:
            for decision in ask_outside(self.book, command, effects, home=self.home, what=what):
                self._note(decision)
        for rule, trouble in troubles:
            self._note(refuse(trouble, what, rule))

    def _inside(self, command: Command, effects: CommandEffects, what: str, depth: int) -> None:
        """Texts that the program may run: only denials count there."""
        for part in find_inside(self.book, self.files, command, effects, what):
            if isinstance(part, Decision):
                self._note(part)
                continue
            before, self.is_meant, self.parts = (self.is_meant, self.parts), True, []
            try:
                self._script(part, command, depth)
            except NotUnderstood as problem:
                self._note(refuse(f"{part.why}: {problem}", what))
            found = self.parts
            self.is_meant, self.parts = before
            self.parts += found if part.why == ESCAPE else filter(is_by_rule, found)

    def _code(
        self, code: Code, command: Command, decision: Decision | None, depth: int, *, is_whole: bool
    ) -> None:
        """Judges each command that the code starts and each file that it touches."""
        if code.text is None:
            return
        starts, what = starts_in(code.language, code.text.text), render_words(command.words)[:500]
        for rule, trouble in code_troubles(self.files, code, starts):
            self._note(refuse(trouble, what, rule))
        is_harmless = is_whole and screen_code(code) is None
        is_any = decision is not None and decision.rule in EVERYTHING
        is_allowed = decision is not None and decision.verdict is Verdict.ALLOW
        if starts.unknown and is_any and is_allowed and not is_harmless:
            why = f"{code.why}: {starts.unknown}"
            self._note(refuse(f"{why}; {spell_out(code.option)}", what, "arguments"))
        elif starts.asked and is_any and is_allowed and not is_harmless:
            why = f"{code.why}: {starts.asked}"
            self._note(refuse(why, what, "arguments", is_asked=True))
        before = (self.is_meant, self.covering)
        self.is_meant, self.covering = self.is_meant or (is_whole and not is_any), None
        is_free = is_any or self.is_meant
        for file in starts.files:
            path = replace(file.path, text=self.files.at_home(file.path.text))
            touched = replace(file, path=path)
            for each in self.files.judge_named(
                command, CommandEffects(files=(touched,)), what, is_free=is_free
            ):
                self._note(each)
        there = in_folders(command, [self.files.at_home(each) for each in starts.folders])
        for script in starts.scripts:
            self._script(ShellScript(script, code.why), there, depth)
        for words in starts.commands:
            at_home = tuple(Word(self.files.at_home(each.text)) for each in words)
            self._command(start_inner(Inner(at_home, code.why), there, self.files), depth + 1)
        self.is_meant, self.covering = before

    def _demands(self, command: Command, effects: CommandEffects) -> Iterator[tuple[str, str]]:
        """The options that a rule must spell to allow the command; '': no rule can allow it."""
        for danger in effects.dangers:
            yield danger.option, danger.why
        for code in effects.codes:
            trouble = screen_code(code)
            if is_code_unknown(code):
                yield "", trouble or code.why
            if code.language in OPENED:  # an awk program, each of whose commands is judged
                trouble = starts_in(code.language, code.text.text).unknown if code.text else None
            if trouble:
                yield code.option, trouble
            yield from self.files.find_named(code)
        if effects.is_typed and has_typed_commands(self.files, command):
            yield STDIN, "the text on standard input may be commands for the program"
        yield from demands_of_files(self.files, command, effects)
        language = effects.reads_stdin_as
        if language is None or command.stdin == "file":
            return
        if command.stdin_text is None or command.is_input_shared:
            yield "", NOT_WRITTEN_OUT
        for code in code_on_stdin(command, effects) if language not in OPENED else ():
            trouble = screen_code(code)
            if trouble is not None:
                yield "" if is_code_unknown(code) else code.option, trouble
            yield from self.files.find_named(code)

    def _by_rules(
        self, command: Command, effects: CommandEffects, needs: dict[str, str], what: str
    ) -> Decision | None:
        """The decision of the rules; None where no rule is needed."""
        words, plain = command.words, effects.plain
        is_wrapper = effects.is_wrapper and bool(effects.inner or effects.scripts)
        is_neutral = words[0].text in grammar().neutral or (
            is_wrapper and is_called_plainly(words[0].text)
        )
        if self.is_meant or (is_neutral and not needs):
            self._note_forbidden(command, effects, what)
            self.neutral.append(words)
            return None
        demanded = frozenset(needs)
        decision = self.book.judge_command(
            words, plain=plain, needs=demanded, home=self.home, what=what
        )
        is_unruled = decision.rule in {"default", OTHERWISE}
        if is_unruled and self.covering is not None and not needs:
            decision = replace(self.covering, subject=what)
        if needs and is_unruled:
            option, why = next(iter(needs.items()))
            reason = f"{why}; {spell_out(option)}"
            if decision.verdict is Verdict.ASK:
                decision = replace(decision, reason=reason)
            else:
                decision = refuse(reason, what, "arguments")
        decision = self.unknown.ask_about_names(decision, command, plain)
        self._note(decision)
        return decision

    def _note_forbidden(self, command: Command, effects: CommandEffects, what: str) -> None:
        found = self.book.forbids_command(
            command.words, plain=effects.plain, home=self.home, what=what
        )
        if found is not None:
            self._note(self.unknown.ask_about_names(found, command, effects.plain))

    def _ask_if_alone(self, refusal: Decision, command: Command) -> Decision:
        """A builtin that changes how later text is read is harmless as the last command; a person
        decides for a shell that stays open."""
        is_alone = len(self.files.commands) == 1 and self.unknown.is_free(command.words)
        return replace(refusal, verdict=Verdict.ASK) if is_alone else refusal

    def _is_refused(self, words: tuple[Word, ...], command: Command) -> bool:
        """Whether no rule can allow these words."""
        demands = self._demands(replace(command, words=words), effects_of(words))
        is_code = any(map(is_code_unknown, effects_of(command.words).codes))
        return is_code or any(not option for option, _ in demands)

    def _script(self, script: ShellScript, command: Command, depth: int) -> None:
        # A wildcard in a script expands to file names, and a name can hold any text.
        if UNKNOWN in script.text.text or script.text.is_split or script.text.has_glob:
            what = render_words(command.words)[:500]
            self._note(refuse(f"{script.why}: {UNKNOWN_TEXT}", what))
            return
        name, was_bash = command.program, self.is_bash
        # The rule spells the shell, not the script.
        before, self.covering = self.covering, None
        self.is_bash = name in _BASH or (was_bash and name in _SAME_SHELL)
        try:
            found = read_shell(
                script.text.text,
                directories=command.directories,
                home=self.home,
                is_bash=self.is_bash,
                outer=outer_names(self.files.commands, command),
            )
            self.files.look_around(found)
            for each in found:
                place = (*command.place, script.why, *each.place)
                self._command(replace(each, place=place), depth + 1)
        finally:
            self.covering, self.is_bash = before, was_bash


@remembered
def _reach_of(
    command: Command, effects: CommandEffects
) -> tuple[RegistryName | None, tuple[tuple[str, str], ...]]:
    """The registry that the command installs from, and why no rule allows it, by built-in rule."""
    found = [
        ("addresses", address_trouble(command, effects)),
        ("unguarded", guard_trouble(command)),
        *(("variables", variables.trouble(each)) for each in effects.assignments),
    ]
    troubles = tuple((rule, trouble) for rule, trouble in found if trouble is not None)
    return registry_of(command.words), troubles
