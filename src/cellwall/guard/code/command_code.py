"""Code in the arguments of a command: `bash -o pipefail -c …`, `env python3 -c …`.

Every word of a command may be an interpreter, not only the first: a wrapper before it (`env`,
`timeout 5`, `xargs -0`, `docker run image`) starts it all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh", "mksh", "rbash", "yash", "fish"})
_LANGUAGES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"python[0-9.]*|pypy[0-9.]*"), "python"),
    (re.compile(r"node|nodejs|bun"), "javascript"),
    (re.compile(r"deno|tsx|ts-node"), "typescript"),
    (re.compile(r"perl[0-9.]*"), "perl"),
    (re.compile(r"ruby[0-9.]*"), "ruby"),
    (re.compile(r"php[0-9.]*"), "php"),
)
_MAX_NAME = 20
_MAX_OPTIONS = 64
# Programs that print or look up their arguments and run none of them.
_PRINTERS = frozenset({"echo", "printf", "grep", "egrep", "fgrep", "rg", "man", "which", "type"})
# Programs that run the text behind `-c` as a shell command, without naming a shell.
_COMMAND_RUNNERS = frozenset({"su", "runuser", "script", "flock", "sg"})
_SHELL_VALUES = frozenset({"--rcfile", "--init-file"})
_COMMAND = re.compile(r"-[a-z]*c|--command")
_SPLIT = re.compile(r"(?:-[a-z]*S|--split-string=?)([\s\S]*)")
_EVALUATES = re.compile(r"-(?:e|p|pe|-eval|-print)(?:=([\s\S]*))?")
_ONE_LINER = re.compile(r"-[A-Za-z0-9]*?([eEr])([\s\S]*)")


@dataclass(frozen=True, slots=True)
class CodeArgument:
    """A piece of code among the words of a command."""

    language: str
    at: int
    text: str | None
    """None if the command has implausibly many options."""


def language_of(name: str) -> str | None:
    """The language that a program of this name, without its folder, interprets."""
    if name in SHELLS:
        return "shell"
    if len(name) <= _MAX_NAME:
        for pattern, language in _LANGUAGES:
            if pattern.fullmatch(name):
                return language
    return None


def base_name(word: str) -> str:
    """A program's name without its folder."""
    return word.rpartition("/")[2]


def code_in(words: Sequence[str]) -> Iterator[CodeArgument]:
    """All code in the words of one command."""
    if not words or base_name(words[0]) in _PRINTERS:
        return
    seen: set[tuple[int, str]] = set()
    for number, word in enumerate(words):
        name = base_name(word)
        language = language_of(name)
        if language is not None:
            argument = _of(name, language, words, number + 1)
        elif name in _COMMAND_RUNNERS:
            argument = _command_argument(words, number + 1)
        elif name == "env":
            argument = _env_split(words, number + 1)
        else:
            continue
        if argument is not None and (argument.at, argument.language) not in seen:
            seen.add((argument.at, argument.language))
            yield argument


def _of(name: str, language: str, words: Sequence[str], at: int) -> CodeArgument | None:
    match language:
        case "shell":
            return _shell(words, at)
        case "python":
            return _python(words, at)
        case "javascript" | "typescript":
            return _node(name, language, words, at)
        case _:
            return _one_liner(language, words, at)


def _shell(words: Sequence[str], at: int) -> CodeArgument | None:
    """The first word that is no option, if one of the options was `-c`, alone or combined."""
    is_text, first = False, at
    while at < len(words):
        word = words[at]
        if at - first > _MAX_OPTIONS:
            return CodeArgument("shell", at, None)
        if word.startswith("--command="):
            return CodeArgument("shell", at, word.partition("=")[2])
        if word.startswith("--") and len(word) > 2:
            is_text |= word == "--command"
            at += 2 if word in _SHELL_VALUES else 1
        elif word in {"-", "--"}:
            at += 1
            break
        elif word[:1] in {"-", "+"} and "\n" not in word:
            is_text |= word[0] == "-" and "c" in word
            at += 1 + word.count("o") + word.count("O")  # each takes a word: `-o pipefail`
        else:
            break
    return CodeArgument("shell", at, words[at]) if is_text and at < len(words) else None


def _python(words: Sequence[str], at: int) -> CodeArgument | None:
    first = at
    while at < len(words) and words[at].startswith("-") and len(words[at]) > 1:
        if at - first > _MAX_OPTIONS:
            return CodeArgument("python", at, None)
        word = words[at]
        at += 1
        if word.startswith("--"):
            at += word == "--check-hash-based-pycs"
            continue
        for number, letter in enumerate(word[1:], 1):
            rest = word[number + 1 :]
            if letter == "c":
                if rest:
                    return CodeArgument("python", at - 1, rest)
                return CodeArgument("python", at, words[at]) if at < len(words) else None
            if letter == "m":
                return None
            if letter in "WX":
                at += not rest
                break
    return None


def _node(name: str, language: str, words: Sequence[str], at: int) -> CodeArgument | None:
    for number in range(at, min(at + _MAX_OPTIONS, len(words))):
        word = words[number]
        if name == "deno" and number > at and words[at] == "eval" and not word.startswith("-"):
            return CodeArgument(language, number, word)
        if found := _EVALUATES.fullmatch(word):
            if found[1] is not None:
                return CodeArgument(language, number, found[1])
            if number + 1 < len(words):
                return CodeArgument(language, number + 1, words[number + 1])
    return None


def _one_liner(language: str, words: Sequence[str], at: int) -> CodeArgument | None:
    """`perl -e`, `perl -ne`, `ruby -e`, `php -r`: their languages have no screener."""
    for number in range(at, min(at + _MAX_OPTIONS, len(words))):
        word = words[number]
        if not word.startswith("-"):
            return None
        if word.startswith("--"):
            continue
        found = _ONE_LINER.fullmatch(word)
        if found and (found[1] == "r") == (language == "php"):
            if found[2]:
                return CodeArgument(language, number, found[2])
            return (
                CodeArgument(language, number + 1, words[number + 1])
                if number + 1 < len(words)
                else None
            )
    return None


def _command_argument(words: Sequence[str], at: int) -> CodeArgument | None:
    for number in range(at, min(at + _MAX_OPTIONS, len(words))):
        word = words[number]
        if not word.startswith("-"):
            continue
        if word.startswith("--command="):
            return CodeArgument("shell", number, word.partition("=")[2])
        if _COMMAND.fullmatch(word) and number + 1 < len(words):
            return CodeArgument("shell", number + 1, words[number + 1])
    return None


def _env_split(words: Sequence[str], at: int) -> CodeArgument | None:
    """`env -S "bash -c …"`"""
    if at < len(words) and (found := _SPLIT.fullmatch(words[at])):
        if found[1]:
            return CodeArgument("shell", at, found[1])
        if at + 1 < len(words):
            return CodeArgument("shell", at + 1, words[at + 1])
    return None
