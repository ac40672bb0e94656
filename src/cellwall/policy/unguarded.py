"""Commands that bypass the guard: agents with their permissions off, removal of Cellwall, another
copy of Cellwall, keystrokes for a terminal (unguarded.toml). Pure.

By the words of a command, not by rules: a rule whose program is a wildcard would also match every
unknown word.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from cellwall.parsing.shell.words import UNKNOWN, Command, Word
from cellwall.policy.unguarded_agents import agent_trouble, package_of, program_of, unguarded

_RUNNING = frozenset(("run", "tool", "x", "exec", "dlx"))
_OWN = "cellwall"
_MODULE = re.compile(r"-[bBdEhiIOPqRsSuvVx?]*m(.*)", re.DOTALL)
_REQUIREMENTS = re.compile(r"-[A-Za-z]*r.*|--r(?:e(?:q.*)?)?(?:=.*)?|--file(?:=.*)?")
_OWN_IMPORT = re.compile(
    r"\bcellwall\s*(?:\.\s*|\s+import\s+\(?\s*)(?:interfaces|runtime|__main__)\b"
    r"|(?:run_module|run_path|import_module|__import__|find_spec)\s*\(\s*[rRbBuUfF]*['\"][^'\"\n]*cellwall"
)
_OWN_MODULE = re.compile(r"\bcellwall(?:\.(?:interfaces|runtime|__main__)\b|['\"])")
_OWN_COPY = (
    "starts another copy of Cellwall, past the rules for `cellwall`; write `cellwall` itself"
)
_REMOVAL = "removes Cellwall, which judges and records what agents do"
_REPLACED = "puts another version of Cellwall in the place of the one that judges"
_TMUX_VALUES = frozenset(("-c", "-f", "-L", "-S", "-T"))


def guard_trouble(command: Command) -> str | None:
    """Why this command would bypass the guard; None: its words show no bypass."""
    words = command.words
    if UNKNOWN in words[0].text:
        return None
    texts = [word.text for word in words if UNKNOWN not in word.text]
    program = program_of(texts[0])
    return (
        agent_trouble(words, command.directories)
        or _removal(program, words)
        or _replacement(program, words)
        or _ending(program, texts)
        or _copy(program, texts)
        or _managed(texts)
        or _made_copy(program, command)
        or (_typed(words) if program == "tmux" else None)
    )


def code_guard_trouble(language: str, text: str, made: str = "") -> str | None:
    """The same for code in a command. `made`: texts that the code joins."""
    if language == "python" and (_OWN_IMPORT.search(text) or _OWN_MODULE.search(made)):
        return "imports Cellwall's own program, past the rules for `cellwall`"
    return None


def _removal(program: str, words: Sequence[Word]) -> str | None:
    rules = unguarded()
    named = (program, *(word.text for word in words[1:]))
    for whole in rules.everything:
        if all(word in named for word in whole) and named[0] == whole[0]:
            return _REMOVAL
    if program not in rules.installers:
        return None
    for at, word in enumerate(words[1:], start=1):
        if word.text in rules.verbs:
            return _REMOVAL if any(map(_may_be_own, words[at + 1 :])) else None
    return None


def _replacement(program: str, words: Sequence[Word]) -> str | None:
    """`pip install cellwall` into an environment without it is harmless; another version is not."""
    rules = unguarded()
    if program not in rules.installers or not any(word.text == "install" for word in words[1:]):
        return None
    own = [word.text for word in words[1:] if package_of(word.text.partition("@")[0]) == _OWN]
    is_replacing = any(word.text.partition("=")[0] in rules.replacing for word in words[1:])
    is_pinned = any(re.search(r"[=<>~!@ ]", text) for text in own)
    return _REPLACED if own and (is_replacing or is_pinned) else None


def _ending(program: str, texts: Sequence[str]) -> str | None:
    """`pkill cellwall`, `kill $(pgrep -f cellwall)`; the pattern is a regular expression."""
    if program not in unguarded().killers:
        return None
    for text in texts[1:]:
        if not text.startswith("-") and _names_own(text):
            return "ends Cellwall, which judges and records what agents do"
    return None


def _names_own(pattern: str) -> bool:
    """Whether a pattern matches Cellwall; a pattern for every process is denied elsewhere."""
    plain = re.sub(r"[^a-z]", "", pattern.lower())
    return _OWN in plain or (len(plain) > 3 and plain in _OWN)


def _may_be_own(word: Word) -> bool:
    """A name of Cellwall's package, a wildcard or an unknown word that may be one, or a list."""
    if package_of(word.text) == _OWN or _REQUIREMENTS.fullmatch(word.text):
        return True
    if word.has_glob and fnmatchcase(_OWN, posixpath.basename(word.text).lower()):
        return True
    return UNKNOWN in word.text and _may_become(word.text)


def _may_become(text: str) -> bool:
    parts = (re.escape(part) for part in text.lower().split(UNKNOWN))
    return re.fullmatch(".*".join(parts), _OWN) is not None


def _copy(program: str, texts: Sequence[str]) -> str | None:
    rules = unguarded()
    if program not in rules.starters:
        return None
    if program.startswith(("python", "pypy")):
        modules = _modules(texts)
        is_own = any(each.partition(".")[0] in rules.modules for each in modules)
        return _OWN_COPY if is_own else None
    for at, text in enumerate(texts[1:], start=1):
        before = texts[at - 1]
        is_source = before in {"--from", "--spec", "-p", "--package", "--with"}
        if package_of(text.rpartition("=")[2]) in rules.modules and (
            is_source or text.startswith(("--from=", "--spec=", "--package="))
        ):
            return _OWN_COPY
        if text.startswith("-") or is_source or text in _RUNNING:
            continue
        is_fetched = program in {"uvx", "npx", "bunx"} or (
            bool({"tool", "x"} & set(texts[1:at])) or (program == "pipx" and "run" in texts[1:at])
        )
        return _OWN_COPY if is_fetched and package_of(text) in rules.modules else None
    return None


def _modules(texts: Sequence[str]) -> Iterator[str]:
    """`-m NAME`, `-mNAME`, also at the end of a cluster: `-Im NAME`."""
    for at, text in enumerate(texts[1:], start=1):
        found = _MODULE.fullmatch(text)
        if found is not None and (found[1] or at + 1 < len(texts)):
            yield found[1] or texts[at + 1]


def _managed(texts: Sequence[str]) -> str | None:
    """`python3 .venv/bin/cellwall approvals allow 1`, `./cellwall2 policy trust`."""
    for at, text in enumerate(texts):
        is_own_name = text == _OWN and at == 0  # rules match this name
        if _OWN not in text.lower() or text.startswith("-") or is_own_name:
            continue
        if at and not _runs_files(texts[0]):
            return None
        rest = [each for each in texts[at + 1 :] if not each.startswith("-")]
        if any(tuple(rest[: len(each)]) == each for each in unguarded().managing):
            return _OWN_COPY
    return None


def _runs_files(text: str) -> bool:
    program = program_of(text)
    return program.startswith(("python", "pypy", "uv", "pdm", "poetry", "hatch", "pipenv", "rye"))


def _made_copy(program: str, command: Command) -> str | None:
    """`cp "$(command -v cellwall)" cw`: the rules for `cellwall` do not match another name."""
    rules = unguarded()
    arguments = command.words[1:]
    is_kept = program in rules.copiers or any(file.access == "write" for file in command.files)
    is_read = any(_is_own_program(word.text.removeprefix("if="), word) for word in arguments)
    reads = [file.path for file in command.files if file.access == "read"]
    if is_kept and (is_read or any(_is_own_program(path.text, path) for path in reads)):
        return "makes a copy of Cellwall's program, past the rules for `cellwall`"
    is_found = program in rules.finders and command.is_feeding
    if is_found and any(_is_own_program(f"bin/{word.text}", word) for word in arguments):
        return "hands the path of Cellwall's program to another command; write `cellwall` itself"
    return None


def _is_own_program(text: str, word: Word) -> bool:
    folder, _, name = text.rpartition("/")
    is_named = name == _OWN or (word.has_glob and fnmatchcase(_OWN, name))
    return is_named and posixpath.basename(folder) in {"bin", "Scripts"}


def _typed(words: Sequence[Word]) -> str | None:
    """A command of tmux may be abbreviated, and stand behind `;`."""
    for word in _tmux_commands(words[1:]):
        text = word.text.rstrip(";")
        may_type = any(each.startswith(text) for each in unguarded().typing) and len(text) > 1
        if may_type or not word.is_literal:
            return "types into another terminal, which may run a person's shell or show a question"
    return None


def _tmux_commands(words: Sequence[Word]) -> Iterator[Word]:
    is_command, is_value, is_global = True, False, True
    for word in words:
        if is_value:
            is_value = False
        elif is_command and is_global and word.text.startswith("-"):
            is_value = word.text in _TMUX_VALUES
        elif is_command and word.text not in {"", ";"}:
            yield word
            is_command = is_global = False
        if word.text.endswith(";"):
            is_command = True
