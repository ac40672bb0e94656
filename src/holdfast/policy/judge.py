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

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from holdfast.core.verdict import Decision, Verdict
from holdfast.policy import variables
from holdfast.policy.hints import tokens_of
from holdfast.policy.paths import normalise
from holdfast.policy.rulebook import RuleBook
from holdfast.policy.shell.grammar import grammar
from holdfast.policy.shell.inline import screen
from holdfast.policy.shell.models import open_command
from holdfast.policy.shell.opened import Access, Code, File, Inner, Opened, Script
from holdfast.policy.shell.parser import NotUnderstood
from holdfast.policy.shell.reader import MAX_COMMANDS, Command, is_descriptor, read_shell
from holdfast.policy.shell.words import UNKNOWN, Word, shown
from holdfast.policy.subjects import PATH_MOST_CHARACTERS, Subject, Targets

_MAX_DEPTH = 8
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))
_BUILT_IN = "built-in"
_ACCESSES: tuple[Access, ...] = ("read", "write")
_SOME_NAME = "\ufffd"
_find_texts = re.compile(r"""'([^'\n]{1,300})'|"([^"\n]{1,300})"|`([^`\n]{1,300})`""").findall
_NOWHERE = frozenset(("/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty", "-"))


_opened = lru_cache(maxsize=4096)(open_command)


def denied(why: str, what: str, rule: str = "not-understood") -> Decision:
    """By us, whatever the rules say."""
    return Decision(Verdict.DENY, rule, why, _BUILT_IN, what)


@dataclass(slots=True)
class Judgement:
    """Of one text; `parts` are in the order in which they stand."""

    book: RuleBook
    home: str
    targets: Targets
    parts: list[Decision] = field(default_factory=list)
    commands: Sequence[Command] = ()
    is_trusting: bool = True
    """Names that commands print were found by them, not made up."""
    count: int = 0
    covering: Decision | None = None
    """An allow whose rule spells out the command that is judged now, together with its wrapper."""
    place: tuple[str, ...] = ()
    cwd: str = "/"
    """Where the text begins: what relative rules are relative to, wherever it moves."""

    def text(self, text: str, cwd: str) -> Decision:
        """(1)"""
        self.cwd = cwd
        what = " ".join(text.split())[:500]
        try:
            commands = read_shell(text, directories=(cwd,), home=self.home)
            self._look_around(commands)
            for command in commands:
                self._command(command, 0)
        except NotUnderstood as problem:
            self._note(denied(str(problem), what))
        except RecursionError:
            self._note(denied("it is nested too deeply", what))
        return self._whole(what)

    def words(self, words: Sequence[Word], cwd: str) -> Decision:
        """An argument vector that no shell has touched."""
        self.cwd = cwd
        what = shown(words)[:500]
        command = Command(tuple(words), directories=(cwd,))
        try:
            self._look_around((command,))
            self._command(command, 0)
        except (NotUnderstood, RecursionError) as problem:
            self._note(denied(str(problem), what))
        return self._whole(what)

    def _whole(self, what: str) -> Decision:
        if not self.parts:  # nothing in it that a rule could speak of
            return Decision(Verdict.DENY, "default", "no rule allows this", _BUILT_IN, what)
        worst = max(self.parts, key=lambda part: part.verdict)
        return replace(worst, subject=what, place=(), parts=tuple(self.parts))

    def _note(self, decision: Decision) -> None:
        self.parts.append(replace(decision, place=self.place))

    def _look_around(self, commands: Sequence[Command]) -> None:
        feeding = [each.words for each in commands if each.is_feeding and each.words]
        is_found = all(grammar().is_lister(words) for words in feeding)
        self.is_trusting = is_found and not any(each.is_made_up for each in commands)
        self.commands = commands

    def _has_hints(self) -> bool:
        """Whether a word of the text could name a file that may not be read."""
        return any(
            self.book.is_like_secret(token)
            or self.book.forbids([self._subject("read", token, "/")], "") is not None
            for token in tokens_of(self.commands)
        )

    # --- one command

    def _command(self, command: Command, depth: int) -> None:
        self.count += 1
        self.place = command.place
        if depth > _MAX_DEPTH or self.count > MAX_COMMANDS:
            raise NotUnderstood("commands stand in commands too deeply, or there are too many")
        is_reading = bool(command.words) and command.words[0].text in {"read", "mapfile"}
        for assignment in command.assignments:  # (2)
            if is_reading and assignment.name == "IFS":
                continue  # how this one line is cut
            trouble = variables.trouble(assignment)
            if trouble is not None:
                self._note(denied(trouble, f"{assignment.name}=…", "variables"))
        for file in command.files:  # (3)
            self._redirection(file, command)
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

    def _inner(self, inner: Inner, command: Command, depth: int) -> None:
        """Judged by itself; a rule that spells out both, as `npx tsc *`, allows both."""
        name = inner.words[0].text if inner.words else ""
        needs = frozenset((name,))
        found = self.book.judge_command(
            command.words, plain=None, needs=needs, home=self.home, what=""
        )
        before = self.covering
        is_any = found.rule in {"Bash", "Bash(*)"}
        self.covering = found if found.verdict is Verdict.ALLOW and name and not is_any else None
        self._command(_started(inner, command), depth + 1)
        self.covering = before

    def _judge_opened(self, command: Command, opened: Opened, what: str) -> None:
        for assignment in opened.assignments:
            trouble = variables.trouble(assignment)
            if trouble is not None:
                self._note(denied(trouble, what, "variables"))
        needs: dict[str, str] = {}
        for option, why in self._demands(command, opened):
            if not option:
                self._note(denied(why, what, "arguments"))
                return
            needs.setdefault(option, why)
        self._by_rules(command, opened, needs, what)  # (6)
        if command.words[0].text not in grammar().neutral:
            self._named_files(command, opened, what)  # (7)

    def _demands(self, command: Command, opened: Opened) -> Iterator[tuple[str, str]]:
        """What a rule must spell out to mean it; '' is what no rule can mean."""
        for danger in opened.dangers:
            yield danger.option, danger.why
        for code in opened.codes:
            trouble = _screened(code)
            if trouble is not None:
                yield code.option, trouble
            yield from self._named_in(code)
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
            yield from self._named_in(code)

    def _named_in(self, code: Code) -> Iterator[tuple[str, str]]:
        """Files that code names, by its texts: what may not be read cannot be read by it either."""
        texts = _texts_in(code.text.text) if code.text is not None else ()
        for text in texts:
            subjects = [self._subject(access, Word(text), self.cwd) for access in _ACCESSES]
            if any(self.book.forbids([each], "") for each in subjects):
                yield "", f"{code.why}, and names {text[:60]!r}, which rules forbid"

    def _by_rules(self, command: Command, opened: Opened, needs: dict[str, str], what: str) -> None:
        words, plain = command.words, opened.plain
        is_neutral = words[0].text in grammar().neutral or (
            opened.is_wrapper and bool(opened.inner or opened.scripts)
        )
        if is_neutral and not needs:
            found = self.book.forbids_command(words, plain=plain, home=self.home, what=what)
            if found is not None:
                self._note(found)
            return
        demanded = frozenset(needs)
        decision = self.book.judge_command(
            words, plain=plain, needs=demanded, home=self.home, what=what
        )
        if decision.rule == "default" and self.covering is not None and not needs:
            decision = replace(self.covering, subject=what)
        if needs and decision.rule == "default":
            option, why = next(iter(needs.items()))
            reason = f"{why}; only a rule that spells out {option!r} allows it"
            decision = denied(reason, what, "arguments")
        self._note(decision)

    def _script(self, script: Script, command: Command, depth: int) -> None:
        if UNKNOWN in script.text.text or script.text.is_split:
            what = shown(command.words)[:500]
            why = f"{script.why}: the text it would run is known only when it runs"
            self._note(denied(why, what))
            return
        found = read_shell(script.text.text, directories=command.directories, home=self.home)
        for each in found:
            self._command(replace(each, place=(*command.place, script.why, *each.place)), depth + 1)

    # --- files

    def _redirection(self, file: File, command: Command) -> None:
        what = f"{file.why} {shown([file.path])}"
        if UNKNOWN in file.path.text and file.access == "write":
            self._note(denied("which file it writes is known only when it runs", what))
            return
        if _is_unknown(file.path):
            self._unknown_file(file, what)
            return
        subjects = self._subjects(file, command)
        found = self.book.forbids(subjects, what) if subjects else None
        if found is None and UNKNOWN in file.path.text:
            found = denied("which file it reads is known only when it runs", what)
        decisions = [found] if found else [self.book.judge(each, what) for each in subjects]
        for decision in sorted(decisions, key=lambda each: each.verdict)[-1:]:
            self._note(decision)

    def _named_files(self, command: Command, opened: Opened, what: str) -> None:
        for file in opened.files or _guessed_files(command, opened):
            if file.path.text in _NOWHERE or is_descriptor(file.path.text):
                continue
            if _is_unknown(file.path):
                self._unknown_file(file, what)
                continue
            if len(file.path.text) > PATH_MOST_CHARACTERS:
                continue  # the kernel opens none that is longer
            # What is unknown in a path is taken for some name; the rest of it tells enough.
            path = replace(file.path, text=file.path.text.replace(UNKNOWN, _SOME_NAME))
            found = self.book.forbids(self._subjects(replace(file, path=path), command), what)
            if found is not None:
                self._note(found)

    def _unknown_file(self, file: File, what: str) -> None:
        """A name that was found, or a variable of the person's own, is taken as it is."""
        if not self.is_trusting or self._has_hints():
            why = f"which file it {file.access}s could be made up while it runs"
            self._note(denied(why, what))

    def _subjects(self, file: File, command: Command) -> list[Subject]:
        name = command.words[0].text.rpartition("/")[2] if command.words else ""
        is_whole = name in grammar().whole[file.access]
        return [
            replace(self._subject(file.access, file.path, each), is_whole=is_whole)
            for each in command.directories
        ]

    def _subject(self, access: Access, word: Word, directory: str) -> Subject:
        tool, text = "Read" if access == "read" else "Write", word.text
        path = text if text.startswith(("/", UNKNOWN)) else f"{directory}/{text}"
        if UNKNOWN in path or word.has_glob:
            paths = () if UNKNOWN in path else _samples(path)
            return Subject(tool, access, self.cwd, self.home, paths, globs=(path,))
        found = dict.fromkeys([normalise(path), *self.targets(path)])
        return Subject(tool, access, self.cwd, self.home, tuple(found))


def _is_unknown(path: Word) -> bool:
    """Nothing in it tells what it is."""
    return UNKNOWN in path.text and not path.text.replace(UNKNOWN, "").strip("./")


def _samples(path: str) -> tuple[str, ...]:
    """Names that a word with wildcards could become: an allow must hold for each."""
    return tuple(normalise(path.replace("*", each)) for each in ("*", "x", "a-rather-long-name.x"))


def _texts_in(code: str) -> set[str]:
    found = {text for texts in _find_texts(code) for text in texts if text}
    return {text for text in found if UNKNOWN not in text}


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


def _guessed_files(command: Command, opened: Opened) -> Iterator[File]:
    """Of a program that nobody has a model for: each word could be a file that it reads."""
    if opened != Opened():
        return
    for word in command.words[1:]:
        for text in {word.text, word.text.rpartition("=")[2], word.text.lstrip("@")}:
            if text and UNKNOWN not in text and not text.startswith("-"):
                yield File("read", Word(text, has_glob=word.has_glob), "an argument")
