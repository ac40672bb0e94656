"""Other agents and programs that run commands without this policy (unguarded.toml). Pure."""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources

from cellwall.parsing.shell.words import UNKNOWN, Word

_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)*\Z")
_PACKAGE = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Unguarded:
    """unguarded.toml."""

    options: Mapping[str, tuple[tuple[str, ...], ...]]
    """By agent: options that turn its questions off, as consecutive words."""
    settings: Mapping[str, tuple[tuple[str, ...], ...]]
    """By agent or editor: sub-commands that change its servers, extensions or settings."""
    verbs: frozenset[str]
    installers: frozenset[str]
    everything: tuple[tuple[str, ...], ...]
    replacing: frozenset[str]
    """Options of installers that replace an installed version."""
    killers: frozenset[str]
    starters: frozenset[str]
    modules: tuple[str, ...]
    copiers: frozenset[str]
    finders: frozenset[str]
    managing: tuple[tuple[str, ...], ...]
    typing: tuple[str, ...]
    """Commands of tmux that type into a terminal."""


@cache
def unguarded() -> Unguarded:
    """The tables of unguarded.toml, parsed once."""
    text = resources.files("cellwall.policy").joinpath("unguarded.toml").read_text("utf-8")
    tables = tomllib.loads(text)
    options, settings = (
        {
            agent: tuple(tuple(option.split()) for option in table.get(key, ()))
            for table in tables["agents"]
            for agent in table["agents"].split()
        }
        for key in ("options", "settings")
    )
    remove, copies = tables["remove"], tables["copies"]
    return Unguarded(
        options,
        settings,
        frozenset(remove["verbs"].split()),
        frozenset(remove["installers"].split()),
        tuple(tuple(each.split()) for each in remove["all"]),
        frozenset(remove["replacing"].split()),
        frozenset(remove["killers"].split()),
        frozenset(copies["starters"].split()),
        tuple(copies["modules"]),
        frozenset(copies["copiers"].split()),
        frozenset(copies["finders"].split()),
        tuple(tuple(each.split()) for each in copies["managing"]),
        tuple(tables["tmux"]["typing"].split()),
    )


def program_of(text: str) -> str:
    """`/usr/bin/pip3.11` is pip3, `python3.12` is python3."""
    name = posixpath.basename(text)
    base = _VERSION.sub("", name)
    major = _VERSION.search(name)
    return f"{base}{major[0].partition('.')[0]}" if major else name


def package_of(text: str) -> str:
    """`@openai/codex@latest` is codex, `Cellwall[claude]==1.0` is cellwall (PEP 503)."""
    name = text.rpartition("/")[2] if text.startswith("@") else posixpath.basename(text)
    found = _PACKAGE.match(name)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


# Agents with their questions off: denied whatever the rules allow.
#
# Parsers of options accept one option in many spellings: `--option value`, `--option=value`,
# `-ovalue`, `-po` in a cluster, an abbreviation, and `--camelCase` for `--camel-case`.

_STARTING = frozenset(
    (
        *("npx", "bunx", "pnpx", "pnpm", "yarn", "npm", "bun", "uvx", "uv", "pipx", "deno"),
        *("node", "nodejs", "tsx", "ts-node", "corepack", "mise", "nvm", "gh"),
    )
)
_PYTHONS = ("python", "pypy")
_SCRIPT = re.compile(r"\.(?:[cm]?js|py)\Z")
_MIN_ABBREVIATION = len("--yolo")
_SHORT_CLUSTER = re.compile(r"-[A-Za-z]{2,}")
_FALSE = frozenset(("false", "0", "no"))
_INSTALLED = re.compile(r"/([^/]+)/versions/[^/]+\Z")
"""The path of an installed program below the name of its version."""
_PACKAGES = "/node_modules/"


def agent_trouble(words: Sequence[Word], directories: Sequence[str] = ()) -> str | None:
    """Why the words start an agent that asks no person, or change its settings; None: neither.

    `directories`: the possible working directories, which script names are relative to.
    """
    for at, agent in _agents_in(words, directories):
        rest = words[at + 1 :]
        for option in unguarded().options[agent]:
            if _has_option([word.text for word in rest], option):
                shown = f"{agent} {' '.join(option)}"
                return f"starts an agent that acts without asking a person ({shown})"
        for setting in unguarded().settings[agent]:
            if _has_setting(rest, setting):
                shown = f"{agent} {' '.join(setting).removesuffix(' *')}"
                return f"changes the settings or extensions of an agent ({shown})"
        if any(_is_unknown_option(word) for word in _before_operands(rest)):
            return (
                f"passes {agent} a word that is known only at run time, which may turn the agent's "
                "questions off; write the word itself, or `--` before it"
            )
    return None


def _agents_in(words: Sequence[Word], directories: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The agents among the words: the program, or an argument of a program that starts packages."""
    known = unguarded().options
    for at, word in enumerate(words):
        text = word.text
        if UNKNOWN in text or text.startswith("-"):
            continue
        name = _SCRIPT.sub("", package_of(text))
        name = re.sub(r"-(?:[cm]?js|py)\Z", "", name)
        if at == 0:
            installed = _INSTALLED.search(text)
            for each in {name, installed[1] if installed else name} & known.keys():
                yield at, each
            continue
        if not _starts_packages(words[0].text):
            continue
        if name in known:
            yield at, name
        elif "/" in text:  # node_modules/@openai/codex/bin/x.js; a folder `q` is none of them
            yield from ((at, part) for part in text.split("/") if part in known and len(part) > 2)
        elif _SCRIPT.search(text):  # `cd node_modules/@openai/codex && node x.js`
            for directory in directories:
                _, inside, package = f"{directory}/".rpartition(_PACKAGES)
                yield from ((at, part) for part in package.split("/") if inside and part in known)


def _starts_packages(text: str) -> bool:
    """`npx claude …` starts it; `grep claude …` does not."""
    program = program_of(text)
    return program.rstrip("0123456789") in _STARTING or program.startswith(_PYTHONS)


def _before_operands(words: Sequence[Word]) -> Iterator[Word]:
    for word in words:
        if word.text == "--":
            return
        yield word


def _is_unknown_option(word: Word) -> bool:
    return not word.is_literal and word.may_be_option


def _has_option(rest: Sequence[str], option: tuple[str, ...]) -> bool:
    for at, text in enumerate(rest):
        following = rest[at + 1] if at + 1 < len(rest) else ""
        if len(option) == 1 and _is_flag(text, option[0]):
            return True
        if len(option) == 2 and any(
            _is_value(value, option[1]) for value in _values(text, following, option[0])
        ):
            return True
    return False


def _has_setting(rest: Sequence[Word], setting: tuple[str, ...]) -> bool:
    """A sub-command of a sub-command: options with values may stand between the two, and a wildcard
    expands to the word where a file has that name."""
    if setting[0].startswith("-"):
        return _has_option([word.text for word in rest], setting)
    left = list(setting)
    for word in rest:
        is_next = fnmatchcase(left[0], word.text) if word.has_glob else word.text == left[0]
        if is_next and not left[1:]:
            return True
        left = left[is_next:]
    return False


def _is_flag(text: str, flag: str) -> bool:
    name, equals, value = text.partition("=")
    if equals and value.lower() in _FALSE:
        return False
    if flag.startswith("--"):
        return _is_long(name, flag)
    is_clustered = _SHORT_CLUSTER.fullmatch(name) is not None and flag[1:] in name[1:]
    return name == flag or is_clustered


def _is_long(name: str, option: str) -> bool:
    spelled = re.sub(r"(?<=[a-z])([A-Z])", r"-\1", name).lower().replace("_", "-")
    return spelled == option.lower() or (
        len(spelled) >= _MIN_ABBREVIATION and option.lower().startswith(spelled)
    )


def _values(text: str, following: str, option: str) -> Iterator[str]:
    """The values of an option, in each spelling."""
    name, equals, value = text.partition("=")
    if option.startswith("--"):
        if _is_long(name, option):
            yield value if equals else following
    elif text.startswith(option) and not text.startswith("--"):
        yield text[len(option) :].removeprefix("=") or following
    elif re.fullmatch(rf"-[A-Za-z]*{re.escape(option[1:])}", text):
        yield following


def _is_value(value: str, wanted: str) -> bool:
    """A setting may be in a table, and its value in quotes with TOML escapes."""
    plain = re.sub(r"[\s'\"]", "", value)
    if wanted.endswith("*"):
        return plain.startswith(wanted[:-1])
    if "=" not in wanted:
        return plain.lower() == wanted.lower()
    name = wanted.partition("=")[0]
    return wanted in plain or (name in plain and "\\" in plain)
