"""Whether the names that a text hands from one command to another were found, or are data. Pure.

`grep -rl x | xargs sed -n 1p` reads files that were found. `cat $(<list)`, `xargs cat < list` and
`cat $(head -1 list)` read whatever somebody has written into a file: such a name is unknown, and
nothing that is forbidden can be told from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from cellwall.policy.shell.command import Command
from cellwall.policy.shell.grammar import grammar
from cellwall.policy.shell.models import open_command
from cellwall.policy.shell.words import UNKNOWN, Word

_TAKERS = frozenset(
    ("read", "mapfile", "readarray", "xargs", "gxargs", "parallel", "sem", "cpio", "pax")
)
"""Programs that make words of their input."""
_LISTS = ("-a", "--arg-file", "::::", "::::+")
_NAMES_ON_STDIN = ("--files0-from=-", "--files-from=-", "--pathspec-from-file=-", "-@")
_SHAPING = ("--format", "--pretty", "-printf", "-fprintf", "--printf", "--replace", "--color=")
"""A command with one of these prints what it is told to."""
_STARTING = frozenset(("-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch"))
_SEARCHES = frozenset(("grep", "egrep", "fgrep", "rg", "zgrep"))
_NAMES_ONLY = (
    *("--files-with-matches", "--files-without-match", "--files", "--count", "--quiet"),
    *("--files-with-match", "--type-list"),
)
_GIT_NAMES = ("--name-only", "--name-status", "--stat", "--shortstat", "--numstat", "--quiet")
_MAX_DEPTH = 4


def are_found(commands: Sequence[Command]) -> bool:
    """Whether every name that comes from the output of a command is one that was found."""
    feeding = [each for each in commands if each.is_feeding]
    return all(map(_prints_names, feeding)) and not _takes_data(commands)


def _takes_data(commands: Sequence[Command]) -> bool:
    """Words are made of what stands in a file, or in the text itself."""
    if any(each.is_made_up or _sources(each) for each in commands):
        return True
    takers = [each for each in commands if _name(each.words) in _TAKERS]
    if any(_takes_from_file(each) for each in (*takers, *commands)):
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


def _sources(command: Command) -> bool:
    """A file sets variables, whose values are then words."""
    is_source = _name(command.words) in {"source", "."}
    return is_source and not command.words[-1].text.endswith("/activate")


def _name(words: Sequence[Word]) -> str:
    return words[0].text.rpartition("/")[2] if words else ""


def _prints_names(command: Command) -> bool:
    """What it prints are names that are there, or some of the lines that it was given."""
    if not command.words:
        return not any(file.access == "read" for file in command.files)  # `$(<list)`
    name = _name(command.words)
    if name in grammar().filters and command.stdin in {"file", "text"}:
        return False
    return is_lister(command.words)


def is_lister(words: Sequence[Word], depth: int = 0) -> bool:
    """Whether a command prints names that it has found, or hands lines on."""
    if depth > _MAX_DEPTH or any(word.text.startswith(_SHAPING) for word in words):
        return False
    name, two = _name(words), " ".join([_name(words), *(word.text for word in words[1:2])])
    texts = [word.text for word in words[1:]]
    if name in _SEARCHES:
        return _prints_no_content(texts) or not _reads_files(words)
    if name == "command" and not {"-v", "-V"} & set(texts[:1]):
        return is_lister(words[1:], depth + 1)
    if name == "xargs":
        inner = [each.words for each in open_command(words).inner]
        return all(_name(each) == "echo" or is_lister(each, depth + 1) for each in inner)
    if two == "git diff":
        return any(text in _GIT_NAMES for text in texts)
    if name in grammar().filters and name not in grammar().listers:
        return not _reads_files(words)
    is_starting = not _STARTING.isdisjoint(texts)
    return bool({name, two} & grammar().listers) and not is_starting


def _prints_no_content(texts: Sequence[str]) -> bool:
    clusters = "".join(text for text in texts if text.startswith("-") and text[:2] != "--")
    return bool(set("lLcq") & set(clusters)) or any(text in _NAMES_ONLY for text in texts)


def _reads_files(words: Sequence[Word]) -> bool:
    """It has a file to read, so that it prints what stands in it."""
    reads = [file for file in open_command(words).files if file.access == "read"]
    texts = {word.text for word in words}
    is_deep = any(
        text.startswith("-") and text[:2] != "--" and set("rR") & set(text) for text in texts
    )
    # What `xargs` adds is not known yet, and is a file.
    return bool(reads) or is_deep or any(UNKNOWN in word.text for word in words[1:])
