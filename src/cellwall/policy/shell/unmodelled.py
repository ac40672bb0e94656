"""The general rule for programs that have no model. Pure.

A rule that merely allows such a program (`Bash(prog *)`) does not cover an argument that looks as
if it makes the program start something else, load code, or take options from a file:

1. a shell, or a program by its full path: a word, the value of an option, or inside of a text;
2. an interpreter with an option of its own (`prog python3 -c …`);
3. an option whose name speaks of commands: `--exec`, `--eval`, `--pager`, `--editor`, `--rsh`,
   `--pre-hook`, `--checkpoint-action`, `--plugin`; `--config` with a file from elsewhere;
4. a short option for code (`-c`, `-e`, `-x` …) whose value has blanks or signs of code in it;
5. a sub-command such as `shell`, `exec`, `eval`, `repl`;
6. `NAME=VALUE` whose name ends in COMMAND, PAGER, EDITOR and the like: `-o ProxyCommand=…`;
7. an operand that is a command to many programs: `!cmd`, `|cmd`, `cmd|`, `@file`, `%(…)`, `$(…)`;
8. `/dev/tcp/…`, and a shared object (`x.so`) that the program may load;
9. a text on standard input, which may be a script (see `Opened.is_typed`).

Its words count as files that it may read, and the values of `-o`, `-w`, `--output` and the like as
files that it writes.

What it says is a danger that a rule must spell out to mean, as the models have it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Final

from cellwall.policy.shell.catalog import canonical
from cellwall.policy.shell.grammar import grammar
from cellwall.policy.shell.opened import Danger, File, Opened
from cellwall.policy.shell.words import UNKNOWN, Word

_SHELLS: Final = frozenset(("sh", "fish", "csh", "pwsh", "nu"))
_INTERPRETERS: Final = frozenset(
    [
        "python",
        "perl",
        "ruby",
        "node",
        "php",
        "lua",
        "tclsh",
        "Rscript",
        "julia",
        "deno",
        "bun",
        "awk",
        "busybox",
        "env",
        "xargs",
        "sudo",
    ]
)
_TELLING: Final = frozenset(
    (
        *("eval", "exec", "execute", "command", "commands", "cmd", "shell", "script", "run"),
        *("hook", "prehook", "posthook", "action", "handler", "callback", "launcher", "opener"),
        *("pager", "editor", "viewer", "browser", "rsh", "program", "interpreter"),
        *("plugin", "plugins", "preload", "loader", "startup"),
    )
)
"""In the name of an option: its value may be a command, or code."""
_CODE_NAMES: Final = frozenset(("code", "expr", "expression", "filter"))
_SETTINGS: Final = frozenset(
    ("config", "conf", "cfg", "rcfile", "configfile", "vars", "settings", "options", "optfile")
)
"""Settings can name commands; those of the project are read anyway."""
_TOOLS: Final = frozenset(("bin", "binary", "tool", "helper", "agent", "wrapper", "client", "path"))
_CODE_OPTIONS: Final = frozenset(["-c", "-e", "-E", "-x", "-X", "-r", "-l", "-P", "-S", "-I"])
_STARTING: Final = frozenset(("shell", "exec", "execute", "eval", "repl", "console", "spawn"))
_OUTPUT_OPTIONS: Final = frozenset(("-o", "-O", "-w"))
_OUTPUT: Final = frozenset(
    ["output", "out", "outfile", "outdir", "dump", "save", "write", "export", "destination", "dest"]
)
_MANY: Final = 256
"""How many words are looked at; a program with more of them is not covered."""

_is_code = re.compile(r"[\s;|&`$(){}<>!]").search
_shell_inside = re.compile(
    r"""(?:(?:^|[;&|(!%`'"={@:,])\s*(?:/[\w.+-]+)*/?|/)(?:ba|da|z|k|a|tc|c|fi|mk|ya)?sh(?![\w.=/-])"""
).search
_program_path = re.compile(r"(?:/usr(?:/local)?|/opt/[\w.-]+|/run/[\w./-]+)?/s?bin/[\w.+-]+").match
_setting = re.compile(
    r"(?i)[\w.-]*(?:command|cmd|pager|editor|shell|browser|exec|program|rsh|hook|script)\s*="
).match
_starts_something = re.compile(
    r"""^\s*:?\s*[!|]\s*\S|\|\s*$|%\(|\$\(|`|/dev/(?:tcp|udp)/|\b(?:system|popen|exec|spawn)\w*\s*[("']"""
).search
_typed_escape = re.compile(r"""(?im)^\s*[\W_]{0,3}(?:!|shell\b|system\b|exec\b|sh\b)""").search
_shared_object = re.compile(r"[^\s]*\.so(?:\.[0-9]+)*\Z").match


def open_unmodelled(words: Sequence[Word]) -> Opened:
    """What the words of a program without a model could make it do."""
    name = posixpath.basename(words[0].text)
    if name in grammar().unread or name in grammar().neutral:
        return Opened()
    found = dict.fromkeys(_dangers(words[1:]))
    files = tuple(_written(words[1:]))
    return Opened(dangers=tuple(found), files=files, is_unmodelled=True, is_typed=True)


def _written(words: Sequence[Word]) -> Iterator[File]:
    """Values of options that name an output by custom: `-o FILE`, `--output=FILE`."""
    for place, word in enumerate(words):
        name, equals, _ = word.text.partition("=")
        parts = set(re.split(r"[-_.]+", name.lower().lstrip("-")))
        if name in _OUTPUT_OPTIONS or (name.startswith("--") and parts & _OUTPUT):
            if equals:
                yield File("write", word.after(f"{name}="), "an option for output names it")
            elif place + 1 < len(words) and _is_plain(words[place + 1]):
                yield File("write", words[place + 1], "an option for output names it")


def is_typed_command(text: str) -> bool:
    """Whether a text on standard input has a line that starts a command in many programs."""
    return any(check(text) is not None for check in (_typed_escape, _shell_inside))


def _dangers(words: Sequence[Word]) -> Iterator[Danger]:
    if len(words) > _MANY:
        yield Danger("", "a program without a model has more arguments than can be looked at")
        return
    for place, word in enumerate(words):
        following = words[place + 1] if place + 1 < len(words) else None
        why = _why(word, following, is_first=not any(_is_plain(each) for each in words[:place]))
        if why is not None:
            option = word.text.partition("=")[0] if word.text.startswith("-") else word.text
            yield Danger(option if word.is_literal else "", f"{why}, and it has no model")


def _is_plain(word: Word) -> bool:
    return not word.text.startswith("-")


def _why(word: Word, following: Word | None, *, is_first: bool) -> str | None:
    text = word.text
    if text.startswith("-") and len(text) > 1:
        return _why_option(text, following)
    if is_first and text in _STARTING:
        return f"`{text}` may be a sub-command that starts programs"
    if text.startswith("@") and len(text) > 1:
        return "the program may take options or names from a file"
    return _why_value(text, following)


def _why_option(text: str, following: Word | None) -> str | None:
    name, equals, value = text.partition("=")
    has_value = bool(equals) or (following is not None and _is_plain(following))
    given = value if equals else following.text if following is not None else ""
    if name.startswith("--") or (len(name) > 3 and not equals):
        parts = set(re.split(r"[-_.]+", name.lower().lstrip("-")))
        if has_value and parts & _TELLING:
            return f"{name} may name a command, or code"
        if has_value and parts & _CODE_NAMES and _is_code(given):
            return f"{name} may be given code"
        if has_value and parts & _SETTINGS and not _is_near(given):
            return f"{name} names settings from elsewhere, which may name commands"
        if has_value and parts & _TOOLS and "/" in given:
            return f"{name} may name a program to start"
    if not name.startswith("--") and (_setting(text[1:]) or _setting(text[2:])):
        return "a setting names a command"
    short = text[:2]
    if short in _CODE_OPTIONS and not text.startswith("--"):
        glued = text[2:]
        if _is_code(glued or given):
            return f"{short} may be given code, or a command"
    if equals or (len(text) > 2 and not text.startswith("--")):
        return _why_value(value if equals else text[2:], None)
    return None


def _is_near(path: str) -> bool:
    """A plain path below the working directory."""
    plain = posixpath.normpath(path)
    return not (plain.startswith(("/", "~", "..")) or UNKNOWN in path or _is_code(path))


def _why_value(text: str, following: Word | None) -> str | None:
    name = canonical(text.split(maxsplit=1)[0]) if text.strip() else None
    if name in _SHELLS or _shell_inside(text):
        return "the program is given a shell"
    if _program_path(text):
        return "the program is given another program"
    if name in _INTERPRETERS and following is not None and following.text.startswith("-"):
        return "the program is given an interpreter"
    if _setting(text):
        return "a setting names a command"
    if _starts_something(text):
        return "an argument looks like a command for the program to start"
    if _shared_object(text):
        return "the program may load a shared object"
    return None
