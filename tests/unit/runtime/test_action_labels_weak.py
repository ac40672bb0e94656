"""A weak suspicion of the guard's classifier labels a session, and nothing else weak does."""

from __future__ import annotations

import pytest

from cellwall.core.outcomes import Finding
from cellwall.runtime.action_labels import finding_sources


@pytest.mark.requirement("GRD-3")
def test_a_weak_suspicion_labels_the_session() -> None:
    weak = Finding("instruction", "low", "m", rule="passage.instruction")
    other = Finding("injection", "low", "m", rule="injection.override.en")
    assert [each.name for each in finding_sources("a", [weak, other])] == [
        "guard finding passage.instruction"
    ]
