"""What a change of the configuration opens and closes: two blast radii, line by line. Pure.

A setting that differs and has no line is told as well: what it opens, its reader must judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cellwall.admin.ability import Ability
from cellwall.admin.blast_radius import BlastRadius
from cellwall.admin.setting_effects import Effect, effects_of
from cellwall.config.models import SECTIONS, Settings
from cellwall.core.showing import escaped
from cellwall.core.types import Json

_EFFECTS: tuple[Effect, ...] = ("opens", "closes", "changes")
_MAX_SHOWN = 100


@dataclass(frozen=True, slots=True)
class RadiusChange:
    """One difference. `changes`: neither more nor less, such as the time that records are kept."""

    effect: Effect
    id: str
    what: str
    before: str
    after: str
    setting: str = ""

    def to_text(self) -> str:
        return escaped(f"{self.what}: {self.before} -> {self.after}")

    def to_json(self) -> dict[str, Json]:
        return {
            "effect": self.effect,
            "id": self.id,
            "what": self.what,
            "before": self.before,
            "after": self.after,
            "setting": self.setting,
        }


@dataclass(frozen=True, slots=True)
class RadiusDiff:
    """All differences from one configuration to another."""

    changes: tuple[RadiusChange, ...]

    @property
    def opens(self) -> bool:
        return any(each.effect == "opens" for each in self.changes)

    def to_text(self) -> str:
        if not self.changes:
            return "Nothing opens or closes.\n"
        lines: list[str] = []
        for effect in _EFFECTS:
            found = [each for each in self.changes if each.effect == effect]
            lines += [f"{effect}:"] if found else []
            lines += [f"  {each.to_text()}" for each in found[:_MAX_SHOWN]]
            lines += [f"  and {len(found) - _MAX_SHOWN} more"] if len(found) > _MAX_SHOWN else []
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Json]:
        return {"opens": self.opens, "changes": [each.to_json() for each in self.changes]}


def compare(before: BlastRadius, after: BlastRadius) -> RadiusDiff:
    """What the second configuration opens and closes, compared with the first."""
    old = {each.id: each for each in before.abilities}
    new = {each.id: each for each in after.abilities}
    ids = dict.fromkeys((*old, *new))
    found = [each for id_ in ids for each in _compare_lines(old.get(id_), new.get(id_))]
    # A setting that weakens a wall opens, also where no line of its own tells how.
    told = {each.setting for each in (*before.abilities, *after.abilities) if each.is_weakened}
    for name in dict.fromkeys((*before.weakened, *after.weakened)):
        is_old, is_new = name in before.weakened, name in after.weakened
        if is_old != is_new and name not in told:
            effect: Effect = "opens" if is_new else "closes"
            words = ("set" if is_old else "not set", "set" if is_new else "not set")
            found.append(RadiusChange(effect, f"weakened.{name}", name, *words, name))
    return RadiusDiff(tuple(found))


def compare_settings(before: Settings, after: Settings, diff: RadiusDiff) -> RadiusDiff:
    """The same, with the settings that differ and that no line of the radius has told."""
    told = {each.setting for each in diff.changes}
    found = [
        RadiusChange(effect, f"setting.{name}", name, old, new, name)
        for section, model in SECTIONS.items()
        for key in model.model_fields
        if (name := f"{section}.{key}") not in told
        for effect, old, new in effects_of(name, before, after)
    ]
    return RadiusDiff((*diff.changes, *found))


def _compare_lines(old: Ability | None, new: Ability | None) -> Iterator[RadiusChange]:
    line = new or old
    assert line is not None  # noqa: S101  # one of both has the id
    could, can = _is_possible(old), _is_possible(new)
    if could != can:
        effect: Effect = "opens" if can else "closes"
        yield RadiusChange(effect, line.id, line.what, _shown(old), _shown(new), line.setting)
    elif old is not None and new is not None:
        yield from _compare_bounds(old, new)


def _compare_bounds(old: Ability, new: Ability) -> Iterator[RadiusChange]:
    had, has = set(old.members), set(new.members)
    added = [each for each in new.members if each not in had]
    removed = [each for each in old.members if each not in has]
    more: Effect = "opens" if new.is_possible else "closes"
    less: Effect = "closes" if new.is_possible else "opens"
    for member in added:
        yield RadiusChange(more, new.id, new.what, "not listed", member, new.setting)
    for member in removed:
        yield RadiusChange(less, new.id, new.what, member, "not listed", new.setting)
    if old.amount is not None and new.amount is not None:
        if old.amount != new.amount:
            effect: Effect = "opens" if new.amount > old.amount else "closes"
            yield RadiusChange(effect, new.id, new.what, old.bound, new.bound, new.setting)
    elif not (added or removed) and old.bound != new.bound:
        yield RadiusChange("changes", new.id, new.what, old.bound, new.bound, new.setting)


def _is_possible(line: Ability | None) -> bool:
    """A line that one side lacks, such as that of no shared directory, is impossible there."""
    return line is not None and line.is_possible


def _shown(line: Ability | None) -> str:
    if line is None:
        return "cannot"
    word = "can" if line.is_possible else "cannot"
    return f"{word} ({line.bound})" if line.bound else word
