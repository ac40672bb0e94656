"""What must hold between a text, what was read in it, and what bash did. Pure.

    (1) every command that bash starts is one that was read, with words that could become its own
    (2) every file that a redirection opens is one that was read
    (3) a text that is allowed starts no other program than the allowed ones, and opens no file that
        the rules deny

The only difference that may be is that less was known than bash knows.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from cellwall.core.verdict import Verdict
from cellwall.parsing.shell.parser import NotUnderstood
from cellwall.parsing.shell.reader import read_shell
from cellwall.parsing.shell.words import UNKNOWN, Command, Number, Word
from cellwall.policy.calls import ToolCall
from cellwall.policy.engine import Policy
from fuzz.shell.cell import FILES, HOME, WORK, Observed

# What allowed wrappers are called by counts; what they start is judged by itself.
ALLOWED = frozenset(
    ("p0", "echo", "cat", "cp", "dd", "printf", "mapfile", "time", "jobs", "coproc", "sh")
)
SECRET = frozenset((f"{WORK}/.env", f"{HOME}/.ssh/id_rsa", f"{WORK}/secrets/key"))
PROTECTED = frozenset((f"{WORK}/.env", f"{HOME}/.ssh/id_rsa", f"{HOME}/.bashrc", f"{HOME}/n.txt"))
RULES = """
[permissions]
allow = [
  "Bash(p0 *)", "Bash(echo *)", "Bash(cat *)", "Bash(cp *)", "Bash(dd *)", "Bash(printf *)",
  "Bash(mapfile *)", "Bash(time *)", "Bash(jobs *)", "Bash(sh *)", "Read(./**)", "Write(./**)",
]
deny = ["Read(.env)", "Write(.env)", "Read(secrets/**)", "Read(~/.ssh/**)", "Write(~/**)"]
"""
_OPENING = frozenset(
    ("eval", ".", "source", "trap", "command", "builtin", "exec", "alias", "env", "mapfile")
)
"""Their models open them; (3) judges what comes of it."""
_NAMING = frozenset(
    ("printf", "read", "unset", "test", "[", "getopts", "wait", "declare", "export", "readonly")
)
_find_pipe = re.compile(r"/dev/fd/[0-9]{2}").sub
_COPYING = frozenset(("cat", "cp", "dd"))


@dataclass(frozen=True, slots=True)
class Difference:
    """A text with which bash does more than was read."""

    text: str
    what: str


def read(text: str) -> tuple[Command, ...] | None:
    """None where it is refused."""
    try:
        return read_shell(text, directories=(WORK,), home=HOME)
    except NotUnderstood:
        return None


def load_policy(folder: Path) -> Policy:
    """The rules of (3)."""
    file = folder / "fuzz-policy.toml"
    file.write_text(RULES)
    return Policy.load(file)


def is_allowed(policy: Policy, text: str) -> bool:
    """By these rules."""
    call = ToolCall("Bash", {"command": text}, cwd=WORK, home=HOME)
    return policy.check(call, links=names_in_cell).verdict is Verdict.ALLOW


def names_in_cell(path: str) -> list[str]:
    """What a path leads to on the disk that bash sees; this machine has no such folders."""
    names = posixpath.normpath(path).split("/")
    found = [each for each in FILES if _fit(each.split("/"), names)]
    return [posixpath.normpath(path), *found]


def _fit(names: Sequence[str], globs: Sequence[str]) -> bool:
    return len(names) == len(globs) and all(map(fnmatchcase, names, globs))


def differences(
    text: str, commands: Sequence[Command] | None, observed: Observed, *, allowed: bool
) -> Iterator[Difference]:
    """All that does not hold."""
    if commands is not None:
        yield from _unread(text, commands, observed)
    if allowed:
        for call in observed.calls:
            if call[0] not in ALLOWED:
                yield Difference(text, f"allowed, and starts {call}")
        for path in observed.opened - observed.written:
            if path in SECRET:
                yield Difference(text, f"allowed, and reads {path}")
        for path in observed.written:
            if path in PROTECTED:
                yield Difference(text, f"allowed, and writes {path}")


def _unread(text: str, commands: Sequence[Command], observed: Observed) -> Iterator[Difference]:
    called = [each.words for each in commands if each.words]
    if any(_is_opened_later(words) for words in called):
        return
    for call in observed.calls:  # (1)
        if not any(could_become(words, call) for words in called):
            yield Difference(text, f"starts {call}, which was not read")
    copied = {each for call in observed.calls if call[0] in _COPYING for each in call[1:]}
    for path in observed.opened:  # (2)
        is_copied = any(each.endswith(posixpath.basename(path)) for each in copied)
        is_read, is_written = path in observed.read, path in observed.written
        sure = [is_read and "read", is_written and "write"]
        fitting = [each for each in ("read", "write") if _is_opened(path, each, commands)]
        is_known = all(each in fitting for each in sure if each) and bool(fitting)
        if not is_copied and not is_known:
            yield Difference(text, f"opens {path} ({sure}), which was not read")


def _is_opened_later(words: Sequence[Word]) -> bool:
    """What runs text, or evaluates the subscript of a name that it is given: (3) judges those."""
    if not words[0].is_literal or words[0].text in _OPENING:
        return True
    return words[0].text in _NAMING and any(
        "[" in word.text or UNKNOWN in word.text for word in words
    )


def _is_opened(path: str, access: str, commands: Sequence[Command]) -> bool:
    for command in commands:
        for file in command.files:
            for folder in command.directories or (WORK,):
                whole = posixpath.normpath(posixpath.join(folder, file.path.text))
                pattern = _pattern(whole, is_wild=file.path.has_glob)
                if file.access == access and (UNKNOWN in whole or re.fullmatch(pattern, path)):
                    return True
    return False


def could_become(words: Sequence[Word], call: Sequence[str]) -> bool:
    """Whether the words, as they were read, can become these."""

    @cache
    def fits(at: int, place: int) -> bool:
        if at == len(words):
            return place == len(call)
        word = words[at]
        if word.is_split:
            return any(fits(at + 1, end) for end in range(place, len(call) + 1))
        if place == len(call) or not _is_one(word, call[place]):
            return False
        if word.has_glob and fits(at, place + 1):
            return True
        return fits(at + 1, place + 1)

    return fits(0, 0)


def _is_one(word: Word, text: str) -> bool:
    if word.number is not Number.NONE:
        is_number = text.removeprefix("-").isdigit() or text == ""
        return is_number and (word.may_be_option or not text.startswith("-"))
    pattern = _pattern(_find_pipe("/dev/fd/63", word.text), is_wild=word.has_glob)
    return re.fullmatch(pattern, _find_pipe("/dev/fd/63", text), re.DOTALL) is not None


def _pattern(text: str, *, is_wild: bool) -> str:
    """A regular expression for what this can become: at least that, in brackets more."""
    if is_wild and 0 <= text.find("[") < text.rfind("]"):
        text = f"{text[: text.index('[')]}{UNKNOWN}{text[text.rindex(']') + 1 :]}"
    wild = {UNKNOWN: ".*"} | ({"*": ".*", "?": ".", "[": ".*"} if is_wild else {})
    return "".join(wild.get(sign) or re.escape(sign) for sign in text)
