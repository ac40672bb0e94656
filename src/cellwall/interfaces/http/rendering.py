"""Outcomes and records for clients on other machines: without paths of this host."""

from __future__ import annotations

import os
from collections.abc import Mapping

from cellwall.core.outcomes import Outcome
from cellwall.core.types import Json


def outcome_json(outcome: Outcome) -> dict[str, Json]:
    """The object of every run. A rule is named by its file's name and line."""
    found = outcome.to_json()
    decision = found["decision"]
    assert isinstance(decision, Mapping)  # noqa: S101  # by `Outcome.to_json`
    found["decision"] = without_path(decision)
    return found


def without_path(decision: Mapping[str, Json]) -> dict[str, Json]:
    """The same decision with the name of the policy file instead of its path."""
    return {**decision, "source": os.path.basename(str(decision.get("source", "")))}
