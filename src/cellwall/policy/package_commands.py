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
_PIP = frozenset({"install", "download", "wheel", "lock"})
_UV_WORDS = "add build export lock pip run sync tool tree upgrade x"
_PNPM = frozenset({"add", "install", "i", "update", "up", "upgrade", "dlx", "create", "import"})
# With the aliases and misspellings that npm accepts.
_NPM_WORDS = (
    "add ci cit clean-install create exec i in init ins inst insta instal install install-ci-test "
    "install-clean install-test isnt isnta isntal isntall it udpate up update upgrade x ddp dedupe"
)
_NPM = frozenset(_NPM_WORDS.split())
_COMMANDS: Mapping[str, tuple[RegistryName, frozenset[str]]] = {
    "pip": ("pypi", _PIP),
    "uv": ("pypi", frozenset(_UV_WORDS.split())),
    "uvx": ("pypi", ANY),
    "pipx": ("pypi", frozenset({"install", "run", "inject", "upgrade", "upgrade-all", "runpip"})),
    "poetry": ("pypi", frozenset({"add", "install", "update", "lock", "sync", "self"})),
    "pdm": ("pypi", frozenset({"add", "install", "update", "lock", "sync"})),
    "pipenv": ("pypi", frozenset({"install", "lock", "sync", "update", "upgrade"})),
    "hatch": ("pypi", frozenset({"build", "dep", "env"})),
    "rye": ("pypi", frozenset({"add", "build", "install", "lock", "sync", "tools"})),
    "pip-sync": ("pypi", ANY),
    "pip-compile": ("pypi", ANY),
    "-m build": ("pypi", ANY),  # installs what the build of the project needs
    "setup.py": ("pypi", frozenset({"develop", "easy_install", "install", "test"})),
    "easy_install": ("pypi", ANY),
    "npm": ("npm", _NPM),
    "cnpm": ("npm", _NPM),
    "corepack": ("npm", ANY),
    "volta": ("npm", frozenset({"fetch", "install", "run"})),
    "deno": ("npm", frozenset({"add", "cache", "i", "install", "outdated", "update", "x"})),
    "npx": ("npm", ANY),
    "pnpm": ("npm", _PNPM),
    "pnpx": ("npm", ANY),
    "yarn": ("npm", frozenset({"", "add", "install", "up", "upgrade", "dlx", "create", "global"})),
    "yarnpkg": ("npm", frozenset({"", "add", "install", "up", "upgrade", "dlx", "create"})),
    "bun": ("npm", frozenset({"add", "install", "i", "update", "x", "create"})),
    "bunx": ("npm", ANY),
}
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")
_NODE = re.compile(r"node(?:js)?")
# `node …/npm-cli.js`, `python …/pip.pyz`, `node …/pnpm.cjs`
_SCRIPT = re.compile(r"(.+?)(?:-cli)?\.(?:js|cjs|mjs|pyz|py)")
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
    if verbs is ANY or ("" in verbs and all(text.startswith("-") for text in arguments[:1])):
        return registry
    if registry == "npm" and {"audit", "fix"} <= set(arguments):
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
    """The program, the module of `python -m` or the script of `node`, and its arguments."""
    name = _known_name(texts[0])
    if _NODE.fullmatch(name):
        at = next((at for at, text in enumerate(texts) if at and not text.startswith("-")), None)
        return (name, ()) if at is None else (_known_name(texts[at]), texts[at + 1 :])
    if not _PYTHON.fullmatch(name):
        return name, texts[1:]
    for at, text in enumerate(texts[1:], start=1):
        found = _MODULE.fullmatch(text)
        if found is not None:
            rest = ([found[1]] if found[1] else []) + list(texts[at + 1 :])
            if not rest:
                return "", ()
            module = rest[0].partition(".")[0]  # `-m pip.__main__` is pip, too
            # Many projects have a program or a script of this name.
            return ("-m build" if module == "build" else module), rest[1:]
        if text in {"-W", "-X"}:
            continue
        if not text.startswith("-") and texts[at - 1] not in {"-W", "-X"}:
            return _known_name(text), texts[at + 1 :]  # a script, such as …/bin/pip
    return name, ()


def _known_name(path: str) -> str:
    """The name of a program without its folder, its version and the suffix of a script."""
    name = path.rstrip("/").rpartition("/")[2]
    if name not in _COMMANDS and (script := _SCRIPT.fullmatch(name)):
        name = script[1]
    return "pip" if _VERSIONED_PIP.fullmatch(name) else name
