"""Commands that install packages, and the registry that they install from. Pure.

By the words of one command; wrappers, scripts and code around it are taken apart by the caller. An
unknown word counts as every word: outside of a sandbox such a command is asked about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cellwall.core.packages import RegistryName
from cellwall.parsing.shell.words import UNKNOWN, Word

ANY = frozenset({"*"})
"""Every call installs, with any arguments."""
_PIP = frozenset({"install", "download", "wheel"})
_PNPM = frozenset({"add", "install", "i", "update", "up", "upgrade", "dlx", "create", "import"})
# With the aliases and misspellings that npm accepts.
_NPM_WORDS = (
    "add ci cit clean-install create exec i in init ins inst insta instal install install-ci-test "
    "install-clean install-test isnt isnta isntal isntall it udpate up update upgrade x"
)
_NPM = frozenset(_NPM_WORDS.split())
_COMMANDS: Mapping[str, tuple[RegistryName, frozenset[str]]] = {
    "pip": ("pypi", _PIP),
    "uv": ("pypi", frozenset({"add", "sync", "lock", "run", "tool", "pip", "x"})),
    "uvx": ("pypi", ANY),
    "pipx": ("pypi", frozenset({"install", "run", "inject", "upgrade", "upgrade-all", "runpip"})),
    "poetry": ("pypi", frozenset({"add", "install", "update", "lock", "sync", "self"})),
    "pdm": ("pypi", frozenset({"add", "install", "update", "lock", "sync"})),
    "easy_install": ("pypi", ANY),
    "npm": ("npm", _NPM),
    "npx": ("npm", ANY),
    "pnpm": ("npm", _PNPM),
    "pnpx": ("npm", ANY),
    "yarn": ("npm", frozenset({"", "add", "install", "up", "upgrade", "dlx", "create", "global"})),
    "yarnpkg": ("npm", frozenset({"", "add", "install", "up", "upgrade", "dlx", "create"})),
    "bun": ("npm", frozenset({"add", "install", "i", "update", "x", "create"})),
    "bunx": ("npm", ANY),
}
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")
_VERSIONED_PIP = re.compile(r"pip-?[0-9.]+")
_MODULE = re.compile(r"-[bBdEiIOPqRsSuvx]*m(.*)", re.DOTALL)


_RUNS = frozenset({("uv", "run")})
"""Commands of the project that install only where its environment is not up to date."""
_RUN_WITH = ("--with", "-w")


def registry_of(words: Sequence[Word], *, with_runs: bool = True) -> RegistryName | None:
    """The registry from which this command installs packages; None: it installs none."""
    texts = [word.text for word in words]
    program, arguments = _program(texts)
    known = _COMMANDS.get(program)
    if known is None or (not with_runs and _is_run(program, arguments)):
        return None
    registry, verbs = known
    if verbs is ANY or (not arguments and "" in verbs):
        return registry
    # Options may stand before the verb, and options may take any word as their value.
    is_install = any(text in verbs or UNKNOWN in text for text in arguments)
    return registry if is_install else None


def _is_run(program: str, arguments: Sequence[str]) -> bool:
    """Whether a command of `_RUNS` names no package of its own (`uv run --with x`)."""
    return (program, *arguments[:1]) in _RUNS and not any(
        text.startswith(_RUN_WITH) or UNKNOWN in text for text in arguments
    )


def _program(texts: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The program, or the module of `python -m`, and its arguments."""
    name = texts[0].rpartition("/")[2]
    if _VERSIONED_PIP.fullmatch(name):
        name = "pip"
    if not _PYTHON.fullmatch(name):
        return name, texts[1:]
    for at, text in enumerate(texts[1:], start=1):
        found = _MODULE.fullmatch(text)
        if found is not None:
            rest = ([found[1]] if found[1] else []) + list(texts[at + 1 :])
            return (rest[0], rest[1:]) if rest else ("", ())
        if text in {"-W", "-X"}:
            continue
        if not text.startswith("-") and texts[at - 1] not in {"-W", "-X"}:
            break  # a script, which gets the words after it
    return name, ()
