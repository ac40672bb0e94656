"""The general rule for programs that have no model. Pure.

A rule that merely allows such a program (`Bash(prog *)`) does not cover an argument that may make
the program start another one, load code, or take options from a file:

1. a shell, or a program by its full path: a word, the value of an option, or inside a text;
2. an interpreter with an option or a file of its own (`prog python3 -c …`, `--with 'node x.js'`),
   and any known program after `--`;
3. an option whose name suggests commands: `--exec`, `--eval`, `--pager`, `--editor`, `--rsh`,
   `--pre-hook`, `--checkpoint-action`, `--plugin`, `--proxycommand`, `--on-exit 'a b'`; `--config`
   with a file from elsewhere;
4. a short option for code (`-c`, `-e`, `-x` …) whose value has blanks or signs of code in it;
5. a sub-command such as `shell`, `exec`, `eval`, `repl`;
6. `NAME=VALUE` whose name ends in COMMAND, PAGER, EDITOR and the like: `-o ProxyCommand=…`;
7. an operand that is a command to many programs: `!cmd`, `|cmd`, `cmd|`, `@file`, `%(…)`, `$(…)`;
8. `/dev/tcp/…`, and a shared object (`x.so`) that the program may load;
9. a text on standard input, which may be a script (see `CommandEffects.is_typed`).

Its words count as files that it may read, and the values of `-o`, `-w`, `--output`, `--log-file`
and the like as files that it writes.

The third item also holds for options that a model does not list.

Each result is a danger: a rule must spell the argument to allow it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Final

from cellwall.parsing.shell.words import UNKNOWN, File, Word, base_name
from cellwall.policy.commands.catalog import canonical, grammar
from cellwall.policy.commands.effects import CommandEffects, Danger

_SHELLS: Final = frozenset(("sh", "fish", "csh", "pwsh", "nu"))
_INTERPRETERS: Final = frozenset(
    [
        *("python", "perl", "ruby", "node", "php", "lua", "tclsh", "Rscript", "julia", "deno"),
        *("bun", "awk", "busybox", "env", "xargs", "sudo"),
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
_is_compound = re.compile(
    r"(?:pre|post|on|after|before|run|ex|init|start|startup|user|custom|proxy|remote|local|filter)?"
    r"(?:exec|eval|cmd|command|script|shell|hook|program|pager|editor|handler|callback|launcher)"
    r"(?:file|cmd|code|script|str|string|expr|line|path)?s?"
).fullmatch
"""The same without a dash: `--proxycommand`, `--execfile`."""
_SETTINGS: Final = frozenset(
    (
        *("config", "conf", "cfg", "rcfile", "configfile", "vars", "settings", "options"),
        *("optfile", "rc", "init", "initfile", "require", "import", "load", "module", "modules"),
        *("library", "macro", "macros"),
    )
)
"""Settings can name commands, and modules are code; those of the project are read anyway."""
_TOOLS: Final = frozenset(
    (
        *("bin", "binary", "tool", "helper", "agent", "wrapper", "client", "path", "ssh", "runner"),
        *("pre", "preprocessor", "postprocessor", "process", "with", "using", "via", "compiler"),
        *("linker", "formatter", "driver", "engine", "player", "terminal", "mailer", "sendmail"),
        *("askpass", "converter", "decoder", "encoder", "then"),
    )
)
_CODE_OPTIONS: Final = frozenset(["-c", "-e", "-E", "-x", "-X", "-r", "-l", "-P", "-S", "-I"])
_STARTING: Final = frozenset(("shell", "exec", "execute", "eval", "repl", "console", "spawn"))
_OUTPUT_OPTIONS: Final = frozenset(("-o", "-O", "-w"))
_OUTPUT: Final = frozenset(
    ["output", "out", "outfile", "outdir", "dump", "save", "write", "export", "destination", "dest"]
)
_KEEPING: Final = frozenset(
    (
        *("log", "logs", "logfile", "logdir", "report", "trace", "tracefile", "pid", "pidfile"),
        *("cache", "cachedir", "backup", "to", "target", "record", "store", "history", "install"),
        *("savefile", "dumpfile", "outputfile", "outputdir", "state", "journal", "debugfile"),
    )
)
"""An output only if the value is a path: `--log debug` is none."""
_CARRIED: Final = frozenset(("curl", "wget", "nc", "nohup", "timeout", "setsid", "nice"))
"""Programs that are arguments of wrappers, and no sub-commands of others."""
_MANY: Final = 256
"""The limit of words; a program with more words is refused."""

_is_code = re.compile(r"[\s;|&`$(){}<>!]").search
_shell_inside = re.compile(
    r"""(?:(?:^|[;&|(!%`'"={@:,])\s*(?:/[\w.+-]+)*/?|/)(?:ba|da|z|k|a|tc|c|fi|mk|ya)?sh(?![\w.=/-])"""
).search
_program_path = re.compile(r"(?:/usr(?:/local)?|/opt/[\w.-]+|/run/[\w./-]+)?/s?bin/[\w.+-]+").match
_setting = re.compile(
    r"(?i)(?:[-/]{1,2}\w{1,12}:)?[\w.-]*"
    r"(?:command|cmd|pager|editor|shell|browser|exec|program|rsh|hook|script|event)\s*="
).match
_starts_something = re.compile(
    r"""^\s*:?\s*[!|]\s*\S|\|\s*$|%\(|\$\(|`|/dev/(?:tcp|udp)/|\b(?:system|popen|exec|spawn)\w*\s*[("']"""
).search
_typed_escape = re.compile(r"""(?im)^\s*[\W_]{0,3}(?:!|shell\b|system\b|exec\b|sh\b)""").search
_shared_object = re.compile(r"[^\s]*\.so(?:\.[0-9]+)*\Z").match


def analyse_unmodelled(words: Sequence[Word]) -> CommandEffects:
    """The possible effects of the words of a program without a model."""
    name = base_name(words)
    if name in grammar().unread or name in grammar().neutral:
        return CommandEffects()
    found = dict.fromkeys(_dangers(words[1:]))
    files = tuple(_output_files(words[1:]))
    return CommandEffects(dangers=tuple(found), files=files, is_unmodelled=True, is_typed=True)


def _output_files(words: Sequence[Word]) -> Iterator[File]:
    """Values of options that conventionally name an output: `-o FILE`, `--output=FILE`."""
    for place, word in enumerate(words):
        name, equals, _ = word.text.partition("=")
        value = word.after(f"{name}=") if equals else None
        if value is None and place + 1 < len(words) and _is_plain(words[place + 1]):
            value = words[place + 1]
        parts = _parts(name) if name.startswith("--") else set()
        is_output = name in _OUTPUT_OPTIONS or bool(parts & _OUTPUT)
        if value is not None and (is_output or (parts & _KEEPING and _is_path(value.text))):
            yield File("write", value, "an option for output names it")
        elif word.text[:2] in _OUTPUT_OPTIONS and _is_path(word.text[2:]):
            yield File("write", word.after(word.text[:2]), "an option for output names it")


def _parts(name: str) -> set[str]:
    return set(re.split(r"[-_.]+", name.lower().lstrip("-")))


def _is_path(text: str) -> bool:
    return "/" in text or text.startswith("~")


def is_typed_command(text: str) -> bool:
    """Whether a text on standard input has a line that starts a command in many programs."""
    return any(check(text) is not None for check in (_typed_escape, _shell_inside))


def _dangers(words: Sequence[Word]) -> Iterator[Danger]:
    if len(words) > _MANY:
        yield Danger("", "a program without a model has more arguments than can be judged")
        return
    for place, word in enumerate(words):
        following = words[place + 1] if place + 1 < len(words) else None
        why = _why(word, following, is_first=not any(_is_plain(each) for each in words[:place]))
        if why is None and place and words[place - 1].text == "--" and _is_known(word, following):
            why = "an argument is another program"
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


def why_unlisted(word: Word, following: Word | None) -> str | None:
    """Why an unlisted option may start a command, by its name."""
    name, equals, value = word.text.partition("=")
    has_value = bool(value) if equals else following is not None and _is_plain(following)
    if not (name.startswith("--") and has_value and _is_telling(_parts(name))):
        return None
    return f"{name} may name a command, or code, and is not a known option"


def why_given(text: str) -> str | None:
    """Why a text for a program, such as the value of a variable, may start a command: a shell, an
    interpreter with arguments, or options that name commands."""
    words = [Word(each) for each in text.split(maxsplit=_MANY)]
    if text.startswith("-"):
        options = (each for each in _dangers(words) if each.option.startswith("-"))
        return next((each.why for each in options), None)
    name = canonical(words[0].text) if words else None
    is_shell = name in _SHELLS or _shell_inside(text) is not None
    is_started = name in _INTERPRETERS and len(words) > 1 and _is_argument(text, None)
    return "it is a command" if is_shell or is_started else None


def _is_known(word: Word, following: Word | None) -> bool:
    return following is not None and canonical(word.text) is not None


def _is_telling(parts: set[str]) -> bool:
    return bool(parts & _TELLING) or any(map(_is_compound, parts))


def _why_option(text: str, following: Word | None) -> str | None:
    name, equals, value = text.partition("=")
    has_value = bool(equals) or (following is not None and _is_plain(following))
    argument = value if equals else following.text if following is not None else ""
    if name.startswith("--") or (len(name) > 3 and not equals):
        parts = _parts(name)
        why = _why_named(name, argument) if has_value else None
        if why is not None:
            return why
        if not has_value and parts & {"shell", "repl"}:
            return f"{name} may start a shell"
    if not name.startswith("--") and (_setting(text[1:]) or _setting(text[2:])):
        return "a setting names a command"
    short = text[:2]
    if short in _CODE_OPTIONS and not text.startswith("--"):
        glued = text[2:]
        if _is_code(glued or argument):
            return f"{short} may be argument code, or a command"
    if equals or (len(text) > 2 and not text.startswith("--")):
        return _why_value(value if equals else text[2:], None)
    return None


def _why_named(name: str, argument: str) -> str | None:
    """By the name of an option and its value."""
    parts = _parts(name)
    if _is_telling(parts):
        return f"{name} may name a command, or code"
    if re.match(r"--?on[-_.]", name) and (_is_path(argument) or _is_code(argument)):
        return f"{name} may name a command that an event starts"
    if parts & _CODE_NAMES and _is_code(argument):
        return f"{name} may be argument code"
    if parts & _SETTINGS and not _is_near(argument):
        return f"{name} names settings or code from elsewhere, which may start commands"
    if parts & _TOOLS and "/" in argument:
        return f"{name} may name a program to start"
    return None


def _is_near(path: str) -> bool:
    """A plain path below the working directory."""
    plain = posixpath.normpath(path)
    return not (plain.startswith(("/", "~", "..")) or UNKNOWN in path or _is_code(path))


def _why_value(text: str, following: Word | None) -> str | None:
    name = canonical(text.split(maxsplit=1)[0]) if text.strip() else None
    if name in _SHELLS or _shell_inside(text):
        return "an argument is a shell"
    if _program_path(text):
        return "an argument is another program"
    if name in _INTERPRETERS | _CARRIED and _is_argument(text, following):
        return "an argument is an interpreter, or another program"
    if _setting(text):
        return "a setting names a command"
    if _starts_something(text):
        return "an argument looks like a command for the program to start"
    if _shared_object(text):
        return "the program may load a shared object"
    return None


def _is_argument(text: str, following: Word | None) -> bool:
    """Whether an option, a file or an address follows the name of a program."""
    behind = text.split(maxsplit=2)[1:2] or ([following.text] if following is not None else [])
    return any(each.startswith("-") or _is_path(each) or "." in each for each in behind)
