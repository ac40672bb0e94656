"""The argument models in `data/`, each parsed on first use, and the groups of programs.

One table per program; `also` lists its other names. In a model:

    flags, values, optional, next, digits    options that are harmless, by what they take
    reads, writes                            options whose value is a path
    lists                                    options whose value is a file of names to read
    folders                                  options whose value is the directory it changes to
    does                                     options with an effect, and the effect
    looks                                    patterns for words that are no listed option
    cases                                    named tables of patterns for values, used as `@name`
    operands, last                           the effects of the operands
    always                                   the effect of the command with any arguments
    typed                                    a text on standard input is commands for the program
    keeps                                    the settings file that a dangerous option changes
    sub, harmless, other                     sub-commands; those without a model; all others

`forbidden` is denied whatever is allowed. `danger-read`, `danger-write`, `danger-script` and
`danger-folder` need a rule that spells out the option, and their value is also judged as the file,
the command or the directory it is.

The effect of a value is written as `KIND [DETAIL] [flag|optional|next|pair][: REASON]`. An option
that is in no list counts as a flag, so that the word after it is judged as well. A wrong `values`
entry would hide a word: when in doubt, leave it out.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Final

from cellwall.parsing.shell.words import Word
from cellwall.policy.commands.arguments import (
    KINDS,
    NOTHING,
    RISKY,
    TAKES_REST,
    ArgumentModel,
    Effect,
    Option,
    Takes,
    with_effects,
)

FOLDER: Final = os.path.join(os.path.dirname(__file__), "data")

_ALWAYS_FLAGS: Final = frozenset(("query", "stdin"))

_HEADER = re.compile(r'^\[(?:"([^"]+)"|([\w+-]+))', re.MULTILINE)
_ALSO = re.compile(r'^also = "([^"]*)"', re.MULTILINE)
_SYSTEM_FOLDERS = frozenset(("", "/bin", "/sbin", "/usr/bin", "/usr/sbin"))
_VERSION = re.compile(r"-?[0-9]+(?:\.[0-9]+)*$")
_FLAVOUR = re.compile(r"\.(?:basic|tiny|nox|gtk3?|traditional|openbsd|exe|gnu)$")

Table = Mapping[str, Any]


def find_model(program: str) -> ArgumentModel | None:
    """The model for a program, by its base name: `/usr/bin/python3.11` is `python`."""
    name = canonical(program)
    return None if name is None else _load_model(name)


@lru_cache(maxsize=4096)
def canonical(program: str) -> str | None:
    """The name of the model of a program; None: there is no model."""
    known = _names()
    base = os.path.basename(program)
    bare = _FLAVOUR.sub("", base)
    for name in (base, bare, _VERSION.sub("", bare)):
        if name in known:
            return known[name]
    return None


def is_called_plainly(program: str) -> bool:
    """Whether a program is called by a listed name, alone or in a system directory. `./env` and
    `env1` may be any program: the model of `env` does not make them harmless."""
    folder, base = os.path.split(program)
    return base in _names() and folder in _SYSTEM_FOLDERS


def programs() -> tuple[str, ...]:
    """Every program that has a model, by its first name."""
    return tuple(_chunks())


@cache
def _chunks() -> Mapping[str, str]:
    chunks: dict[str, str] = {}
    for file in sorted(os.listdir(FOLDER)):
        if file.endswith(".toml"):
            with open(os.path.join(FOLDER, file), encoding="utf-8") as stream:
                text = stream.read()
            starts = [*_HEADER.finditer(text)]
            ends = [start.start() for start in starts[1:]] + [len(text)]
            for start, end in zip(starts, ends, strict=True):
                name = start[1] or start[2]
                chunks[name] = chunks.get(name, "") + text[start.start() : end]
    return chunks


@cache
def _names() -> Mapping[str, str]:
    names: dict[str, str] = {}
    for name, chunk in _chunks().items():
        also = _ALSO.search(chunk)
        for other in (name, *(also[1].split() if also else ())):
            if names.setdefault(other, name) != name:
                raise ValueError(f"{other} has two models")
    return names


@cache
def _load_model(name: str) -> ArgumentModel:
    return build_model(name, tomllib.loads(_chunks()[name])[name])


_SWITCHES: Final = {
    "stops": "stops",
    "single": "is_single",
    "bundled": "is_bundled",
    "wrapper": "is_wrapper",
    "assigns": "assigns",
    "abbreviated": "is_abbreviated",
    "anywhere": "is_anywhere",
    "typed": "is_typed",
}
_KEYS: Final = (
    {"also", "does", "looks", "cases", "operands", "last", "always", "sub", "harmless", "other"}
    | {"ends", "supplies", "stdin", "stdin_until", "strict", "exact", "inherit", "why", "keeps"}
    | {
        *("flags", "values", "optional", "digits", "letters", "next", "reads", "writes", "lists"),
        "folders",
    }
    | _SWITCHES.keys()
)


def build_model(name: str, table: Table, outer: ArgumentModel | None = None) -> ArgumentModel:
    """A model from its table. Raises ValueError or KeyError for data that is wrong."""
    if unknown := table.keys() - _KEYS:
        raise ValueError(f"{name}: {', '.join(sorted(unknown))} is no key")
    why = table.get("why", "")
    cases = dict(outer.cases) if outer else {}
    for key, patterns in table.get("cases", {}).items():
        cases[key] = _cases(patterns, cases)
    inherits = table.get("inherit", outer.is_anywhere) if outer else False
    # Harmless options are not inherited: `-e` may take a value there and none here.
    inherited = with_effects(outer.options) if outer and inherits else {}
    options = {**inherited, **_options(table, cases)}
    named = table.get("operands", ())
    operands = (named,) if isinstance(named, str) else tuple(named)
    effects = tuple(_effect(text, cases, why)[0] for text in operands)
    last = _effect(table["last"], cases, why)[0] if "last" in table else None
    looks = _cases(table.get("looks", {}), cases)
    if outer and inherits and looks is NOTHING:
        looks = outer.looks
    model = ArgumentModel(
        name=name,
        options=options,
        operands=effects,
        last=last,
        looks=looks,
        harmless=frozenset(table.get("harmless", "").split()),
        other=_effect(table.get("other", "value"), cases, why)[0],
        always=_effect(table.get("always", "value"), cases, why)[0],
        cases=cases,
        ends=frozenset(table.get("ends", "").split()),
        supplies=frozenset(table.get("supplies", "").split()),
        is_strict=table.get("strict", "sub" in table or "harmless" in table or _has_rest(operands)),
        is_exact=table.get("exact", outer.is_exact if outer else False),
        **{field: table.get(key, False) for key, field in _SWITCHES.items()},
        keeps=table.get("keeps", ""),
        stdin=table.get("stdin", ""),
        stdin_until=table.get("stdin_until", 1),
        why=why,
        is_risky="sub" in table
        or "other" in table
        or _is_risky(options.values(), looks, (*effects, last or NOTHING)),
    )
    subs: dict[str, ArgumentModel] = {}
    for names, inner in table.get("sub", {}).items():
        built = build_model(f"{name} {names.split()[0]}", inner, model)
        subs |= dict.fromkeys(names.split(), built)
    return replace(model, subs=subs)


def _is_risky(options: Iterable[Option], looks: Effect, operands: Iterable[Effect]) -> bool:
    placed = {kind for effect in operands for kind in effect.kinds}
    kinds = looks.kinds | {kind for option in options for kind in option.effect.kinds}
    # Where operands are written, an unknown operand is judged as a written path.
    risky = RISKY | {"assign"} | (frozenset() if placed & {"write", "inplace"} else {"write"})
    return not risky.isdisjoint(kinds) or not TAKES_REST.isdisjoint(placed)


def _has_rest(operands: Iterable[str]) -> bool:
    return any(text.split(":")[0].split()[0] in TAKES_REST for text in operands)


_LISTS: Final = (
    ("flags", Takes.NOTHING, NOTHING),
    ("values", Takes.VALUE, NOTHING),
    ("optional", Takes.GLUED, NOTHING),
    ("digits", Takes.DIGITS, NOTHING),
    ("next", Takes.NEXT, NOTHING),
    ("reads", Takes.VALUE, Effect("read")),
    ("writes", Takes.VALUE, Effect("write")),
    ("lists", Takes.VALUE, Effect("names")),
    ("folders", Takes.VALUE, Effect("folder")),
)


def _options(table: Table, cases: Mapping[str, Effect]) -> dict[str, Option]:
    options: dict[str, Option] = {}

    def add(option: Option) -> None:
        for name in option.names:
            if options.setdefault(name, option) is not option:
                raise ValueError(f"{name} is listed twice")

    for key, takes, effect in _LISTS:
        for name in table.get(key, "").split():
            add(Option((name,), takes, effect))
    for name, letters in table.get("letters", {}).items():
        add(Option((name,), Takes.DIGITS, letters=letters))
    for names, text in table.get("does", {}).items():
        effect, takes = _effect(text, cases, "")
        add(Option(tuple(names.split()), takes, effect))
    return options


def _effect(text: str, cases: Mapping[str, Effect], why: str) -> tuple[Effect, Takes]:
    head, _, reason = text.partition(": ")
    kind, *rest = head.split()
    takes = Takes.NOTHING if kind in _ALWAYS_FLAGS else Takes.VALUE
    if rest and rest[-1] in ("flag", "optional", "next", "pair"):
        takes = Takes(rest.pop())
    if kind.startswith("@"):
        return cases[kind[1:]], takes
    if kind not in KINDS or len(rest) > 1:
        raise ValueError(f"{text!r} is no effect")
    if kind in RISKY and not (reason or why or (kind == "program" and rest)):
        raise ValueError(f"{text!r} needs a reason")
    return Effect(kind, rest[0] if rest else "", reason or why), takes


def _cases(patterns: Table, cases: Mapping[str, Effect]) -> Effect:
    if not patterns:
        return NOTHING
    found = ((re.compile(text), _effect(effect, cases, "")[0]) for text, effect in patterns.items())
    return Effect(cases=tuple(found))


# Shell builtins and groups of programs, as data (grammar.toml).


@dataclass(frozen=True, slots=True)
class Grammar:
    """The tables of grammar.toml, which explains each of them."""

    neutral: Mapping[str, str]
    listers: frozenset[str]
    filters: frozenset[str]
    whole: Mapping[str, frozenset[str]]
    """By access: programs that touch whole folders."""
    unpacking: frozenset[str]
    manifests: Mapping[str, frozenset[str]]
    refused: Mapping[str, str]
    unread: frozenset[str]
    printing: frozenset[str]

    def is_printing(self, words: Sequence[Word]) -> bool:
        """Whether the command is, word for word, one that only prints."""
        is_known = all(word.is_literal and " " not in word.text for word in words)
        return is_known and " ".join(word.text for word in words) in self.printing


@cache
def grammar() -> Grammar:
    """The tables of grammar.toml, parsed once."""
    text = resources.files(__package__).joinpath("grammar.toml").read_text("utf-8")
    data = tomllib.loads(text)
    return Grammar(
        data["neutral"],
        frozenset(data["listers"]["names"]),
        frozenset(data["filters"]["names"]),
        {access: frozenset(data["whole"][access]) for access in ("read", "write")},
        frozenset(data["whole"]["unpacking"]),
        {name: frozenset(text.split()) for name, text in data["manifests"].items()},
        data["refused"],
        frozenset(data["unread"]["names"]),
        frozenset(data["printing"]["commands"]),
    )
