"""Outcomes and records for clients on other machines: without paths of this host."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cellwall
from cellwall.core.outcomes import Outcome
from cellwall.core.text import plain
from cellwall.core.types import Json
from cellwall.runtime.app import App

_INTERNAL = frozenset({"workspace_id", "sandbox_path"})
"""How the host made the cell is of no concern to a client."""
_HIDDEN = frozenset({"detail", "directory"})
"""For the record alone."""


def outcome_json(outcome: Outcome) -> dict[str, Json]:
    """The object of every run. A rule is named by its file's name and line."""
    found = {name: value for name, value in outcome.to_json().items() if name not in _INTERNAL}
    decision = found["decision"]
    assert isinstance(decision, Mapping)  # noqa: S101  # by `Outcome.to_json`
    found["decision"] = without_path(decision)
    clean: Any = plain(found)
    return dict(clean)


def without_path(decision: Mapping[str, Json]) -> dict[str, Json]:
    """The same decision with the name of the policy file instead of its path."""
    return {**decision, "source": os.path.basename(str(decision.get("source", "")))}


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Removes what tells about this host from records: folders, policy files, internal details."""

    pattern: re.Pattern[str]

    @classmethod
    def of(cls, app: App) -> HostPaths:
        home, package = os.path.expanduser("~"), os.path.dirname(cellwall.__file__)
        known = {os.path.realpath(each) for each in (app.store.home, package, home)}
        known |= {app.store.home, package, home}
        longest_first = sorted(known - {"/"}, key=len, reverse=True)
        words = "|".join(re.escape(each) for each in longest_first)
        return cls(re.compile(rf"(?:{words})[^\s'\"]*"))

    def hide_in(self, text: str) -> str:
        """The text without paths of the host."""
        return self.pattern.sub("[host path]", text)

    def hide(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The record without paths of the host."""
        found: Any = self._hide(record)
        return dict(found)

    def _hide(self, value: object, key: str = "") -> object:
        if key == "source" and isinstance(value, str):
            return os.path.basename(value)
        match value:
            case str():
                return self.hide_in(value)
            case Mapping():
                kept = {name: each for name, each in value.items() if name not in _HIDDEN}
                return {name: self._hide(each, name) for name, each in kept.items()}
            case list() | tuple():
                return [self._hide(each, key) for each in value]
            case _:
                return value
