"""The ranked names that Cellwall ships, with their date and source (`bench/popular_names.py`)."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from datetime import date
from importlib import resources
from typing import Any

from cellwall.packages.names import Ecosystem, NameIndex, lookalike_key
from cellwall.packages.npm_names import NpmNameIndex
from cellwall.packages.shipped_lists import read_list


@dataclass(frozen=True, slots=True)
class PopularNames:
    """The names of one registry, the most downloaded first."""

    names: tuple[str, ...]
    day: date
    source: str


@functools.cache
def popular_names(ecosystem: Ecosystem) -> PopularNames:
    """The shipped ranking of a registry."""
    header, *names = read_list(f"popular-{ecosystem.value}")
    day, _, source = header.removeprefix("# ").partition(" ")
    return PopularNames(tuple(names), date.fromisoformat(day), source)


def popular_rank(ecosystem: Ecosystem, name: str) -> int | None:
    """The place of a canonical name in the shipped ranking; builds no index."""
    return _ranks(ecosystem).get(name)


@functools.cache
def _ranks(ecosystem: Ecosystem) -> dict[str, int]:
    names = popular_names(ecosystem).names
    return {name: rank for rank, name in reversed(list(enumerate(names, 1)))}


_FAMOUS_RANK, _OBSCURE_RANK = 100, 10_000


def famous_twin(ecosystem: Ecosystem, name: str) -> str | None:
    """One of the most popular names, of which a name at the end of the ranking has the letters:
    downloads of `panda` are mostly misspelt ones of `pandas`. Builds no index."""
    rank = popular_rank(ecosystem, name)
    if rank is None or rank <= _OBSCURE_RANK:
        return None
    return _famous_keys(ecosystem).get(lookalike_key(name))


@functools.cache
def _famous_keys(ecosystem: Ecosystem) -> dict[str, str]:
    famous = popular_names(ecosystem).names[:_FAMOUS_RANK]
    return {lookalike_key(name): name for name in famous if len(lookalike_key(name)) > 4}


@functools.cache
def name_index(ecosystem: Ecosystem) -> NameIndex:
    """The index of the shipped ranking; the first call builds the index, about 0.4 s."""
    references = _references()
    imports = references["imports"][ecosystem.value]
    kind = NpmNameIndex if ecosystem is Ecosystem.NPM else NameIndex
    return kind(popular_names(ecosystem).names, (*references["products"], *imports))


def imported_package(ecosystem: Ecosystem, name: str) -> str | None:
    """The package that provides a name of an import statement, where the two differ."""
    found = _references()["imports"][ecosystem.value].get(name)
    return None if found is None else str(found)


def popular_spelling(ecosystem: Ecosystem, name: str) -> str | None:
    """The spelling of a popular name with capital letters, if this spelling is another one."""
    written = _references()["capitals"].get(ecosystem.value, ())
    return next((e for e in written if e.lower() == name.lower() and e != name), None)


@functools.cache
def _references() -> dict[str, Any]:
    path = resources.files("cellwall.packages") / "data" / "references.toml"
    return tomllib.loads(path.read_text("utf-8"))
