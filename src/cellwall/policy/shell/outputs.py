"""What a command substitution can become, told by the commands in it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from cellwall.policy.shell.names import Names, plain_text
from cellwall.policy.shell.parser import Node
from cellwall.policy.shell.processes import fits_everything
from cellwall.policy.shell.words import Number, Word

_is_option_of_nproc = re.compile(r"--all|--ignore=[0-9]{1,4}").fullmatch
_is_word_of_pidof = re.compile(r"-[sx]{1,2}|[\w./][\w./+-]*").fullmatch
# Options of pgrep that print more than numbers (-a, -l, -d, -c, --help, …) are not among these.
_is_word_of_pgrep = re.compile(r"-[finoxvwuUPtgGs]{1,6}|[^-].*", re.DOTALL).fullmatch
_is_word_of_lsof = re.compile(r"-[tniPcupga]{1,6}(?:[:@].*)?|[^-+].*", re.DOTALL).fullmatch
_SEARCHES = frozenset(("find", "fd", "ls", "git"))
_PLAIN_STATEMENT = frozenset(("Pos", "End", "Position", "Cmd"))


def _prints_processes(words: Sequence[str]) -> bool:
    return any(re.match(r"-[niPcupga]{0,5}t", word) for word in words) and all(
        map(_is_word_of_lsof, words)
    )


def _prints_few_processes(words: Sequence[str]) -> bool:
    """A pattern that fits every process, or `-v`, prints the numbers of all of them."""
    patterns = [word for word in words if not word.startswith("-")]
    options = "".join(word for word in words if word.startswith("-"))
    is_few = "v" not in options and not any(map(fits_everything, patterns[-1:]))
    has_pattern = bool(patterns) or any(letter in options for letter in "Ptgs")
    return is_few and has_pattern and all(map(_is_word_of_pgrep, words))


_NUMBERS: Mapping[str, tuple[Number, Callable[[Sequence[str]], bool]]] = {
    "nproc": (Number.COUNT_OR_NOTHING, lambda words: all(map(_is_option_of_nproc, words))),
    "pidof": (Number.PROCESSES, lambda words: all(map(_is_word_of_pidof, words))),
    "pgrep": (Number.PROCESSES, _prints_few_processes),
    "lsof": (Number.PROCESSES, _prints_processes),
    "jobs": (Number.PROCESSES, lambda words: list(words) == ["-p"]),
}
"""Programs that print numbers alone if their arguments pass the check."""
_COUNTS = re.compile(
    r"wc -[lcwm]|date \+(?:%[sYmdHMSjyN])+|id -[ug]|stat (?:-c|--format) %[sYXZ] [\w./][\w./-]*"
    r"|grep -[a-z]*c [\w.^$]+(?: [\w./][\w./-]*)?|tput (?:cols|lines)"
)
"""The last command of a pipe, word for word: it prints one number, whatever it gets."""


def printed(substitution: Node, names: Names) -> Number:
    """The numbers that `$(nproc)` or `$(lsof -t -i:80)` prints; NONE for any other command."""
    commands = _commands(substitution)
    if names.is_open or any(words[0] in names.functions for words in commands):
        return Number.NONE
    if commands and _COUNTS.fullmatch(" ".join(commands[-1])):
        return Number.SUM
    if len(commands) != 1:
        return Number.NONE
    program, *rest = commands[0]
    number, is_numeric = _NUMBERS.get(program, (Number.NONE, bool))
    return number if number is not Number.NONE and is_numeric(rest) else Number.NONE


def prints_directory(substitution: Node, names: Names) -> bool:
    """`$(pwd)`: the working directory, as `$PWD` is."""
    is_own = not names.is_open and "pwd" not in names.functions
    return is_own and _commands(substitution) == [["pwd"]]


def listed_below(feeding: Sequence[Sequence[Word]]) -> str:
    """The one folder in which all names lie that `find`, `fd`, `ls` or `git ls-files` prints;
    empty where nobody can tell. `.` is the working directory."""
    searches = [words for words in feeding if words and words[0].text in _SEARCHES]
    if len(searches) != 1:
        return ""
    places = [word for word in _places(searches[0]) if word.text not in ("(", "!", "\\(")]
    if not places:
        return "."
    if len(places) > 1 or not places[0].is_literal:
        return ""
    text = places[0].text
    return "" if ".." in text.split("/") else text


def _places(words: Sequence[Word]) -> list[Word]:
    """The start paths of a search: the words up to the first option or expression."""
    if words[0].text == "git":
        return []
    found = []
    for word in words[1:]:
        if word.text.startswith("-") and word.text not in ("-H", "-L", "-P"):
            break
        if not word.text.startswith("-"):
            found.append(word)
    return found if words[0].text == "find" else []


def _commands(substitution: Node) -> list[list[str]]:
    """The commands of a single pipeline whose words are all plain text; else none."""
    statements = substitution.get("Stmts", ())
    if len(statements) != 1:
        return []
    found: list[list[str]] = []
    waiting = [statements[0]]
    while waiting:
        statement = waiting.pop()
        if statement.keys() - _PLAIN_STATEMENT:  # a redirection, a `!`, a job
            return []
        command = statement.get("Cmd", {})
        if command.get("Type") == "BinaryCmd" and command.get("Op") == "|":
            waiting += [command["Y"], command["X"]]
            continue
        if command.get("Type") != "CallExpr" or command.get("Assigns"):
            return []
        words = [plain_text(word) for word in command.get("Args", ())]
        if not words or None in words:
            return []
        found.append([word or "" for word in words])
    return found
