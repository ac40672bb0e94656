"""Commands inside texts that a program may run in a language of its own. Pure.

An editor, a debugger, a database client and a program without a model take commands in languages
that Cellwall does not parse: `vim -c 'call system("…")'`, `ed <<< '!…'`, `sqlite3 x
".import '|…' t"`, `prog --exec '…'`. A rule that covers such a text (`Bash(*)`) does not cover what
is denied:

1. a line that is a shell escape (`!cmd`, `.shell cmd`, `r !cmd`) is a script like any other;
2. a command that a denial means is denied wherever it stands in the text;
3. so is a file that may not be read;
4. a person is asked where the text around such a text assembles it at run time.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Final

from cellwall.core.verdict import Decision, Verdict
from cellwall.parsing.shell.outputs import printed_text
from cellwall.parsing.shell.parser import NotUnderstood
from cellwall.parsing.shell.words import UNKNOWN, Command, Origin, Word
from cellwall.policy.code.starts import is_read
from cellwall.policy.code_rules import OPENED
from cellwall.policy.command_files import CommandFiles
from cellwall.policy.commands.effects import CommandEffects, Inner, ShellScript
from cellwall.policy.rulebook import RuleBook, refuse

ESCAPE: Final = "an input line of the program starts it"
VALUE: Final = "the program may start this"
"""A `ShellScript.why`: the text may be no command at all, so only denials by rules count."""
MAX_CHARACTERS: Final = 65_536
_MAX_NAMES: Final = 2_048
_MAX_STARTS: Final = 256
_MAX_ESCAPES: Final = 64
_MAX_WORDS: Final = 64
_BEFORE: Final = 64
_WINDOW: Final = 4_096
"""Characters of a text that are searched from one position on."""
_BETWEEN: Final = "\x1f"
"""Separates the words of a command; no word holds it."""
_find_tokens = re.compile(r"""[^\s\x1f"'`,;|&<>()\[\]{}]+""").finditer
_end_command = re.compile(r"""["'`;|&<>()\[\]{}\x1f\\]""").split
_cut_front = re.compile(r".*[!:=@%$]|-[A-Za-z](?=[a-z/])", re.DOTALL).match
_starts_command = re.compile(
    r"""(?ix) (?: [!|;&`] | (?: \b | _ )
        (?: e?sys\w{0,8} | exec\w{0,8} | spawn\w{0,8} | p?open | pipe | shell\w{0,8} | sh
          | run\w{0,8}
          | call | start\w{0,8} | terminal | program | command | cmd | hook | handler | action
          | pager | editor | then | on-\w{1,16} )
        [\s\x1f"'(\[{,:=%]{0,16} ) $"""
).search
_match_escape = re.compile(
    r"""(?ix) (?: [:.,%$\d]{0,32} (?:r|w|e|read|write|silent|sil) !?[ \t]{1,64}
                | [:.,%$\d]{1,32} [ \t]{1,64} )?
    [:.,%$~\\]{0,3} (?: ! | (?:shell|system)[ \t] ) [ \t]{0,64} (?P<command>[^\s=].*)"""
).match


def find_inside(
    book: RuleBook, files: CommandFiles, command: Command, effects: CommandEffects, what: str
) -> Iterator[Decision | ShellScript]:
    """Denials in the texts of a command, and the scripts in them that need a judgement."""
    if effects.dangers or effects.is_unmodelled:
        line = _join_words(command.words[1:])
        yield from _denied_in(book, files, line, what)
        if path := next((each for each in _names_in(line) if _is_secret(files, each)), None):
            yield refuse(f"it names {path[:60]!r}, which may not be read", what, "arguments")
        for word in command.words[1:] if effects.dangers else ():
            value = _value(word)
            if re.search(r"\s", value) and UNKNOWN not in value:
                yield ShellScript(Word(value), VALUE)
        options = {each.option for each in effects.dangers if each.option.startswith("-")}
        if effects.is_unmodelled and _is_made_up(command.words, options):
            why = "the command that the program starts is assembled at run time; spell the command"
            yield refuse(why, what, "arguments", is_asked=True)
    for assignment in command.assignments if command.words else ():
        if re.search(r"\s", assignment.value.text):
            yield from _denied_in(book, files, assignment.value.text, what)
    codes = {code.text.text for code in effects.codes if code.text is not None}
    for text in _texts(files, command, effects):
        if len(text) > MAX_CHARACTERS:
            yield refuse("a text for the program is too long to be judged", what, "arguments")
            continue
        for count, escape in enumerate(_escapes(text)):
            if count == _MAX_ESCAPES:
                yield refuse(
                    "its input holds more commands than can be judged",
                    what,
                    "arguments",
                )
                break
            yield ShellScript(Word(escape), ESCAPE)
        yield from _denied_in(book, files, text, what, is_code=text in codes)
        yield from _forbidden_names(files, text, what)


def _is_made_up(words: Sequence[Word], options: Container[str]) -> bool:
    """Whether the text itself assembles the value of an option that may name a command."""
    return any(
        before.text in options and UNKNOWN in word.text and word.origin is not Origin.ENVIRONMENT
        for before, word in pairwise(words[1:])
    )


def is_by_rule(decision: Decision) -> bool:
    """Whether a rule denies the text, and not a failure to parse it."""
    return decision.verdict is Verdict.DENY and "(" in decision.rule


def _join_words(words: Sequence[Word]) -> str:
    return _BETWEEN.join(word.text for word in words)


def _texts(files: CommandFiles, command: Command, effects: CommandEffects) -> Iterator[str]:
    """Texts in languages that are not parsed: code, standard input, files of this text."""
    for code in effects.codes:
        if code.text is not None and not _is_opened(code.language):
            yield code.text.text
    for word in command.words[1:] if effects.dangers else ():
        if re.search(r"\s", _value(word)):
            yield _value(word)
        else:
            yield from _written_texts(files, Word(_value(word)), command)
    is_asking = effects.is_typed or effects.is_unmodelled or bool(effects.dangers)
    if is_asking or not _is_opened(effects.reads_stdin_as or "sh"):
        yield from _on_input(files, command)
    for language, path in effects.runs:
        if not _is_opened(language):
            yield from _written_texts(files, path, command)


def _escapes(text: str) -> Iterator[str]:
    """`!cmd` at the start of a line, also after a line address; `\\! cmd` anywhere."""
    for line in text.splitlines():
        if found := _match_escape(line.strip()):
            yield found["command"]
        elif (rest := line.partition("\\!")[2].strip()) and not rest.startswith("="):
            yield rest


def _value(word: Word) -> str:
    return word.text.partition("=")[2] if word.text.startswith("--") else word.text


def _is_opened(language: str) -> bool:
    return language in OPENED or is_read(language)


def _on_input(files: CommandFiles, command: Command) -> Iterator[str]:
    if command.stdin_text is not None:
        yield command.stdin_text.text
    elif command.stdin == "pipe":
        yield from filter(None, (printed_text(each) for each in files.commands if each.is_feeding))
    elif command.stdin == "file":
        for file in command.files:
            if file.access == "read":
                yield from _written_texts(files, file.path, command)


def _written_texts(files: CommandFiles, path: Word, command: Command) -> Iterator[str]:
    content = files.written.find(path, command)
    if isinstance(content, str):
        yield content


def _denied_in(
    book: RuleBook, files: CommandFiles, text: str, what: str, *, is_code: bool = False
) -> Iterator[Decision]:
    """Denials of each program name in the text.

    The first word of code (`pwsh -c 'curl …'`) may be a command without any sign before it.
    """
    text = text.replace("${HOME}", files.home).replace("$HOME", files.home)
    count = 0
    for token in _find_tokens(text):
        cut = _cut_front(token[0], 0, _WINDOW)
        for at in {0, cut.end() if cut else 0}:
            if not book.is_denied_program(posixpath.basename(token[0][at : at + _WINDOW])):
                continue
            count += 1
            if count > _MAX_STARTS:
                yield refuse("its input holds more words than can be judged", what, "arguments")
                return
            start = token.start() + at
            before = text[max(0, start - _BEFORE) : start].rstrip(" \t")
            is_start = _starts_command(before) is not None or (is_code and not before)
            part = text[start : start + _WINDOW]
            yield from _denials(book, files, part, what, is_start=is_start)


def _denials(
    book: RuleBook, files: CommandFiles, text: str, what: str, *, is_start: bool
) -> Iterator[Decision]:
    line = text.partition("\n")[0]
    tokens = [each[0] for each in islice(_find_tokens(line), _MAX_WORDS)]
    parts = (_end_command(line, maxsplit=1)[0].split(), tokens)
    for texts in parts:
        words = tuple(Word(files.at_home(each)) for each in texts[:_MAX_WORDS])
        if not words:
            continue
        found = book.forbids_command(words, home=files.home, what=what)
        if found is None or found.verdict is not Verdict.DENY:
            continue
        # `getent passwd`: a name alone is no command, unless a sign before it says so.
        if is_start or _has_arguments(found.rule):
            yield found
            return


def _has_arguments(rule: str) -> bool:
    """`Bash(rm -rf /)` names more than a program."""
    return len([word for word in rule.rstrip(")").split() if word != "*"]) > 1


def _is_secret(files: CommandFiles, name: str) -> bool:
    return files.is_forbidden_name(name, accesses=("read",))


def _forbidden_names(files: CommandFiles, text: str, what: str) -> Iterator[Decision]:
    for count, name in enumerate(_names_in(text)):
        if count == _MAX_NAMES:
            yield refuse("its input holds more names than can be judged", what, "arguments")
            return
        if files.is_forbidden_name(name):
            why = f"a text for the program names {name[:60]!r}, which rules forbid"
            yield refuse(why, what, "arguments")
            return


def _names_in(text: str) -> Iterator[str]:
    """The possible paths in a text."""
    seen: set[str] = set()
    for token in _find_tokens(text):
        for name in (token[0], token[0].rpartition("=")[2]):
            is_path = "/" in name or name.startswith((".", "~"))
            if is_path and UNKNOWN not in name and name not in seen:
                seen.add(name)
                yield name


# The context that a command inherits from the command, or code, that starts it.

_MAX_FOLDERS: Final = 32


def in_folders(command: Command, folders: Sequence[str]) -> Command:
    """The command with further possible folders: code that changes its folder may start its
    commands in either."""
    further = [
        to if to.startswith(UNKNOWN) else posixpath.join(each, to)
        for to in folders
        for each in command.directories
    ]
    places = dict.fromkeys((*command.directories, *further))
    if len(places) > _MAX_FOLDERS:  # a folder that is left out could hold a secret
        raise NotUnderstood("the code changes to more folders than can be judged in time")
    return replace(command, directories=tuple(places))


def in_own_folders(command: Command, effects: CommandEffects) -> Command:
    """A command that changes its folder by an option, as `env -C` and `make -C` do. Each of several
    options is relative to the folder of the one before."""
    texts = [UNKNOWN if word.is_split else word.text for word in effects.folders]
    return in_folders(command, [*texts, posixpath.join("", *texts)]) if texts else command


def start_inner(inner: Inner, command: Command, files: CommandFiles) -> Command:
    """The inner command, with the input and the folders of the outer one."""
    words = inner.words
    if inner.is_open_ended:
        words = (*words, files.input_word(is_null_separated=inner.is_null_separated))
    return Command(
        words,
        stdin=command.stdin,
        stdin_text=command.stdin_text,
        piped=command.piped,
        is_input_shared=command.is_input_shared,
        directories=command.directories,
        place=(*command.place, inner.why),
    )
