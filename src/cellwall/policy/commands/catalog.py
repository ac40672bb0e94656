"""The argument models as they stand in `data/`: read once, each parsed when it is first asked.

One table per program; `also` lists its other names. In a model:

    flags, values, optional, next, digits    options that are harmless, by what they take
    reads, writes                            options whose value is a path
    lists                                    options whose value is a file of names to read
    folders                                  options whose value is the directory it changes to
    does                                     options that do more, with what they do
    looks                                    patterns for words that are no listed option
    cases                                    named tables of patterns for values, used as `@name`
    operands, last                           what the words are that belong to no option
    always                                   what the command does with any arguments
    typed                                    a text on standard input is commands for the program
    keeps                                    the file it changes when it does something dangerous
    sub, harmless, other                     sub-commands; those without a model; all others

`forbidden` is denied whatever is allowed. `danger-read`, `danger-write`, `danger-script` and
`danger-folder` need a rule that spells out the option, and their value is also judged as the file,
the command or the directory it is.

What a value does is written as `KIND [DETAIL] [flag|optional|next|pair][: REASON]`. An option that
is in no list is taken for a flag, so that the word after it is looked at as well. A `values` entry
that is wrong would hide a word: when in doubt, leave it out.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, lru_cache
from typing import Any, Final

FOLDER: Final = os.path.join(os.path.dirname(__file__), "data")

RISKY: Final = frozenset(
    [
        *("script", "inner", "words", "package", "program", "code"),
        *("danger", "danger-read", "danger-write", "danger-script", "danger-folder"),
        "forbidden",
    ]
)
KINDS: Final = RISKY | {
    "value",
    "read",
    "write",
    "assign",
    "query",
    "inplace",
    "stdin",
    "none",
    "names",
    "folder",
}
TAKES_REST: Final = frozenset(("inner", "words", "package"))
_ALWAYS_FLAGS: Final = frozenset(("query", "stdin"))

_HEADER = re.compile(r'^\[(?:"([^"]+)"|([\w+-]+))', re.MULTILINE)
_ALSO = re.compile(r'^also = "([^"]*)"', re.MULTILINE)
_SYSTEM_FOLDERS = frozenset(("", "/bin", "/sbin", "/usr/bin", "/usr/sbin"))
_VERSION = re.compile(r"-?[0-9]+(?:\.[0-9]+)*$")
_FLAVOUR = re.compile(r"\.(?:basic|tiny|nox|gtk3?|traditional|openbsd|exe|gnu)$")

Table = Mapping[str, Any]


class Takes(Enum):
    """Where the value of an option stands."""

    NOTHING = "flag"
    VALUE = ""
    GLUED = "optional"
    """Only in the same word: `-iSUFFIX`, `--color=WHEN`."""
    DIGITS = "digits"
    """Digits in the same word, then the cluster goes on: `perl -0777ne`."""
    NEXT = "next"
    """Always the next word, and the cluster goes on: `bash -oc pipefail TEXT`."""
    PAIR = "pair"
    """Two words, of which the second is what counts: `jq --slurpfile NAME FILE`."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a word does. With cases, the first pattern that fits its beginning decides."""

    kind: str = "value"
    detail: str = ""
    why: str = ""
    cases: tuple[tuple[re.Pattern[str], Effect], ...] = ()

    @property
    def kinds(self) -> frozenset[str]:
        """All that it may turn out to be."""
        if not self.cases:
            return frozenset((self.kind,))
        return frozenset(kind for _, effect in self.cases for kind in effect.kinds)

    @property
    def is_risky(self) -> bool:
        return not RISKY.isdisjoint(self.kinds)


NOTHING: Final = Effect()
DIGITS: Final = "0123456789"


@dataclass(frozen=True, slots=True)
class Option:
    """One option, under all its names."""

    names: tuple[str, ...]
    takes: Takes = Takes.NOTHING
    effect: Effect = NOTHING
    letters: str = DIGITS
    """What its value is made of, where the cluster goes on behind it."""


@dataclass(frozen=True, slots=True)
class Model:
    """What the arguments of one program, or of one sub-command, mean."""

    name: str
    options: Mapping[str, Option] = field(default_factory=dict)
    operands: tuple[Effect, ...] = ()
    last: Effect | None = None
    looks: Effect = NOTHING
    subs: Mapping[str, Model] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()
    other: Effect = NOTHING
    always: Effect = NOTHING
    cases: Mapping[str, Effect] = field(default_factory=dict)
    ends: frozenset[str] = frozenset()
    """Options after whose value nothing is an option any more."""
    supplies: frozenset[str] = frozenset()
    """Options that stand for the first operand: `grep -e PATTERN FILE`."""
    stops: bool = False
    """The first operand ends the options."""
    is_strict: bool = False
    """Its lists are complete; an option that is not in them is a danger."""
    is_single: bool = False
    """Long options have one dash, and there are no clusters: `openssl -in FILE`."""
    is_exact: bool = False
    """Long options cannot be shortened."""
    is_bundled: bool = False
    """The first word is a cluster, dash or not: `tar xzf`."""
    is_wrapper: bool = False
    assigns: bool = False
    """`NAME=VALUE` words stand before the inner command."""
    is_anywhere: bool = False
    """Its global options may stand behind the sub-command as well."""
    is_abbreviated: bool = False
    """Its sub-commands may be written by their first letters: `ip net e`."""
    is_typed: bool = False
    """It takes commands from a text on its standard input, as a person would type them."""
    stdin: str = ""
    """The language it reads from standard input when it has no operand."""
    stdin_until: int = 1
    """How many operands it takes until it does not read that any more."""
    keeps: str = ""
    """The file of settings that it changes where it does something dangerous."""
    why: str = ""

    @property
    def has_subs(self) -> bool:
        return bool(self.subs or self.harmless)

    def behind(self) -> Model:
        """Its global options alone, for the words behind a sub-command without a model."""
        options = _doing(self.options)
        return Model(self.name, options, looks=self.looks, is_risky=self.is_risky)

    is_risky: bool = False
    """Some option of it can run code, or write where its operands do not say."""


def find_model(program: str) -> Model | None:
    """The model for a program, by its base name: `/usr/bin/python3.11` is `python`."""
    name = canonical(program)
    return None if name is None else _load_model(name)


@lru_cache(maxsize=4096)
def canonical(program: str) -> str | None:
    """The name under which a program is listed, if it is."""
    known = _names()
    base = os.path.basename(program)
    bare = _FLAVOUR.sub("", base)
    for name in (base, bare, _VERSION.sub("", bare)):
        if name in known:
            return known[name]
    return None


def is_called_plainly(program: str) -> bool:
    """By a listed name, alone or in a directory of the system. `./env` and `env1` may be anybody's
    program: its model tells what else to look at, and not that the program itself is harmless."""
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
def _load_model(name: str) -> Model:
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
        "flags",
        "values",
        "optional",
        "digits",
        "letters",
        "next",
        "reads",
        "writes",
        "lists",
        "folders",
    }
    | _SWITCHES.keys()
)


def build_model(name: str, table: Table, outer: Model | None = None) -> Model:
    """A model from its table. Raises ValueError or KeyError for data that is wrong."""
    if unknown := table.keys() - _KEYS:
        raise ValueError(f"{name}: {', '.join(sorted(unknown))} is no key")
    why = table.get("why", "")
    cases = dict(outer.cases) if outer else {}
    for key, patterns in table.get("cases", {}).items():
        cases[key] = _cases(patterns, cases)
    inherits = table.get("inherit", outer.is_anywhere) if outer else False
    # What is harmless stays behind: `-e` may take a value there and none here.
    inherited = _doing(outer.options) if outer and inherits else {}
    options = {**inherited, **_options(table, cases)}
    named = table.get("operands", ())
    operands = (named,) if isinstance(named, str) else tuple(named)
    effects = tuple(_effect(text, cases, why)[0] for text in operands)
    last = _effect(table["last"], cases, why)[0] if "last" in table else None
    looks = _cases(table.get("looks", {}), cases)
    if outer and inherits and looks is NOTHING:
        looks = outer.looks
    model = Model(
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
    subs: dict[str, Model] = {}
    for names, inner in table.get("sub", {}).items():
        built = build_model(f"{name} {names.split()[0]}", inner, model)
        subs |= dict.fromkeys(names.split(), built)
    return replace(model, subs=subs)


def _is_risky(options: Iterable[Option], looks: Effect, operands: Iterable[Effect]) -> bool:
    placed = {kind for effect in operands for kind in effect.kinds}
    kinds = looks.kinds | {kind for option in options for kind in option.effect.kinds}
    # Where the operands are written, an unknown one is judged as a path that is written.
    risky = RISKY | {"assign"} | (frozenset() if placed & {"write", "inplace"} else {"write"})
    return not risky.isdisjoint(kinds) or not TAKES_REST.isdisjoint(placed)


def _doing(options: Mapping[str, Option]) -> dict[str, Option]:
    return {name: option for name, option in options.items() if option.effect != NOTHING}


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
