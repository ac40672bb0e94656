"""Whether the names that a text hands from one command to another were found, or are data. Pure.

`grep -rl x | xargs sed -n 1p` reads files that were found. `cat $(<list)`, `xargs cat < list` and
`cat $(head -1 list)` read whatever somebody has written into a file: such a name is unknown, and
nothing that is forbidden can be told from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from cellwall.parsing.shell.command import Command
from cellwall.parsing.shell.words import UNKNOWN, Word
from cellwall.policy.commands.grammar import grammar
from cellwall.policy.commands.models import open_known

_TAKERS = frozenset(
    ("read", "mapfile", "readarray", "xargs", "gxargs", "parallel", "sem", "cpio", "pax")
)
"""Programs that make words of their input."""
_SETTERS = frozenset(("read", "mapfile", "readarray"))
_LIST_OPTIONS = frozenset(("-T", "-i", "--files-from", "--files0-from", "--pathspec-from-file"))
_LISTS = ("-a", "--arg-file", "::::", "::::+")
_NAMES_ON_STDIN = ("--files0-from=-", "--files-from=-", "--pathspec-from-file=-", "-@")
_SHAPING = (
    *("--format", "--pretty", "-printf", "-fprintf", "--printf", "--replace", "--color="),
    *("--time-style", "--label", "--line-prefix", "--path-separator", "--context-separator"),
    *("--field-match-separator", "--field-context-separator", "--group-separator", "--only-match"),
    *("--bytes", "--separator", "--output-delimiter", "--sq-quote"),
)
"""A command with one of these prints what it is told to, or parts of names."""
_CUTTING = {
    **dict.fromkeys(("head", "tail"), "c"),
    **dict.fromkeys(("grep", "egrep", "fgrep", "zgrep"), "o"),
    "rg": "or",
    "tac": "s",
    "shuf": "e",
}
"""Short options with which a filter prints something else than whole lines that it got."""
_HARMLESS_VARIABLES = ("LC_", "LANG", "TZ", "GIT_")
_WHOLE_LINES = frozenset(("\\n", "\\0", "", "\n", "$'\\n'"))
_STARTING = frozenset(("-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch"))
_SEARCHES = frozenset(("grep", "egrep", "fgrep", "rg", "zgrep"))
_NAMES_ONLY = (
    *("--files-with-matches", "--files-without-match", "--files", "--count", "--quiet"),
    *("--files-with-match", "--type-list"),
)
_GIT_NAMES = ("--name-only", "--name-status", "--stat", "--shortstat", "--numstat", "--quiet")
_PARTS_OF_NAMES = frozenset(("echo", "dirname", "basename"))
_MAX_DEPTH = 4


def are_found(commands: Sequence[Command]) -> bool:
    """Whether every name that comes from the output of a command is one that was found."""
    feeding = _feeding_words(commands)
    are_names = all(
        _prints_names(each) or _cuts_status(before, each)
        for before, each in pairwise([Command(()), *feeding])
    )
    return are_names and not _takes_data(commands)


def _cuts_status(before: Command, command: Command) -> bool:
    """`git status --short | cut -c4-`: what stands before each name is taken away."""
    texts = [word.text for word in command.words]
    is_status = _name(before.words) == "git" and Word("status") in before.words
    return is_status and texts in (["cut", "-c4-"], ["cut", "-c", "4-"])


def _feeding_words(commands: Sequence[Command]) -> list[Command]:
    """Commands whose output becomes words: in a substitution, or on the way to a taker. What only
    flows through a pipe into `wc` or the like is no name."""
    takers = [at for at, each in enumerate(commands) if _is_taker(each)]
    # The body of a function is read where it stands, and gets its input where it is called.
    is_called = any(label.endswith("()") for at in takers for label in commands[at].place)
    last = len(commands) if is_called else takers[-1] if takers else -1
    return [
        each
        for at, each in enumerate(commands)
        if each.is_feeding and (at < last or any(label.startswith("$(") for label in each.place))
    ]


def _is_taker(command: Command) -> bool:
    texts = [word.text for word in command.words]
    is_listed = any(text.startswith(_NAMES_ON_STDIN) for text in texts)
    dashes = any(first in _LIST_OPTIONS and then == "-" for first, then in pairwise(texts))
    return _name(command.words) in _TAKERS or is_listed or dashes


def _takes_data(commands: Sequence[Command]) -> bool:
    """Words are made of what stands in a file, or in the text itself."""
    if any(each.is_made_up or _sources(each) or _prints_into(each) for each in commands):
        return True
    # What `read` sets at the very end is used by nobody.
    used = commands[:-1] if commands and _name(commands[-1].words) in _SETTERS else commands
    takers = [each for each in used if _name(each.words) in _TAKERS]
    if any(_takes_from_file(each) or _takes_parts(each) for each in used):
        return True
    opens = ("", "exec", *_TAKERS)
    return bool(takers) and any(
        file.access == "read"
        for each in commands
        if _name(each.words) in opens
        for file in each.files
    )


def _takes_from_file(command: Command) -> bool:
    texts = [word.text for word in command.words]
    if any(text.startswith(_NAMES_ON_STDIN) for text in texts):
        return command.stdin != "pipe"
    if _name(command.words) not in _TAKERS:
        return False
    is_listed = any(text in _LISTS or text.startswith(("-a", "--arg-f", "-u")) for text in texts)
    return is_listed or command.stdin in {"file", "given"} or command.stdin_text is not None


def _takes_parts(command: Command) -> bool:
    """A taker makes several words of one name, or takes a part of it: `IFS=x read a b`."""
    name, texts = _name(command.words), [word.text for word in command.words[1:]]
    if name in {"xargs", "gxargs", "mapfile", "readarray"}:
        return any(each not in _WHOLE_LINES for each in _delimiters(texts))
    if name != "read":
        return False
    flags = {letter for text in texts if text.startswith("-") for letter in text[1:]}
    is_cut = not flags <= set("rsd-") or any(each for each in _delimiters(texts))
    is_split = any(each.name == "IFS" and each.value.text for each in command.assignments)
    return is_cut or is_split


def _delimiters(texts: Sequence[str]) -> Iterator[str]:
    """What parts words or lines; a word of short options may end with it."""
    for text, after in pairwise([*texts, ""]):
        if text.startswith("--"):
            option, equals, value = text.partition("=")
            if len(option) > 2 and "--delimiter".startswith(option):
                yield value if equals else after
        elif text.startswith("-") and "d" in text:
            value = text.partition("d")[2]
            yield value or after


def _sources(command: Command) -> bool:
    """A file sets variables, whose values are then words."""
    is_source = _name(command.words) in {"source", "."}
    return is_source and not command.words[-1].text.endswith("/activate")


def _prints_into(command: Command) -> bool:
    """`printf -v NAME TEXT`: a variable gets a text of the command."""
    return _name(command.words) == "printf" and any(
        word.text.startswith(("-v", UNKNOWN)) for word in command.words[1:2]
    )


def _name(words: Sequence[Word]) -> str:
    return words[0].text.rpartition("/")[2] if words else ""


def _prints_names(command: Command) -> bool:
    """What it prints are names that are there, or some of the lines that it was given."""
    if not command.words:
        return not any(file.access == "read" for file in command.files)  # `$(<list)`
    name = _name(command.words)
    if name in grammar().filters and command.stdin in {"file", "text"}:
        return False
    if not all(each.name.startswith(_HARMLESS_VARIABLES) for each in command.assignments):
        return False  # `TIME_STYLE=+TEXT ls -l` prints TEXT
    return is_lister(command.words)


def is_lister(words: Sequence[Word], depth: int = 0) -> bool:
    """Whether a command prints names that it has found, or hands lines on."""
    if depth > _MAX_DEPTH or any(word.text.startswith(_SHAPING) for word in words) or _cuts(words):
        return False
    name, two = _name(words), " ".join([_name(words), *(word.text for word in words[1:2])])
    texts = [word.text for word in words[1:]]
    if name in _SEARCHES:
        return _prints_no_content(texts) or not _reads_files(words)
    if name == "command" and not {"-v", "-V"} & set(texts[:1]):
        return is_lister(words[1:], depth + 1)
    if name == "xargs":
        inner = [each.words for each in open_known(tuple(words)).inner]
        # Without a word of its own it can print no more than parts of what was found.
        plain = [each for each in inner if len(each) == 1 and _name(each) in _PARTS_OF_NAMES]
        return all(each in plain or is_lister(each, depth + 1) for each in inner)
    if two == "git diff":
        return any(text in _GIT_NAMES for text in texts)
    if name in grammar().filters and name not in grammar().listers:
        return not _reads_files(words)
    if not _STARTING.isdisjoint(texts):
        inner = [each.words for each in open_known(tuple(words)).inner]
        return bool(inner) and all(_is_quiet(each) or is_lister(each, depth + 1) for each in inner)
    return bool({name, two} & grammar().listers)


def _cuts(words: Sequence[Word]) -> bool:
    """A filter that prints parts of the lines it gets."""
    clusters = [word.text for word in words[1:] if re.match("-[^-]", word.text)]
    return any(letter in each for letter in _CUTTING.get(_name(words), "") for each in clusters)


def _is_quiet(words: Sequence[Word]) -> bool:
    return _name(words) in {"test", "[", "true", "false"}


def _prints_no_content(texts: Sequence[str]) -> bool:
    clusters = "".join(text for text in texts if text.startswith("-") and text[:2] != "--")
    return bool(set("lLcq") & set(clusters)) or any(text in _NAMES_ONLY for text in texts)


def _reads_files(words: Sequence[Word]) -> bool:
    """It has a file to read, so that it prints what stands in it."""
    reads = [file for file in open_known(tuple(words)).files if file.access == "read"]
    texts = {word.text for word in words}
    is_deep = any(
        text.startswith("-") and text[:2] != "--" and set("rR") & set(text) for text in texts
    )
    # What `xargs` adds is not known yet, and is a file.
    return bool(reads) or is_deep or any(UNKNOWN in word.text for word in words[1:])
