"""Outcomes for clients on other machines: without paths of this host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from cellwall.core.outcomes import Outcome
from cellwall.core.text import plain
from cellwall.core.types import Json

_INTERNAL = frozenset({"workspace_id", "sandbox_path"})
"""How the host made the cell is of no concern to a client."""


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
