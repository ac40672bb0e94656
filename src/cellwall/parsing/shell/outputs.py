"""The output of substituted commands: numbers, a directory, or known text. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from cellwall.parsing.shell.names import ShellNames, plain_text
from cellwall.parsing.shell.parser import Node
from cellwall.parsing.shell.words import UNKNOWN, Command, Number, Word

_is_option_of_nproc = re.compile(r"--all|--ignore=[0-9]{1,4}").fullmatch
_is_word_of_pidof = re.compile(r"-[sx]{1,2}|[\w./][\w./+-]*").fullmatch
# Options of pgrep that print more than numbers (-a, -l, -d, -c, --help, …) are not among these.
_is_word_of_pgrep = re.compile(r"-[finoxvwuUPtgGs]{1,6}|[^-].*", re.DOTALL).fullmatch
_is_word_of_lsof = re.compile(r"-[tniPcupga]{1,6}(?:[:@].*)?|[^-+].*", re.DOTALL).fullmatch
_is_revision = re.compile(r"[A-Za-z0-9_@][\w./@{}~^-]*").fullmatch
_is_option_of_rev_parse = re.compile(r"--verify|-q|--quiet|--short(?:=[0-9]{1,2})?").fullmatch
_is_amount = re.compile(r"-[0-9]{1,4}|-n[0-9]{1,4}|--max-count=[0-9]{1,4}|-s").fullmatch
_is_time = re.compile(r"\+(?:%[CdHIjmMNsSuUVwWyY])+").fullmatch
_HASHES = frozenset(
    ("--format=%H", "--format=%h", "--pretty=%H", "--pretty=%h", "--pretty=format:%h")
)
TEMPORARY = f"/tmp/tmp.{UNKNOWN}"
"""The output of `mktemp`: a new path with a random name."""
_COUNTING = frozenset(("-l", "-c", "-w", "-m"))
_SEARCHES = frozenset(("find", "fd", "ls", "git"))
_LETTERS = re.compile(r"\w{2,}")
_VAGUE_PART = re.compile(r"\[[^\]]*\]|\\\\[A-Za-z]|.[*?]|.\{[^}]*\}")
_PARENTHESES = re.compile(r"[()]")
_PLAIN_STATEMENT = frozenset(("Pos", "End", "Position", "Cmd"))


def _prints_processes(words: Sequence[str]) -> bool:
    return any(re.match(r"-[niPcupga]{0,5}t", word) for word in words) and all(
        map(_is_word_of_lsof, words)
    )


def _prints_few_processes(words: Sequence[str]) -> bool:
    """A pattern that matches every process, or `-v`, prints all process ids."""
    patterns = [word for word in words if not word.startswith("-")]
    options = "".join(word for word in words if word.startswith("-"))
    is_few = "v" not in options and not any(map(fits_everything, patterns[-1:]))
    has_pattern = bool(patterns) or any(letter in options for letter in "Ptgs")
    return is_few and has_pattern and all(map(_is_word_of_pgrep, words))


def _prints_time(words: Sequence[str]) -> bool:
    """`date` with a format of numbers, and no option that changes the format."""
    is_plain = all(_is_time(word) or word in ("-u", "--utc") for word in words)
    return is_plain and any(map(_is_time, words))


def _is_count_of_git(words: Sequence[str]) -> bool:
    return words[:2] == ["rev-list", "--count"] and _names_objects(words[2:])


def _names_objects(words: Sequence[str]) -> bool:
    return bool(words) and all(map(_is_revision, words))


def _prints_objects(words: Sequence[str]) -> bool:
    """`git rev-parse` prints unknown words unchanged; none of these words is an option."""
    sub, rest = (words[0], list(words[1:])) if words else ("", [])
    if sub == "rev-parse":
        rest = [word for word in rest if not _is_option_of_rev_parse(word)]
        return _names_objects(rest)
    if sub in ("log", "show", "rev-list"):
        wanted = _HASHES if sub != "rev-list" else frozenset()
        rest = [word for word in rest if word not in wanted and not _is_amount(word)]
        is_hashes = sub == "rev-list" or not wanted.isdisjoint(words)
        return is_hashes and all(map(_is_revision, rest))
    return sub == "merge-base" and _names_objects(rest)


_NUMBERS: Mapping[str, tuple[Number, Callable[[Sequence[str]], bool]]] = {
    "nproc": (Number.COUNT_OR_NOTHING, lambda words: all(map(_is_option_of_nproc, words))),
    "pidof": (Number.PROCESSES, lambda words: all(map(_is_word_of_pidof, words))),
    "pgrep": (Number.PROCESSES, _prints_few_processes),
    "lsof": (Number.PROCESSES, _prints_processes),
    "jobs": (Number.PROCESSES, lambda words: list(words) == ["-p"]),
    "date": (Number.COUNT_OR_NOTHING, _prints_time),
    "id": (Number.COUNT_OR_NOTHING, lambda words: list(words) in (["-u"], ["-g"])),
}
"""Programs that print numbers alone if their arguments pass the check."""
_COUNTS = re.compile(
    r"wc -[lcwm]|date \+(?:%[sYmdHMSjyN])+|id -[ug]|stat (?:-c|--format) %[sYXZ] [\w./][\w./-]*"
    r"|grep -[a-z]*c [\w.^$]+(?: [\w./][\w./-]*)?|tput (?:cols|lines)"
)
"""The last command of a pipe, word for word: prints one number for any input."""


def number_printed(substitution: Node, names: ShellNames) -> Number:
    """The numbers that `$(nproc)` or `$(lsof -t -i:80)` prints; NONE for any other command."""
    if names.is_open or names.functions:
        return Number.NONE
    if _ends_in_count(substitution):
        return Number.COUNT_OR_NOTHING
    commands = _commands(substitution)
    number = number_of(commands[0]) if len(commands) == 1 else Number.NONE
    is_sum = bool(commands) and _COUNTS.fullmatch(" ".join(commands[-1])) is not None
    return Number.SUM if number is Number.NONE and is_sum else number


def number_of(words: Sequence[str]) -> Number:
    """The kind of number that a command prints; no function of the text replaces the command."""
    program, *rest = words
    if program == "git":
        if _is_count_of_git(rest):
            return Number.COUNT_OR_NOTHING
        return Number.OBJECT if _prints_objects(rest) else Number.NONE
    number, is_numeric = _NUMBERS.get(program, (Number.NONE, bool))
    return number if number is not Number.NONE and is_numeric(rest) else Number.NONE


def _ends_in_count(substitution: Node) -> bool:
    """`… | wc -l`, `wc -c < FILE`: one number for any input."""
    statements = substitution.get("Stmts", ())
    if len(statements) != 1:
        return False
    last = statements[0]
    while last.get("Cmd", {}).get("Type") == "BinaryCmd" and last["Cmd"].get("Op") == "|":
        if last.keys() - _PLAIN_STATEMENT:
            return False
        last = last["Cmd"]["Y"]
    command = last.get("Cmd", {})
    words = [plain_text(word) for word in command.get("Args", ())]
    is_plain = command.get("Type") == "CallExpr" and not command.get("Assigns")
    has_input = all(each.get("Op") == "<" for each in last.get("Redirs", ()))
    is_alone = not last.keys() - _PLAIN_STATEMENT - {"Redirs"}
    counts = words[:1] == ["wc"] and len(words) == 2 and words[1] in _COUNTING
    return is_plain and has_input and is_alone and counts


def prints_temporary(substitution: Node, names: ShellNames) -> bool:
    """`$(mktemp -d)`: the path of something new, in the folder for temporary files."""
    is_own = not names.is_open and not names.functions and not names.counts.get("TMPDIR")
    commands = _commands(substitution)
    is_one = len(commands) == 1 and commands[0][0] == "mktemp"
    return is_own and is_one and all(word in ("-d", "-q", "-dq") for word in commands[0][1:])


def prints_directory(substitution: Node, names: ShellNames) -> bool:
    """`$(pwd)`: the working directory, as `$PWD` is."""
    is_own = not names.is_open and "pwd" not in names.functions
    return is_own and _commands(substitution) == [["pwd"]]


def listed_below(feeding: Sequence[Sequence[Word]]) -> str:
    """The one folder in which all names lie that `find`, `fd`, `ls` or `git ls-files` prints;
    empty where the folder is unknown. `.` is the working directory."""
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


def fits_everything(pattern: str) -> bool:
    """Whether an alternative of an extended regular expression requires no two letters of its own,
    and so may match every name."""
    if UNKNOWN in pattern:
        return False  # the rules for unknown words decide
    plain = _PARENTHESES.sub("|" if "|" in pattern else "", _VAGUE_PART.sub(" ", pattern))
    parts = plain.split("|")
    if "|" in pattern:
        parts = [part for part in parts if part] or [""]
    return not all(_LETTERS.search(part) for part in parts)


# The text that a command prints, as far as the command spells it.

_ESCAPES = re.compile(r"\\(?![nt])")
_PLAIN_FORMATS = {"%s": "", "%s\\n": "\n"}


def printed_text(command: Command) -> str | None:
    """The text that a command prints, if the command spells it: `echo TEXT`, `cat <<EOF`. Text
    with a format or an escape is unknown."""
    name = command.words[0].text if command.words else ""
    operands = [word.text for word in command.words[1:]]
    is_handed_on = name == "tee" or operands in ([], ["-"])  # `cat FILE` prints the file
    if name in {"cat", "tee"} and command.stdin_text is not None and is_handed_on:
        text = command.stdin_text.text
        text = text if text.endswith("\n") else f"{text}\n"
    elif name in {"echo", "printf"} and all(word.is_literal for word in command.words):
        texts = [word.text for word in command.words[1:]]
        found = _echo_text(texts) if name == "echo" else _printf_text(texts)
        if found is None:
            return None
        text = found
    else:
        return None
    return None if UNKNOWN in text else text


def _echo_text(texts: Sequence[str]) -> str | None:
    options = 0
    while options < len(texts) and re.fullmatch(r"-[neE]+", texts[options]):
        options += 1
    text = " ".join(texts[options:])
    # dash expands escapes without `-e`.
    if _ESCAPES.search(text):
        return None
    end = "" if any("n" in each for each in texts[:options]) else "\n"
    return text.replace("\\n", "\n").replace("\\t", "\t") + end


def _printf_text(texts: Sequence[str]) -> str | None:
    if len(texts) == 2 and texts[0] in _PLAIN_FORMATS:
        return texts[1] + _PLAIN_FORMATS[texts[0]]
    if len(texts) != 1 or "%" in texts[0] or _ESCAPES.search(texts[0]):
        return None
    return texts[0].replace("\\n", "\n").replace("\\t", "\t")


def piped_text(command: Command) -> str | None:
    """The same for text that an interpreter runs: a backslash has two readings, and one of them
    would be code that was not judged."""
    is_echo = bool(command.words) and command.words[0].text == "echo"
    if is_echo and any("\\" in word.text for word in command.words):
        return None
    return printed_text(command)
