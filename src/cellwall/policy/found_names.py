"""Whether names that one command passes to another come from a search, or are data. Pure.

`grep -rl x | xargs sed -n 1p` reads files that a search found. `cat $(<list)`, `xargs cat < list`
and `cat $(head -1 list)` read any name that a file holds: such a name is unknown, and may be that
of a denied file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from cellwall.parsing.shell.words import UNKNOWN, Command, Word, base_name
from cellwall.policy.command_facts import remembered
from cellwall.policy.commands.catalog import grammar
from cellwall.policy.commands.models import effects_of
from cellwall.policy.paths import normalise

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
"""A command with one of these options prints chosen text, or parts of names."""
_CUTTING = {
    **dict.fromkeys(("head", "tail"), "c"),
    **dict.fromkeys(("grep", "egrep", "fgrep", "zgrep"), "o"),
    "rg": "or",
    "tac": "s",
    "shuf": "e",
}
"""Short options with which a filter prints other text than whole input lines."""
_HARMLESS_VARIABLES = ("LC_", "LANG", "TZ", "GIT_")
_WHOLE_LINES = frozenset(("\\n", "\\0", "", "\n", "$'\\n'"))
_ACTIONS = frozenset(("-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch"))
_GREPS = frozenset(("grep", "egrep", "fgrep", "rg", "zgrep"))
_NAMES_ONLY = (
    *("--files-with-matches", "--files-without-match", "--files", "--count", "--quiet"),
    *("--files-with-match", "--type-list"),
)
_GIT_NAMES = ("--name-only", "--name-status", "--stat", "--shortstat", "--numstat", "--quiet")
_PARTS_OF_NAMES = frozenset(("echo", "dirname", "basename"))
_MAX_DEPTH = 4


def are_found(commands: Sequence[Command]) -> bool:
    """Whether every name in the output of a command comes from a search."""
    feeding = _feeding_words(commands)
    are_names = all(
        _prints_names(each) or _cuts_status(before, each)
        for before, each in pairwise([Command(()), *feeding])
    )
    return are_names and not _takes_data(commands)


def _cuts_status(before: Command, command: Command) -> bool:
    """`git status --short | cut -c4-`: removes the status before each name."""
    texts = [word.text for word in command.words]
    is_status = before.program == "git" and Word("status") in before.words
    return is_status and texts in (["cut", "-c4-"], ["cut", "-c", "4-"])


def _feeding_words(commands: Sequence[Command]) -> list[Command]:
    """Commands whose output becomes words: in a substitution, or in a pipe to a taker. Output that
    a pipe carries into `wc` or the like is no name."""
    takers = [at for at, each in enumerate(commands) if _is_taker(each)]
    # The body of a function is read where it stands, and gets its input where it is called.
    is_called = any(label.endswith("()") for at in takers for label in commands[at].place)
    last = len(commands) if is_called else takers[-1] if takers else -1
    return [
        each
        for at, each in enumerate(commands)
        if each.is_feeding and (at < last or any(label.startswith("$(") for label in each.place))
    ]


@remembered
def _is_taker(command: Command) -> bool:
    texts = [word.text for word in command.words]
    is_listed = any(text.startswith(_NAMES_ON_STDIN) for text in texts)
    dashes = any(first in _LIST_OPTIONS and then == "-" for first, then in pairwise(texts))
    return command.program in _TAKERS or is_listed or dashes


def _takes_data(commands: Sequence[Command]) -> bool:
    """Whether words come from the content of a file, or from the text itself."""
    if any(each.is_made_up or _sources(each) or _prints_into(each) for each in commands):
        return True
    # No command uses a variable that `read` sets at the very end.
    used = commands[:-1] if commands and commands[-1].program in _SETTERS else commands
    takers = [each for each in used if each.program in _TAKERS]
    if any(_takes_from_file(each) or _takes_parts(each) for each in used):
        return True
    opens = ("", "exec", *_TAKERS)
    return bool(takers) and any(
        file.access == "read" for each in commands if each.program in opens for file in each.files
    )


def _takes_from_file(command: Command) -> bool:
    texts = [word.text for word in command.words]
    if any(text.startswith(_NAMES_ON_STDIN) for text in texts):
        return command.stdin != "pipe"
    if command.program not in _TAKERS:
        return False
    is_listed = any(text in _LISTS or text.startswith(("-a", "--arg-f", "-u")) for text in texts)
    return is_listed or command.stdin in {"file", "given"} or command.stdin_text is not None


def _takes_parts(command: Command) -> bool:
    """Whether a taker splits a name, or takes a part of it: `IFS=x read a b`."""
    name, texts = command.program, command.arguments
    if name in {"xargs", "gxargs", "mapfile", "readarray"}:
        return any(each not in _WHOLE_LINES for each in _delimiters(texts))
    if name != "read":
        return False
    flags = {letter for text in texts if text.startswith("-") for letter in text[1:]}
    is_cut = not flags <= set("rsd-") or any(each for each in _delimiters(texts))
    is_split = any(each.name == "IFS" and each.value.text for each in command.assignments)
    return is_cut or is_split


def _delimiters(texts: Sequence[str]) -> Iterator[str]:
    """The delimiters of words or lines; a word of short options may end with one."""
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
    is_source = command.program in {"source", "."}
    return is_source and not command.words[-1].text.endswith("/activate")


def _prints_into(command: Command) -> bool:
    """`printf -v NAME TEXT`: a variable gets a text of the command."""
    return command.program == "printf" and any(
        word.text.startswith(("-v", UNKNOWN)) for word in command.words[1:2]
    )


def _prints_names(command: Command) -> bool:
    """Whether the output is existing names, or some of the input lines."""
    if not command.words:
        return not any(file.access == "read" for file in command.files)  # `$(<list)`
    name = command.program
    if name in grammar().filters and command.stdin in {"file", "text"}:
        return False
    if not all(each.name.startswith(_HARMLESS_VARIABLES) for each in command.assignments):
        return False  # `TIME_STYLE=+TEXT ls -l` prints TEXT
    return is_lister(command.words)


def is_lister(words: Sequence[Word], depth: int = 0) -> bool:
    """Whether a command prints names that it found, or passes input lines on."""
    if depth > _MAX_DEPTH or any(word.text.startswith(_SHAPING) for word in words) or _cuts(words):
        return False
    name, two = base_name(words), " ".join([base_name(words), *(word.text for word in words[1:2])])
    texts = [word.text for word in words[1:]]
    if name in _GREPS:
        return _prints_no_content(texts) or not _reads_files(words)
    if name == "command" and not {"-v", "-V"} & set(texts[:1]):
        return is_lister(words[1:], depth + 1)
    if name == "xargs":
        inner = [each.words for each in effects_of(tuple(words)).inner]
        # Without a word of its own a command prints no more than parts of found names.
        plain = [each for each in inner if len(each) == 1 and base_name(each) in _PARTS_OF_NAMES]
        return all(each in plain or is_lister(each, depth + 1) for each in inner)
    if two == "git diff":
        return any(text in _GIT_NAMES for text in texts)
    if name in grammar().filters and name not in grammar().listers:
        return not _reads_files(words)
    if not _ACTIONS.isdisjoint(texts):
        inner = [each.words for each in effects_of(tuple(words)).inner]
        return bool(inner) and all(_is_quiet(each) or is_lister(each, depth + 1) for each in inner)
    return bool({name, two} & grammar().listers)


def _cuts(words: Sequence[Word]) -> bool:
    """A filter that prints parts of the lines it gets."""
    clusters = [word.text for word in words[1:] if re.match("-[^-]", word.text)]
    return any(letter in each for letter in _CUTTING.get(base_name(words), "") for each in clusters)


def _is_quiet(words: Sequence[Word]) -> bool:
    return base_name(words) in {"test", "[", "true", "false"}


def _prints_no_content(texts: Sequence[str]) -> bool:
    clusters = "".join(text for text in texts if text.startswith("-") and text[:2] != "--")
    return bool(set("lLcq") & set(clusters)) or any(text in _NAMES_ONLY for text in texts)


def _reads_files(words: Sequence[Word]) -> bool:
    """Whether the command reads a file, and so prints the content of the file."""
    reads = [file for file in effects_of(tuple(words)).files if file.access == "read"]
    texts = {word.text for word in words}
    is_deep = any(
        text.startswith("-") and text[:2] != "--" and set("rR") & set(text) for text in texts
    )
    # The argument that `xargs` adds is unknown, and is a file.
    return bool(reads) or is_deep or any(UNKNOWN in word.text for word in words[1:])


# Searches for files whose results may include a denied file.
#
# `find ~ -name id_rsa -exec cat {} +` reads a file whose path stands nowhere in the text. A search
# that starts above a denied path reaches the file, unless its tests ask for an ordinary extension.
# A listing (`ls ~`) is a search as well; it shows names that begin with a dot only by an option,
# and then it was meant to find them.

_SEARCHES = frozenset(("find", "gfind", "bfs", "fd", "fdfind"))
_LISTINGS = frozenset(("ls", "dir", "vdir", "gls", "eza", "exa", "lsd"))
_SHOWING_HIDDEN = {
    **dict.fromkeys(_LISTINGS, ("aAf", ("--all", "--almost-all"))),
    **dict.fromkeys(("fd", "fdfind"), ("Hu", ("--hidden", "--unrestricted"))),
    "rg": ("u.", ("--hidden", "--unrestricted")),
}
"""Letters of short options, and long ones."""
_UNTRACKED = frozenset(("-o", "--others", "-i", "--ignored", "-co", "-oc"))
_NAME_TESTS = frozenset(("-name", "-iname"))
_OTHERWISE = frozenset(("-o", "-or", ",", "!", "-not"))
_EXTENSIONS = frozenset(("-e", "--extension"))
_FEW_LETTERS = 3
_has_extension = re.compile(r".*\.[A-Za-z0-9]{1,8}\Z").match


def searches_in(commands: Iterable[Command]) -> list[Command]:
    """The commands that search for files."""
    names = _SEARCHES | _LISTINGS
    return [each for each in commands if each.program in names]


def shows_hidden(command: Command) -> bool:
    """Whether a listing shows names with a leading dot, or names that git ignores."""
    name = command.program
    if name != "git" and name not in _SHOWING_HIDDEN:
        return False
    texts = command.arguments
    if name == "git":
        is_asked = "ls-files" in texts and not _UNTRACKED.isdisjoint(texts)
        return is_asked and "--exclude-standard" not in texts
    letters, options = _SHOWING_HIDDEN[name]
    clusters = {text for text in texts if text.startswith("-") and not text.startswith("--")}
    is_short = any(not set(letters).isdisjoint(text) for text in clusters)
    # A part of a long option is enough for most programs.
    is_long = any(len(text) > 3 and option.startswith(text) for text in texts for option in options)
    return is_short or is_long


def start_paths(command: Command) -> Iterator[str]:
    """The start paths of a search, absolute; the working directory if there is none."""
    texts = command.arguments
    is_listing = command.program in _LISTINGS
    found = [
        text
        for text in _before_action(texts)
        if "/" in text or text in {".", ".."} or (is_listing and not text.startswith("-"))
    ]
    for place in found or ["."]:
        for directory in command.directories:
            if UNKNOWN not in place:
                yield normalise(posixpath.join(directory, place))


def is_narrowed(command: Command) -> bool:
    """Whether a search finds only names with an extension that it spells out."""
    texts = _before_action(command.arguments)
    if command.program in {"fd", "fdfind"}:
        return not _EXTENSIONS.isdisjoint(texts)
    tests = [text for before, text in pairwise(texts) if before in _NAME_TESTS]
    return bool(tests) and _OTHERWISE.isdisjoint(texts) and all(map(_has_extension, tests))


def names_asked_for(command: Command) -> Iterator[str]:
    """The last names of its tests that hold more than an extension."""
    texts = _before_action(command.arguments)
    for text in texts if command.program not in _LISTINGS else ():
        last = text.rpartition("/")[2].lower()
        if len(re.sub(r"\[[^]]*\]|\W", "", last.partition(".")[0] or last)) >= _FEW_LETTERS:
            yield last
    for before, text in pairwise(texts):
        if before in _EXTENSIONS:
            yield f"*.{text.lower()}"


def regexes(command: Command) -> Iterator[re.Pattern[str] | None]:
    """The regular expressions of a search, as far as Python reads them like find; None: unknown."""
    texts = _before_action(command.arguments)
    for before, text in pairwise(texts):
        if before in {"-regex", "-iregex"}:
            try:  # in the usual dialect of find these signs mean something behind a backslash
                yield re.compile(re.sub(r"\\([()|{}])", r"\1", text.lower()))
            except re.error:
                yield None


def included_names(command: Command) -> Iterator[str]:
    """The names of files that `grep -r --include=GLOB` and `rg -g GLOB` search."""
    texts = command.arguments
    for text, after in pairwise([*texts, ""]):
        option, equals, value = text.partition("=")
        if "grep" in command.program and option == "--include":
            yield value if equals else after
        elif command.program == "rg" and option in {"-g", "--glob", "--iglob"}:
            glob = value if equals else after
            yield "*" if glob.startswith("!") else glob.rpartition("/")[2]
        elif command.program == "rg" and text.startswith("-g"):
            yield "*" if text[2:].startswith("!") else text[2:].rpartition("/")[2]


def reaches(place: str, denied: Iterable[str], *, hidden: bool = True) -> bool:
    """Whether a denied path lies in a folder; `hidden`: also below a name with a leading dot."""
    above = place.rstrip("/") + "/"
    below = [f"{each}/"[len(above) :] for each in denied if f"{each}/".startswith(above)]
    return any(hidden or not each.startswith(".") for each in below)


def is_plain_listing(command: Command) -> bool:
    """`ls` without an option that shows more than a shell's `*` does."""
    return command.program in _LISTINGS and not shows_hidden(command)


def _before_action(texts: Sequence[str]) -> list[str]:
    end = next((at for at, text in enumerate(texts) if text in _ACTIONS), len(texts))
    return list(texts[:end])


# Words of a text that may be part of a file name that is not known.

_LEAVING_OUT = frozenset(("-not", "!", "-v", "--exclude", "--exclude-dir", "--glob=!", "--ignore"))
_EXEC_ACTIONS = frozenset(("-exec", "-execdir", "-ok", "-okdir"))
"""The word after one of these is a program, and no file that is read or written."""
_GIT_PATHS = ("--git-", "--absolute-git-dir")
"""`git rev-parse --git-dir` prints the folder in which git's own files lie."""
_PARTS = re.compile(r"[\s=:,;'\"()]+")
_MAX_TOKENS = 2000
_find_texts = re.compile(r"""'([^'\n]{1,300})'|"([^"\n]{1,300})"|`([^`\n]{1,300})`""").findall


def tokens_of(commands: Sequence[Command]) -> Iterator[Word]:
    """Each as a word with active wildcards; not the arguments of options that exclude files."""
    count = 0
    for text in _texts(commands):
        for token in _PARTS.split(text):
            if token and UNKNOWN not in token:
                count += 1
                if count > _MAX_TOKENS:
                    return
                yield Word(token, has_glob=any(sign in token for sign in "*?["))


def _texts(commands: Sequence[Command]) -> Iterator[str]:
    for command in commands:
        before = ["", ""]
        for word in command.words[1:]:
            if not _LEAVING_OUT & set(before) and before[1] not in _EXEC_ACTIONS:
                yield word.text
            before = [before[1], word.text]
        if (
            command.words
            and command.words[0].text == "git"
            and any(word.text.startswith(_GIT_PATHS) for word in command.words)
        ):
            yield ".git/config"
        for assignment in command.assignments:
            yield assignment.value.text
        for word in command.mentioned:
            yield word.text
        if command.stdin_text is not None:
            yield command.stdin_text.text


def texts_in(code: str) -> list[str]:
    """The quoted texts of code, which may be file names."""
    found = dict.fromkeys(text for texts in _find_texts(code) for text in texts if text)
    return [text for text in found if UNKNOWN not in text]
