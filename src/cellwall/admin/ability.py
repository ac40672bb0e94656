"""One line of the blast radius, and the kinds of lines: a list, a size, a count, a refusal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from cellwall.core.limits import size_text
from cellwall.core.types import Json

Verb = Literal["read", "write", "execute", "reach", "spend", "keep"]
VERBS: tuple[Verb, ...] = get_args(Verb)
_MAX_NAMED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """One thing that code can do, or cannot."""

    id: str
    """The verb and a name, such as `read.devices`; stable."""
    what: str
    bound: str = ""
    """How far it goes; empty where `what` says all."""
    setting: str = ""
    """The setting that decides; empty for what no setting changes."""
    is_possible: bool = True
    is_weakened: bool = False
    """A `dangerously_` setting allows it."""
    members: tuple[str, ...] = ()
    """What the bound consists of: paths, domains, rules. More of them open more, or, of an
    impossible thing, close more."""
    amount: float | None = None
    """The bound as a number, where a larger one opens more."""

    @property
    def number(self) -> float:
        """The amount of a line that has one; a probe of amounts is for no other line."""
        if self.amount is None:
            raise ValueError(f"{self.id} has no amount")
        return self.amount

    @property
    def verb(self) -> Verb:
        return cast("Verb", self.id.partition(".")[0])

    def to_text(self) -> str:
        bound = f": {self.bound}" if self.bound else ""
        setting = f" [{self.setting}]" if self.setting else ""
        return f"{self.what}{bound}{setting}"

    def to_json(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "verb": self.verb,
            "what": self.what,
            "bound": self.bound,
            "setting": self.setting,
            "is_possible": self.is_possible,
            "is_weakened": self.is_weakened,
            "members": list(self.members),
        }


def named(
    id_: str, what: str, members: Iterable[str], setting: str = "", *, empty: str = "none"
) -> Ability:
    """A thing whose bound is a list of names; without any (`empty`), it is impossible."""
    names = tuple(members)
    return Ability(
        id=id_,
        what=what,
        bound=listed(names) or empty,
        setting=setting,
        is_possible=bool(names),
        members=names,
    )


def sized(id_: str, what: str, size_bytes: int, setting: str) -> Ability:
    """A thing bounded by a number of bytes."""
    bound = size_text(size_bytes)
    return Ability(id=id_, what=what, bound=bound, setting=setting, amount=size_bytes)


def counted(id_: str, what: str, amount: float, unit: str, setting: str) -> Ability:
    """A thing bounded by another number; infinity is no limit."""
    bound = f"{amount:.12g} {unit}".rstrip() if math.isfinite(amount) else "no limit"
    return Ability(id=id_, what=what, bound=bound, setting=setting, amount=amount)


def weakening(id_: str, what: str, setting: str, *, is_on: bool, on: str, off: str) -> Ability:
    """A thing that is impossible unless a `dangerously_` setting allows it."""
    return Ability(
        id=id_,
        what=what,
        bound=on if is_on else off,
        setting=setting,
        is_possible=is_on,
        is_weakened=is_on,
    )


def impossible(id_: str, what: str, bound: str = "") -> Ability:
    """A thing that code cannot do under any setting."""
    return Ability(id=id_, what=what, bound=bound, is_possible=False)


def listed(names: Sequence[str]) -> str:
    """The names in one line, the first of many."""
    more = len(names) - _MAX_NAMED
    shown = ", ".join(names[:_MAX_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown
